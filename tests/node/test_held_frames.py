"""What follows an AUTH on a socket waits until that is proven, and is answered in the order in which it came."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.config import Settings
from anabranch.node.connection import Connection
from anabranch.node.metrics import Metrics
from anabranch.node.outlet import Turns
from anabranch.wire import frames
from anabranch.wire.session import Effect, Prove, Send


class Script:
    """A session that echoes, takes `auth` for an AUTH, and stumbles over `bug`."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}

    def receive(self, message: bytes, now: int) -> list[Effect]:
        if message == b"bug":
            raise RuntimeError("a bug of ours")
        return [Prove(message)] if message == b"auth" else [Send(message)]  # type: ignore[arg-type]

    def proven(self, event: Any, held: bool | None) -> list[Effect]:
        return [Send(b"proven" if held else b"refused")]


class Line:
    """A connection whose proofs come when they are told to, and what goes over its socket."""

    def __init__(self) -> None:
        self.proofs: list[asyncio.Future[bool]] = []
        self.reading, self.closed, self.said = True, False, b""
        node: Any = SimpleNamespace(
            settings=Settings(),
            loop=asyncio.get_running_loop(),
            metrics=Metrics(),
            gate=SimpleNamespace(closed=False),
            opened=lambda connection: True,
            closed=lambda connection: None,
            prove=self.prove,
            incoming=SimpleNamespace(add=lambda size: None),
            turns=Turns(asyncio.get_running_loop()),
            outgoing=SimpleNamespace(add=lambda size: None),
        )
        self.connection = Connection(node)
        self.connection.connection_made(self)  # type: ignore[arg-type]
        self.connection._frames = frames.FrameReader(1_000)
        self.connection.session = Script()  # type: ignore[assignment]

    async def prove(self, event: Any) -> bool:
        self.proofs.append(asyncio.get_running_loop().create_future())
        return await self.proofs[-1]

    def hear(self, *texts: bytes) -> None:
        self.connection.data_received(frames.masked(texts, b"keys" * len(texts)))

    async def heard(self) -> list[bytes]:
        """What was answered since it was last asked for."""
        for _ in range(5):
            await asyncio.sleep(0)
        said, self.said = self.said, b""
        return [payload for _, payload in frames.FrameReader(1_000, of_server=True).feed(said)]

    def write(self, data: bytes) -> None:
        self.said += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


@pytest.fixture
async def line() -> Line:
    return Line()


async def test_what_follows_an_authentication_is_answered_after_it_and_in_order(line: Line) -> None:
    line.hear(b"1", b"auth", b"2", b"auth", b"3")
    assert await line.heard() == [b"1"]
    assert not line.reading
    line.hear(b"4")  # was on its way
    assert await line.heard() == []
    line.proofs[0].set_result(True)
    assert await line.heard() == [b"proven", b"2"]
    assert not line.reading
    line.proofs[1].set_result(False)
    assert await line.heard() == [b"refused", b"3", b"4"]
    assert line.reading
    line.hear(b"5")
    assert await line.heard() == [b"5"]


async def test_a_message_of_which_half_has_come_waits_too(line: Line) -> None:
    data = frames.masked([b"auth", b"2"], b"keyskeys")
    line.connection.data_received(data[:-1])
    await line.heard()
    line.connection.data_received(data[-1:])
    line.proofs[0].set_result(True)
    assert await line.heard() == [b"proven", b"2"]


async def test_a_farewell_behind_an_authentication_is_heard_after_it(line: Line) -> None:
    farewell = frames.masked([frames.last_words(1000, "")], b"keys", frames.CLOSE)
    line.connection.data_received(frames.masked([b"auth", b"2"], b"keyskeys") + farewell)
    assert not line.closed
    await line.heard()
    line.proofs[0].set_result(True)
    assert (await line.heard())[:2] == [b"proven", b"2"]
    assert line.closed


async def test_a_proof_that_comes_while_the_node_stops_is_answered_and_nothing_more_is_taken(line: Line) -> None:
    line.hear(b"auth", b"2")
    await line.heard()
    line.connection.stop_reading()
    line.proofs[0].set_result(True)
    assert await line.heard() == [b"proven"]
    assert not line.reading


async def test_a_held_frame_that_breaks_its_session_breaks_no_one_who_made_room_for_it(line: Line) -> None:
    line.hear(b"auth", b"bug", b"2")
    await line.heard()
    line.connection._proving = False
    line.connection.resume_reading()  # as admission does between the answers to others
    assert line.closed
    assert frames.last_words(frames.TRY_LATER, "internal error") in await line.heard()
