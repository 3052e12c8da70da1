"""Ingest: logs become tables, each operation once, proven, and nothing lost or twice however often a run is killed.

A batch is planned, and the plan written into the ledger, before any of it is read: so a run that was killed is taken up
by doing the same batch again. Spark reads and proves the lines in bulk and writes them as files; then each table takes
its files in one commit that carries the batch's number. A table that has the number already is left alone. `sightings`
is the last one: a batch that it has is done.

Of what is known by the same id, the first one stays; of a revision, the first with its document and its own id, as in a
node. Where nothing in a batch is known already, which is the rule, its files are taken as they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from anabranch.core.operation import Family
from anabranch.pipeline.delta import filesystem
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.ledger import WORK, Ledger, Planned, as_json
from anabranch.pipeline.rows import Rules, read_lines
from anabranch.pipeline.schema import FAMILIES, MIXED, PROVEN, Outcome
from anabranch.pipeline.source import Stretch
from anabranch.pipeline.sources import open_feeds, without_passwords

BATCH_ROWS = 1_000_000
BUCKETS_ABOVE = 50_000
"""Batches with more rows than this are written in buckets; smaller ones would fall into too small files."""
BYTES_A_ROW = 300  # compressed
PLACE = ["stream", "epoch", "position"]
Progress = Callable[[int, str], None]


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
    """Bring all that is new in the sources into the lake. Raises `GapFound`, `FeedError`, `LakeBusy`."""
    rules, options = rules or Rules(), {name: value for name, value in (options or {}).items() if value}
    sources, options = without_passwords(sources, options)
    with lake.lock(wait):
        for name in ("operations", "facts", "rejected", "sightings"):
            lake.table(name).sweep()
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
        self._lake, self._lines = lake, lines
        self._done = {WORK: lines[0].batch}
        self._read_before = ledger.overlaps(lines)
        rows = in_buckets(read(lake.spark, lines, rules, options), large=_rows(lines) > BUCKETS_ABOVE)
        self._folder = lake.table("operations").stage(rows, "outcome", "bucket")

    def carry_out(self, summary: Summary) -> None:
        """Commit the batch table by table. What reads the staged files comes before the commit that takes them."""
        operations, facts = self._staged(Outcome.OPERATION), self._staged(Outcome.FACT)
        rejected = self._staged(Outcome.REJECTED)
        if rejected is not None:
            rejected = rejected.drop("raw").withColumnsRenamed({"problem": "reason", "line": "raw"})
        sightings = self._stage("sightings", _union(operations, facts))
        summary.facts += self._commit("facts", self._stage("facts", facts))
        summary.rejected += self._commit("rejected", self._stage("rejected", rejected))
        summary.gaps += self._commit_gaps()
        summary.operations += self._commit("operations", self._unknown(operations))
        summary.sightings += self._commit("sightings", sightings)
        summary.batches += 1
        for outcome in (Outcome.FACT, Outcome.REJECTED):
            self._lake.table("operations").discard(f"{self._folder}/outcome={outcome}")

    def _open(self, name: str) -> bool:
        """Whether a table still lacks the batch."""
        return self._lake.table(name).done(WORK) < self._done[WORK]

    def _staged(self, outcome: Outcome) -> DataFrame | None:
        """The lines that turned out so; None when there are none."""
        folder = f"{self._folder}/outcome={outcome}"
        system, path = filesystem(folder)
        if system.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        return self._lake.spark.read.schema(PROVEN).option("recursiveFileLookup", "true").parquet(folder)

    def _stage(self, name: str, rows: DataFrame | None) -> str | None:
        """Have the rows of a table written, unless it has them."""
        if rows is None or not self._open(name):
            return None
        table = self._lake.table(name)
        if self._read_before:
            rows = rows.join(table.read(self._lake.spark).select(PLACE), PLACE, "left_anti")
        return table.stage(rows.select(table.schema.names))

    def _unknown(self, operations: DataFrame | None) -> str | None:
        """The folder of what is new: the staged files as they are, or, where something is known, the rest of them."""
        table = self._lake.table("operations")
        if operations is None or not self._open("operations"):
            return None
        known = table.read(self._lake.spark)
        if not any_known(operations, known):
            return f"{self._folder}/outcome={Outcome.OPERATION}"
        return table.stage(unknown(operations, known).select(table.schema.names))

    def _commit(self, name: str, folder: str | None) -> int:
        if not self._open(name):
            return 0
        return self._lake.table(name).commit([] if folder is None else [folder], self._done)

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


# --- from lines to rows ----------------------------------------------------------------------------------------------


def read(spark: SparkSession, stretches: Sequence[Stretch], rules: Rules, options: Mapping[str, str]) -> DataFrame:
    """The lines of some stretches, proven in bulk on every core."""
    named = [Stretch(path=one.path, source=one.source, start=one.start, end=one.end) for one in stretches]
    cores = spark.sparkContext.defaultParallelism
    lines = (
        spark.read.format("anabranch")
        .options(**options)
        .options(form="log", rules=rules.encoded(), stretches=as_json(named), partitions=str(cores))
        .load()
    )
    if any(one.end.position == 0 for one in stretches):  # read whole, by one task: let the others prove
        lines = lines.repartition(4 * cores)

    def prove(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_lines(batches, rules)

    return lines.mapInArrow(prove, PROVEN)


def in_buckets(rows: DataFrame, large: bool) -> DataFrame:
    """The rows with the bucket of files that each is to stand in."""
    own = f.coalesce(f.substring("document", 1, 1), f.lit(MIXED)) if large else f.lit(MIXED)
    return rows.withColumn("bucket", own)


def _rows(lines: Sequence[Stretch]) -> int:
    """How many rows a batch may have; of what is read whole, a guess from its bytes."""
    return sum(
        line.end.position - (line.start.position if line.start else 0) or line.end.byte // BYTES_A_ROW for line in lines
    )


def any_known(operations: DataFrame, known: DataFrame) -> bool:
    """Whether any of the operations may be known already, or stand twice, by their short keys."""
    counted = (
        operations.select("key", f.lit(1).alias("fresh"))
        .unionAll(known.select("key", f.lit(0).alias("fresh")))
        .groupBy("key")
        .agg(f.sum("fresh").alias("fresh"), f.count("*").alias("copies"))
    )
    return not counted.filter("fresh > 0 AND copies > 1").isEmpty()


def unknown(operations: DataFrame, known: DataFrame) -> DataFrame:
    """Those of the operations that are not known yet, each once: the first by its place."""
    revision = f.col("family") == FAMILIES[Family.REVISION]
    identity = f.when(revision, f.concat("document", "revision")).otherwise(f.col("id"))
    copies = Window.partitionBy("identity").orderBy(*PLACE, "id")
    return (
        operations.withColumn("identity", identity)
        .withColumn("copy", f.row_number().over(copies))
        .filter("copy = 1")
        .join(known.select(identity.alias("identity")), "identity", "left_anti")
        .drop("identity", "copy")
    )


def _union(one: DataFrame | None, other: DataFrame | None) -> DataFrame | None:
    if one is None or other is None:
        return other if one is None else one
    return one.unionAll(other)
