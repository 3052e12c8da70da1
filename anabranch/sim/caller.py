"""A websocket client for the world's people: as little as it takes to talk to a node over the simulated network."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.sim.host import PORT

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_HELLO = (
    b"GET / HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_TEXT, _PING = 0x81, 0x89
TOGETHER = 32  # messages of many that go out as one chunk


class Caller(asyncio.Protocol):
    """One connection. `heard` gets every message, `ended` the end."""

    def __init__(self, host: str, heard: Callable[[list[Any]], None], ended: Callable[[], None]) -> None:
        self._host = host
        self._heard = heard
        self._ended = ended
        self._open = False
        self._buffer = b""
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
        data = self._buffer + data
        if not self._open:
            head, blank, data = data.partition(b"\r\n\r\n")
            if not blank:
                self._buffer = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._transport.abort()
                return
            self._open = True
            if not self.ready.done():
                self.ready.set_result(None)
        at, end = 0, len(data)
        while end - at >= 2:
            opcode, length, start = data[at], data[at + 1], at + 2
            if length == 126:
                if end < start + 2:
                    break
                (length,) = struct.unpack_from("!H", data, start)
                start += 2
            elif length == 127:
                if end < start + 8:
                    break
                (length,) = struct.unpack_from("!Q", data, start)
                start += 8
            if end < start + length:
                break
            at = start + length
            if opcode == _TEXT:
                self._heard(_decode(data[start:at]))
            elif opcode == _PING:
                self._transport.write(b"\x8a\x80\0\0\0\0")
        self._buffer = data[at:]


def _framed(payload: bytes) -> bytes:
    """Masked with zeros: the rule is kept, and nothing is to be done."""
    length = len(payload)
    if length < 126:
        head = bytes((_TEXT, 0x80 | length))
    elif length < 65_536:
        head = struct.pack("!BBH", _TEXT, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", _TEXT, 0x80 | 127, length)
    return head + b"\0\0\0\0" + payload
