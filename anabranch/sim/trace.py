"""What happened, line by line, and a hash over all of it: two runs of one seed are the same or they are not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """`lines` are kept only where somebody wants to read them; `hash` is over every one."""

    def __init__(self, time: Callable[[], float], keep: bool = False) -> None:
        self._time = time
        self._digest = hashlib.blake2b(digest_size=16)
        self._keep = keep
        self.lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        line = f"{self._time():.6f} {who} {what}\n"
        self._digest.update(line.encode())
        if self._keep:
            self.lines.append(line)

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()
