"""Live REQ: after EOSE come the events that match, until CLOSE."""

from collections.abc import Callable

from authors import EPOCH, NOTE, Author, ids, now, snapshot
from processes import Node
from sockets import RelayClient


async def test_what_is_published_after_eose_arrives_live(node: Node, connect: Callable, author: Author) -> None:
    reader, writer = await connect(node), await connect(node)
    before = author.event(1, "before")
    await writer.store(before)
    answer = await reader.req({"authors": [author.pubkey]}, live=True)
    assert answer.ids == [before["id"]]
    after = author.event(1, "after")
    await writer.store(after)
    assert await reader.next_of(answer.sub) == ["EVENT", answer.sub, after]


async def test_one_sees_ones_own_events_live(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey]}, live=True)
    event = author.event(1, "mine")
    await client.store(event)
    assert await client.next_of(answer.sub) == ["EVENT", answer.sub, event]


async def test_only_what_matches_arrives_live(client: RelayClient, author: Author) -> None:
    other = Author.random()
    filters = {
        "kind": {"authors": [author.pubkey], "kinds": [7]},
        "tag": {"#t": ["wanted"], "authors": [author.pubkey]},
        "both": {"authors": [author.pubkey], "kinds": [7], "#t": ["wanted"]},
        "span": {"authors": [author.pubkey], "since": EPOCH + 10, "until": EPOCH + 20},
        "any": {"authors": [author.pubkey, other.pubkey]},
    }
    subs = {name: (await client.req(filter, live=True)).sub for name, filter in filters.items()}
    wanted = [["t", "wanted"]]
    events = [
        author.event(1, "a", created_at=EPOCH),
        author.event(7, "b", created_at=EPOCH + 10),
        author.event(1, "c", wanted, EPOCH + 20),
        author.event(7, "d", wanted, EPOCH + 21),
        other.event(7, "e", wanted, EPOCH + 15),
    ]
    for event in events:
        await client.store(event)
    a, b, c, d, e = ids(events)
    expected = {"kind": [b, d], "tag": [c, d], "both": [d], "span": [b, c], "any": [a, b, c, d, e]}
    assert [(await client.next_of(subs["any"]))[2]["id"] for _ in range(5)] == expected.pop("any")
    await client.still_answers()
    for name, wanted_ids in expected.items():
        assert [frame[2]["id"] for frame in client.waiting(subs[name])] == wanted_ids, name


async def test_an_event_that_two_filters_of_a_req_match_arrives_once(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey]}, {"kinds": [7], "authors": [author.pubkey]}, live=True)
    first, second = author.event(7, "first"), author.event(1, "second")
    await client.store(first)
    await client.store(second)
    assert [(await client.next_of(answer.sub))[2] for _ in range(2)] == [first, second]


async def test_an_event_arrives_on_every_subscription_it_matches(client: RelayClient, author: Author) -> None:
    subs = [(await client.req({"authors": [author.pubkey]}, live=True)).sub for _ in range(5)]
    event = author.event(1, "for all")
    await client.store(event)
    for sub in subs:
        assert await client.next_of(sub) == ["EVENT", sub, event]


async def test_a_limit_bounds_the_stored_events_and_not_the_live_ones(client: RelayClient, author: Author) -> None:
    await client.store(*(author.event(1, f"n{n}", created_at=EPOCH + n) for n in range(5)))
    answer = await client.req({"authors": [author.pubkey], "limit": 1}, live=True)
    assert len(answer.events) == 1
    none = await client.req({"authors": [author.pubkey], "limit": 0}, live=True)
    assert none.events == []
    events = [author.event(1, f"later {n}") for n in range(3)]
    for event in events:
        await client.store(event)
    for sub in (answer.sub, none.sub):
        assert [(await client.next_of(sub))[2] for _ in events] == events


async def test_a_duplicate_and_a_refused_event_do_not_arrive(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey]}, live=True)
    first = author.event(1, "first")
    await client.store(first)
    await client.store(first)
    await client.publish({**author.event(1, "x"), "content": "forged"})
    last = author.event(1, "last")
    await client.store(last)
    assert [(await client.next_of(answer.sub))[2] for _ in range(2)] == [first, last]


async def test_close_is_answered_and_ends_the_subscription(client: RelayClient, author: Author) -> None:
    closed = await client.req({"authors": [author.pubkey]}, live=True)
    kept = await client.req({"authors": [author.pubkey]}, live=True)
    assert await client.close_sub(closed.sub) == "closed"
    await client.store(author.event(1, "later"))
    await client.next_of(kept.sub)
    assert client.waiting(closed.sub) == []


async def test_close_of_an_unknown_subscription_is_answered_too(client: RelayClient) -> None:
    assert await client.close_sub("never-opened") == "closed"
    await client.still_answers()


async def test_a_req_with_the_same_id_replaces_the_earlier(client: RelayClient, author: Author) -> None:
    other = Author.random()
    await client.req({"authors": [author.pubkey]}, sub="one", live=True)
    await client.req({"authors": [other.pubkey]}, sub="one", live=True)
    await client.store(author.event(1, "not any more"))
    event = other.event(1, "this")
    await client.store(event)
    assert await client.next_of("one") == ["EVENT", "one", event]


async def test_the_same_id_on_two_sockets_is_two_subscriptions(node: Node, connect: Callable, author: Author) -> None:
    one, two = await connect(node), await connect(node)
    for client in (one, two):
        await client.req({"authors": [author.pubkey]}, sub="same", live=True)
    await one.close_sub("same")
    event = author.event(1, "to two")
    await one.store(event)
    assert await two.next_of("same") == ["EVENT", "same", event]
    await one.still_answers()
    assert one.waiting("same") == []


async def test_snapshots_arrive_by_req_too(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey], "kinds": [NOTE], "#d": ["a"]}, live=True)
    await client.store(snapshot(author, "b", {"x": 1}))
    event = snapshot(author, "a", {"x": 1})
    await client.store(event)
    assert await client.next_of(answer.sub) == ["EVENT", answer.sub, event]


async def test_req_batch_goes_live_too(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey]}, live=True, verb="REQ-BATCH")
    event = author.event(1, "later")
    await client.store(event)
    frame = await client.next_of(answer.sub)
    assert frame in (["EVENT", answer.sub, event], ["EVENTS", answer.sub, [event]])


async def test_a_future_since_waits_for_the_future(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey], "since": now() - 5}, live=True)
    await client.store(author.event(1, "old", created_at=EPOCH))
    event = author.event(1, "new")
    await client.store(event)
    assert await client.next_of(answer.sub) == ["EVENT", answer.sub, event]
