"""EOSE is the position up to which a subscription is complete: a client that stores it skips nothing."""

import asyncio
import time
from collections.abc import Callable

from authors import NOTE, Author, snapshot, versions
from processes import Node
from sockets import RelayClient


async def test_a_whole_replay_is_complete_up_to_the_tip(client: RelayClient, node: Node, author: Author) -> None:
    await client.store(*versions(author, "note", 3))
    await client.store(*versions(Author.random(), "other", 3))
    feed = await client.tail(author)
    assert feed.eose == node.max_seq() and feed.eose > feed.seqs[-1]


async def test_an_author_without_changes_is_complete_up_to_the_tip(
    client: RelayClient, node: Node, author: Author
) -> None:
    await client.store(author.event(1, "something"))
    assert (await client.tail(author)).eose == node.max_seq()


async def test_the_feed_of_an_empty_node_is_complete_at_zero(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    client = await connect(start_node())
    assert (await client.tail(author)).eose == 0
    feed = await client.bootstrap(author)
    assert feed.eose == 0 and feed.snapshots == []


async def test_a_limit_ends_at_the_last_position_sent(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 6))
    await client.store(*versions(Author.random(), "other", 2))
    seqs = (await client.tail(author)).seqs
    for limit in (1, 3, 5):
        assert (await client.tail(author, limit=limit)).eose == seqs[limit - 1]
    assert (await client.tail(author, since=seqs[1], limit=2)).eose == seqs[3]


async def test_a_limit_that_cuts_nothing_may_say_the_tip(client: RelayClient, node: Node, author: Author) -> None:
    await client.store(*versions(author, "note", 4))
    await client.store(*versions(Author.random(), "other", 2))
    exact = await client.tail(author, limit=4)
    assert exact.seqs[-1] <= (exact.eose or 0) <= node.max_seq()
    assert (await client.tail(author, limit=5)).eose == node.max_seq()


async def test_a_limit_of_zero_replays_nothing_and_moves_nothing(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 4))
    seqs = (await client.tail(author)).seqs
    feed = await client.tail(author, limit=0)
    assert (feed.seqs, feed.eose) == ([], 0)
    feed = await client.tail(author, since=seqs[1], limit=0)
    assert (feed.seqs, feed.eose) == ([], seqs[1])


async def test_until_seq_ends_no_later_than_it_says(client: RelayClient, node: Node, author: Author) -> None:
    await client.store(*versions(author, "note", 6))
    seqs = (await client.tail(author)).seqs
    feed = await client.tail(author, until_seq=seqs[2])
    assert feed.eose == seqs[2]
    await client.store(*versions(Author.random(), "other", 3))
    tip = node.max_seq()
    feed = await client.tail(author, until_seq=tip - 1)
    assert seqs[-1] <= (feed.eose or 0) <= tip - 1


async def test_a_limit_that_is_reached_at_the_last_match_is_complete_to_until_seq(
    client: RelayClient, author: Author
) -> None:
    await client.store(*versions(author, "note", 3))
    await client.store(*versions(Author.random(), "other", 4))
    seqs = (await client.tail(author)).seqs
    until = seqs[-1] + 2
    assert (await client.tail(author, limit=3, until_seq=until)).eose == until
    assert (await client.tail(author, limit=2, until_seq=until)).eose == seqs[1]
    assert (await client.tail(author, limit=0, since=seqs[-1], until_seq=until)).eose == until
    assert (await client.tail(author, limit=0, since=seqs[0], until_seq=until)).eose == seqs[0]


async def test_what_has_expired_after_the_limit_does_not_hold_eose_back(
    client: RelayClient, node: Node, author: Author
) -> None:
    await client.store(*versions(author, "note", 2))
    soon = int(time.time()) + 2
    tags = [["o", "put"], ["vc", "x", "1"], ["expiration", str(soon)]]
    await client.store(*(author.event(NOTE, "", [["d", f"d{n}"], *tags]) for n in range(3)))
    await asyncio.sleep(max(0, soon - time.time()) + 0.1)
    assert (await client.tail(author, limit=2)).eose == node.max_seq()


async def test_until_seq_zero_ends_at_zero(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 3))
    for more in ({}, {"live": True}, {"limit": 2}, {"since": 0}):
        feed = await client.tail(author, until_seq=0, **more)
        assert (feed.frames, feed.eose) == ([["CHANGES", feed.sub, "EOSE", 0]], 0)
    await client.still_answers()


async def test_until_seq_below_since_ends_at_once_and_promises_nothing(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 4))
    seqs = (await client.tail(author)).seqs
    feed = await client.tail(author, since=seqs[2], until_seq=seqs[0])
    assert feed.events == [] and (feed.eose or 0) <= seqs[2]


async def test_until_seq_in_the_future_does_not_promise_the_future(
    client: RelayClient, node: Node, author: Author
) -> None:
    await client.store(*versions(author, "note", 3))
    feed = await client.tail(author, until_seq=node.max_seq() + 1000)
    assert feed.eose == node.max_seq()


async def test_a_tail_filter_does_not_hold_eose_back(client: RelayClient, node: Node, author: Author) -> None:
    await client.store(*(snapshot(author, f"d{n}", {"x": 1}) for n in range(4)))
    feed = await client.tail(author, **{"#d": ["d0"]})
    assert len(feed.seqs) == 1 and feed.eose == node.max_seq()


async def test_live_with_a_limit_that_cuts_does_not_go_live(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 6))
    control = await client.tail(author, live=True)
    cut = await client.tail(author, live=True, limit=3)
    assert cut.eose == cut.seqs[-1] and len(cut.seqs) == 3
    await client.store(snapshot(author, "other", {"x": 1}))
    await client.next_change(control.sub)
    await client.still_answers()
    assert [frame for frame in client.waiting(cut.sub) if frame[0] != "CLOSED"] == []


async def test_live_with_a_limit_that_reaches_the_tip_goes_live_unbounded(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 2))
    feed = await client.tail(author, live=True, limit=3)
    events = [snapshot(author, "other", {"x": n + 1}) for n in range(5)]
    await client.store(*events)
    assert [(await client.next_change(feed.sub))[1] for _ in events] == events


async def test_live_with_until_seq_never_goes_past_it(client: RelayClient, author: Author) -> None:
    await client.store(*versions(author, "note", 4))
    control = await client.tail(author, live=True)
    seqs = control.seqs
    feed = await client.tail(author, live=True, until_seq=seqs[1])
    assert feed.seqs == seqs[:2]
    await client.store(snapshot(author, "other", {"x": 1}))
    await client.next_change(control.sub)
    await client.still_answers()
    assert [frame for frame in client.waiting(feed.sub) if frame[0] != "CLOSED"] == []


async def test_a_checkpoint_at_eose_resumes_without_gap_or_repeat(client: RelayClient, author: Author) -> None:
    events = versions(author, "note", 10)
    await client.store(*events[:5])
    first = await client.tail(author)
    await client.store(*events[5:])
    second = await client.tail(author, since=first.eose)
    assert first.ids + second.ids == [event["id"] for event in events]
