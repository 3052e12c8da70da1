"""CHANGES that cannot be served: each gets an ERR in the words that clients know, and leaves nothing behind."""

import json
from typing import Any

import pytest
from authors import NOTE, Author, snapshot
from sockets import RelayClient

ONE_AUTHOR = "snapshot CHANGES currently requires exactly one author"
SOMEONE = Author.of(b"\x0c" * 32).pubkey


@pytest.mark.parametrize("mode", ["tail", "bootstrap", None])
@pytest.mark.parametrize(
    "authors", [None, [], [SOMEONE, "0" * 64], [SOMEONE] * 2], ids=["none", "empty", "two", "twice"]
)
async def test_exactly_one_author_is_required(client: RelayClient, mode: str | None, authors: list | None) -> None:
    filter: dict[str, Any] = {"kinds": [NOTE]}
    if mode is not None:
        filter["mode"] = mode
    if authors is not None:
        filter["authors"] = authors
    feed = await client.changes(filter)
    if authors == [SOMEONE] * 2 and feed.error is None:
        return
    assert feed.frames == [["CHANGES", feed.sub, "ERR", ONE_AUTHOR]]
    await client.still_answers()


@pytest.mark.parametrize("mode", ["head", "", "TAIL", "Bootstrap", 1, [], {}, True])
async def test_an_unknown_mode_is_refused(client: RelayClient, author: Author, mode: Any) -> None:
    feed = await client.changes({"mode": mode, "authors": [author.pubkey], "kinds": [NOTE]})
    assert feed.error and feed.frames[-1][2] == "ERR"
    await client.still_answers()


WRONG = [
    *({"since": value} for value in ("0", -1, 1.5, [], {}, True, 2**70)),
    *({"until_seq": value} for value in ("0", -1, 1.5, [], {}, True)),
    *({"limit": value} for value in ("0", -1, 1.5, [], {}, True)),
    *({"kinds": value} for value in (NOTE, str(NOTE), ["x"], [None], [1.5], [True], {})),
    *({"authors": value} for value in (SOMEONE, [1], [None], {}, [[SOMEONE]])),
    *({"#d": value} for value in ("x", [1], {}, [None], 1)),
    *({"#o": value} for value in ("put", [1], {})),
    *({"#c": value} for value in ("x", [1], {})),
    *({"live": value} for value in ("true", 1, [], {})),
]


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
@pytest.mark.parametrize("mode", ["tail", "bootstrap"])
async def test_a_filter_of_the_wrong_type_is_refused(
    client: RelayClient, author: Author, mode: str, wrong: dict[str, Any]
) -> None:
    filter = {"mode": mode, "authors": [author.pubkey], "kinds": [NOTE], **wrong}
    frame = await client.exchange(json.dumps(["CHANGES", "bad", filter]))
    if mode == "bootstrap" and {"since", "until_seq", "live"} & wrong.keys():
        # These mean nothing on a bootstrap: refusing and ignoring them are both honest.
        assert frame[:3] == ["CHANGES", "bad", "ERR"] or frame[:3] == ["CHANGES", "bad", "STATUS"]
    else:
        assert frame[:3] == ["CHANGES", "bad", "ERR"], frame
        assert "Traceback" not in frame[3] and "sqlite" not in frame[3].lower()
    await client.still_answers()


@pytest.mark.parametrize(
    "message",
    [
        '["CHANGES"]',
        '["CHANGES","x"]',
        '["CHANGES","x",null]',
        '["CHANGES","x",1]',
        '["CHANGES","x",[]]',
        '["CHANGES","x","tail"]',
        '["CHANGES",1,{}]',
        '["CHANGES",null,{}]',
        '["CHANGES",{},{}]',
    ],
)
async def test_changes_of_the_wrong_shape_are_refused(client: RelayClient, message: str) -> None:
    assert await client.refusal(message)
    await client.still_answers()


@pytest.mark.parametrize("kind", [1, 0, 30023, 39999, 50000])
async def test_a_kind_outside_the_sync_range_gives_no_events(client: RelayClient, author: Author, kind: int) -> None:
    await client.store(author.event(kind, "plain", [["d", "x"], ["o", "put"], ["vc", "x", "1"]]))
    for mode in ("tail", "bootstrap"):
        feed = await client.changes({"mode": mode, "authors": [author.pubkey], "kinds": [kind]})
        assert feed.events == [] and feed.snapshots == []
        assert feed.error is not None or feed.eose is not None


@pytest.mark.parametrize("pubkey", ["", "x", "zz" * 32, "AB" * 32, "ab" * 31])
async def test_an_author_that_is_no_key_gives_no_events(client: RelayClient, pubkey: str) -> None:
    feed = await client.changes({"mode": "tail", "authors": [pubkey], "kinds": [NOTE]})
    assert feed.events == []
    await client.still_answers()


async def test_an_error_keeps_no_subscription(client: RelayClient, author: Author) -> None:
    control = await client.tail(author, live=True)
    feed = await client.changes({"mode": "nonsense", "authors": [author.pubkey], "kinds": [NOTE], "live": True})
    assert feed.error
    await client.store(snapshot(author, "note", {"x": 1}))
    await client.next_change(control.sub)
    await client.still_answers()
    assert client.waiting(feed.sub) == []


async def test_an_error_on_one_feed_leaves_the_others(client: RelayClient, author: Author) -> None:
    good = await client.tail(author, live=True)
    for n in range(20):
        assert (await client.changes({"mode": "tail", "authors": [], "live": True}, sub=f"bad{n}")).error == ONE_AUTHOR
    event = snapshot(author, "note", {"x": 1})
    await client.store(event)
    assert (await client.next_change(good.sub))[1] == event


async def test_a_filter_with_a_key_nobody_knows_does_no_harm(client: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"x": 1})
    await client.store(event)
    feed = await client.tail(author, someday={"a": [1]}, include_compacted=False)
    assert feed.error is not None or feed.ids == [event["id"]]
    await client.still_answers()
