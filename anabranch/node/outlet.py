"""What goes out on one socket: gathered by turns of the event loop, and judged by what its reader takes of it.

All of one turn goes out in one write; what is much goes out at once, and so does what many get (`send_now`). More than
`most` may wait for a reader only while it keeps up: every two seconds it has to be nearer than before, or to have taken
all that waited then. So no reader is let go for the size of one burst, and none that is stuck stays. Twice as much
waits for nobody who takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from anabranch.node import now

log = logging.getLogger(__name__)

LAG_SECONDS = 2.0  # in which a reader that is too far behind has to come nearer
STUCK_SECONDS = 0.5  # so long one that is twice too far behind may take nothing
HIGH_WATER = 262_144


class Turns:
    """The ends of the event loop's turns, when all that has gathered goes out: whoever has something is flushed in one
    go, and not each by a call of the loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[Outlet] = []

    def await_end(self, outlet: Outlet) -> None:
        if not self._waiting:
            self.loop.call_soon(self.end)
        self._waiting.append(outlet)

    def end(self) -> None:
        """Let go out now what has gathered so far."""
        waiting, self._waiting = self._waiting, []
        for outlet in waiting:
            try:
                outlet.end_turn()
            except Exception:  # whatever is the matter with one socket, the others have their turn
                outlet.fail()


class Outlet:
    __slots__ = (
        "_drained",
        "_flushing",
        "_gathered",
        "_grown",
        "_lagging",
        "_loop",
        "_most",
        "_out",
        "_taken",
        "_took_at",
        "_transport",
        "_turns",
        "_watch",
        "_written",
        "closed",
    )

    def __init__(
        self,
        turns: Turns,
        most: int,
        grown: Callable[[int], None],
        lagging: Callable[[], None],
    ) -> None:
        """`grown` is told of all that goes out, `lagging` is called when the reader has to be let go."""
        self._turns = turns
        self._loop = turns.loop
        self._most = most
        self._grown = grown
        self._lagging = lagging
        self._transport: asyncio.WriteTransport | None = None
        self._out: list[bytes] = []
        self._gathered = self._written = 0  # bytes
        self._taken = -1  # when it was last looked
        self._took_at = 0.0  # when that was last seen to grow
        self._flushing = False
        self._drained: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self.closed = False

    def attach(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    def detach(self) -> None:
        """The socket is gone."""
        self._transport = None
        self.close()

    def close(self) -> None:
        """Nothing more goes out than what is written already."""
        self.closed = True
        self._out.clear()
        self._gathered = 0
        self._forget_watch()
        self.resume()

    @property
    def waiting(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._gathered + (0 if self._transport is None else self._transport.get_write_buffer_size())

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Queue frames; those of one turn go out together."""
        if self.closed:
            return
        self._out.append(data)
        self._gathered += len(data)
        if self._gathered > HIGH_WATER:
            self.flush()
        if not self._flushing:
            self._await_end()

    def send_now(self, data: bytes) -> None:
        """Write it now: who gets the same after others has waited for them already. Not past what has gathered."""
        transport = self._transport
        if self._flushing or self.closed or transport is None:
            self.send(data)
            return
        try:
            transport.write(data)
        except Exception:
            self.fail()
            return
        self._written += len(data)
        if transport.get_write_buffer_size() > self._most:
            self._await_end()  # its reader is judged there
        self._grown(len(data))

    def fail(self) -> None:
        """In an exception of a write: who misses something of a feed must not get what comes after it."""
        log.exception("a socket could not be written to")
        transport = self._transport
        self.close()
        if transport is not None:
            transport.abort()

    def _await_end(self) -> None:
        self._flushing = True
        self._turns.await_end(self)

    def flush(self) -> None:
        """Write what has gathered."""
        size, transport = self._gathered, self._transport
        if size and transport is not None:
            transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._written += size
        self._out.clear()
        self._gathered = 0
        self._grown(size)

    def end_turn(self) -> None:
        self._flushing = False
        self.flush()
        if self._transport is None or self.closed:
            return
        waiting = self._transport.get_write_buffer_size()
        if waiting > 2 * self._most and self._is_stuck(waiting):
            self._lagging()
        elif waiting > self._most and self._watch is None:
            self._watch_from(waiting)

    def _is_stuck(self, waiting: int) -> bool:
        """Whether the reader has taken nothing for a while, as far as it was looked."""
        time = now.monotonic()
        if (taken := self._written - waiting) > self._taken:
            self._taken, self._took_at = taken, time
        return time - self._took_at > STUCK_SECONDS

    def _watch_from(self, waiting: int) -> None:
        """Too much waits: look again after a while, and again, until it is not too much."""
        taken = self._written - waiting

        def look() -> None:
            self._watch = None
            if self._transport is None or self.closed:
                return
            waits_now = self._transport.get_write_buffer_size()
            if waits_now >= waiting and self._written - waits_now - taken < waiting:
                self._lagging()
            elif waits_now > self._most:
                self._watch_from(waits_now)

        self._watch = self._loop.call_later(LAG_SECONDS, look)

    def _forget_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # --- a socket that takes nothing more just now ---

    @property
    def congested(self) -> bool:
        return self._drained is not None

    def pause(self) -> None:
        self._drained = self._loop.create_future()

    def resume(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    async def writable(self, patience: float) -> None:
        """Wait until the socket takes more. A reader that takes nothing for so many seconds is let go."""
        self.flush()
        while self._drained is not None:
            try:
                async with asyncio.timeout(patience):
                    await asyncio.shield(self._drained)
            except TimeoutError:
                self._lagging()
            self.flush()  # several may have waited: whoever came first has sent something by now
        if self.closed:
            raise ConnectionResetError
