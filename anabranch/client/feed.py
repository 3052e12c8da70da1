"""What changed, for those who watch: every watcher gets every change from the moment it asked.

A watcher that does not read is not waited for: beyond a bound it loses the oldest changes and is told how many, and
then it does best to read its documents again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from anabranch.client.document import Change, ChangeKind

WAITING_MAX = 10_000


class Changes(AsyncIterator[Change]):
    """One watcher's changes. `aclose()` ends it, and so does the end of the replica."""

    def __init__(self, watchers: set[Changes]) -> None:
        self._watchers = watchers
        self._waiting: deque[Change] = deque()
        self._missed = 0
        self._ready = asyncio.Event()
        self._closed = False
        watchers.add(self)

    def tell(self, change: Change) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._missed += 1
        self._waiting.append(change)
        self._ready.set()

    async def __anext__(self) -> Change:
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                return Change(ChangeKind.MISSED, detail=str(missed))
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()

    async def aclose(self) -> None:
        self.end()

    def end(self) -> None:
        self._watchers.discard(self)
        self._closed = True
        self._ready.set()


class Feed:
    def __init__(self) -> None:
        self._watchers: set[Changes] = set()

    def watch(self) -> Changes:
        return Changes(self._watchers)

    def tell(self, changes: list[Change]) -> None:
        for watcher in self._watchers:
            for change in changes:
                watcher.tell(change)

    def close(self) -> None:
        for watcher in list(self._watchers):
            watcher.end()
