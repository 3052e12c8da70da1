"""The writer's thread: one place where the store is changed.

A group of operations is one transaction. Other changes (compaction steps, access keys) are jobs that run between two
groups, so whatever changes the store does so alone.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from anabranch.core import nostr
from anabranch.core.operation import Removal
from anabranch.node import now
from anabranch.store.contract import Advance, Offer, Outcome, Refused, StoreError, Writer

log = logging.getLogger(__name__)
T = TypeVar("T")

FORGED = Refused("invalid", "signature does not match the event")

Committed = Callable[[Sequence[Outcome] | None, Sequence[Removal]], None]
"""Called on the event loop when a group is on disk, with what it has removed; None: nothing could be stored."""


class _Page(msgspec.Struct, frozen=True):
    """A group of a link's."""

    offers: list[Offer]
    advance: Advance


class WriterThread:
    def __init__(
        self,
        writer: Writer,
        loop: asyncio.AbstractEventLoop,
        removed: Callable[[Sequence[Removal]], None] = lambda removals: None,
    ) -> None:
        """`removed` is called on the event loop with what a job has removed, before who waits for the job goes on."""
        self._writer = writer
        self._removed = removed
        self._loop = loop
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def append(self, offers: list[Offer], committed: Committed, advance: Advance | None = None) -> None:
        """Store a group that has been proven; with it, in one transaction, what `advance` makes of the outcomes."""
        self._queue.put((offers if advance is None else _Page(offers, advance), committed))

    def prove_and_append(self, offers: list[Offer], committed: Committed) -> None:
        """Check a few signatures right here, then store: for so few the way to another process is the longer one."""
        self._queue.put((tuple(offers), committed))

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
        try:
            self._writer.make_ready()
        except Exception:
            log.exception("the store could not be made ready")
        while (item := self._queue.get()) is not None:
            self._do(*item)

    def _do(self, work: Any, done: Any) -> None:
        if isinstance(work, list):
            self._append(work, done)
        elif isinstance(work, _Page):
            self._append(work.offers, done, advance=work.advance)
        elif isinstance(work, tuple):
            self._append(list(work), done, prove=True)
        else:
            self._run(work, done)

    def _append(
        self,
        offers: list[Offer],
        committed: Committed,
        prove: bool = False,
        advance: Advance | None = None,
    ) -> None:
        outcomes: Sequence[Outcome] | None = None
        try:
            held = nostr.verify([offer.operation.event for offer in offers]) if prove else []
            if all(held):
                outcomes = self._writer.append(offers, now.milliseconds(), advance)
            else:
                proven = [offer for offer, holds in zip(offers, held, strict=True) if holds]
                stored = iter(self._writer.append(proven, now.milliseconds()))
                outcomes = [next(stored) if holds else FORGED for holds in held]
        except StoreError as error:
            log.error("a group could not be stored", extra={"cause": str(error)})
        except Exception:
            log.exception("a group could not be stored")
        self._loop.call_soon_threadsafe(committed, outcomes, self._writer.take_removals())

    def _run(self, job: Callable[[Writer], Any], done: asyncio.Future[Any]) -> None:
        try:
            result = job(self._writer)
        except Exception as error:
            self._loop.call_soon_threadsafe(_fail, done, error)
        else:
            if removals := self._writer.take_removals():
                self._loop.call_soon_threadsafe(self._removed, removals)
            self._loop.call_soon_threadsafe(_finish, done, result)


def _finish(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
