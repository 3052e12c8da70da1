"""CHANGES in bootstrap mode: the current snapshots of one author at one position, and a hand-off into the tail."""

import asyncio
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, Event, heads, ids, snapshot, versions
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Node
from sockets import Feed, RelayClient


def assert_well_formed(feed: Feed) -> None:
    """STATUS, SNAPSHOTs in ascending (created_at, id), EOSE with the same position, and nothing between."""
    first, *snapshots, last = feed.frames
    assert first[:3] == ["CHANGES", feed.sub, "STATUS"], first
    status = first[3]
    assert status["mode"] == "bootstrap" and type(status["snapshot_seq"]) is int
    assert all(frame[:3] == ["CHANGES", feed.sub, "SNAPSHOT"] and len(frame) == 4 for frame in snapshots), snapshots
    assert last == ["CHANGES", feed.sub, "EOSE", status["snapshot_seq"]]
    order = [(event["created_at"], event["id"]) for event in feed.snapshots]
    assert order == sorted(order)


async def bootstrap(client: RelayClient, author: Author, **filter: object) -> list[Event]:
    feed = await client.bootstrap(author, **filter)
    assert_well_formed(feed)
    return feed.snapshots


async def test_a_bootstrap_is_status_snapshots_and_eose_at_one_position(
    client: RelayClient, node: Node, author: Author
) -> None:
    events = [snapshot(author, f"d{n}", {"x": 1}, created_at=EPOCH + n % 3) for n in range(9)]
    await client.store(*events)
    feed = await client.bootstrap(author)
    assert_well_formed(feed)
    assert feed.snapshots == sorted(events, key=lambda event: (event["created_at"], event["id"]))
    assert feed.eose == node.max_seq()


async def test_an_author_who_wrote_nothing_gets_an_empty_bootstrap(client: RelayClient, author: Author) -> None:
    assert await bootstrap(client, author) == []


async def test_only_the_current_version_of_a_document_is_in_a_bootstrap(client: RelayClient, author: Author) -> None:
    history = versions(author, "note", 5)
    await client.store(*history)
    assert await bootstrap(client, author) == [history[-1]]


async def test_a_version_that_comes_late_is_not_current(client: RelayClient, author: Author) -> None:
    history = versions(author, "note", 5)
    for event in (history[4], *history[:4]):
        await client.store(event)
    assert await bootstrap(client, author) == [history[4]]


async def test_the_clock_decides_and_not_created_at(client: RelayClient, author: Author) -> None:
    old = snapshot(author, "note", {"x": 1}, created_at=EPOCH + 1000)
    new = snapshot(author, "note", {"x": 2}, created_at=EPOCH)
    await client.store(new, old)
    assert await bootstrap(client, author) == [new]


async def test_concurrent_versions_are_all_current(client: RelayClient, author: Author) -> None:
    base = snapshot(author, "note", {"a": 1}, created_at=EPOCH)
    left = snapshot(author, "note", {"a": 2}, created_at=EPOCH + 1)
    right = snapshot(author, "note", {"a": 1, "b": 1}, created_at=EPOCH + 2)
    await client.store(base, left, right)
    assert await bootstrap(client, author) == [left, right]
    merged = snapshot(author, "note", {"a": 3, "b": 1}, created_at=EPOCH + 3)
    await client.store(merged)
    assert await bootstrap(client, author) == [merged]


async def test_different_events_with_equal_clocks_are_both_current(client: RelayClient, author: Author) -> None:
    pair = [
        snapshot(author, "note", {"a": 1, "b": 2}, content=text, created_at=EPOCH + n) for n, text in enumerate("xy")
    ]
    await client.store(*pair)
    assert await bootstrap(client, author) == pair


async def test_a_tombstone_is_current_until_something_dominates_it(client: RelayClient, author: Author) -> None:
    put = snapshot(author, "note", {"a": 1}, created_at=EPOCH)
    gone = snapshot(author, "note", {"a": 2}, o="del", created_at=EPOCH + 1)
    rival = snapshot(author, "note", {"a": 1, "b": 1}, created_at=EPOCH + 2)
    await client.store(put, gone)
    assert await bootstrap(client, author) == [gone]
    await client.store(rival)
    assert await bootstrap(client, author) == [gone, rival]


async def test_the_name_is_no_part_of_a_documents_identity(client: RelayClient, author: Author) -> None:
    old = snapshot(author, "note", {"a": 1}, c="notes", created_at=EPOCH)
    new = snapshot(author, "note", {"a": 2}, c="archive", created_at=EPOCH + 1)
    await client.store(old, new)
    assert await bootstrap(client, author) == [new]
    assert await bootstrap(client, author, **{"#c": ["notes"]}) == []


async def test_two_authors_with_one_coordinate_have_two_documents(client: RelayClient, author: Author) -> None:
    other = Author.random()
    mine, theirs = snapshot(author, "note", {"a": 1}), snapshot(other, "note", {"a": 2})
    await client.store(mine, theirs)
    assert await bootstrap(client, author) == [mine]
    assert await bootstrap(client, other) == [theirs]


async def test_filters_apply_after_dominance(client: RelayClient, author: Author) -> None:
    put = snapshot(author, "gone", {"a": 1}, c="notes", created_at=EPOCH)
    gone = snapshot(author, "gone", {"a": 2}, o="del", created_at=EPOCH + 1)
    kept = snapshot(author, "kept", {"a": 1}, c="notes", created_at=EPOCH + 2)
    await client.store(put, gone, kept)
    assert await bootstrap(client, author, **{"#o": ["put"]}) == [kept]
    assert await bootstrap(client, author, **{"#o": ["del"]}) == [gone]
    assert await bootstrap(client, author, **{"#c": ["notes"]}) == [kept]
    assert await bootstrap(client, author, **{"#d": ["gone"]}) == [gone]
    assert await bootstrap(client, author, **{"#d": ["gone"], "#o": ["put"]}) == []
    assert await bootstrap(client, author, kinds=[42062]) == []
    assert await bootstrap(client, author, kinds=[NOTE, 42062]) == [gone, kept]


async def test_a_limit_is_applied_after_dominance(client: RelayClient, author: Author) -> None:
    for n in range(6):
        await client.store(*versions(author, f"d{n}", 3, start=EPOCH + 10 * n))
    current = {event["id"] for event in await bootstrap(client, author)}
    assert len(current) == 6
    for limit in (1, 2, 4, 6, 50):
        got = await bootstrap(client, author, limit=limit)
        assert len(got) == min(limit, 6) and {event["id"] for event in got} <= current
    assert await bootstrap(client, author, limit=0) == []


async def test_live_on_a_bootstrap_is_ignored(client: RelayClient, author: Author) -> None:
    control = await client.tail(author, live=True)
    feed = await client.bootstrap(author, live=True)
    assert_well_formed(feed)
    await client.store(snapshot(author, "note", {"x": 1}))
    await client.next_change(control.sub)
    await client.still_answers()
    assert client.waiting(feed.sub) in ([], [["CLOSED", feed.sub, "closed"]])


async def test_since_and_until_seq_do_not_narrow_a_bootstrap(client: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"x": 1})
    await client.store(event)
    (seq,) = (await client.tail(author)).seqs
    assert await bootstrap(client, author, since=seq) == [event]


async def test_a_bootstrap_hands_over_to_the_tail_without_gap_or_repeat(
    node: Node, connect: Callable, author: Author
) -> None:
    reader, writer = await connect(node), await connect(node)
    events = [snapshot(author, f"d{n:03}", {"x": 1}, created_at=EPOCH + n) for n in range(150)]

    async def write() -> None:
        for event in events:
            await writer.store(event)

    writing = asyncio.create_task(write())
    for _ in range(5):
        feed = await reader.bootstrap(author)
        assert_well_formed(feed)
        known = ids(feed.snapshots)
        tail = await reader.tail(author, since=feed.eose, live=True)
        found = known + tail.ids
        while len(found) < len(events):
            found.append((await reader.next_change(tail.sub))[1]["id"])
        assert found == ids(events)
    await writing


DEVICES = ("a", "b", "c")
CLOCK = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 3), min_size=1)
VERSION = st.tuples(st.sampled_from(("one", "two")), CLOCK, st.sampled_from(("put", "del")), st.integers(0, 5))


@settings(max_examples=60)
@given(history=st.lists(VERSION, min_size=1, max_size=14))
async def test_a_bootstrap_is_the_heads_whatever_the_order_of_arrival(
    shared_node: Node, history: list[tuple[str, dict[str, int], str, int]]
) -> None:
    author = Author.random()
    events = [
        snapshot(author, d, clock, o, content=f"{n}", created_at=EPOCH + moment)
        for n, (d, clock, o, moment) in enumerate(history)
    ]
    async with RelayClient.open(shared_node.url) as client:
        await client.store(*events)
        assert await bootstrap(client, author) == heads(events)
        puts = [event for event in heads(events) if ["o", "put"] in event["tags"]]
        assert await bootstrap(client, author, **{"#o": ["put"]}) == puts


@pytest.mark.parametrize("count", [1, 127, 128, 129, 1000])
async def test_a_bootstrap_of_any_size_is_whole(client: RelayClient, author: Author, count: int) -> None:
    events = [snapshot(author, f"d{n:04}", {"x": 1}, created_at=EPOCH + n) for n in range(count)]
    await client.store(*events)
    assert await bootstrap(client, author) == events
