"""A bootstrap is waited for as long as its reader gets on, and holds up nothing of other authors."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from authors import EPOCH, Author, Event, snapshot, versions
from bare_sockets import BareSocket
from inside import running
from processes import ADMIN_TOKEN, Node
from sockets import RelayClient

from anabranch.core.changes import ChangesRequest, Mode, SnapshotQuery
from anabranch.core.nostr import Limits, parse
from anabranch.core.operation import KindPolicy, classify
from anabranch.node import replay as replays
from anabranch.node.hub import Hub, Style, Subscription
from anabranch.node.metrics import Metrics
from anabranch.node.replay import Replay
from anabranch.store.contract import Offer
from anabranch.store.sqlite import SqliteStore
from anabranch.wire.messages import BOOTSTRAP_TOO_SLOW
from anabranch.wire.session import Changes


def bulk(author: Author, count: int) -> list[Event]:
    return [snapshot(author, f"d{n}", {"laptop": 1}, content="x" * 50_000, created_at=EPOCH) for n in range(count)]


def offered(event: Event) -> Offer:
    return Offer(classify(*parse(json.dumps(event).encode(), Limits()), KindPolicy()))


class SlowReader:
    """A consumer that takes what it is sent after so many seconds; None: never."""

    congested = False

    def __init__(self, store: SqliteStore, seconds: float | None) -> None:
        self._reader = store.open_reader()
        self._seconds = seconds
        self.told = b""
        self.ended = False

    def send(self, data: bytes) -> None:
        self.told += data

    async def read(self, read: Callable) -> object:
        return read(self._reader)

    async def writable(self) -> None:
        await (asyncio.Event().wait() if self._seconds is None else asyncio.sleep(self._seconds))

    def has(self, subscription: Subscription) -> bool:
        return True

    def subscription_ended(self, subscription: Subscription) -> None:
        self.ended = True
        self._reader.close()


@pytest.fixture
async def store(tmp_path: Path, author: Author) -> AsyncIterator[SqliteStore]:
    store = SqliteStore.open(tmp_path)
    store.writer.append([offered(event) for event in bulk(author, 40)], 0)
    yield store
    store.close()


async def bootstrap(store: SqliteStore, author: Author, consumer: SlowReader, seconds: float) -> None:
    hub = Hub(store.log().tip, 100_000)
    request = ChangesRequest(Mode.BOOTSTRAP, SnapshotQuery(author.pubkey))
    replay = Replay(hub, Metrics(), 100, 100_000, seconds)  # type: ignore[arg-type]
    subscription = Subscription(consumer, "b", request.query, Style.SNAPSHOT)
    running = asyncio.create_task(replay.changes(consumer, Changes("b", request), subscription))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert [horizon.author for horizon in hub.horizons] == [author.pubkey]
    await running
    assert hub.horizons == [] and consumer.ended


async def test_a_bootstrap_whose_reader_is_stuck_is_ended_in_words(store: SqliteStore, author: Author) -> None:
    stuck = SlowReader(store, None)
    await bootstrap(store, author, stuck, 0.2)
    assert BOOTSTRAP_TOO_SLOW.encode() in stuck.told and b"EOSE" not in stuck.told


@pytest.mark.parametrize(("seconds", "whole"), [(0.02, True), (1.0, False)])
async def test_a_bootstrap_goes_on_while_its_reader_is_no_slower_than_it_may_be(
    store: SqliteStore, author: Author, monkeypatch: pytest.MonkeyPatch, seconds: float, whole: bool
) -> None:
    """However long that takes in all: what was sent gives it more time."""
    monkeypatch.setattr(replays, "BOOTSTRAP_BYTES_A_SECOND", 100_000)
    reader = SlowReader(store, seconds)
    await bootstrap(store, author, reader, 0.3)
    assert (b'"EOSE"' in reader.told, BOOTSTRAP_TOO_SLOW.encode() in reader.told) == (whole, not whole)
    assert (reader.told.count(b'"SNAPSHOT"') == 40) is whole


async def test_a_node_gives_a_bootstrap_as_long_as_its_settings_say(tmp_path: Path, author: Author) -> None:
    async with running(tmp_path, bootstrap_seconds=0.2, send_buffer_bytes=100_000) as node:
        stuck = SlowReader(node.store, None)
        request = ChangesRequest(Mode.BOOTSTRAP, SnapshotQuery(author.pubkey))
        await node.writer.run(lambda writer: writer.append([offered(event) for event in bulk(author, 3)], 0))
        subscription = Subscription(stuck, "b", request.query, Style.SNAPSHOT)
        async with asyncio.timeout(10):
            await node.replay.changes(stuck, Changes("b", request), subscription)  # type: ignore[arg-type]
        assert BOOTSTRAP_TOO_SLOW.encode() in stuck.told and stuck.ended


async def test_a_bootstrap_that_nobody_reads_holds_up_nothing_of_other_authors(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, config='[retention]\nmode = "current_only"\ndeleted_documents = 1\n')
    client: RelayClient = await connect(own)
    await client.store(*bulk(author, 100))
    with BareSocket(own.port, rcvbuf=4096) as stuck:
        stuck.handshake()
        stuck.send(json.dumps(["CHANGES", "b", {"mode": "bootstrap", "authors": [author.pubkey]}]))
        assert stuck.read_message()[2] == "STATUS"
        other = Author.random()
        await client.store(
            *versions(other, "note", 3), *(snapshot(other, f"d{n}", {"x": 1}, o="del") for n in range(3))
        )
        await client.store(*versions(author, "d0", 3, content="new"))
        report = own.http("POST", "/admin/compact", token=ADMIN_TOKEN).json()
        assert (report["forgotten_documents"], report["compacted_snapshots"]) == (2, 2)
    report = {"compacted_snapshots": 0}
    while not report["compacted_snapshots"]:
        await asyncio.sleep(0.05)
        report = own.http("POST", "/admin/compact", token=ADMIN_TOKEN).json()
    assert report["compacted_snapshots"] == 3, "what it might still have wanted goes once it is gone"
