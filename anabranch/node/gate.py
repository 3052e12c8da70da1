"""The gate: no socket is read while too much of what was read is under way.

Each connection bounds what it has under way; the gate bounds what all of them have together. It closes for all at once,
since whoever is still read brings more, and opens when half of it is done. Then whoever was not heard for longest is
read first, and closes it for the others if that is too much again: so everybody has a turn.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

EVENT_BYTES = 2_000  # what an event takes in memory beside its own bytes, roughly


class Gated(Protocol):
    """A socket, and when something was last read from it."""

    seen: float

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None:
        """Read on, if nothing else is against it."""
        ...


class Gate:
    def __init__(self, bytes_max: int, sockets: Collection[Gated]) -> None:
        """`sockets` are those that there are just now."""
        self._bytes_max = bytes_max
        self._sockets = sockets
        self.bytes = 0  # under way
        self.closed = False

    def took(self, events: int, size: int) -> None:
        """So many events of so many bytes came in one read."""
        self.bytes += size + EVENT_BYTES * events
        if self.bytes >= self._bytes_max and not self.closed:
            self.closed = True
            for socket in list(self._sockets):
                socket.pause_reading()

    def answered(self, events: int, size: int) -> None:
        """So many of them are done."""
        self.bytes -= size + EVENT_BYTES * events
        if self.closed and self.bytes <= self._bytes_max // 2:
            self.closed = False
            for socket in sorted(self._sockets, key=lambda socket: socket.seen):
                socket.resume_reading()
