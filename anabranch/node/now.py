"""What time it is. Nothing else in the node, its links and the store asks the operating system.

The clock is one of the context's: a task asks the one that was in force where it was started. So the simulated world
gives each of its nodes a clock of its own.
"""

from __future__ import annotations

import time
from contextvars import ContextVar


class Clock:
    """The system's."""

    def nanoseconds(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM = Clock()
clock: ContextVar[Clock] = ContextVar("clock", default=SYSTEM)


def seconds() -> int:
    return clock.get().nanoseconds() // 1_000_000_000


def milliseconds() -> int:
    return clock.get().nanoseconds() // 1_000_000


def monotonic() -> float:
    """Seconds that only go forward, for deadlines."""
    return clock.get().monotonic()
