"""Where the log runs ahead of a replay that is about to go live, what is read on is what was asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from histories import operation, snapshot

from anabranch.core.changes import ChangesRequest, Mode, SnapshotQuery
from anabranch.core.token import Position, ProgressToken
from anabranch.node.hub import Style, Subscription
from anabranch.node.metrics import Metrics
from anabranch.node.replay import Replay
from anabranch.store.contract import Offer
from anabranch.store.sqlite import SqliteStore
from anabranch.wire import frames
from anabranch.wire.session import Changes

VERSIONS = [snapshot("A", {"laptop": n}) for n in range(1, 6)]


class Consumer:
    congested = False

    def __init__(self, store: SqliteStore) -> None:
        self._reader = store.open_reader()
        self._told = b""
        self.ended = False

    @property
    def told(self) -> list[list]:
        reader = frames.FrameReader(1 << 20, of_server=True)
        return [json.loads(payload) for _, payload in reader.feed(self._told)]

    def send(self, data: bytes) -> None:
        self._told += data

    async def read(self, read: Callable) -> object:
        return read(self._reader)

    async def writable(self) -> None: ...

    def has(self, subscription: Subscription) -> bool:
        return not self.ended

    def subscription_ended(self, subscription: Subscription) -> None:
        self.ended = True


class HubBehind:
    """Cannot take over at first: just then something happens to the log."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = [happens]
        self.joined: Position | None = None

    def join(self, subscription: Subscription, complete_to: Position) -> bool:
        if self._happens:
            self._happens.pop()()
            return False
        self.joined = complete_to
        return True


@pytest.fixture
def store(tmp_path: Path):
    store = SqliteStore.open(tmp_path)
    store.writer.append([Offer(operation(VERSIONS[0]))], 0)
    yield store
    store.close()


async def follow(store: SqliteStore, happens: Callable[[], object], **asked) -> tuple[Consumer, HubBehind]:
    request = ChangesRequest(Mode.TAIL, SnapshotQuery(VERSIONS[0].pubkey), live=True, **asked)
    consumer, hub = Consumer(store), HubBehind(happens)
    subscription = Subscription(consumer, "t", request.query, Style.CHANGE)
    replay = Replay(hub, Metrics(), 100, 100_000)  # type: ignore[arg-type]
    await replay.changes(consumer, Changes("t", request), subscription)  # type: ignore[arg-type]
    return consumer, hub


@pytest.mark.parametrize("told", [True, False])
async def test_what_is_compacted_while_a_tail_goes_live_is_told_to_who_asked_for_it(store: SqliteStore, told: bool):
    def happens() -> None:
        store.writer.append([Offer(operation(version)) for version in VERSIONS[1:]], 0)
        store.writer.compact([Position(2), Position(3)])

    consumer, hub = await follow(store, happens, include_compacted=told)
    after = consumer.told[2:]
    compacted = [
        {"id": version.id, "status": "payload_compacted", "seq": n + 2} for n, version in enumerate(VERSIONS[1:3])
    ]
    assert [frame[2] for frame in after if frame[0] == "EVENT-STATUS"] == (compacted if told else [])
    assert [frame[3] for frame in after if frame[0] == "CHANGES"] == [4, 5]
    assert hub.joined == 5


async def test_who_has_shown_a_token_gets_the_gap_in_tokens_also_while_going_live(store: SqliteStore):
    def happens() -> None:
        store.writer.append([Offer(operation(version)) for version in VERSIONS[1:]], 0)
        store.writer.raise_floor(Position(4))

    log = store.log()
    token = ProgressToken(log.stream, log.epoch, Position(1), "")
    consumer, hub = await follow(store, happens, since=Position(1), token=token)
    error = consumer.told[-1]
    assert error[:4] == ["CHANGES", "t", "ERR", "checkpoint too old: min_seq is 4"]
    assert error[4]["reason"] == "token_too_old"
    assert hub.joined is None
