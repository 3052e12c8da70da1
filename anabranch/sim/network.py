"""A network of byte streams in virtual time: TCP as programs see it, with everything that goes wrong on the way.

A connection is two pipes. A pipe carries chunks in order, each after its latency, and holds them back while its way is
blocked or its reader pauses; a writer feels that as back-pressure. Whoever dials somebody that is not there is refused;
whoever sends into nothing is told after a while, and the other side perhaps never: a half-open connection is a case
like any other. What the weather does to a chunk is decided by `Weather`, from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from anabranch.sim.loop import Process, process

if TYPE_CHECKING:
    from anabranch.sim.trace import Trace

WINDOW = 65_536  # bytes that are on their way before a writer feels it
READ_MAX = 65_536  # bytes, more or less, that one read finds
GIVE_UP_SECONDS = 20.0  # after which data that nobody took ends the connection
RETRY_SECONDS = 0.25
DIAL_SECONDS = 30.0


class Fate(StrEnum):
    """What the weather does to a chunk."""

    ARRIVES = "arrives"
    DELAYED = "delay"
    TWICE = "duplication"
    OVERTAKEN = "reorder"
    LOST = "loss"
    CLOGGED = "clog"
    CUT = "cut"


class Weather:
    """Good weather: every chunk arrives. The faults of a seed bring their own."""

    def latency(self) -> float:
        return 0.001

    def fate(self, whole_frames: bool) -> tuple[Fate, float]:
        """What becomes of the next chunk, and for how long. Only whole frames may come twice or overtaken."""
        return Fate.ARRIVES, 0.0


class Network:
    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.context = contextvars.Context()
        self.trace: Trace
        self.loop: asyncio.AbstractEventLoop
        self.blocked: set[tuple[str, str]] = set()  # (from, to): nothing gets through
        self.silent: set[str] = set()  # hosts without power: nobody there, not even to refuse
        self.disordered: set[frozenset[str]] = set()  # pairs of hosts between which something was overtaken
        self.twisted: dict[str, Callable[[bytes, bool], bytes]] = {}  # hosts that do not say what they mean
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._connections = 0
        self._open: dict[Transport, None] = {}

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        own = process.get()
        listener = Listener(self, factory, own, host, port)
        self._listeners[host, port] = listener
        return listener

    def closed(self, listener: Listener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        source = process.get().name
        waited = self.loop.time() + DIAL_SECONDS
        await asyncio.sleep(self.weather.latency())
        while (source, host) in self.blocked or (host, source) in self.blocked or host in self.silent:
            if self.loop.time() >= waited:
                raise TimeoutError(f"no answer from {host}")
            await asyncio.sleep(RETRY_SECONDS)
        listener = self._listeners.get((host, port))
        if listener is None or not listener.owner.alive:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self._connections += 1
        name = f"c{self._connections}"
        ours, theirs = Transport(self, f"{name}>", source), Transport(self, f"{name}<", host, listens=True)
        ours.peer, theirs.peer = theirs, ours
        self._open[ours] = self._open[theirs] = None
        self.trace.note(source, f"dials {host} as {name}")
        protocol = factory()
        theirs.attach(listener.factory, listener.owner, listener.context)
        ours.attach(lambda: protocol, process.get(), contextvars.copy_context())
        return ours, protocol

    def gone(self, transport: Transport) -> None:
        self._open.pop(transport, None)

    def process_died(self, name: str, quietly: bool) -> None:
        """A killed process's sockets are closed by its system; a host without power says nothing."""
        for transport in [one for one in self._open if one.host == name]:
            transport.die(quietly)


class Listener:
    def __init__(self, network: Network, factory: Callable[[], Any], owner: Process, host: str, port: int) -> None:
        self._network = network
        self.factory = factory
        self.owner = owner
        self.context = contextvars.copy_context()
        self.host = host
        self.port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self._network.closed(self)


class Transport(asyncio.Transport):
    """One end of a connection. What it writes goes through its pipe to the peer."""

    peer: Transport

    def __init__(self, network: Network, name: str, host: str, listens: bool = False) -> None:
        super().__init__()
        self._listens = listens
        self._network = network
        self._loop = network.loop
        self.name = name
        self.host = host
        self._protocol: Any = None
        self._owner: Process | None = None
        self._context: contextvars.Context = contextvars.copy_context()
        self._closing = False
        self._lost = False
        self._silenced = False  # the pipe lets nothing through any more, and nobody knows
        # the pipe to the peer
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._due = 0.0
        self._chunk_count = 0
        self._websocket = False
        self._tampered = False  # a chunk came twice or was overtaken
        self._pumping = False
        self._held_since: float | None = None
        self._overtaken: bytes | None = None
        # reading
        self._paused = False
        self._unread: deque[bytes] = deque()
        # back-pressure
        self._high, self._low = 65_536, 16_384
        self._told_to_pause = False

    def attach(self, factory: Callable[[], Any], owner: Process, context: contextvars.Context) -> None:
        self._owner, self._context = owner, context
        self._protocol = context.copy().run(factory)
        self._call(self._protocol.connection_made, self)

    def _later(self, delay: float, callback: Callable[..., Any], *args: Any) -> None:
        """In the network's own name: what is on its way is nobody's."""
        self._loop.call_later(delay, callback, *args, context=self._network.context)

    def _call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run in the owner's name; what is owned by the dead is not run."""
        if self._owner is not None and self._owner.alive:
            self._context.copy().run(callback, *args)

    # --- asyncio.Transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "tampered":
            return self._tampered or self.peer._tampered
        return {"peername": (self.peer.host, 1), "sockname": (self.host, 1)}.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._bytes - WINDOW)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._push(b"")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost or self._owner is None or not self._owner.alive or not data:
            return
        chunk = bytes(data)
        if (twist := self._network.twisted.get(self.host)) is not None and self._listens:
            chunk = twist(chunk, self.peer._websocket)
        if chunk:
            self._push(chunk)
        if not self._told_to_pause and self.get_write_buffer_size() > self._high:
            self._told_to_pause = True
            self._call(self._protocol.pause_writing)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._unread and not self._paused and not self._lost:
            self._receive(self._unread.popleft())
        self.peer._pump_soon(0.0)

    def is_reading(self) -> bool:
        return not self._paused

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._push(b"")  # the end, after all that was written

    def abort(self) -> None:
        self._closing = True
        self._chunks.clear()
        self._break(None)
        self._later(self._network.weather.latency(), self.peer._break, ConnectionResetError("reset by peer"))

    # --- the pipe ---

    def _push(self, chunk: bytes) -> None:
        network = self._network
        if self._silenced:
            return
        if not self._chunk_count:
            self._websocket = b"pgrade: websocket" in chunk or self.peer._websocket
        self._chunk_count += 1
        fate, seconds = network.weather.fate(self._websocket and self._chunk_count > 1 and chunk != b"")
        due = max(self._due, self._loop.time() + network.weather.latency())
        if fate is not Fate.ARRIVES:
            network.trace.note(self.name, f"{fate} {len(chunk)} {seconds:.3f}")
        if fate in (Fate.DELAYED, Fate.CLOGGED):
            due += seconds
        elif fate is Fate.LOST:
            self._silenced = True
            self._later(seconds, self.reset)
        elif fate is Fate.CUT:
            chunk = chunk[: int(len(chunk) * (seconds % 1.0))]
            self._later(seconds, self.reset)
            self._silenced = True
            self._enqueue(due, chunk)
            return
        if self._silenced:
            return
        self._tampered |= fate in (Fate.TWICE, Fate.OVERTAKEN)
        if fate is Fate.OVERTAKEN and self._overtaken is None:
            self._overtaken = chunk
            network.disordered.add(frozenset((self.host, self.peer.host)))
            self._later(0.05 + network.weather.latency(), self._overtake)
            return
        self._enqueue(due, chunk)
        if self._overtaken is not None and chunk:
            held, self._overtaken = self._overtaken, None
            self._enqueue(due, held)
        if fate is Fate.TWICE:
            self._enqueue(due, chunk)

    def _overtake(self) -> None:
        """Nothing came to overtake it: it goes on as it was."""
        if self._overtaken is not None and not self._silenced:
            held, self._overtaken = self._overtaken, None
            self._enqueue(max(self._due, self._loop.time()), held)

    def _enqueue(self, due: float, chunk: bytes) -> None:
        self._due = due
        self._chunks.append((due, chunk))
        self._bytes += len(chunk)
        self._pump_soon(due - self._loop.time())

    def _pump_soon(self, delay: float) -> None:
        if not self._pumping and self._chunks:
            self._pumping = True
            self._later(max(0.0, delay), self._pump)

    def _pump(self) -> None:
        """Bring what is due to the peer, as far as the way is free and the peer reads."""
        self._pumping = False
        peer, now = self.peer, self._loop.time()
        while self._chunks and self._chunks[0][0] <= now:
            if self._is_blocked():
                if self._held_since is None:
                    self._held_since = now
                elif now - self._held_since > GIVE_UP_SECONDS:
                    self._break(TimeoutError("the peer did not take it"))
                    return
                self._pumping = True
                self._later(RETRY_SECONDS, self._pump)
                return
            self._held_since = None
            if peer._paused and not peer._lost:
                return  # `resume_reading` goes on
            if peer._lost:
                self._break(ConnectionResetError("reset by peer"))
                return
            peer._receive(self._arrived(now))
        self._drained()
        if self._chunks:
            self._pump_soon(self._chunks[0][0] - now)

    def _arrived(self, now: float) -> bytes:
        """What a read finds: everything that is due, or the end."""
        arrived = [self._chunks.popleft()[1]]
        size = len(arrived[0])
        while 0 < size < READ_MAX and self._chunks and self._chunks[0][0] <= now and self._chunks[0][1]:
            arrived.append(self._chunks.popleft()[1])
            size += len(arrived[-1])
        self._bytes -= size
        return b"".join(arrived)

    def _is_blocked(self) -> bool:
        network, there = self._network, self.peer.host
        return (self.host, there) in network.blocked or there in network.silent

    def _drained(self) -> None:
        if self._told_to_pause and self.get_write_buffer_size() <= self._low and not self._lost:
            self._told_to_pause = False
            self._call(self._protocol.resume_writing)

    def _receive(self, chunk: bytes) -> None:
        if self._paused and chunk:
            self._unread.append(chunk)
            return
        self._network.trace.note(self.name, f"gets {len(chunk)}")
        if chunk:
            self._call(self._protocol.data_received, chunk)
            return
        if not self._closing:
            self._call(self._protocol.eof_received)
        self._break(None)
        self.peer._break(None)

    # --- the end ---

    def _break(self, error: Exception | None) -> None:
        """This end is over, and its protocol is told."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._chunks.clear()
        self._bytes = 0
        self._network.gone(self)
        if self._protocol is not None:
            self._later(0.0, self._call, self._protocol.connection_lost, error)

    def reset(self) -> None:
        """Both ends are told that it is over."""
        self._break(ConnectionResetError("connection reset"))
        self.peer._break(ConnectionResetError("connection reset"))

    def die(self, quietly: bool) -> None:
        """The process at this end is gone. What it had written its system still sends, and then the end."""
        self._lost = self._closing = True
        self._network.gone(self)
        if quietly:
            self._chunks.clear()
        elif not self._silenced:
            self._enqueue(max(self._due, self._loop.time() + self._network.weather.latency()), b"")
