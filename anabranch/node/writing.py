"""The writer's thread: one place where the store is changed.

Offers that arrive while a group is being committed form the next group, so groups grow with the load and a lone event
waits for nobody. Other changes (compaction steps, access keys) are jobs that run between groups.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anabranch.node import now
from anabranch.store.contract import Offer, Outcome, StoreError, Writer

log = logging.getLogger(__name__)
T = TypeVar("T")

GROUP_MAX = 1_024

Committed = Callable[[Sequence[Outcome] | None], None]
"""Called on the event loop when a group is on disk; None: nothing of it could be stored."""


class WriterThread:
    def __init__(self, writer: Writer, loop: asyncio.AbstractEventLoop) -> None:
        self._writer = writer
        self._loop = loop
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def append(self, offers: Sequence[Offer], committed: Committed) -> None:
        self._queue.put((offers, committed))

    async def run(self, job: Callable[[Writer], T]) -> T:
        """Run a job between two groups."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((job, done))
        return await done

    async def stop(self) -> None:
        """Commit what is queued, then end."""
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            items = [self._queue.get()]
            size = len(items[0][0]) if items[0] and isinstance(items[0][0], list) else GROUP_MAX
            while size < GROUP_MAX:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                items.append(item)
                size += len(item[0]) if item and isinstance(item[0], list) else GROUP_MAX
            stopping = items[-1] is None
            groups = [item for item in items if item is not None and isinstance(item[0], list)]
            if groups:
                self._append(groups)
            for item in items:
                if item is not None and not isinstance(item[0], list):
                    self._run(*item)

    def _append(self, groups: list[tuple[list[Offer], Committed]]) -> None:
        outcomes: Sequence[Outcome] | None = None
        try:
            outcomes = self._writer.append([offer for offers, _ in groups for offer in offers], now.milliseconds())
        except StoreError as error:
            log.error("a group could not be stored", extra={"cause": str(error)})
        except Exception:
            log.exception("a group could not be stored")
        self._loop.call_soon_threadsafe(_report, groups, outcomes)

    def _run(self, job: Callable[[Writer], Any], done: asyncio.Future[Any]) -> None:
        try:
            result = job(self._writer)
        except Exception as error:
            self._loop.call_soon_threadsafe(_fail, done, error)
        else:
            self._loop.call_soon_threadsafe(_finish, done, result)


def _report(groups: list[tuple[list[Offer], Committed]], outcomes: Sequence[Outcome] | None) -> None:
    at = 0
    for offers, committed in groups:
        committed(None if outcomes is None else outcomes[at : at + len(offers)])
        at += len(offers)


def _finish(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
