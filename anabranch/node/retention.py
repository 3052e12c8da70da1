"""Retention at work: compaction on its interval, on demand, and by plans made elsewhere, beside live traffic.

Reading what may go happens on a thread of its own, each step that forgets is one small transaction on the writer's, and
between two steps ingest has its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from anabranch.core.retention import Horizon, Policy, ReplayWindow
from anabranch.core.token import Position
from anabranch.node import now
from anabranch.node.hub import Hub
from anabranch.node.metrics import Metrics
from anabranch.node.readers import Readers
from anabranch.node.writing import WriterThread
from anabranch.store import compaction
from anabranch.store.compaction import Candidate, Judgement, LookOn, Refusal, Report, Step
from anabranch.store.contract import Reader, Store, StoreError, TooSlow
from anabranch.store.runtime import RETENTION, RuntimeRetention, policy_in_force, runtime_retention

log = logging.getLogger(__name__)

PAGES_A_STEP = 256
_UNSET: Any = object()

T = TypeVar("T")


class Retention:
    def __init__(
        self,
        store: Store,
        floor: Position,
        readers: Readers,
        writer: WriterThread,
        hub: Hub,
        metrics: Metrics,
        policy: Policy,
        interval_seconds: int,
        window: ReplayWindow,
    ) -> None:
        self._store = store
        self._readers = readers
        self._writer = writer
        self._hub = hub
        self._metrics = metrics
        self._window = window
        self._setting = asyncio.Lock()  # one change stands on the other
        self._running = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._stopping = False
        self._changed = asyncio.Event()
        self._due = asyncio.Event()
        self._base = (policy, interval_seconds)
        self.policy, self.interval_seconds = policy, interval_seconds
        self.floor = floor  # nothing else moves it
        self._updated_at = now.milliseconds()

    async def start(self) -> None:
        try:
            self._in_force(await self._readers.run(lambda reader: reader.setting(RETENTION)))
        except StoreError as error:  # what was set cannot be read, so nothing is forgotten by it
            log.error("no payload is compacted", extra={"cause": str(error)})
            self.policy = msgspec.structs.replace(self.policy, payload_days=None)
        if await self._readers.run(lambda reader: reader.vanishing()) is not None:  # cut short when it last stopped
            self.soon()

    def _in_force(self, stored: bytes | None) -> None:
        self.policy, self.interval_seconds = policy_in_force(*self._base, stored)
        if (changed := runtime_retention(stored)) is not None:
            self._updated_at = changed.updated_at

    def describe(self) -> dict[str, Any]:
        """What the admin API shows."""
        return {
            "payload_retention_days": self.policy.payload_days,
            "compaction_interval_seconds": self.interval_seconds,
            "updated_at": self._updated_at,
        }

    async def change(
        self, payload_retention_days: int | None = _UNSET, compaction_interval_seconds: int = _UNSET
    ) -> tuple[Report, bool]:
        """Set retention anew, durably, and apply it at once. What that compacted, and whether it came to its end: what
        is set is in force also where compaction fails, and the next run goes on."""
        async with self._setting:
            changed = RuntimeRetention(
                payload_retention_days=self.policy.payload_days
                if payload_retention_days is _UNSET
                else payload_retention_days,
                compaction_interval_seconds=self.interval_seconds
                if compaction_interval_seconds is _UNSET
                else compaction_interval_seconds,
                updated_at=now.milliseconds(),
            ).encode()
            await self._writer.run(lambda writer: writer.save_setting(RETENTION, changed))
            self._in_force(changed)
        self._changed.set()
        report = Report()
        try:
            await self._run_whole(report)
        except StoreError as error:
            log.error("compaction failed; it is tried again", extra={"cause": str(error)})
            return report, False
        return report, True

    async def run(self) -> Report:
        """One whole run, to its end even when nobody waits for it any more; a second one waits for the first."""
        report = Report()
        await self._run_whole(report)
        return report

    async def _run_whole(self, report: Report) -> None:
        await asyncio.shield(asyncio.create_task(self._run(report)))

    async def _run(self, report: Report) -> None:
        async with self._running:
            async with self._reader() as reader:
                steps = compaction.steps(reader, self.policy, self._window, now.seconds(), self._horizons)
                while not self._stopping and (step := await self._on_thread(self._next, reader, steps)) is not None:
                    if isinstance(step, LookOn):
                        continue
                    await self._writer.run(
                        lambda writer, step=step: compaction.carry_out(step, writer, report)  # type: ignore[misc]
                    )
                    self.floor = max(self.floor, report.floor)
            report.floor = self.floor
            await self._finish(report)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Reader]:
        """A reader of our own: opened, used and closed on our thread, so in this order, whoever is cancelled."""
        opened: list[Reader] = []
        try:
            await self._on_thread(lambda: opened.append(self._store.open_reader()))
            yield opened[0]
        finally:
            await self._on_thread(_close, opened)

    def _on_thread(self, work: Callable[..., T], *given: Any) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def _next(self, reader: Reader, steps: Iterator[Step]) -> Step | None:
        """On a thread: the next step. None at the end, and when the node stops, however long a query is."""
        reader.give_up = lambda: self._stopping
        try:
            return next(steps, None)
        except TooSlow:
            if self._stopping:
                return None
            raise
        finally:
            reader.give_up = None

    async def _finish(self, report: Report) -> None:
        """Give the space back, and tell of what went."""
        try:
            while not self._stopping and await self._writer.run(lambda writer: writer.return_space(PAGES_A_STEP)):
                pass
        except StoreError as error:  # what went is gone all the same
            log.error("no space could be given back; it is tried again", extra={"cause": str(error)})
        compacted = report.compacted_snapshots + report.compacted_revisions
        if compacted or report.forgotten_documents or report.expired or report.vanished:
            log.info("compacted", extra={"report": report})
        self._metrics.compacted.inc(compacted)
        self._metrics.compacted_bytes.inc(report.compacted_bytes)

    async def apply(self, plan: Sequence[Candidate]) -> tuple[Report, Judgement]:
        """Let go what of a plan this node's own rule and policy let go now, to its end whoever still waits for it."""
        return await asyncio.shield(asyncio.create_task(self._apply(plan)))

    async def _apply(self, plan: Sequence[Candidate]) -> tuple[Report, Judgement]:
        async with self._running:
            report = Report(floor=self.floor)
            judgement = await self._readers.run(
                lambda reader: compaction.judge(reader, plan, self.policy, now.seconds(), self._horizons())
            )
            for step in judgement.steps:
                if self._stopping:
                    break
                await self._writer.run(
                    lambda writer, step=step: compaction.carry_out(step, writer, report)  # type: ignore[misc]
                )
            planned = sum(len(step.positions) for step in judgement.steps)
            went = report.compacted_snapshots + report.compacted_revisions
            judgement.refuse(Refusal.KEPT, planned - went)  # the writer has looked again
            await self._finish(report)
            return report, judgement

    def soon(self) -> None:
        """Run without waiting for the interval."""
        self._due.set()

    async def stop(self) -> None:
        """Stop after the step under way."""
        self._stopping = True
        async with self._running:
            pass

    def _horizons(self) -> tuple[Horizon, ...]:
        return tuple(self._hub.horizons)

    async def keep_running(self) -> None:
        """Run on the interval and when something is due, for ever."""
        while True:
            started, interval = now.monotonic(), self.interval_seconds
            while not self._due.is_set() and (left := started + interval - now.monotonic()) > 0:
                await _first_of(left, self._due, self._changed)
                if self._changed.is_set():  # another interval, from now on
                    self._changed.clear()
                    started, interval = now.monotonic(), self.interval_seconds
            self._due.clear()
            try:
                await self.run()
            except Exception:
                log.exception("compaction failed; it is tried again")


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, at most so long."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _close(readers: Sequence[Reader]) -> None:
    for reader in readers:
        reader.close()
