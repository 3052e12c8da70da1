"""The replay window: what can be replayed is advertised, what cannot is told, and bootstrap works all the same."""

import asyncio
import time
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, ids, now, snapshot, versions
from processes import Node
from sockets import RelayClient


async def test_nothing_is_trimmed_by_default(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    assert own.min_seq() == 0
    client: RelayClient = await connect(own)
    history = versions(author, "note", 30)
    await client.store(*history)
    own.compact(None)
    assert own.min_seq() == 1 and own.max_seq() == 30
    assert (await client.tail(author, since=0)).ids == ids(history)


@pytest.mark.parametrize("window", [{"RETENTION_REPLAY_COUNT": "10"}, {"RETENTION_REPLAY_BYTES": "30000"}])
async def test_a_window_moves_the_floor_and_leaves_current_state(
    start_node: Callable[..., Node], connect: Callable, author: Author, window: dict[str, str]
) -> None:
    own = start_node(admin=True, env=window)
    client = await connect(own)
    events = [snapshot(author, f"d{n:02}", {"x": 1}, content="x" * 2400, created_at=EPOCH + n) for n in range(40)]
    await client.store(*events)
    own.compact(None)
    floor = own.min_seq()
    assert 25 <= floor <= 35
    old = await client.tail(author, since=0)
    assert old.error == f"checkpoint too old: min_seq is {floor}"
    edge = await client.tail(author, since=floor - 1)
    assert edge.seqs == list(range(floor, 41)) and edge.eose == 40
    feed = await client.bootstrap(author)
    assert feed.snapshots == events
    tail = await client.tail(author, since=feed.eose)
    assert tail.events == [] and tail.error is None
    assert sorted(await client.fetch(*ids(events))) == sorted(ids(events))


async def test_the_floor_only_rises_and_survives_a_restart(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"RETENTION_REPLAY_COUNT": "5"})
    floors = []
    for n in range(3):
        client = await connect(own)
        await client.store(*versions(author, f"d{n}", 10))
        own.compact(None)
        floors.append(own.min_seq())
        own.restart()
        assert own.min_seq() == floors[-1]
    assert floors == [6, 16, 26]
    own.stop()
    own.verify()


async def test_below_the_floor_every_kind_of_tail_is_told(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"RETENTION_REPLAY_COUNT": "3"})
    client = await connect(own)
    await client.store(*versions(author, "note", 10))
    own.compact(None)
    text = "checkpoint too old: min_seq is 8"
    for rest in ({}, {"live": True}, {"limit": 1}, {"until_seq": 9}, {"#d": ["note"]}, {"limit": 0}):
        feed = await client.tail(author, since=3, **rest)
        assert feed.frames == [["CHANGES", feed.sub, "ERR", text]], rest
    assert (await client.tail(Author.random(), since=0)).error == text
    assert (await client.changes({"authors": [author.pubkey], "kinds": [NOTE]})).error == text


async def test_a_live_feed_goes_on_while_the_floor_passes_it_by(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"RETENTION_REPLAY_COUNT": "3"})
    client = await connect(own)
    feed = await client.tail(author, live=True)
    for n in range(3):
        events = versions(author, f"d{n}", 6)
        await client.store(*events)
        own.compact(None)
        assert [(await client.next_change(feed.sub))[1] for _ in events] == events


async def test_a_checkpoint_beyond_the_tip_promises_nothing(client: RelayClient, node: Node, author: Author) -> None:
    """After a restore a client may know more than the node: it must not be told that it is complete."""
    feed = await client.tail(author, since=node.max_seq() + 1000)
    assert feed.error is not None or (feed.eose or 0) <= node.max_seq() + 1000
    assert feed.events == []
    await client.still_answers()


async def store_briefly(client: RelayClient, author: Author) -> int:
    """Store an event that expires soon, and later where it has expired on its way. When that is."""
    for seconds in (2, 8, 32):
        end = now() + seconds
        told = await client.publish(author.event(1, "brief", [["expiration", str(end)]]))
        if told.accepted:
            return end
        assert told.message == "invalid: event has expired"
    pytest.fail("it expires before it comes, however late that is")


async def test_a_position_is_not_given_again_when_its_event_has_gone(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    """The last event of the log expires (NIP-40) and is removed: the next one does not take its place."""
    own = start_node(admin=True)
    client = await connect(own)
    await client.store(snapshot(author, "first", {"x": 1}))
    end = await store_briefly(client, author)
    await asyncio.sleep(end + 1.1 - time.time())
    own.compact(0)
    own.restart()
    client = await connect(own)
    assert own.max_seq() == 3  # the removal has a position too
    await client.store(snapshot(author, "next", {"x": 1}))
    assert (await client.tail(author)).seqs == [1, 4]
    own.stop()
    own.verify()


async def delete_documents(client: RelayClient, author: Author, count: int, start: int = EPOCH) -> list[list[str]]:
    """Write and delete documents one after the other; the ids of each."""
    documents = []
    for n in range(count):
        put = snapshot(author, f"d{n:03}", {"x": 1}, created_at=start + 2 * n)
        gone = snapshot(author, f"d{n:03}", {"x": 2}, o="del", created_at=start + 2 * n + 1)
        await client.store(put)
        await client.store(gone)
        documents.append([put["id"], gone["id"]])
    return documents


async def test_above_a_hundred_deleted_documents_the_oldest_go_altogether(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    documents = await delete_documents(client, author, 104)
    kept = snapshot(author, "kept", {"x": 1}, created_at=EPOCH + 9000)
    await client.store(kept)
    own.compact(0)
    floor = own.min_seq()
    assert 1 < floor <= 9
    gone = await client.req({"ids": [identity for document in documents[:4] for identity in document]})
    assert gone.events == [] and gone.statuses == []
    snapshots = (await client.bootstrap(author)).snapshots
    assert ids(snapshots) == [document[1] for document in documents[4:]] + [kept["id"]]
    assert (await client.tail(author, since=0)).error == f"checkpoint too old: min_seq is {floor}"
    assert (await client.tail(author, since=floor - 1)).error is None
    own.stop()
    own.verify()


async def test_a_hundred_deleted_documents_stay(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    other = Author.random()
    await delete_documents(client, author, 100)
    await delete_documents(client, other, 3)
    own.compact(0)
    assert own.min_seq() == 1
    for who, count in ((author, 100), (other, 3)):
        assert len((await client.bootstrap(who)).snapshots) == count


async def test_a_document_with_a_living_rival_is_not_fully_deleted(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"RETENTION_DELETED_DOCUMENTS": "2"})
    client = await connect(own)
    gone = snapshot(author, "rivals", {"a": 1}, o="del", created_at=EPOCH)
    alive = snapshot(author, "rivals", {"b": 1}, created_at=EPOCH + 1)
    await client.store(gone, alive)
    documents = await delete_documents(client, author, 5, EPOCH + 10)
    own.compact(0)
    current = ids((await client.bootstrap(author)).snapshots)
    assert current == [gone["id"], alive["id"]] + [document[1] for document in documents[3:]]
