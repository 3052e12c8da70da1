"""What the kind ranges of NIP-01 mean: replaceable, addressable, ephemeral; and when an event ends (NIP-40)."""

import asyncio
import time
from collections.abc import Callable

import pytest
from authors import EPOCH, Author, Event, now
from processes import Node
from sockets import RelayClient


async def current(client: RelayClient, author: Author, kind: int, **tags: list[str]) -> list[str]:
    asked = {"authors": [author.pubkey], "kinds": [kind]}
    return (await client.req({**asked, **{f"#{name}": values for name, values in tags.items()}})).ids


@pytest.mark.parametrize("kind", [0, 3, 10000, 19999])
async def test_a_replaceable_event_is_replaced_by_a_newer_one(client: RelayClient, author: Author, kind: int) -> None:
    old, new = author.event(kind, "old", created_at=EPOCH), author.event(kind, "new", created_at=EPOCH + 1)
    await client.store(old)
    await client.store(new)
    assert await current(client, author, kind) == [new["id"]]
    assert await client.fetch(old["id"]) == []
    assert await client.count({"authors": [author.pubkey]}) == 1


@pytest.mark.parametrize("kind", [0, 3, 10000, 19999])
async def test_an_older_replaceable_event_does_not_come_back(client: RelayClient, author: Author, kind: int) -> None:
    old, new = author.event(kind, "old", created_at=EPOCH), author.event(kind, "new", created_at=EPOCH + 1)
    await client.store(new)
    await client.publish(old)
    assert await current(client, author, kind) == [new["id"]]
    assert await client.fetch(old["id"]) == []


def tie(author: Author, kind: int) -> tuple[Event, Event]:
    """Two events of one moment, the one with the lower id first."""
    pair = [author.event(kind, content, [["d", "x"]], EPOCH) for content in ("a", "b")]
    low, high = sorted(pair, key=lambda event: event["id"])
    return low, high


@pytest.mark.parametrize("kind", [0, 10002, 30023])
@pytest.mark.parametrize("low_first", [True, False])
async def test_of_two_replaceable_events_of_one_moment_the_lower_id_stays(
    client: RelayClient, author: Author, kind: int, low_first: bool
) -> None:
    low, high = tie(author, kind)
    for event in (low, high) if low_first else (high, low):
        await client.publish(event)
    assert await current(client, author, kind) == [low["id"]]


async def test_replaceable_events_replace_by_author_and_kind_only(client: RelayClient, author: Author) -> None:
    other = Author.random()
    mine, theirs = author.event(10002, "mine", [["d", "a"]]), other.event(10002, "theirs", [["d", "a"]])
    kin = author.event(10003, "kin")
    newer = author.event(10002, "newer", [["d", "b"]], now() + 1)
    await client.store(mine, theirs, kin)
    await client.store(newer)
    assert await current(client, author, 10002) == [newer["id"]]
    assert await current(client, other, 10002) == [theirs["id"]]
    assert await current(client, author, 10003) == [kin["id"]]


@pytest.mark.parametrize("kind", [30000, 30023, 39999])
async def test_an_addressable_event_is_replaced_within_its_address(
    client: RelayClient, author: Author, kind: int
) -> None:
    old = author.event(kind, "old", [["d", "a"]], EPOCH)
    beside = author.event(kind, "beside", [["d", "b"]], EPOCH)
    new = author.event(kind, "new", [["d", "a"]], EPOCH + 1)
    await client.store(old, beside)
    await client.store(new)
    await client.publish(old)
    assert await current(client, author, kind) == [new["id"], beside["id"]]
    assert await current(client, author, kind, d=["a"]) == [new["id"]]


async def test_an_address_without_d_is_the_empty_one(client: RelayClient, author: Author) -> None:
    first = author.event(30023, "none", [], EPOCH)
    second = author.event(30023, "empty", [["d", ""]], EPOCH + 1)
    third = author.event(30023, "bare", [["d"]], EPOCH + 2)
    for event in (first, second, third):
        await client.store(event)
    assert await current(client, author, 30023) == [third["id"]]


async def test_regular_events_are_never_replaced(client: RelayClient, author: Author) -> None:
    events = [author.event(kind, f"{n}", [["d", "a"]], EPOCH + n) for kind in (1, 9999, 1111) for n in range(2)]
    await client.store(*events)
    assert await client.count({"authors": [author.pubkey]}) == 6


@pytest.mark.parametrize("kind", [20000, 25000, 29999])
async def test_an_ephemeral_event_is_delivered_and_not_kept(
    node: Node, connect: Callable, author: Author, kind: int
) -> None:
    reader, writer = await connect(node), await connect(node)
    answer = await reader.req({"authors": [author.pubkey]}, live=True)
    event = author.event(kind, "now or never")
    assert (await writer.publish(event)).accepted
    assert await reader.next_of(answer.sub) == ["EVENT", answer.sub, event]
    assert (await writer.req({"authors": [author.pubkey]})).ids == []
    assert await writer.fetch(event["id"]) == []


async def test_a_forged_ephemeral_event_is_not_delivered(client: RelayClient, author: Author) -> None:
    answer = await client.req({"authors": [author.pubkey]}, live=True)
    assert not (await client.publish({**author.event(20001, "x"), "content": "forged"})).accepted
    event = author.event(20001, "true")
    await client.publish(event)
    assert (await client.next_of(answer.sub))[2] == event


async def test_an_event_that_has_expired_is_refused(client: RelayClient, author: Author) -> None:
    event = author.event(1, "late", [["expiration", str(now() - 10)]], now() - 20)
    ok = await client.publish(event)
    assert not ok.accepted and ":" in ok.message
    assert await client.fetch(event["id"]) == []


async def test_an_event_is_served_until_it_expires_and_not_after(client: RelayClient, author: Author) -> None:
    end = now() + 2
    event = author.event(1, "brief", [["expiration", str(end)], ["t", "x"]])
    lasting = author.event(1, "lasting", [["expiration", str(end + 10_000)], ["t", "x"]])
    await client.store(event, lasting)
    mine = {"authors": [author.pubkey]}
    assert await client.count(mine) == 2
    await asyncio.sleep(end + 1.05 - time.time())
    for filter in (mine, {"ids": [event["id"], lasting["id"]]}, {**mine, "#t": ["x"]}):
        assert (await client.req(filter)).ids == [lasting["id"]]
    assert await client.count(mine) == 1


@pytest.mark.parametrize("value", ["", "soon", "-1", "1e99", "9" * 40])
async def test_an_odd_expiration_does_no_harm(client: RelayClient, author: Author, value: str) -> None:
    await client.publish(author.event(1, "odd", [["expiration", value], ["expiration"]]))
    await client.still_answers()
