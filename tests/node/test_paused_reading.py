"""So much of one connection may wait, as the settings say; then its socket is read no further, until half is done."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from anabranch.config import Settings
from anabranch.node.connection import Connection
from anabranch.node.metrics import Metrics
from anabranch.node.outlet import Turns
from anabranch.wire import frames
from anabranch.wire.session import Count, Effect, Publish

EVENT = 100  # bytes of one


class Script:
    """A session that takes `event` for an event, and anything else for a query."""

    def receive(self, message: bytes, now: int) -> list[Effect]:
        operation: Any = SimpleNamespace(raw=bytes(EVENT))
        return [Publish(operation)] if message == b"event" else [Count(message.decode(), ())]

    def settled(self, forged: bool) -> list[Effect]:
        return []


class Line:
    """A connection of a node that answers nothing until it is told to."""

    def __init__(self, **limits: int) -> None:
        self.reading = True
        self.asked: list[asyncio.Future[None]] = []
        self.reads = 0
        nothing = SimpleNamespace(add=lambda size: None)
        node: Any = SimpleNamespace(
            settings=Settings(limits=msgspec.structs.replace(Settings().limits, **limits)),
            loop=asyncio.get_running_loop(),
            metrics=Metrics(),
            gate=SimpleNamespace(closed=False, took=lambda count, size: None),
            opened=lambda connection: True,
            admission=SimpleNamespace(offer=lambda publisher, operation, access_key: None),
            replay=SimpleNamespace(count=self.answer),
            readers=SimpleNamespace(run=self.read),
            turns=Turns(asyncio.get_running_loop()),
            incoming=nothing,
            outgoing=nothing,
        )
        self.connection = Connection(node)
        self.connection.connection_made(self)  # type: ignore[arg-type]
        self.connection._frames = frames.FrameReader(1_000)
        self.connection.session = Script()  # type: ignore[assignment]

    async def hears(self, *texts: bytes) -> None:
        for text in texts:
            self.connection.data_received(frames.masked([text], b"keys"))
            await asyncio.sleep(0)

    async def answer(self, consumer: Connection, asked: Count) -> None:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]

    async def read(self, read: Callable[[], Any], who: Any = None) -> Any:
        self.reads += 1
        return await read()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("limit", [{"events_in_flight": 4}, {"bytes_in_flight": 4 * EVENT}])
async def test_a_socket_is_read_no_further_while_so_much_of_it_waits_to_be_stored(limit: dict[str, int]) -> None:
    line = Line(**limit)
    await line.hears(*[b"event"] * 3)
    assert line.reading
    await line.hears(b"event")
    assert not line.reading
    line.connection.acknowledge(b"OK", EVENT)
    assert not line.reading
    line.connection.acknowledge(b"OK", EVENT)
    assert line.reading


async def test_a_socket_is_read_no_further_while_so_many_queries_of_it_wait() -> None:
    line = Line(queries_waiting=4)
    await line.hears(b"1", b"2", b"3")
    assert line.reading
    await line.hears(b"4")
    assert not line.reading
    for number, answered in enumerate(line.asked):
        answered.set_result(None)
        await settle()
        assert line.reading is (number > 0)


async def test_so_many_queries_of_one_connection_are_read_at_the_same_time() -> None:
    line = Line(queries_at_once=3)
    gates = [asyncio.Event() for _ in range(5)]
    reading = [asyncio.create_task(line.connection.read(gate.wait)) for gate in gates]  # type: ignore[arg-type]
    await settle()
    assert line.reads == 3
    gates[1].set()
    await reading[1]
    await settle()
    assert line.reads == 4
    for gate in gates:
        gate.set()
    await asyncio.gather(*reading)
    assert line.reads == 5
