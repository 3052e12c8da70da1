"""CHANGES in tail mode: replay in the order of acceptance, from a checkpoint, through any filter, and live after it."""

import asyncio
import json
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, Event, ids, snapshot, versions
from processes import Node
from sockets import Feed, RelayClient


def assert_ascending(feed: Feed) -> None:
    assert feed.seqs == sorted(set(feed.seqs)), feed.seqs


async def test_the_tail_is_everything_in_the_order_of_acceptance(client: RelayClient, author: Author) -> None:
    events = versions(author, "note", 6)
    for event in reversed(events):
        await client.store(event)
    feed = await client.tail(author, since=0)
    assert [event for _, event in feed.events] == list(reversed(events))
    assert_ascending(feed)
    assert [frame[2] for frame in feed.frames] == ["EVENT"] * 6 + ["EOSE"]


async def test_the_frames_have_the_shape_of_the_draft(client: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"laptop": 1})
    await client.store(event)
    feed = await client.tail(author, sub="shape", since=0)
    (seq,) = feed.seqs
    assert type(seq) is int and seq >= 1
    assert feed.frames == [["CHANGES", "shape", "EVENT", seq, event], ["CHANGES", "shape", "EOSE", feed.eose]]


async def test_a_missing_mode_is_a_tail_and_a_missing_since_is_the_beginning(
    client: RelayClient, author: Author
) -> None:
    events = versions(author, "note", 3)
    await client.store(*events)
    feed = await client.changes({"authors": [author.pubkey], "kinds": [NOTE]})
    assert feed.ids == ids(events) and feed.eose is not None


async def test_since_is_exclusive_and_until_seq_inclusive(client: RelayClient, author: Author) -> None:
    events = versions(author, "note", 8)
    await client.store(*events)
    seqs = (await client.tail(author)).seqs
    assert (await client.tail(author, since=seqs[2])).seqs == seqs[3:]
    assert (await client.tail(author, until_seq=seqs[2])).seqs == seqs[:3]
    assert (await client.tail(author, since=seqs[2], until_seq=seqs[5])).seqs == seqs[3:6]
    assert (await client.tail(author, since=seqs[-1])).seqs == []
    assert (await client.tail(author, since=seqs[5], until_seq=seqs[2])).seqs == []


async def test_a_limit_takes_the_first_of_the_tail(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 8))
    seqs = (await client.tail(author)).seqs
    for limit in (1, 3, 8, 100):
        assert (await client.tail(author, limit=limit)).seqs == seqs[:limit]
    assert (await client.tail(author, since=seqs[1], limit=2)).seqs == seqs[2:4]


async def test_paging_by_eose_visits_everything_once(client: RelayClient, author: Author) -> None:
    stranger = Author.random()
    for n in range(10):
        await client.store(snapshot(author, f"d{n}", {"x": 1}), *versions(stranger, f"s{n}", n % 3))
    seen, since, pages = [], 0, 0
    while True:
        feed = await client.tail(author, since=since, limit=3)
        if not feed.seqs:
            break
        assert feed.eose is not None and feed.eose >= feed.seqs[-1]
        seen, since, pages = seen + feed.ids, feed.eose, pages + 1
        assert pages < 20
    assert len(seen) == len(set(seen)) == 10


async def test_the_tail_is_of_one_author_only(client: RelayClient, author: Author) -> None:
    stranger = Author.random()
    mine, theirs = versions(author, "note", 3), versions(stranger, "note", 3)
    for pair in zip(mine, theirs, strict=True):
        await client.store(*pair)
    assert (await client.tail(author)).ids == ids(mine)
    assert (await client.tail(stranger)).ids == ids(theirs)


def shelf(author: Author) -> dict[str, Event]:
    return {
        "a1": snapshot(author, "a", {"x": 1}, c="notes"),
        "b1": snapshot(author, "b", {"x": 1}, c="tasks"),
        "a2": snapshot(author, "a", {"x": 2}, o="del", c="notes"),
        "c1": snapshot(author, "c", {"x": 1}),
        "b2": snapshot(author, "b", {"x": 2}, c="Notes"),
    }


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"#d": ["a"]}, "a1 a2"),
        ({"#d": ["a", "c"]}, "a1 a2 c1"),
        ({"#d": ["nothing"]}, ""),
        ({"#o": ["del"]}, "a2"),
        ({"#o": ["put"]}, "a1 b1 c1 b2"),
        ({"#o": ["put", "del"]}, "a1 b1 a2 c1 b2"),
        ({"#c": ["notes"]}, "a1 a2"),
        ({"#c": ["notes", "tasks"]}, "a1 b1 a2"),
        ({"#d": ["b"], "#c": ["tasks"]}, "b1"),
        ({"#d": ["a"], "#o": ["put"], "#c": ["notes"]}, "a1"),
        ({"kinds": [NOTE]}, "a1 b1 a2 c1 b2"),
        ({"kinds": [42062]}, ""),
        ({"kinds": [42062, NOTE], "#d": ["c"]}, "c1"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("live", [False, True], ids=["replayed", "live"])
async def test_every_filter_applies_to_replay_and_to_live(
    client: RelayClient, author: Author, filter: dict, expected: str, live: bool
) -> None:
    events = shelf(author)
    wanted = [events[name]["id"] for name in expected.split()]
    if not live:
        await client.store(*events.values())
        assert (await client.tail(author, **filter)).ids == wanted
        return
    control = await client.tail(author, live=True)
    feed = await client.tail(author, live=True, **filter)
    await client.store(*events.values())
    for _ in events:
        await client.next_change(control.sub)
    await client.still_answers()
    assert [frame[4]["id"] for frame in client.waiting(feed.sub)] == wanted


async def test_live_events_follow_the_replay_in_order(node: Node, connect: Callable, author: Author) -> None:
    reader, writer = await connect(node), await connect(node)
    history = versions(author, "note", 12)
    await writer.store(*history[:4])
    feed = await reader.tail(author, since=0, live=True)
    assert feed.ids == ids(history[:4])
    await writer.store(*history[4:])
    live = [await reader.next_change(feed.sub) for _ in history[4:]]
    assert [event for _, event in live] == history[4:]
    seqs = feed.seqs + [seq for seq, _ in live]
    assert seqs == sorted(set(seqs)) and live[0][0] > (feed.eose or 0)
    assert (await reader.tail(author)).seqs == seqs


async def test_without_live_nothing_follows_eose(client: RelayClient, author: Author) -> None:
    control = await client.tail(author, live=True)
    ended = [await client.tail(author), await client.tail(author, live=False)]
    await client.store(snapshot(author, "note", {"x": 1}))
    await client.next_change(control.sub)
    await client.still_answers()
    for feed in ended:
        assert [frame for frame in client.waiting(feed.sub) if frame[0] == "CHANGES"] == []


async def test_a_duplicate_is_not_a_change(client: RelayClient, author: Author) -> None:
    feed = await client.tail(author, live=True)
    first, second = versions(author, "note", 2)
    await client.store(first)
    await client.store(first)
    await client.store(second)
    assert [(await client.next_change(feed.sub))[1] for _ in range(2)] == [first, second]


async def test_close_ends_a_live_feed(client: RelayClient, author: Author) -> None:
    closed, kept = await client.tail(author, live=True), await client.tail(author, live=True)
    assert await client.close_sub(closed.sub) == "closed"
    await client.store(snapshot(author, "note", {"x": 1}))
    await client.next_change(kept.sub)
    assert client.waiting(closed.sub) == []


async def test_the_same_id_replaces_the_earlier_feed(client: RelayClient, author: Author) -> None:
    other = Author.random()
    await client.tail(author, sub="one", live=True)
    await client.tail(other, sub="one", live=True)
    await client.store(snapshot(author, "note", {"x": 1}))
    event = snapshot(other, "note", {"x": 1})
    await client.store(event)
    assert (await client.next_change("one"))[1] == event


async def test_a_feed_and_a_query_with_one_id_replace_each_other(client: RelayClient, author: Author) -> None:
    control = await client.tail(author, live=True)
    await client.tail(author, sub="one", live=True)
    await client.req({"authors": [author.pubkey]}, sub="one", live=True)
    event = snapshot(author, "note", {"x": 1})
    await client.store(event)
    await client.next_change(control.sub)
    await client.still_answers()
    assert client.waiting("one") == [["EVENT", "one", event]]


async def test_positions_survive_a_restart(start_node: Callable[..., Node], connect: Callable, author: Author) -> None:
    own = start_node()
    client = await connect(own)
    await client.store(*versions(author, "note", 5))
    before, info = await client.tail(author), own.info()["changes_feed"]
    own.restart()
    client = await connect(own)
    assert (await client.tail(author)).events == before.events
    assert own.info()["changes_feed"] == info
    await client.store(snapshot(author, "note", {"x": 1}))
    assert (await client.tail(author, since=before.eose)).seqs == [before.eose + 1]


async def test_many_feeds_on_one_socket_are_served_at_once(client: RelayClient) -> None:
    authors = [Author.random() for _ in range(8)]
    for author in authors:
        await client.store(*versions(author, "note", 20, start=EPOCH))
    feeds = await asyncio.gather(*(client.tail(author, sub=f"feed-{n}") for n, author in enumerate(authors)))
    for feed in feeds:
        assert len(feed.seqs) == 20
        assert_ascending(feed)
