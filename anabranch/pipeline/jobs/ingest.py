"""Ingest: logs become tables, each operation once, proven, and nothing lost or twice however often a run is killed.

A batch is planned, and the plan written into the ledger, before any of it is read: so a run that was killed is taken up
by doing the same batch again. Tasks read stretches of the logs, prove the lines in bulk and write files (`staging`);
then each table takes its files in one commit that carries the batch's number. A table that has the number already is
left alone. `sightings` is the last one: a batch that it has is done.

Of what is known by the same id, the first one stays; of a revision, the first with its document and its own id, as in a
node (`known`). Where nothing in a batch is known already, which is the rule, its files are taken as they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from anabranch.pipeline import known
from anabranch.pipeline.delta import File, rewritten, write_file
from anabranch.pipeline.jobs.removals import Leaving, leaving
from anabranch.pipeline.jobs.tidy import tidy
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.ledger import WORK, Ledger, Planned, as_json
from anabranch.pipeline.rows import Rules, read_lines
from anabranch.pipeline.schema import PROVEN
from anabranch.pipeline.source import LogReader, Stretch
from anabranch.pipeline.sources import open_feeds, without_passwords
from anabranch.pipeline.staging import STAGED, Numbers, Seen, Staged, Stager, heard, told

BATCH_ROWS = 1_000_000
BUCKETS_ABOVE = 50_000
"""Batches with more rows than this are written in buckets; smaller ones would fall into too small files."""
ALONE_BELOW = 4_000
"""Batches with fewer rows than this are read here: asking others would take longer."""
BYTES_A_ROW = 300  # compressed
TASKS_MAX = 256
WRITTEN = ("operations", "facts", "rejected", "sightings")
Progress = Callable[[int, str], None]
W = TypeVar("W")


class Summary(msgspec.Struct):
    """What a run has brought into the lake, in rows of each table."""

    operations: int = 0
    facts: int = 0
    rejected: int = 0
    sightings: int = 0
    gaps: int = 0
    batches: int = 0


def ingest(
    lake: Lake,
    sources: Sequence[str],
    *,
    options: Mapping[str, str] | None = None,
    rules: Rules | None = None,
    gaps: str = "error",
    batch_rows: int = BATCH_ROWS,
    wait: float = 0.0,
    progress: Progress = lambda rows, remark: None,
) -> Summary:
    """Bring all that is new in the sources into the lake. Raises `GapFound`, `FeedError`, `LakeBusy`, `LakeFull`."""
    rules, options = rules or Rules(), {name: value for name, value in (options or {}).items() if value}
    sources, options = without_passwords(sources, options)
    with lake.lock(wait), lake.room():
        tidy(lake)
        ledger, summary = Ledger(lake), Summary()
        if (unfinished := ledger.unfinished()) is not None:
            progress(0, f"batch {unfinished[0].batch}, which was interrupted")
            _Batch(lake, ledger, unfinished, rules, options).carry_out(summary)
        feeds = [(path, feed) for path in sources for feed in open_feeds(path, options, rules.limits)]
        while batch := ledger.plan(feeds, gaps, batch_rows):
            ledger.write(batch)
            _Batch(lake, ledger, batch, rules, options).carry_out(summary)
            progress(summary.sightings + summary.rejected, f"{summary.operations:,} operations")
        return summary


class _Batch:
    """One batch on its way into the tables."""

    def __init__(
        self, lake: Lake, ledger: Ledger, lines: Sequence[Planned], rules: Rules, options: Mapping[str, str]
    ) -> None:
        self._lake, self._ledger, self._lines = lake, ledger, lines
        self._number = lines[0].batch
        self._done = {WORK: self._number}
        rows = _rows(lines)
        self._alone = rows < ALONE_BELOW
        tables = {name: (lake.table(name).path, lake.table(name).folder()) for name in WRITTEN if self._open(name)}
        stager = Stager(tables, self._number, rows > BUCKETS_ABOVE, self._seen() if ledger.overlaps(lines) else {})
        self._staged = stage(lake.spark, lines, rules, options, stager, self._alone)

    def carry_out(self, summary: Summary) -> None:
        """Commit the batch table by table. What looks at the tables as they were comes before the first commit."""
        operations, facts = self._unknown(), self._files("facts")
        rest, without = [], []
        if (leaving := self._leaving()) is not None:
            table = self._lake.table("facts")
            facts.append(write_file(leaving.facts, table.path, table.folder()))
            rest, without = leaving.files, leaving.without
        summary.facts += self._commit("facts", facts)
        summary.rejected += self._commit("rejected", self._files("rejected"))
        summary.gaps += self._commit_gaps()
        if self._commit("operations", [*operations, *rest], without):
            summary.operations += sum(file.rows for file in operations)
        summary.sightings += self._commit("sightings", self._files("sightings"))
        summary.batches += 1

    def _open(self, name: str) -> bool:
        """Whether a table still lacks the batch."""
        return self._lake.table(name).done(WORK) < self._number

    def _of(self, name: str) -> list[Staged]:
        return [one for one in self._staged if one.table == name]

    def _files(self, name: str) -> list[File]:
        return [one.file for one in self._of(name)]

    def _seen(self) -> dict[tuple[str, str, str], Seen]:
        """What the tables have of the logs that are read again; operations are known by more than their places."""
        return {
            (name, line.end.stream, line.end.epoch): known.places(self._lake.table(name), line.end)
            for name in WRITTEN[1:]
            for line in self._lines
            if self._open(name)
        }

    def _unknown(self) -> list[File]:
        """What is new: the staged files as they are, and where something in them is known, the rest of it."""
        staged, table = self._of("operations"), self._lake.table("operations")
        found: list[File] = []
        parted: list[tuple[str, Numbers]] = []
        for one, dropped in zip(staged, known.repeated(table, staged), strict=True):
            if not len(dropped):
                found.append(one.file)
            elif len(dropped) < one.file.rows:
                parted.append((one.file.path, dropped))

        address = table.path

        def rest(of: tuple[str, Numbers]) -> Iterator[Staged]:
            path, dropped = of
            yield Staged("operations", rewritten(address, path, dropped))

        return found + [one.file for one in _spread(self._lake.spark, parted, rest, self._alone)]

    def _leaving(self) -> Leaving | None:
        """What the batch takes out of the lake, because the logs say that it is removed."""
        seen = self._of("sightings")
        if not any(one.removals for one in seen) or not self._open("operations"):
            return None
        files = [f"{self._lake.table(one.table).path}/{one.file.path}" for one in seen]
        return leaving(self._lake, self._number, files, self._ledger.epochs())

    def _commit(self, name: str, files: Sequence[File], without: Sequence[str] = ()) -> int:
        if not self._open(name):
            return 0
        return self._lake.table(name).take(files, self._done, without)

    def _commit_gaps(self) -> int:
        rows = [_gap_row(line) for line in self._lines if line.gap is not None]
        if not rows or not self._open("gaps"):
            return 0
        self._lake.table("gaps").append(rows, self._done)
        return len(rows)


def _gap_row(line: Planned) -> dict[str, object]:
    assert line.gap is not None
    return {
        "stream": line.end.stream,
        "epoch": line.end.epoch,
        "position": line.gap.requested,
        "reason": line.gap.reason,
        "oldest": line.gap.oldest,
        "latest": line.gap.latest,
        "was_epoch": line.gap.was_epoch,
        "batch": line.batch,
        "source": line.source,
    }


# --- from lines to rows, and to files --------------------------------------------------------------------------------


def read(spark: SparkSession, stretches: Sequence[Stretch], rules: Rules, options: Mapping[str, str]) -> DataFrame:
    """The lines of some stretches, proven in bulk on every core."""
    apart, whole = _parted(stretches)
    found = [_loaded(spark, apart, rules, options, prove="true")] if apart else []
    if whole:
        lines = _loaded(spark, whole, rules, options, form="log").repartition(4 * spark.sparkContext.defaultParallelism)
        found.append(lines.mapInArrow(lambda batches: read_lines(batches, rules), PROVEN))
    return found[0] if len(found) == 1 else found[0].unionAll(found[1])


def stage(
    spark: SparkSession,
    stretches: Sequence[Stretch],
    rules: Rules,
    options: Mapping[str, str],
    stager: Stager,
    alone: bool = False,
) -> list[Staged]:
    """Have the lines of some stretches read, proven and written on every core, or here; what files that made."""
    apart, whole = _parted(stretches)
    if alone:
        apart, whole = [*apart, *whole], []
    reader = LogReader(_options(spark, apart, rules, options, prove="true"))
    staged = _spread(spark, reader.partitions(), lambda piece: stager.stage(reader.read(piece)), alone)
    if whole:
        rows = read(spark, whole, rules, options)
        staged += heard(rows.mapInArrow(lambda batches: told(stager.stage(batches)), STAGED).toArrow())
    return staged


def _spread(
    spark: SparkSession, work: Sequence[W], do: Callable[[W], Iterator[Staged]], alone: bool = False
) -> list[Staged]:
    """Do pieces of work in tasks, or one after the other here."""
    if alone or not work:
        return [staged for piece in work for staged in do(piece)]

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from told(do(work[number]))

    tasks = spark.range(0, len(work), 1, min(len(work), TASKS_MAX))
    return heard(tasks.mapInArrow(task, STAGED).toArrow())


def _parted(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Stretch]]:
    """What is read in spans, and what is read whole, by one task, so that the others have to be given to prove."""
    named = [Stretch(path=one.path, source=one.source, start=one.start, end=one.end) for one in stretches]
    return [one for one in named if one.end.position], [one for one in named if not one.end.position]


def _loaded(
    spark: SparkSession, stretches: Sequence[Stretch], rules: Rules, options: Mapping[str, str], **more: str
) -> DataFrame:
    return spark.read.format("anabranch").options(**_options(spark, stretches, rules, options, **more)).load()


def _options(
    spark: SparkSession, stretches: Sequence[Stretch], rules: Rules, options: Mapping[str, str], **more: str
) -> dict[str, str]:
    parts = str(2 * spark.sparkContext.defaultParallelism)
    return {**options, "rules": rules.encoded(), "stretches": as_json(stretches), "partitions": parts, **more}


def _rows(lines: Sequence[Stretch]) -> int:
    """How many rows a batch may have; of what is read whole, a guess from its bytes."""
    return sum(
        line.end.position - (line.start.position if line.start else 0) or line.end.byte // BYTES_A_ROW for line in lines
    )
