"""Which kinds a node takes is configuration: all of them, or the sync families with companions and pass-throughs."""

from collections.abc import Callable, Iterator

import pytest
from authors import NOTE, Author, snapshot
from processes import Node

UNSUPPORTED = "unsupported: non-snapshot event kind requires explicit classification"
COMPANION, PASS_THROUGH = 1111, 7


@pytest.fixture(scope="module")
def sync_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    env = {"KINDS": "sync", "COMPANION_KINDS": f"{COMPANION},30078", "PASS_THROUGH_KINDS": f"{PASS_THROUGH}"}
    own = Node(tmp_path_factory.mktemp("sync"), env=env)
    own.start()
    yield own
    own.end()


async def test_a_sync_node_takes_snapshots_and_refuses_plain_kinds(
    sync_node: Node, connect: Callable, author: Author
) -> None:
    client = await connect(sync_node)
    event = snapshot(author, "note", {"laptop": 1})
    assert (await client.publish(event)).message == f"stored: snapshot {event['id']}"
    for kind in (0, 1, 3, 9, 10002, 30023, 65535):
        ok = await client.publish(author.event(kind, "plain", [["d", "x"]]))
        assert (ok.accepted, ok.message) == (False, UNSUPPORTED), kind
    assert (await client.req({"authors": [author.pubkey]})).ids == [event["id"]]


@pytest.mark.parametrize(("kind", "name"), [(COMPANION, "companion"), (PASS_THROUGH, "pass-through")])
async def test_a_classified_kind_is_stored_beside_the_sync_state(
    sync_node: Node, connect: Callable, author: Author, kind: int, name: str
) -> None:
    client = await connect(sync_node)
    event = author.event(kind, "beside", [["d", "x"]])
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (True, f"stored: {name} event kind={kind}")
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (True, "duplicate: event already exists")
    assert (await client.req({"authors": [author.pubkey], "kinds": [kind]})).events == [event]


async def test_a_classified_kind_never_enters_a_sync_feed(sync_node: Node, connect: Callable, author: Author) -> None:
    client = await connect(sync_node)
    live = await client.tail(author, live=True)
    note = snapshot(author, "note", {"laptop": 1})
    companion = author.event(COMPANION, "beside", [["d", "note"], ["o", "put"], ["vc", "laptop", "2"]])
    await client.store(companion, author.event(PASS_THROUGH, "through"), note)
    assert (await client.next_change(live.sub))[1] == note
    assert (await client.tail(author)).ids == [note["id"]]
    assert [event["id"] for event in (await client.bootstrap(author)).snapshots] == [note["id"]]


async def test_every_stored_operation_takes_a_position_in_the_one_log(
    sync_node: Node, connect: Callable, author: Author
) -> None:
    client = await connect(sync_node)
    before = sync_node.max_seq()
    await client.store(author.event(COMPANION, "a"), author.event(PASS_THROUGH, "b"))
    await client.store(snapshot(author, "note", {"laptop": 1}))
    assert sync_node.max_seq() == before + 3
    feed = await client.tail(author)
    assert feed.seqs == [before + 3] and feed.eose == before + 3


async def test_a_classified_kind_is_still_verified(sync_node: Node, connect: Callable, author: Author) -> None:
    client = await connect(sync_node)
    event = {**author.event(COMPANION, "beside"), "content": "forged"}
    ok = await client.publish(event)
    assert not ok.accepted and ok.message.startswith("invalid:")


async def test_a_plain_node_takes_every_plain_kind_and_the_note(node: Node, connect: Callable, author: Author) -> None:
    client = await connect(node)
    events = [author.event(kind, "plain", [["d", "x"]]) for kind in (0, 1, 3, 9, 10002, 30023, 65535)]
    await client.store(*events, snapshot(author, "note", {"laptop": 1}))
    kinds = {event["kind"] for event in (await client.req({"authors": [author.pubkey]})).events}
    assert kinds == {0, 1, 3, 9, 10002, 30023, 65535, NOTE}
