"""What time it is. Nothing else in Anabranch asks the operating system."""

from __future__ import annotations

import time


def seconds() -> int:
    return int(time.time())


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds that only go forward, for deadlines."""
    return time.monotonic()
