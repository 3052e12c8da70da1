"""The load: a websocket client that costs almost nothing.

The machine's cores are shared with the relay under test, so every microsecond spent here is taken from it. Frames are
built before the clock starts, with the mask key 0, which makes masking the identity. A connection's frames lie in one
buffer and are sent as slices of it. What comes back is counted by frame header and the fourth byte of the message
(`["OK"`, `["EVENT"` and `["CHANGES"` differ there); anything else is set aside. Between two looks the loop naps, so
that answers gather; with a window of 100 messages in flight a relay never waits for it. The OKs are kept and read in
full after the clock has stopped: each id exactly once, each true.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.events import identity

OK, EVENT, CHANGES = b"KVH"  # the fourth byte of a message
WINDOW = 100
NAP_SECONDS = 0.002
STALL_SECONDS = 30.0
EVENT_BYTES_MIN = 300  # a shorter CHANGES message carries no event: it is STATUS, EOSE or ERR

TEXT, CLOSE, PING = 0x81, 0x88, 0x89

_buffer = bytearray(1 << 20)
_view = memoryview(_buffer)


class LoadError(Exception):
    """The relay did not do what was asked of it: the measurement is void. Retry only after looking at the relay."""


def frame(message: bytes, opcode: int = TEXT) -> bytes:
    """A client frame whose mask key is zero."""
    size = len(message)
    if size < 126:
        head = bytes((opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((opcode, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((opcode, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + message


def publishing(event: bytes) -> bytes:
    return frame(b'["EVENT",' + event + b"]")


class Connection:
    """One websocket. `receive` counts the wanted messages; the others wait in `others`, in order."""

    __slots__ = ("_carry", "kept", "others", "socket", "wanted", "wanted_bytes_min")

    def __init__(self, url: str, wanted: int, *, keep: bool = False):
        self.wanted = wanted
        self.wanted_bytes_min = EVENT_BYTES_MIN if wanted == CHANGES else 4
        self.kept: list[bytes] | None = [] if keep else None
        self.others: list[bytes] = []
        self.socket, self._carry = _open(url)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: object) -> None:
        """Send one JSON message, whole: for requests, before or between measurements."""
        self.socket.setblocking(True)
        self.socket.sendall(frame(json.dumps(message, separators=(",", ":")).encode()))

    def receive(self) -> int:
        """Read once; return how many wanted messages that completed."""
        start = len(self._carry)
        _buffer[:start] = self._carry
        try:
            got = self.socket.recv_into(_view[start:])
        except BlockingIOError:
            return 0
        except TimeoutError:
            raise LoadError(f"no answer for {STALL_SECONDS:.0f} s{self._said()}") from None
        except ConnectionError as error:
            raise LoadError(f"the connection broke: {error}{self._said()}") from None
        if not got:
            raise LoadError(f"the relay closed the connection{self._said()}")
        end = start + got
        position = count = 0
        wanted, least, buffer = self.wanted, self.wanted_bytes_min, _buffer
        while position + 4 <= end:
            size = buffer[position + 1]
            body = position + 2
            if size == 126:
                size = buffer[position + 2] << 8 | buffer[position + 3]
                body = position + 4
            elif size == 127:
                if position + 10 > end:
                    break
                size = int.from_bytes(buffer[position + 2 : position + 10], "big")
                body = position + 10
            following = body + size
            if following > end:
                break
            if size >= least and buffer[body + 3] == wanted and buffer[position] == TEXT:
                count += 1
            else:
                self._set_aside(buffer[position], bytes(_view[body:following]))
            position = following
        self._carry = bytes(_view[position:end])
        if self.kept is not None:
            self.kept.append(bytes(_view[:position]))
        return count

    def until(self, word: str, stall_seconds: float = STALL_SECONDS) -> int:
        """Block until one of the other messages holds this word (EOSE, say); return how many wanted came first."""
        self.socket.settimeout(stall_seconds)
        quoted = f'"{word}"'.encode()
        count = 0
        while not any(quoted in other for other in self.others):
            for other in self.others:
                if b'"CLOSED"' in other or b'"NOTICE"' in other or b'"ERR"' in other:
                    raise LoadError(f"asked and refused{self._said()}")
            count += self.receive()
        self.others.clear()
        return count

    def messages(self) -> Iterator[bytes]:
        """Every message that was kept."""
        for chunk in self.kept or ():
            position = 0
            while position < len(chunk):
                size, body = chunk[position + 1], position + 2
                if size == 126:
                    size, body = int.from_bytes(chunk[body : body + 2], "big"), body + 2
                elif size == 127:
                    size, body = int.from_bytes(chunk[body : body + 8], "big"), body + 8
                if chunk[position] == TEXT:
                    yield chunk[body : body + size]
                position = body + size

    def close(self) -> None:
        self.socket.close()

    def _set_aside(self, opcode: int, message: bytes) -> None:
        if opcode == PING:
            self.socket.send(frame(message, 0x8A))
        elif opcode == CLOSE:
            raise LoadError(f"the relay closed the connection: {message[2:].decode(errors='replace')!r}{self._said()}")
        elif opcode == TEXT:
            self.others.append(message)
        elif opcode != 0x8A:
            raise LoadError(f"a frame this client does not read (first byte {opcode:#x}): is it fragmented?")

    def _said(self) -> str:
        return "".join(f"; it said {other[:200].decode(errors='replace')}" for other in self.others[-2:])


def _open(url: str) -> tuple[socket.socket, bytes]:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=STALL_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = connection.recv(4096)
        if not part:
            raise LoadError(f"the relay at {url} refused the handshake: {answer[:200]!r}")
        answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n")[0] + b" ":
        raise LoadError(f"the relay at {url} refused the handshake: {head[:200]!r}")
    return connection, rest


class Publisher:
    """One connection's share of the events, sent with at most `window` of them unanswered.

    `messages_max` is for a relay that ends a connection after so many messages: a new one is opened before.
    """

    def __init__(self, url: str, events: list[bytes], window: int = WINDOW, messages_max: int = 1 << 62):
        self._url, self._window, self._messages_max = url, window, messages_max
        self._expected = {identity(event) for event in events}
        frames = [publishing(event) for event in events]
        self._ends = [0]
        for each in frames:
            self._ends.append(self._ends[-1] + len(each))
        self._bytes = memoryview(b"".join(frames))
        self._sent_bytes = 0
        self._opened_at = 0
        self._past: list[Connection] = []
        self.count = len(events)
        self.answered = 0
        self.connection = Connection(url, OK, keep=True)
        self.connection.socket.setblocking(False)

    @property
    def done(self) -> bool:
        return self.answered == self.count

    def send(self) -> int | None:
        """Fill the window. When that took a new connection, the file number that the old one had."""
        closed = None
        allowed = min(self.answered + self._window, self.count)
        leg_end = self._opened_at + self._messages_max
        if allowed >= leg_end:
            if self.answered == leg_end:
                closed = self._reopen()
            else:
                allowed = leg_end
        end = self._ends[allowed]
        if self._sent_bytes < end:
            try:
                self._sent_bytes += self.connection.socket.send(self._bytes[self._sent_bytes : end])
            except BlockingIOError:
                pass
            except ConnectionError as error:
                raise LoadError(f"the connection broke after {self.answered} answers: {error}") from None
        return closed

    def receive(self) -> int:
        count = self.connection.receive()
        self.answered += count
        return count

    def close(self) -> None:
        self.connection.close()

    def verify(self) -> None:
        """Every event was answered once, with true."""
        seen: set[str] = set()
        for connection in (*self._past, self.connection):
            for message in connection.messages():
                verb, *rest = json.loads(message)
                if verb != "OK":
                    continue
                if rest[1] is not True:
                    raise LoadError(f"an event was refused: {message[:300].decode(errors='replace')}")
                if rest[0] in seen:
                    raise LoadError(f"an event was answered twice: {rest[0]}")
                seen.add(rest[0])
        if seen != self._expected:
            raise LoadError(f"{len(self._expected - seen)} of {self.count} events have no OK of their own")

    def _reopen(self) -> int:
        closed = self.connection.fileno()
        self.connection.close()
        self._past.append(self.connection)
        self.connection = Connection(self._url, OK, keep=True)
        self.connection.socket.setblocking(False)
        self._opened_at = self.answered
        return closed


@dataclass(frozen=True, slots=True)
class Spent:
    """What a load took: wall clock, and this process's own CPU."""

    seconds: float
    generator_cpu_seconds: float


def publish(
    url: str, events: list[bytes], connections: int = 8, window: int = WINDOW, messages_max: int = 1 << 62
) -> Spent:
    """Publish every event over so many connections, from the first byte sent to the last OK read."""
    publishers = [Publisher(url, events[start::connections], window, messages_max) for start in range(connections)]
    try:
        spent = drive(publishers, ())
        for publisher in publishers:
            publisher.verify()
    finally:
        close_all(publishers)
    return spent


def drive(publishers: Iterable[Publisher], listeners: Iterable[Listener], nap_seconds: float = NAP_SECONDS) -> Spent:
    """Run until every publisher has its answers and every listener its deliveries."""
    sending = list(publishers)
    waiting: dict[int, Publisher | Listener] = {each.connection.fileno(): each for each in (*sending, *listeners)}
    moved = started = time.perf_counter()
    cpu = time.process_time()
    with select.epoll() as readable:
        for fileno in waiting:
            readable.register(fileno, select.EPOLLIN)
        while waiting:
            for publisher in sending:
                closed = publisher.send()
                if closed is not None:
                    del waiting[closed]
                    fileno = publisher.connection.fileno()
                    readable.register(fileno, select.EPOLLIN)
                    waiting[fileno] = publisher
            time.sleep(nap_seconds)
            ready = readable.poll(STALL_SECONDS, len(waiting))
            if not ready:
                raise LoadError(f"nothing came for {STALL_SECONDS:.0f} s; {len(waiting)} connections still wait")
            finished = False
            for fileno, _ in ready:
                each = waiting[fileno]
                each.receive()
                if each.done:
                    readable.unregister(fileno)
                    del waiting[fileno]
                    finished = True
            moved = time.perf_counter()
            if finished:
                sending = [publisher for publisher in sending if not publisher.done]
    return Spent(moved - started, time.process_time() - cpu)


class Listener:
    """A live subscription that waits for so many events. `listen` opens them."""

    def __init__(self, url: str, filter_: dict[str, object]):
        self.connection = Connection(url, EVENT)
        self.connection.send(["REQ", "live", filter_])
        self.expected = 0
        self.delivered = 0

    def live(self, expected: int, keep: bool) -> None:
        """Read past EOSE; from here on deliveries count."""
        self.connection.until("EOSE")
        self.connection.kept = [] if keep else None
        self.connection.socket.setblocking(False)
        self.expected = expected

    @property
    def done(self) -> bool:
        return self.delivered >= self.expected

    def receive(self) -> int:
        count = self.connection.receive()
        self.delivered += count
        return count

    def close(self) -> None:
        self.connection.close()


def listen(url: str, filter_: dict[str, object], count: int, expected: int = 0, *, keep: int = 0) -> list[Listener]:
    """So many live subscriptions, each on its own connection; what the first `keep` of them receive is kept.

    All ask before any answer is read: a relay that holds back small writes would otherwise cost 40 ms each.
    """
    listeners: list[Listener] = []
    try:
        for _ in range(count):
            listeners.append(Listener(url, filter_))
        for number, listener in enumerate(listeners):
            listener.live(expected, number < keep)
    except BaseException:
        close_all(listeners)
        raise
    return listeners


def close_all(connections: Iterable[Publisher | Listener | Connection]) -> None:
    for each in connections:
        each.close()
