"""What was staged since the last `Apply`: proven in the background, kept once, within a bound.

A relay may send anything any number of times. Only so many batches wait to be proven at once; what is proven is kept
once, and only its owner can make more of it; of what is not, only the reasons are kept, and not all of those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from anabranch.client.file import Proven
from anabranch.client.messages import short
from anabranch.client.proving import Batch

OPEN_MAX = 8
REASONS_MAX = 1_000
HINTED_MAX = 10_000
AND_MORE = "and more that does not hold"


class Staging:
    def __init__(self) -> None:
        self._open: deque[asyncio.Task[Batch]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._proven: dict[str, Proven] = {}
        self._dropped: list[str] = []
        self._hinted: dict[str, None] = {}

    @property
    def waiting(self) -> int:
        """Batches that are not proven yet."""
        return len(self._open)

    async def add(self, work: Coroutine[Any, Any, Batch]) -> None:
        """Begin to prove one more batch; waits while too many are open."""
        self._open.append(asyncio.ensure_future(work))
        while len(self._open) > OPEN_MAX:
            await self._merge()

    async def take(self) -> Batch:
        """All of it, proven; nothing is staged afterwards."""
        while self._open:
            await self._merge()
        batch = Batch(list(self._proven.values()), self._dropped, list(self._hinted))
        self._clear()
        return batch

    def discard(self) -> None:
        for task in self._open:
            task.cancel()
        self._open.clear()
        self._clear()

    async def _merge(self) -> None:
        batch = await self._open[0]
        if self._open:  # unless it was discarded meanwhile
            self._open.popleft()
        for proven in batch.proven:
            self._proven.setdefault(proven.event, proven)
        for reason in batch.dropped:
            self._dropped.append(short(reason) if len(self._dropped) < REASONS_MAX else AND_MORE)
        room = HINTED_MAX - len(self._hinted)
        self._hinted.update(dict.fromkeys(batch.hinted[:room]))
