"""Who is too far behind: judged by what a socket takes over time, never by the size of one burst."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from authors import Author

from anabranch.config import LimitSettings, Settings
from anabranch.core import nostr
from anabranch.core.filter import Filter
from anabranch.core.operation import KindPolicy, Operation, classify
from anabranch.core.token import Position
from anabranch.node import outlet as outlets
from anabranch.node.allowance import Allowance
from anabranch.node.connection import Connection
from anabranch.node.hub import Hub, Style, Subscription
from anabranch.node.metrics import Metrics
from anabranch.node.replay import Replay
from anabranch.wire import frames

MOST = 1_000_000
PATIENCE = 0.2


class Socket:
    """A transport whose peer reads when it is told to."""

    def __init__(self) -> None:
        self.waiting = self.written = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        self.waiting += len(data)
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def close(self) -> None:
        self.closed = True

    abort = close

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


class Reader:
    """A connection with some live subscriptions of everything, and a socket that takes nothing by itself."""

    def __init__(self, subscriptions: int = 1, all_together: int = 100 * MOST) -> None:
        self.hub, self.metrics, self.socket = Hub(Position(0), MOST), Metrics(), Socket()
        sockets: list[Connection] = []
        node: Any = SimpleNamespace(
            settings=Settings(limits=LimitSettings(send_buffer_bytes=MOST)),
            loop=asyncio.get_running_loop(),
            hub=self.hub,
            metrics=self.metrics,
            opened=lambda connection: True,
            turns=outlets.Turns(asyncio.get_running_loop()),
            outgoing=Allowance(all_together, sockets, lambda one: one.outlet.waiting, Connection.give_up),
        )
        self.connection = Connection(node)
        sockets.append(self.connection)
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]
        names = [f"s{n}" for n in range(subscriptions)]
        self.connection._live = {
            name: Subscription(self.connection.outlet, name, (Filter(),), Style.EVENT) for name in names
        }
        for subscription in self.connection._live.values():
            assert self.hub.join(subscription, Position(0))

    async def hears(self, operations: list[Operation]) -> None:
        tip = self.hub.tip
        self.hub.publish([(Position(tip + 1 + n), one) for n, one in enumerate(operations)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def dropped(self) -> bool:
        counted = self.metrics.registry.get_sample_value("anabranch_slow_consumers_dropped_total") == 1
        assert counted == self.socket.closed
        return counted


@pytest.fixture(scope="module")
def burst() -> list[Operation]:
    """Half as much again as may wait for a reader."""
    author = Author.random()
    events = [nostr.parse(json.dumps(author.event(1, "x" * 98_000)).encode(), nostr.Limits()) for _ in range(15)]
    return [classify(event, raw, KindPolicy()) for event, raw in events]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "LAG_SECONDS", PATIENCE)
    monkeypatch.setattr(outlets, "STUCK_SECONDS", PATIENCE)


async def test_a_reader_that_takes_each_burst_before_the_next_is_never_dropped(burst: list[Operation]) -> None:
    reader = Reader()
    for _ in range(12):
        await reader.hears(burst)
        await asyncio.sleep(PATIENCE / 3)
        reader.socket.waiting = 0
    await asyncio.sleep(2 * PATIENCE)
    assert not reader.dropped


async def test_a_reader_that_is_stuck_after_its_second_burst_is_dropped_though_nothing_more_comes(
    burst: list[Operation],
) -> None:
    """It had caught up with the first: that counts for the first alone."""
    reader = Reader()
    await reader.hears(burst)
    reader.socket.waiting = 0
    await reader.hears(burst)
    assert not reader.dropped
    await asyncio.sleep(3 * PATIENCE)
    assert reader.dropped


async def test_a_reader_that_takes_nothing_is_dropped_before_much_more_waits(burst: list[Operation]) -> None:
    reader = Reader()
    for _ in range(6):
        await reader.hears(burst)
        await asyncio.sleep(PATIENCE / 2)
    assert reader.dropped
    assert reader.socket.written < 8 * MOST


async def test_a_reader_that_keeps_up_far_behind_is_never_dropped(burst: list[Operation]) -> None:
    """More waits for it than may, all the time, and never the same."""
    reader = Reader()
    for _ in range(30):
        await reader.hears(burst)
        reader.socket.waiting = min(reader.socket.waiting, 3 * MOST)
        await asyncio.sleep(PATIENCE / 5)
    assert not reader.dropped
    await asyncio.sleep(3 * PATIENCE)
    assert reader.dropped, "it has stopped reading since"


@pytest.mark.parametrize("also", ["PONG", "a second burst"])
async def test_what_many_subscriptions_of_one_connection_want_at_once_drops_no_reader(
    burst: list[Operation], also: str
) -> None:
    """The socket had no chance to take it yet, whatever is sent right after it."""
    reader = Reader(subscriptions=7)
    await reader.hears(burst)
    if also == "PONG":
        reader.connection.send(frames.control(frames.PONG))
        await asyncio.sleep(0)
    else:
        await reader.hears(burst)
    assert not reader.dropped
    reader.socket.waiting = 0
    await reader.hears(burst[:1])
    await asyncio.sleep(2 * PATIENCE)
    assert not reader.dropped
    assert reader.hub.subscriptions == 7


@pytest.mark.parametrize(("subscriptions", "dropped"), [(10, False), (50, True)])
async def test_what_waits_for_all_readers_together_is_bounded(
    burst: list[Operation], subscriptions: int, dropped: bool
) -> None:
    """However many subscriptions of one connection want the same in one turn."""
    reader = Reader(subscriptions, all_together=20 * MOST)
    await reader.hears(burst)
    assert reader.dropped == dropped
    assert reader.socket.written < 22 * MOST
    assert reader.hub.subscriptions == (0 if dropped else subscriptions)


async def test_a_hand_off_waits_for_a_reader_that_is_behind(burst: list[Operation]) -> None:
    """What it is handed would come on top of what waits already."""
    reader = Reader(0)
    subscription = Subscription(reader.connection.outlet, "late", (Filter(),), Style.EVENT)
    reader.connection._live = {"late": subscription}
    await reader.hears(burst[:3])
    reader.connection.pause_writing()
    replay = Replay(reader.hub, reader.metrics, 100, MOST)
    joining = asyncio.create_task(replay._go_live(reader.connection, subscription, Position(0)))
    await asyncio.sleep(0.01)
    assert reader.hub.subscriptions == 0 and reader.socket.written == 0
    reader.connection.resume_writing()
    await joining
    await asyncio.sleep(0)
    assert reader.hub.subscriptions == 1 and reader.socket.written > 3 * 98_000
