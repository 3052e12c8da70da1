"""What the client takes from outside: the time and randomness. Nothing else in it asks the operating system.

A `World` comes in through `Replica.open(…, world=…)`; tests bring one of their own.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
    """Seconds that only go forward, for deadlines."""
    fresh_bytes: Callable[[int], bytes] = os.urandom
    """For nonces and one-time keys: nobody else may guess them."""
    share: Callable[[], float] = random.random
    """Between 0 and 1, for jitter."""
    new_uuid: Callable[[], str] = lambda: str(uuid.uuid4())

    def seconds(self) -> int:
        return self.milliseconds() // 1000


REAL = World()
