"""The hand-off from replay to live: any number of subscribers join a burst of any number of publishers.

Nobody loses an event, nobody sees one twice, and everybody sees them in the order of their positions.
"""

import asyncio
import random
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, Event, snapshot
from processes import Node
from sockets import RelayClient


def shares(author: Author, writers: int, each: int) -> list[list[Event]]:
    return [
        [snapshot(author, f"w{w}-{n}", {"x": 1}, created_at=EPOCH + n) for n in range(each)] for w in range(writers)
    ]


async def write(client: RelayClient, events: list[Event], window: int) -> None:
    """Publish with at most `window` unanswered events."""
    for start in range(0, len(events), window):
        await client.store(*events[start : start + window])


async def follow_changes(reader: RelayClient, author: Author, since: int, count: int) -> list[tuple[int, str]]:
    """What a client gets from `since` on, as (position, id), until `count` have come."""
    feed = await reader.tail(author, since=since, live=True)
    assert feed.error is None
    assert feed.eose >= max(feed.seqs, default=since)
    found = [(seq, event["id"]) for seq, event in feed.events]
    while len(found) < count:
        seq, event = await reader.next_change(feed.sub)
        assert seq > feed.eose, "a live event at or below EOSE"
        found.append((seq, event["id"]))
    return found


@pytest.mark.parametrize(("writers", "each", "window"), [(1, 400, 1), (8, 100, 10), (16, 60, 60)])
async def test_a_subscriber_that_joins_in_a_burst_gets_every_position_once_and_in_order(
    node: Node, connect: Callable, author: Author, writers: int, each: int, window: int
) -> None:
    work = shares(author, writers, each)
    total = writers * each
    tip = node.max_seq()
    publishing = asyncio.gather(*[write(await connect(node), share, window) for share in work])
    following = []
    while not publishing.done() and len(following) < 24:
        following.append(asyncio.create_task(follow_changes(await connect(node), author, tip, total)))
        await asyncio.sleep(random.random() * 0.03)
    await publishing
    log = await follow_changes(await connect(node), author, tip, total)
    assert sorted(identity for _, identity in log) == sorted(event["id"] for share in work for event in share)
    assert [seq for seq, _ in log] == list(range(tip + 1, tip + 1 + total))
    for found in await asyncio.gather(*following):
        assert found == log


async def test_a_query_that_joins_in_a_burst_gets_every_event_once(
    node: Node, connect: Callable, author: Author
) -> None:
    work = shares(author, 6, 100)
    wanted = sorted(event["id"] for share in work for event in share)

    async def follow(reader: RelayClient) -> list[str]:
        answer = await reader.req({"authors": [author.pubkey], "kinds": [NOTE]}, live=True)
        found = answer.ids
        while len(found) < len(wanted):
            frame = await reader.next_of(answer.sub)
            assert frame[0] == "EVENT"
            found.append(frame[2]["id"])
        return found

    publishing = asyncio.gather(*[write(await connect(node), share, 10) for share in work])
    following = []
    while not publishing.done() and len(following) < 16:
        following.append(asyncio.create_task(follow(await connect(node))))
        await asyncio.sleep(random.random() * 0.03)
    await publishing
    for found in await asyncio.gather(*following):
        assert sorted(found) == wanted


async def test_live_queries_and_feeds_agree_on_the_order(node: Node, connect: Callable, author: Author) -> None:
    work = shares(author, 6, 60)
    reader = await connect(node)
    answer = await reader.req({"authors": [author.pubkey]}, live=True)
    feed = await reader.tail(author, since=node.max_seq(), live=True)
    await asyncio.gather(*[write(await connect(node), share, 20) for share in work])
    by_feed = [(await reader.next_change(feed.sub))[1]["id"] for _ in range(360)]
    by_query = [(await reader.next_of(answer.sub))[2]["id"] for _ in range(360)]
    assert by_feed == by_query


async def test_a_subscriber_that_comes_and_goes_resumes_by_its_checkpoint(
    node: Node, connect: Callable, author: Author
) -> None:
    """A client that keeps the last position it has seen may drop its connection at any moment."""
    work = shares(author, 4, 120)
    tip = node.max_seq()
    publishing = asyncio.gather(*[write(await connect(node), share, 10) for share in work])
    checkpoint, seen = tip, []
    while len(seen) < 480:
        async with RelayClient.open(node.url) as reader:
            feed = await reader.tail(author, since=checkpoint, live=True)
            batch = feed.events
            for _ in range(random.randrange(40)):
                if len(seen) + len(batch) == 480:
                    break
                batch.append(await reader.next_change(feed.sub))
        seen += [event["id"] for _, event in batch]
        checkpoint = max([checkpoint, *(seq for seq, _ in batch)])
    await publishing
    assert len(set(seen)) == 480


async def test_subscriptions_that_open_and_close_in_a_burst_leave_nothing_behind(
    node: Node, connect: Callable, author: Author
) -> None:
    work = shares(author, 2, 150)
    reader = await connect(node)
    steady = await reader.tail(author, since=node.max_seq(), live=True)
    publishing = asyncio.gather(*[write(await connect(node), share, 5) for share in work])
    churned = []
    while not publishing.done():
        feed = await reader.tail(author, since=steady.eose, live=True)
        assert await reader.close_sub(feed.sub) == "closed"
        churned.append(feed.sub)
        if len(churned) % 10 == 0:
            await asyncio.sleep(0)
    await publishing
    seqs = [(await reader.next_change(steady.sub))[0] for _ in range(300)]
    assert seqs == sorted(set(seqs))
    await reader.still_answers()
    assert all(reader.waiting(sub) == [] for sub in churned)


@pytest.mark.slow
async def test_a_long_burst_with_many_subscribers_loses_nothing(node: Node, connect: Callable, author: Author) -> None:
    work = shares(author, 8, 1000)
    tip = node.max_seq()
    publishing = asyncio.gather(*[write(await connect(node), share, 50) for share in work])
    following = []
    while not publishing.done() and len(following) < 60:
        following.append(asyncio.create_task(follow_changes(await connect(node), author, tip, 8000)))
        await asyncio.sleep(0.05)
    await publishing
    for found in await asyncio.gather(*following):
        assert [seq for seq, _ in found] == list(range(tip + 1, tip + 8001))
