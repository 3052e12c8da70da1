"""The changes feed of revisions, word by word as real clients expect it, on the same log as everything else."""

import asyncio
from collections.abc import Callable

import pytest
from authors import EPOCH, Author, Event, ids, now, snapshot
from processes import Node
from sockets import RelayClient
from wraps import GIFT_WRAP, MTIME, check_store, heads_of, rev_of, rid, wrap

ONE_RECIPIENT = "revision CHANGES currently requires exactly one #p recipient"
MALFORMED = "invalid: missing or malformed revision metadata"


def mine(author: Author, **rest: object) -> dict:
    return {"kinds": [GIFT_WRAP], "#p": [author.pubkey], **rest}


# --- publishing ----------------------------------------------------------------------------------------------------


async def test_a_revision_is_acknowledged_by_its_own_id(client: RelayClient, author: Author) -> None:
    first = wrap(author, "note", rid("a"))
    ok = await client.publish(first)
    assert (ok.accepted, ok.message) == (True, f"stored: revision {rid('a')}")
    for again in (first, wrap(author, "note", rid("a"), m=5, content="another wrap")):
        ok = await client.publish(again)
        assert (ok.accepted, ok.message) == (True, "duplicate: revision already exists")
    assert (await client.req(mine(author))).ids == [first["id"]]


@pytest.mark.parametrize(
    "tags",
    [
        [["d", "x"]],
        [["r", rid("a")]],
        [["d", "x"], ["r", rid("a")], ["op", "put"]],
        [["d", "x"], ["r", rid("a")], ["op", "put"], ["m", "12x"]],
        [["d", "x"], ["r", rid("a")], ["op", "put"], ["m", "1"], ["prev", "x"]],
        [["d", "x"], ["r", rid("a")], ["op", "put"], ["m", "1"], ["v", "1"]],
    ],
    ids=str,
)
async def test_what_is_tagged_in_part_is_refused(client: RelayClient, author: Author, tags: list) -> None:
    ok = await client.publish(author.event(GIFT_WRAP, "x", [["p", author.pubkey], *tags]))
    assert (ok.accepted, ok.message) == (False, MALFORMED)


async def test_a_gift_wrap_without_the_tags_is_an_ordinary_event(client: RelayClient, author: Author) -> None:
    plain = [Author.random().event(GIFT_WRAP, str(n), [["p", author.pubkey]], EPOCH + n) for n in range(3)]
    for event in plain:
        ok = await client.publish(event)
        assert (ok.accepted, ok.message) == (True, "")
    assert (await client.publish(plain[0])).message == "duplicate: event already exists"
    revision = wrap(author, "note", rid("a"), created_at=EPOCH + 1)
    await client.store(revision)
    assert (await client.req(mine(author))).ids == ids([revision, *reversed(plain)]), "newest first, as of old"
    assert (await client.changes(mine(author))).ids == [revision["id"]]
    assert await heads_of(client, author) == [rid("a")]


async def test_a_forged_revision_is_refused(client: RelayClient, author: Author) -> None:
    ok = await client.publish({**wrap(author, "note", rid("a")), "sig": wrap(author, "note", rid("a"))["sig"]})
    assert not ok.accepted and ok.message.startswith("invalid:")
    assert await heads_of(client, author) == []


# --- the feed ------------------------------------------------------------------------------------------------------


async def test_the_feed_is_every_revision_in_order_and_where_it_is_complete_to(
    node: Node, client: RelayClient, author: Author
) -> None:
    tip = node.max_seq()
    history = [wrap(author, f"d{n % 2}", rid(n), [rid(n - 2)] if n > 1 else []) for n in range(6)]
    await client.store(*history)
    feed = await client.changes(mine(author, since=tip))
    assert feed.frames == [
        *(["CHANGES", feed.sub, "EVENT", tip + 1 + n, event] for n, event in enumerate(history)),
        ["CHANGES", feed.sub, "EOSE", tip + 6],
    ]


async def test_every_condition_of_the_feed_counts(node: Node, client: RelayClient, author: Author) -> None:
    tip, key = node.max_seq(), Author.random()
    a, b, c = rid("a"), rid("b"), rid("c")
    history = [wrap(author, "x", a), wrap(author, "y", b, by=key), wrap(author, "x", c, [a]), wrap(key, "x", a)]
    await client.store(*history)

    async def seqs(**conditions: object) -> list[int]:
        feed = await client.changes({"#p": [author.pubkey], "since": tip, **conditions})
        assert feed.error is None, feed.error
        return [seq - tip for seq in feed.seqs]

    assert await seqs() == await seqs(kinds=[GIFT_WRAP]) == await seqs(mode="tail") == [1, 2, 3]
    assert await seqs(**{"#d": ["x"]}) == [1, 3]
    assert await seqs(**{"#r": [b, c]}) == [2, 3]
    assert await seqs(**{"#r": [a], "#d": ["y"]}) == await seqs(**{"#r": ["nonsense"]}) == []
    assert await seqs(authors=[key.pubkey]) == [2]
    assert await seqs(since=tip + 1, until_seq=tip + 2) == [2]
    assert await seqs(limit=2) == [1, 2]
    assert await seqs(limit=0) == await seqs(kinds=[]) == await seqs(**{"#d": []}) == []


async def test_eose_is_how_far_the_subscription_is_complete(node: Node, client: RelayClient, author: Author) -> None:
    tip = node.max_seq()
    await client.store(*(wrap(author, "x", rid(n)) for n in range(3)), author.event(1, "behind"))
    assert (await client.changes(mine(author, since=tip, limit=2))).eose == tip + 2
    assert (await client.changes(mine(author, since=tip, until_seq=tip + 1))).eose == tip + 1
    assert (await client.changes(mine(author, since=tip, limit=3))).eose == tip + 4
    assert (await client.changes(mine(author, since=tip))).eose == tip + 4


@pytest.mark.parametrize(
    "filter",
    [
        {"kinds": [GIFT_WRAP]},
        {"#p": []},
        {"#p": ["a" * 64, "b" * 64]},
        {"#r": [rid("a")]},
        {"kinds": [1059], "since": 0},
    ],
    ids=str,
)
async def test_exactly_one_recipient_is_asked_for(client: RelayClient, filter: dict) -> None:
    feed = await client.changes(filter)
    assert feed.frames == [["CHANGES", feed.sub, "ERR", ONE_RECIPIENT]]


async def test_a_checkpoint_beyond_the_log_is_a_gap(node: Node, client: RelayClient, author: Author) -> None:
    feed = await client.changes(mine(author, since=node.max_seq() + 5))
    assert feed.error == f"checkpoint too new: max_seq is {node.max_seq()}"


async def test_a_checkpoint_below_the_floor_is_a_gap(start_node: Callable, connect: Callable, author: Author) -> None:
    own = start_node(admin=True, config="[retention]\nreplay_count = 2\n")
    client = await connect(own)
    history = [wrap(author, "x", rid(n)) for n in range(4)]
    await client.store(*history)
    assert own.admin("POST", "compact").status == 200
    assert (await client.changes(mine(author))).error == "checkpoint too old: min_seq is 3"
    assert (await client.changes(mine(author, since=2))).ids == ids(history[2:])
    assert len(await heads_of(client, author)) == 4, "the set is whole, however short the log"


async def test_a_live_feed_goes_on_with_what_comes(node: Node, client: RelayClient, author: Author) -> None:
    feed = await client.changes(mine(author, since=node.max_seq(), live=True))
    narrow = await client.changes(mine(author, since=feed.eose, live=True, **{"#d": ["x"]}))
    other = await client.changes(mine(Author.random(), since=feed.eose, live=True))
    made = [wrap(author, d, rid(d)) for d in ("x", "y")]
    await client.store(*made, wrap(Author.random(), "x", rid("x")))
    assert [await client.next_change(feed.sub) for _ in made] == [(feed.eose + 1, made[0]), (feed.eose + 2, made[1])]
    assert await client.next_change(narrow.sub) == (feed.eose + 1, made[0])
    for sub in (narrow.sub, other.sub):
        assert await client.close_sub(sub) == "closed"
        assert client.waiting(sub) == []


async def test_duplicates_are_not_delivered_again(client: RelayClient, author: Author) -> None:
    feed = await client.changes(mine(author, live=True))
    first, last = wrap(author, "x", rid("a")), wrap(author, "x", rid("b"))
    await client.store(first, wrap(author, "x", rid("a"), content="again"), last)
    assert [(await client.next_change(feed.sub))[1] for _ in range(2)] == [first, last]


# --- hard removal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["recipient", "wrap key"])
async def test_a_deletion_is_told_live_and_in_the_replay(client: RelayClient, author: Author, who: str) -> None:
    key = Author.random()
    gone, stays = wrap(author, "x", rid("a"), by=key), wrap(author, "y", rid("b"))
    feed = await client.changes(mine(author, live=True))
    await client.store(gone, stays)
    (at, _), (last, _) = [await client.next_change(feed.sub) for _ in range(2)]
    await client.store((author if who == "recipient" else key).event(5, tags=[["e", gone["id"]]]))
    told = ["CHANGES", feed.sub, "DELETED", last + 2, gone["id"], "deleted by its author"]
    assert await client.next_of(feed.sub) == told
    again = await client.changes(mine(author, since=at - 1), sub=feed.sub)
    assert again.frames[-3:] == [
        ["CHANGES", feed.sub, "EVENT", last, stays],
        told,
        ["CHANGES", feed.sub, "EOSE", last + 2],
    ]
    assert await heads_of(client, author) == [rid("b")]
    ok = await client.publish(gone)
    assert (ok.accepted, ok.message) == (False, "blocked: deleted by its author")


async def test_a_removal_is_told_only_to_whom_it_concerns(client: RelayClient, author: Author) -> None:
    gone = wrap(author, "x", rid("a"))
    await client.store(gone)
    subs = {
        name: (await client.changes({"live": True, **filter}, sub=name)).sub
        for name, filter in {
            "all": mine(author),
            "x": mine(author, **{"#d": ["x"], "#r": [rid("a")], "authors": [gone["pubkey"]]}),
            "y": mine(author, **{"#d": ["y"]}),
            "other": mine(Author.random()),
            "snapshots": {"authors": [author.pubkey]},
        }.items()
    }
    req = await client.req(mine(author), live=True)
    await client.store(author.event(5, tags=[["e", gone["id"]]]))
    for name in ("all", "x"):
        assert (await client.next_of(subs[name]))[2::2] == ["DELETED", gone["id"]]
    for sub in (subs["y"], subs["other"], subs["snapshots"], req.sub):
        assert await client.close_sub(sub) == "closed"
        assert client.waiting(sub) == []


async def test_nobody_else_deletes_a_revision(client: RelayClient, author: Author) -> None:
    made = wrap(author, "x", rid("a"))
    await client.store(made)
    await client.store(Author.random().event(5, tags=[["e", made["id"]]]))
    assert await heads_of(client, author) == [rid("a")]
    assert (await client.changes(mine(author))).ids == [made["id"]]


async def test_the_operators_removal_and_an_expiry_are_told_too(
    start_node: Callable, connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    by_operator = wrap(author, "x", rid("a"))
    by_date = wrap(author, "x", rid("b"), [rid("a")], tags=[["expiration", str(now() + 2)]])
    feed = await client.changes(mine(author, live=True))
    await client.store(by_operator, by_date)
    assert [seq for seq, _ in [await client.next_change(feed.sub) for _ in range(2)]] == [1, 2]
    assert own.admin("DELETE", f"events/{by_operator['id']}").status == 200
    first = ["CHANGES", feed.sub, "DELETED", 3, by_operator["id"], "removed by the relay's operator"]
    assert await client.next_of(feed.sub) == first
    await asyncio.sleep(2.1)
    assert await heads_of(client, author) == [], "before anything has cleared it away, and nothing comes back"
    assert own.admin("POST", "compact").json()["expired"] == 1
    second = ["CHANGES", feed.sub, "DELETED", 4, by_date["id"], "expired"]
    assert await client.next_of(feed.sub) == second
    replayed = await client.changes(mine(author), sub=feed.sub)
    assert replayed.frames == [first, second, ["CHANGES", feed.sub, "EOSE", 4]]
    check_store(own)


async def test_a_subscriber_that_joins_among_removals_gets_every_one_in_its_place(
    node: Node, connect: Callable, author: Author
) -> None:
    """Publishers write and delete while followers come: all see the same log."""
    tip = node.max_seq()

    async def write(client: RelayClient, share: int) -> None:
        for n in range(30):
            made = wrap(author, f"{share}-{n}", rid(f"{share}-{n}"))
            await client.store(made, author.event(5, tags=[["e", made["id"]]]))

    async def follow(client: RelayClient) -> dict[int, tuple[str, str]]:
        feed = await client.changes(mine(author, since=tip, live=True))
        frames = [frame for frame in feed.frames if frame[2] in ("EVENT", "DELETED")]
        seen = {frame[3]: (frame[2], frame[4] if frame[2] == "DELETED" else frame[4]["id"]) for frame in frames}
        while sum(what == "DELETED" for what, _ in seen.values()) < 120:
            frame = await client.next_of(feed.sub)
            assert frame[3] > max(seen, default=tip)
            seen[frame[3]] = (frame[2], frame[4] if frame[2] == "DELETED" else frame[4]["id"])
        return seen

    writing = asyncio.gather(*[write(await connect(node), share) for share in range(4)])
    following = []
    while not writing.done() and len(following) < 10:
        following.append(asyncio.create_task(follow(await connect(node))))
        await asyncio.sleep(0.02)
    await writing
    log = await follow(await connect(node))
    for seen in await asyncio.gather(*following):
        deleted = {seq: what for seq, what in seen.items() if what[0] == "DELETED"}
        assert deleted == log
        later = {seq: what for seq, what in seen.items() if what[0] == "EVENT"}
        assert {id for _, id in later.values()} <= {id for _, id in deleted.values()}


# --- both families, one log ----------------------------------------------------------------------------------------


async def test_snapshots_and_revisions_share_one_log_and_a_kill_leaves_both_as_they_were_acknowledged(
    start_node: Callable, connect: Callable, author: Author
) -> None:
    own = start_node()
    client = await connect(own)
    mixed: list[Event] = []
    for n in range(4):
        mixed += [
            snapshot(author, "note", {"x": n + 1}, created_at=EPOCH + n),
            wrap(author, "note", rid(n), [rid(n - 1)] if n else [], by=author, created_at=EPOCH + n),
            author.event(1, str(n), created_at=EPOCH + n),
        ]
    gone = wrap(author, "z", rid("z"))
    await client.store(*mixed, gone, author.event(5, tags=[["e", gone["id"]]]), wrap(author, "x", rid("c"), [rid("b")]))
    for again in (False, True):
        feed = await client.changes(mine(author), sub="f")
        assert feed.events[:4] == [(n + 1, e) for n, e in enumerate(mixed) if e["kind"] == GIFT_WRAP]
        assert feed.frames[4:5] == [["CHANGES", "f", "DELETED", 15, gone["id"], "deleted by its author"]]
        assert (feed.seqs[4:], feed.eose) == ([16], 16)
        assert (await client.tail(author)).events == [(n + 1, e) for n, e in enumerate(mixed) if e["kind"] == 42061]
        assert (await client.bootstrap(author)).snapshots == [mixed[9]]
        assert await heads_of(client, author) == sorted([rid(3), rid("c")])
        assert (await client.req({"authors": [author.pubkey], "kinds": [1, 42061, GIFT_WRAP]})).ids == ids(
            sorted((e for e in mixed if e["kind"] != 1), key=lambda e: (e["created_at"], e["id"]))
            + sorted((e for e in mixed if e["kind"] == 1), key=lambda e: -e["created_at"])
        )
        if not again:
            own.kill9()
            own.start()
            client = await connect(own)
    await client.store(wrap(author, "x", rid("b"), [rid("a")]), wrap(author, "x", rid("a")))
    assert await heads_of(client, author) == sorted([rid(3), rid("c")]), "what was named before the kill is no head"
    assert [rev_of(e) for _, e in (await client.changes(mine(author, since=16))).events] == [rid("b"), rid("a")]
    check_store(own)


def test_the_mtime_of_these_tests_is_larger_than_32_bits() -> None:
    assert MTIME > 2**32
