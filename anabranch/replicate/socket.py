"""A websocket to a peer, for links: what one read of the network brought is taken at once, and what is to be said goes
out in one write.

A link moves thousands of small messages a second; to wait for each of them would cost more than they do. Where nobody
takes what has come, no more is read; of a message that is long on its way a part at a time, so that whoever takes them
can count it. Of the peer's pings the last one is answered, once there is room for it. A peer
that has not been heard after a ping of ours is given up; to ping in its turn is no answer.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import h11

from anabranch.replicate.budget import MESSAGE_OVERHEAD
from anabranch.wire import frames
from anabranch.wire.address import discreet
from anabranch.wire.dialogue import printable

MESSAGE_BYTES_MAX = 4 << 20
UNTAKEN_BYTES_MAX = 256 << 10  # of messages that nobody has taken yet
PING_SECONDS = 20.0
_HEAD_BYTES_MAX = 64 << 10


class Ended(Exception):
    """The connection is over; the text says how, for people."""


class NotUpgraded(Exception):
    """What answers at the address does not speak websocket there; the text says what it did."""


@cache
def _tls() -> ssl.SSLContext:
    """One for all: each would hold the certificates of all authorities, and reading them takes long."""
    return ssl.create_default_context()


class Address(NamedTuple):
    host: str
    port: int
    tls: ssl.SSLContext | None
    authority: str
    target: str

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        tls = _tls() if parts.scheme == "wss" else None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls, parts.netloc, target)


class Socket(asyncio.Protocol):
    def __init__(self, address: Address) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._http: h11.Connection | None = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
        self._frames = frames.FrameReader(MESSAGE_BYTES_MAX, of_server=True)
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._came: list[bytes] = []
        self._came_bytes = 0
        self._partly = 0  # of what is unfinished, as much as was told
        self._news = asyncio.Event()  # there is something to take, or an end
        self._room = asyncio.Event()  # the network takes what is written
        self._room.set()
        self._paused = False
        self._end: str | None = None
        self._pinged = False  # and nothing heard since
        self._owed: bytes | None = None  # the answer to the peer's last ping
        self._pinging: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, address: Address) -> Socket:
        """Raises `OSError`, `NotUpgraded`. Takes as long as it takes."""
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(lambda: cls(address), address.host, address.port, ssl=address.tls)
        try:
            await socket._opened
        except BaseException:
            socket.abort()
            raise
        return socket

    @property
    def unfinished(self) -> int:
        """Bytes of a message that is not whole yet."""
        return self._frames.held

    async def receive(self) -> list[bytes]:
        """All messages that have come since the last time; none where a large one is on its way. Raises `Ended`, after
        the last of them."""
        while not self._came and not self._paused:
            if self._end is not None:
                raise Ended(self._end)
            self._news.clear()
            await self._news.wait()
        came, self._came, self._came_bytes = self._came, [], 0
        if self._paused and self._transport is not None and self._end is None:
            self._transport.resume_reading()
        self._paused = False
        self._partly = self._frames.held
        return came

    async def send(self, messages: Sequence[bytes]) -> None:
        """Returns when the network has room for more. Raises `Ended`."""
        if self._end is None:
            self._write(messages)
        await self._room.wait()
        if self._end is not None:
            raise Ended(self._end)

    def _write(self, payloads: Sequence[bytes], opcode: int = frames.TEXT) -> None:
        if self._transport is not None:
            self._transport.write(frames.masked(payloads, os.urandom(4 * len(payloads)), opcode))

    def abort(self) -> None:
        """Let go of the peer without a word."""
        self._over("it was let go of")
        if self._transport is not None:
            self._transport.abort()

    def _over(self, how: str) -> None:
        if self._end is None:
            self._end = how
        if self._pinging is not None:
            self._pinging.cancel()
        self._news.set()
        self._room.set()
        if not self._opened.done():
            self._opened.set_exception(NotUpgraded(how))
            self._opened.exception()  # whoever dialled may be gone

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        assert self._http is not None
        request = h11.Request(
            method="GET",
            target=self._address.target,
            headers=[
                ("Host", self._address.authority),
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Key", self._key),
                ("Sec-WebSocket-Version", "13"),
            ],
        )
        self._transport.write((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def connection_lost(self, error: Exception | None) -> None:
        self._over("the connection broke off")
        self._transport = None

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()
        self._answer_ping()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._http is not None:
            self._receive_answer(self._http, data)
        elif self._end is None:
            self._receive_frames(data)

    def _receive_answer(self, http: h11.Connection, data: bytes) -> None:
        http.receive_data(data)
        try:
            answer = http.next_event()
        except h11.RemoteProtocolError:
            self._refuse("the peer answers with something that is no HTTP")
            return
        if answer is h11.NEED_DATA:
            return
        wrong = "the peer hung up"
        if isinstance(answer, h11.InformationalResponse | h11.Response):
            wrong = _wrong(answer, self._key)
        if wrong:
            self._refuse(wrong)
            return
        self._http = None
        self._opened.set_result(None)
        self._pinging = self._loop.call_later(PING_SECONDS, self._ping)
        rest, _ = http.trailing_data
        if rest:
            self._receive_frames(rest)

    def _refuse(self, how: str) -> None:
        self._over(how)
        if self._transport is not None:
            self._transport.abort()

    def _receive_frames(self, data: bytes) -> None:
        kinds: set[int] = set()
        try:
            for opcode, payload in self._frames.feed(data):
                kinds.add(opcode)
                if opcode == frames.TEXT or opcode == frames.BINARY:
                    self._came.append(payload)
                    self._came_bytes += len(payload) + MESSAGE_OVERHEAD
                elif opcode == frames.PING:
                    self._owed = payload
                elif opcode == frames.CLOSE:
                    self._hear_goodbye(payload)
                    break
        except frames.ProtocolError as error:
            oversized = error.code == frames.TOO_BIG
            how = f"sent a message of more than {MESSAGE_BYTES_MAX >> 20} MiB" if oversized else "broke the protocol"
            self._say_goodbye(f"the peer {how}", frames.last_words(error.code, error.reason))
        self._pinged = self._pinged and kinds == {frames.PING}
        self._answer_ping()
        full = self._came_bytes + self._frames.held - self._partly > UNTAKEN_BYTES_MAX and not self._paused
        if full and self._transport is not None and self._end is None:
            self._paused = True
            self._transport.pause_reading()
        if self._came or self._paused:
            self._news.set()

    def _answer_ping(self) -> None:
        """Only the last one (RFC 6455, 5.5.3), and only where there is room: the peer may ping and not read."""
        if self._owed is not None and self._end is None and self._room.is_set():
            self._write([self._owed], frames.PONG)
            self._owed = None

    def _hear_goodbye(self, payload: bytes) -> None:
        code, reason = int.from_bytes(payload[:2]), payload[2:].decode("utf-8", "replace")
        said = f"{code} {printable(reason)}".rstrip() if payload else "without a word"
        self._say_goodbye(f"the peer closed the connection: {said}", payload[:2])

    def _say_goodbye(self, how: str, last_words: bytes) -> None:
        self._over(how)
        self._write([last_words], frames.CLOSE)
        if self._transport is not None:
            self._transport.close()

    def _ping(self) -> None:
        """Also a peer that is gone without a word is noticed; unless it is we who do not read."""
        if self._transport is None or self._end is not None:
            return
        if self._pinged and not self._paused:
            self._refuse(f"no answer to a ping within {PING_SECONDS:g} s")
            return
        self._pinged = True
        self._write([b""], frames.PING)
        self._pinging = self._loop.call_later(PING_SECONDS, self._ping)


def _wrong(answer: h11.InformationalResponse | h11.Response, key: str) -> str:
    """What is wrong with an answer to our wish for a websocket, in words; empty: nothing."""
    headers = dict(answer.headers)
    if 300 <= answer.status_code < 400 and b"location" in headers:
        return f"the peer says that it is at {printable(discreet(headers[b'location'].decode('latin-1'))[:200])} now"
    if answer.status_code != 101:
        return f"the peer answers HTTP {answer.status_code} where a websocket was asked for"
    agreed = headers.get(b"upgrade", b"").lower() == b"websocket" and b"sec-websocket-extensions" not in headers
    if not agreed or headers.get(b"sec-websocket-accept", b"").decode("latin-1") != frames.accept_key(key):
        return "the peer answers with something that is no websocket"
    return ""
