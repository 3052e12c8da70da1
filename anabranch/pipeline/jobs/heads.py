"""Heads: of every document the versions that nothing known supersedes, for the snapshot and the revision family.

`heads` takes versions in any number and order; what decides is `frontier`, the twin in columns of the rules in `core`.
Facts of operations whose payload is gone count as well: what they supersede stays superseded. Over a whole lake, `scan`
needs no shuffle: ingest writes what belongs to one bucket of documents into files of its own, and a task works through
the files of a bucket, a few at a time.

`update` keeps the lake's table. Heads of heads and of what is new are the heads of all, so only documents that
something new belongs to are looked at. For revisions the names of parents that have not come yet are kept beside the
heads (`awaited`): a late parent is no head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from anabranch.core.operation import Family
from anabranch.pipeline.delta import Table, filesystem
from anabranch.pipeline.frontier import frontier
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.schema import BUCKETS, FAMILIES, HEADS, VERSIONS, arrow

VERSIONED = [FAMILIES[Family.SNAPSHOT], FAMILIES[Family.REVISION]]

ROWS_AT_ONCE = 500_000
"""So many rows of a bucket, and what was found before, are in a task's memory at once."""

FULL_ABOVE = 0.5
"""When more than this share of all files is new, all documents are looked at: that costs less."""

_HEADS, _VERSIONS = arrow(HEADS), arrow(VERSIONS)
_STORED = [name for name in VERSIONS.names if name not in ("payload", "awaited")]


class Summary(msgspec.Struct):
    """What the heads say: conflicts are documents with several heads, tombstones those whose every head deletes."""

    documents: int = 0
    heads: int = 0
    conflicts: int = 0
    tombstones: int = 0


# --- from versions to heads ------------------------------------------------------------------------------------------


def versions(operations: DataFrame, facts: DataFrame) -> DataFrame:
    """Operations and facts as versions of documents."""
    return _versions(operations, True).unionAll(_versions(facts, False))


def _versions(rows: DataFrame, payload: bool) -> DataFrame:
    added = {"payload": f.lit(payload), "awaited": f.lit(None).cast("array<string>")}
    return rows.filter(f.col("family").isin(VERSIONED)).withColumns(added).select(VERSIONS.names)


def heads(of: DataFrame) -> DataFrame:
    """The heads of every document among the versions."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if given := list(batches):
            yield from frontier(pa.Table.from_batches(given).cast(_VERSIONS)).to_batches()

    return of.select(VERSIONS.names).repartition("document").mapInArrow(found, HEADS)


def scan(lake: Lake) -> DataFrame:
    """The heads of all that is in a lake, straight from its files."""
    files = [
        (_bucket(file), file, payload)
        for name, payload in (("operations", True), ("facts", False))
        for file in lake.table(name).files()
    ]
    mixed = [(file, payload) for bucket, file, payload in files if bucket is None]
    by_bucket = [[(file, payload) for own, file, payload in files if own == bucket] for bucket in BUCKETS]

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                own = _tables(by_bucket[number], None)
                shared = _tables(mixed, BUCKETS[number])
                yield from _folded(own, shared).to_batches()

    tasks = min(len(BUCKETS), 2 * lake.spark.sparkContext.defaultParallelism)
    return lake.spark.range(0, len(BUCKETS), 1, tasks).mapInArrow(found, HEADS)


def _bucket(file: str) -> str | None:
    """The bucket of documents that a file is of; None: of any."""
    _, _, rest = file.rpartition("bucket=")
    bucket = rest.partition("/")[0]
    return bucket if bucket in BUCKETS else None


def _folded(*parts: Iterator[pa.Table]) -> pa.Table:
    """The heads of many tables, with a bounded number of rows in memory."""
    waiting: list[pa.Table] = []
    for part in parts:
        for table in part:
            waiting.append(table)
            if sum(map(len, waiting)) >= ROWS_AT_ONCE:
                waiting = [_as_versions(frontier(pa.concat_tables(waiting)))]
    return frontier(pa.concat_tables(waiting)) if waiting else _HEADS.empty_table()


def _as_versions(heads: pa.Table) -> pa.Table:
    """Heads as versions to be looked at again: what their parents superseded is gone, what they wait for is not."""
    parents = pa.nulls(heads.num_rows, _VERSIONS.field("parents").type)
    return heads.append_column("parents", parents).select(VERSIONS.names).cast(_VERSIONS)


def _tables(files: Sequence[tuple[str, bool]], bucket: str | None) -> Iterator[pa.Table]:
    """The versions in files, of one bucket where these are of any."""
    for file, payload in files:
        system, path = filesystem(file)
        table = pq.read_table(path, filesystem=system, columns=_STORED, use_threads=False, partitioning=None)
        wanted = pc.is_in(table["family"], pa.array(VERSIONED))
        if bucket is not None:
            wanted = pc.and_(wanted, pc.starts_with(table["document"], bucket))
        if not pc.all(wanted, min_count=0).as_py():
            table = table.filter(wanted)
        count = table.num_rows
        table = table.append_column("payload", pa.repeat(payload, count))
        table = table.append_column("awaited", pa.nulls(count, _VERSIONS.field("awaited").type))
        yield table.select(VERSIONS.names).cast(_VERSIONS)


# --- the table -------------------------------------------------------------------------------------------------------


def update(lake: Lake, full: bool = False, wait: float = 0.0) -> Summary:
    """Bring the lake's heads up to its operations and facts. `full` looks at every document again."""
    with lake.lock(wait):
        table, sources = lake.table("heads"), [lake.table("operations"), lake.table("facts")]
        table.sweep()
        done = {source.name: source.version for source in sources}
        fresh = None if full else _fresh(table, sources)
        if fresh is not None and not any(fresh):
            return summarise(table.read(lake.spark))
        if fresh is None:
            found = scan(lake)
        else:
            operations, facts = (source.read(lake.spark, files) for source, files in zip(sources, fresh, strict=True))
            found = advance(table.read(lake.spark), versions(operations, facts))
        seen = Observation()
        folder = table.stage(found.observe(seen, *_counts()).coalesce(lake.spark.sparkContext.defaultParallelism))
        table.commit([folder], done, replace=True)
        return Summary(**seen.get)


def advance(current: DataFrame, fresh: DataFrame) -> DataFrame:
    """The heads after more versions, given the heads before: the others stay, the touched are worked out again."""
    touched = fresh.select("document").distinct()
    before = (
        current.join(touched, "document", "left_semi")
        .withColumn("parents", f.lit(None).cast("array<string>"))
        .select(VERSIONS.names)
    )
    return current.join(touched, "document", "left_anti").unionByName(heads(before.unionAll(fresh)))


def summarise(table: DataFrame) -> Summary:
    return Summary(**table.agg(*_counts()).first().asDict())


def _counts() -> list[Column]:
    first = f.col("payload") & (f.col("number") == 0)
    return [
        f.count_if(first).alias("documents"),
        f.count_if("payload").alias("heads"),
        f.count_if(first & (f.col("heads") > 1)).alias("conflicts"),
        f.count_if(first & f.col("deleted")).alias("tombstones"),
    ]


def _fresh(table: Table, sources: Sequence[Table]) -> list[list[str]] | None:
    """The files of each source that are new since the heads were last worked out; None: all have to be looked at."""
    added: list[list[str]] = []
    for source in sources:
        done = table.done(source.name)
        before, now = (set(source.files(done)) if done >= 0 else None), source.files()
        if before is None or not before.issubset(now):
            return None
        added.append([file for file in now if file not in before])
    new, all_files = sum(map(len, added)), sum(len(source.files()) for source in sources)
    return None if new > FULL_ABOVE * max(1, all_files) else added
