"""A websocket client for the world's people: as little as it takes to talk to a node over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.sim.host import PORT
from anabranch.wire import frames

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_HELLO = (
    b"GET / HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MESSAGE_BYTES_MAX = 64 << 20
TOGETHER = 32  # messages of many that go out as one chunk


class Caller(asyncio.Protocol):
    """One connection. `heard` gets every message, `ended` the end."""

    def __init__(self, host: str, heard: Callable[[list[Any]], None], ended: Callable[[], None]) -> None:
        self._host = host
        self._heard = heard
        self._ended = ended
        self._open = False
        self._head = b""  # of the answer, until it is whole
        self._frames = frames.FrameReader(MESSAGE_BYTES_MAX, of_server=True)
        self.alive = True
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport

    @classmethod
    async def dial(
        cls, host: str, heard: Callable[[list[Any]], None], ended: Callable[[], None] = lambda: None
    ) -> Caller:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            _, caller = await loop.create_connection(lambda: cls(host, heard, ended), host, PORT)
            await caller.ready
        return caller

    def say(self, *message: Any) -> None:
        self.say_bytes(_encode(message))

    def say_bytes(self, payload: bytes) -> None:
        self._transport.write(_framed(payload))

    def publish(self, raws: list[bytes]) -> None:
        """Some of them at a time, as they would travel."""
        for at in range(0, len(raws), TOGETHER):
            self._transport.write(b"".join([_framed(b'["EVENT",%b]' % raw) for raw in raws[at : at + TOGETHER]]))

    @property
    def tampered(self) -> bool:
        """Whether something came twice or in another order than it was sent in."""
        return bool(self._transport.get_extra_info("tampered"))

    def hang_up(self) -> None:
        self._transport.close()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(_HELLO % self._host.encode())

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError("refused"))
            self.ready.exception()
        self._ended()

    def data_received(self, data: bytes) -> None:
        if not self._open:
            head, blank, data = (self._head + data).partition(b"\r\n\r\n")
            if not blank:
                self._head = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._transport.abort()
                return
            self._open = True
            if not self.ready.done():
                self.ready.set_result(None)
        for opcode, payload in self._frames.feed(data):
            if opcode == frames.TEXT:
                self._heard(_decode(payload))
            elif opcode == frames.PING:
                self._transport.write(_framed(b"", frames.PONG))


def _framed(payload: bytes, opcode: int = frames.TEXT) -> bytes:
    """Masked with zeros: the rule is kept, and nothing is to be done."""
    return frames.header(len(payload), opcode, frames.MASK) + b"\0\0\0\0" + payload
