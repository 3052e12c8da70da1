"""NIP-09: an author takes back what they wrote, and nobody else can."""

import asyncio
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, Event, ids, now, snapshot
from processes import Node
from sockets import RelayClient


def deletion(author: Author, *tags: list[str], created_at: int = EPOCH + 1000) -> Event:
    return author.event(5, "taken back", list(tags), created_at)


def address(event: Event) -> str:
    d = next((tag[1] for tag in event["tags"] if tag[0] == "d"), "")
    return f"{event['kind']}:{event['pubkey']}:{d}"


async def test_an_author_deletes_their_own_events_by_id(client: RelayClient, author: Author) -> None:
    events = [author.event(1, f"n{n}", created_at=EPOCH + n) for n in range(3)]
    await client.store(*events)
    request = deletion(author, ["e", events[0]["id"]], ["e", events[1]["id"]], ["k", "1"])
    assert (await client.publish(request)).accepted
    mine = {"authors": [author.pubkey]}
    assert (await client.req(mine)).ids == [request["id"], events[2]["id"]]
    assert (await client.req({**mine, "kinds": [5]})).events == [request]
    assert await client.fetch(events[0]["id"]) == []
    assert await client.count({**mine, "kinds": [1]}) == 1


async def test_nobody_deletes_the_events_of_another(client: RelayClient, author: Author) -> None:
    event = author.event(1, "mine")
    article = author.event(30023, "mine", [["d", "x"]], EPOCH)
    await client.store(event, article)
    await client.publish(deletion(Author.random(), ["e", event["id"]], ["e", article["id"]], ["a", address(article)]))
    assert set(await client.fetch(event["id"], article["id"])) == {event["id"], article["id"]}


async def test_a_deleted_event_is_refused_when_it_comes_again(client: RelayClient, author: Author) -> None:
    event = author.event(1, "once", created_at=EPOCH)
    await client.store(event)
    await client.store(deletion(author, ["e", event["id"]]))
    ok = await client.publish(event)
    assert not ok.accepted and ":" in ok.message, ok
    assert await client.fetch(event["id"]) == []


async def test_an_event_that_comes_after_its_deletion_is_refused(client: RelayClient, author: Author) -> None:
    event = author.event(1, "late", created_at=EPOCH)
    await client.store(deletion(author, ["e", event["id"]]))
    ok = await client.publish(event)
    assert not ok.accepted and ":" in ok.message, ok
    assert await client.fetch(event["id"]) == []


async def test_the_deletion_by_a_stranger_does_not_bar_an_event_to_come(client: RelayClient, author: Author) -> None:
    event = author.event(1, "to come")
    await client.store(deletion(Author.random(), ["e", event["id"]]))
    assert (await client.publish(event)).accepted
    assert await client.fetch(event["id"]) == [event["id"]]


@pytest.mark.parametrize("kind", [30023, 10002])
async def test_an_address_is_deleted_up_to_the_moment_of_the_request(
    client: RelayClient, author: Author, kind: int
) -> None:
    tags = [["d", "x"]] if kind == 30023 else []
    old = author.event(kind, "old", tags, EPOCH)
    await client.store(old)
    await client.store(deletion(author, ["a", address(old)], created_at=EPOCH + 10))
    assert await client.fetch(old["id"]) == []
    still_old = author.event(kind, "still old", tags, EPOCH + 10)
    assert not (await client.publish(still_old)).accepted
    new = author.event(kind, "new", tags, EPOCH + 11)
    assert (await client.publish(new)).accepted
    assert (await client.req({"authors": [author.pubkey], "kinds": [kind]})).ids == [new["id"]]


async def test_an_address_with_colons_is_deleted_whole(client: RelayClient, author: Author) -> None:
    first = author.event(30023, "a:b", [["d", "a:b"]], EPOCH)
    beside = author.event(30023, "a", [["d", "a"]], EPOCH)
    await client.store(first, beside)
    await client.store(deletion(author, ["a", address(first)]))
    assert await client.fetch(first["id"], beside["id"]) == [beside["id"]]


async def test_a_deletion_request_cannot_be_deleted(client: RelayClient, author: Author) -> None:
    event = author.event(1, "gone", created_at=EPOCH)
    await client.store(event)
    request = deletion(author, ["e", event["id"]])
    await client.store(request)
    await client.publish(deletion(author, ["e", request["id"]], created_at=EPOCH + 2000))
    assert await client.fetch(request["id"]) == [request["id"]]
    assert not (await client.publish(event)).accepted


async def test_a_deletion_is_delivered_live(client: RelayClient, author: Author) -> None:
    event = author.event(1, "x", created_at=EPOCH)
    await client.store(event)
    answer = await client.req({"authors": [author.pubkey], "kinds": [5]}, live=True)
    request = deletion(author, ["e", event["id"]])
    await client.store(request)
    assert await client.next_of(answer.sub) == ["EVENT", answer.sub, request]


@pytest.mark.parametrize(
    "tags",
    [
        [["e"]],
        [["e", ""]],
        [["e", "xyz"]],
        [["e", "0" * 64]],
        [["a"]],
        [["a", ""]],
        [["a", "30023"]],
        [["a", "x:y:z"]],
        [["a", "99999999999999999999:" + "0" * 64 + ":"]],
        [["a", f"{NOTE}:" + "0" * 64 + ":\u0000"]],
        [["k", "1"]],
        [],
    ],
    ids=str,
)
async def test_an_odd_deletion_does_no_harm(client: RelayClient, author: Author, tags: list) -> None:
    event = author.event(1, "stays", created_at=EPOCH)
    await client.store(event)
    await client.publish(deletion(author, *tags))
    assert await client.fetch(event["id"]) == [event["id"]]


async def test_a_deletion_survives_a_restart(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    client = await connect(own)
    event, kept = author.event(1, "gone", created_at=EPOCH), author.event(1, "kept", created_at=EPOCH)
    await client.store(event, kept)
    await client.store(deletion(author, ["e", event["id"]]))
    own.restart()
    client = await connect(own)
    assert await client.fetch(event["id"], kept["id"]) == [kept["id"]]
    assert not (await client.publish(event)).accepted


@pytest.mark.parametrize("how", ["by its author", "by the operator", "by its own date"])
async def test_what_a_removed_head_had_superseded_does_not_come_back(
    start_node: Callable[..., Node], connect: Callable, author: Author, how: str
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    old, beside = snapshot(author, "note", {"x": 1}), snapshot(author, "beside", {"x": 1})
    tags = [["d", "note"], ["o", "put"], ["vc", "x", "2"]]
    if how == "by its own date":
        tags.append(["expiration", str(now() + 2)])
    head = author.event(NOTE, "sealed", tags)
    await client.store(old, beside, head)
    assert sorted(ids((await client.bootstrap(author)).snapshots)) == sorted(ids([beside, head]))
    if how == "by its author":
        await client.store(author.event(5, tags=[["e", head["id"]]]))
    elif how == "by the operator":
        assert own.admin("DELETE", f"events/{head['id']}").status == 200
    else:
        await asyncio.sleep(2.1)
        assert (await client.bootstrap(author)).snapshots == [beside], "before anything has cleared it away"
    for again in ("at once", "after compaction", "after a restart"):
        if again == "after compaction":
            own.compact(None)
        elif again == "after a restart":
            own.restart()
            client = await connect(own)
        assert (await client.bootstrap(author)).snapshots == [beside], again
        assert await client.fetch(head["id"]) == []
        await client.publish(old)
        await client.publish(head)
    late = snapshot(author, "note", {"x": 1}, content="another device, as old")
    await client.store(late)
    assert (await client.bootstrap(author)).snapshots == [beside]
    newer = snapshot(author, "note", {"x": 3})
    await client.store(newer)
    assert sorted(ids((await client.bootstrap(author)).snapshots)) == sorted(ids([beside, newer]))
    own.verify()


async def test_the_logical_deletion_of_a_document_is_a_snapshot_like_any_other(
    client: RelayClient, author: Author
) -> None:
    put = snapshot(author, "note", {"laptop": 1}, created_at=EPOCH)
    gone = snapshot(author, "note", {"laptop": 2}, o="del", created_at=EPOCH + 1)
    await client.store(put, gone)
    assert (await client.tail(author)).ids == [put["id"], gone["id"]]
    assert (await client.bootstrap(author)).snapshots == [gone]
