"""The inbox of one relay: what its connections brought and was not taken in yet, bounded by count and by bytes.

A connection that brings more waits, so that the socket is not read any further, and the relay has to wait as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

COUNT_MAX = 2_000
BYTES_MAX = 16 << 20

C = TypeVar("C")


class Inbox(Generic[C]):
    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[C, Any]] = deque()
        self._bytes = 0
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """One message more may always be taken in than there are bytes for: it is bounded by itself."""
        return len(self._waiting) >= self._count_max or self._bytes >= self._bytes_max

    async def put(self, source: C, said: Any) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()
        self._waiting.append((source, said))
        self._bytes += _size(said)

    def take(self) -> tuple[C, Any] | None:
        """The oldest, or None."""
        if not self._waiting:
            return None
        source, said = self._waiting.popleft()
        self._bytes -= _size(said)
        self._room.set()
        return source, said


def _size(said: Any) -> int:
    return len(said) if isinstance(said, bytes | str) else 0
