"""Run: the whole pipeline again and again, so that the tables stay near the logs.

A cycle brings what is new of each source into the lake, works out the heads, and now and then writes a report. Sources
are looked at one by one: one that fails is told with the reason, and tried again after a pause that doubles each time,
while the others go on. Nothing here knows the time or waits: the caller says what time it is and when to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from anabranch.pipeline.feed import FeedError, GapFound
from anabranch.pipeline.jobs import heads, ingest, report
from anabranch.pipeline.lake import Lake, LakeBusy, LakeFull
from anabranch.pipeline.ledger import Ledger
from anabranch.pipeline.rows import Rules
from anabranch.pipeline.session import last_words
from anabranch.pipeline.sources import open_feeds

SPARK, HEADS, REPORT = "Spark", "heads", "report"
PAUSE_FIRST, PAUSE_MAX = 5.0, 600.0
REPORT_SHARE = 0.1
"""At most so much of the time goes into reports."""


class Failed(msgspec.Struct, frozen=True):
    """What did not go in a cycle, why, and after how many seconds it is tried again."""

    what: str
    reason: str
    again_in: float


class Status(msgspec.Struct):
    """One cycle. `operations` and `rejected` are new in it; `lag` is how many positions the sources are ahead."""

    cycle: int
    operations: int = 0
    rejected: int = 0
    documents: int = 0
    conflicts: int = 0
    tombstones: int = 0
    lag: int = 0
    report: bool = False
    failed: list[Failed] = []

    @property
    def changed(self) -> bool:
        return bool(self.operations or self.rejected or self.failed)


class Stopped(Exception):
    """The run is to end; what was begun is taken up by the next one."""


class Plan(msgspec.Struct, frozen=True):
    """What a run does: the arguments of `ingest`, and where the report goes."""

    sources: Sequence[str]
    options: Mapping[str, str] = {}
    rules: Rules = Rules()
    gaps: str = "error"
    batch_rows: int = ingest.BATCH_ROWS
    wait: float = 0.0
    report: Path | None = None


class _Patience:
    """When something that fails is tried again."""

    def __init__(self) -> None:
        self.failures = 0
        self.due = 0.0

    def failed(self, now: float) -> float:
        pause = min(PAUSE_FIRST * 2 ** min(self.failures, 20), PAUSE_MAX)
        self.failures += 1
        self.due = now + pause
        return pause


class Run:
    """A run on one lake. `spark` gives the session, a new one where the last has ended."""

    def __init__(
        self,
        lake: Lake,
        plan: Plan,
        spark: Callable[[], SparkSession],
        monotonic: Callable[[], float],
        seconds: Callable[[], int],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lake, self._plan, self._spark = lake, plan, spark
        self._monotonic, self._seconds, self._stopping = monotonic, seconds, stopping
        self._patience = {name: _Patience() for name in (*plan.sources, SPARK, HEADS, REPORT)}
        self._current: heads.Summary | None = None
        self._cycle = 0
        self._heads_of: list[int] = []  # the state of the lake that heads and report were last made of
        self._report_of: list[int] = []
        self._report_due = 0.0

    def cycle(self) -> Status:
        """Do all that is due. Raises `Stopped`, and at first whatever keeps Spark from starting."""
        self._cycle += 1
        status = Status(self._cycle)
        if self._cycle == 1:
            self._start()
        elif not self._attempt(status, SPARK, self._start):
            return status
        for source in self._plan.sources:
            self._attempt(status, source, partial(self._ingest, source, status))
        state = [self._lake.table(name).version for name in ("operations", "facts")]
        if self._heads_of != state and self._attempt(status, HEADS, self._work_out_heads):
            self._heads_of = state
        if self._current is not None:
            status.documents, status.conflicts = self._current.documents, self._current.conflicts
            status.tombstones = self._current.tombstones
        if self._plan.report is not None and self._report_of != state and self._monotonic() >= self._report_due:
            status.report = self._attempt(status, REPORT, partial(self._write_report, self._plan.report))
            self._report_of = state if status.report else self._report_of
        return status

    def _attempt(self, status: Status, what: str, work: Callable[[], None]) -> bool:
        """Do it if it is due; whether it was done."""
        self._check()
        patience = self._patience[what]
        if self._monotonic() < patience.due:
            return False
        try:
            work()
        except Stopped:
            raise
        except Exception as error:  # whatever it was, the next time it may go
            self._check()
            status.failed.append(Failed(what, _reason(error), patience.failed(self._monotonic())))
            return False
        patience.failures, patience.due = 0, 0.0
        return True

    def _start(self) -> None:
        self._lake.on(self._spark())

    def _check(self) -> None:
        if self._stopping():
            raise Stopped

    def _ingest(self, source: str, status: Status) -> None:
        plan = self._plan
        done = ingest.ingest(
            self._lake,
            [source],
            options=plan.options,
            rules=plan.rules,
            gaps=plan.gaps,
            batch_rows=plan.batch_rows,
            wait=plan.wait,
            progress=lambda rows, remark: self._check(),
        )
        status.operations += done.operations
        status.rejected += done.rejected
        ledger = Ledger(self._lake)
        for feed in open_feeds(source, plan.options, plan.rules.limits):
            status.lag += feed.advance(ledger.mark(feed)).rows

    def _work_out_heads(self) -> None:
        self._current = heads.update(self._lake, wait=self._plan.wait)

    def _write_report(self, out: Path) -> None:
        began = self._monotonic()
        report.write(self._lake, out, self._seconds(), self._plan.wait)
        ended = self._monotonic()
        self._report_due = ended + (ended - began) / REPORT_SHARE


def _reason(error: Exception) -> str:
    if isinstance(error, FeedError | GapFound | LakeBusy | LakeFull):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return last_words(error)
