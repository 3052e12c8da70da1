"""Heads: of every document the versions that nothing known supersedes, for the snapshot and the revision family.

`heads` takes versions in any number and order; what decides is `frontier`, the twin in columns of the rules in `core`.
Facts of operations whose payload is gone count as well: what they supersede stays superseded.

Over a whole lake nothing is moved between tasks: ingest writes what belongs to one bucket of documents into files of
its own, and a task works through a bucket, as many documents at a time as memory allows. `scan` gives all heads so.

`update` keeps the lake's table, a file for each bucket, and looks only at documents that something new belongs to: rows
of a later batch than the last one it saw. Heads of heads and of what is new are the heads of all; for revisions the
names of parents that have not come yet are kept beside the heads (`awaited`), because a late parent is no head. Where
more than that is needed, after a removal above all, a document is worked out again from all that is known of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from anabranch.core.operation import Family, State
from anabranch.pipeline.delta import File, Table, filesystem, write_file
from anabranch.pipeline.frontier import again, frontier
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.ledger import WORK
from anabranch.pipeline.schema import BUCKETS, FACTS, FAMILIES, HEADS, STATES, VERSIONS, arrow
from anabranch.pipeline.staging import only

VERSIONED = [FAMILIES[Family.SNAPSHOT], FAMILIES[Family.REVISION]]
REMOVED = STATES[State.REMOVED]

ROWS_AT_ONCE = 250_000
"""So many versions, about, are in a task's memory at once."""

ALONE_BELOW = 20_000
"""Fewer versions than this are looked at here: asking others would take longer."""

FULL_ABOVE = 0.5
"""When more than this share of all rows is new, all documents are looked at: that costs less."""

_HEADS, _VERSIONS, _FACTS = arrow(HEADS), arrow(VERSIONS), arrow(FACTS)
_STORED = [name for name in VERSIONS.names if name not in ("payload", "removed", "awaited")]
_COUNTED = ["payload", "number", "heads", "deleted"]


class Summary(msgspec.Struct):
    """What the heads say: conflicts are documents with several heads, tombstones those whose every head deletes."""

    documents: int = 0
    heads: int = 0
    conflicts: int = 0
    tombstones: int = 0


# --- from versions to heads ------------------------------------------------------------------------------------------


def versions(operations: DataFrame, facts: DataFrame, *more: str) -> DataFrame:
    """Operations and facts as versions of documents; `more` are columns that come along."""
    of_operations = _versions(operations, f.lit(True), f.lit(False))
    of_facts = _versions(facts, f.lit(False), f.col("state") == REMOVED)
    return of_operations.select(*VERSIONS.names, *more).unionAll(of_facts.select(*VERSIONS.names, *more))


def _versions(rows: DataFrame, payload: Column, removed: Column) -> DataFrame:
    added = {"payload": payload, "removed": removed, "awaited": f.lit(None).cast("array<string>")}
    return rows.filter(f.col("family").isin(VERSIONED)).withColumns(added)


def heads(of: DataFrame) -> DataFrame:
    """The heads of every document among the versions."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if given := list(batches):
            yield from frontier(pa.Table.from_batches(given).cast(_VERSIONS)).to_batches()

    return of.select(VERSIONS.names).repartition("document").mapInArrow(found, HEADS)


def scan(lake: Lake) -> DataFrame:
    """The heads of all that is in a lake, straight from its files."""
    return over(lake, frontier, HEADS)


def over(lake: Lake, work: Callable[[pa.Table], pa.Table], schema: t.StructType, *more: str) -> DataFrame:
    """What `work` makes of all versions in a lake, some documents at a time, straight from its files.

    `more` are columns that come along.
    """
    files = _Files.of(lake)

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for versions in files.bucket(BUCKETS[number]).versions(more):
                    yield from work(versions).to_batches()

    return _for_each_bucket(lake).mapInArrow(made, schema)


def _for_each_bucket(lake: Lake) -> DataFrame:
    tasks = min(len(BUCKETS), 2 * lake.spark.sparkContext.defaultParallelism)
    return lake.spark.range(0, len(BUCKETS), 1, tasks)


# --- the files of a bucket -------------------------------------------------------------------------------------------


class _Held(msgspec.Struct, frozen=True):
    """A file with versions: those of one bucket, or, where that is None, of any; operations, or facts."""

    uri: str
    rows: int
    bucket: str | None
    operations: bool
    fresh: bool = True


class _Files(msgspec.Struct, frozen=True):
    """Files with versions, and of one bucket those that may have something of it."""

    held: Sequence[_Held]
    own: str = ""

    @classmethod
    def of(cls, lake: Lake) -> _Files:
        sources = [lake.table("operations"), lake.table("facts")]
        return cls([held for source in sources for held in _held(source, _known(lake.table("heads"), source))])

    def bucket(self, bucket: str) -> _Files:
        return _Files([held for held in self.held if held.bucket in (None, bucket)], bucket)

    def facts(self) -> _Files:
        return _Files([held for held in self.held if not held.operations], self.own)

    @property
    def rows(self) -> int:
        return sum(held.rows for held in self.held)

    @property
    def fresh_rows(self) -> int:
        """How many are in files that were not there when the heads were last worked out."""
        return sum(held.rows for held in self.held if held.fresh)

    def versions(self, more: Sequence[str] = ()) -> Iterator[pa.Table]:
        """All versions of the bucket, so many documents at a time."""
        rows = sum(held.rows if held.bucket else held.rows // len(BUCKETS) for held in self.held)
        parts = 1 + rows // ROWS_AT_ONCE
        for part in range(parts):
            low = f"{self.own}{0x10000 * part // parts:04x}"
            high = f"{self.own}{0x10000 * (part + 1) // parts:04x}" if part + 1 < parts else f"{self.own}g"
            some = [self._read(held, (low, high) if parts > 1 else None, more=more) for held in self.held]
            yield pa.concat_tables([_with(more).empty_table(), *some])

    def of_documents(self, documents: pa.Array) -> pa.Table:
        """All versions of some documents."""
        return pa.concat_tables([_VERSIONS.empty_table(), *(self._read(held, of=documents) for held in self.held)])

    def fresh(self, after: int) -> pa.Table:
        """The versions that a later batch has brought."""
        new = [self._read(held, after=after) for held in self.held if held.fresh]
        return pa.concat_tables([_VERSIONS.empty_table(), *new])

    def _read(
        self,
        held: _Held,
        between: tuple[str, str] | None = None,
        of: pa.Array | None = None,
        after: int | None = None,
        more: Sequence[str] = (),
    ) -> pa.Table:
        """The versions in a file: all of the bucket, or of a part of it, or of some documents, or of later batches."""
        system, path = filesystem(held.uri)
        columns = [*_STORED, *more, *(() if held.operations else ("state",)), *(() if after is None else ("batch",))]
        with pq.ParquetFile(path, filesystem=system) as file:
            if of is not None:  # most files have none of a few documents: look before the rest is read
                documents = file.read(["document"], use_threads=False)["document"]
                if not pc.any(pc.is_in(documents, of), min_count=0).as_py():
                    return _VERSIONS.empty_table()
            table = file.read(columns, use_threads=False)
        document, family = table["document"], table["family"]
        wanted = [pc.or_(*(pc.equal(family, one) for one in VERSIONED))]
        if held.bucket is None:
            wanted.append(pc.starts_with(document, self.own))
        if between is not None:
            wanted += [pc.greater_equal(document, between[0]), pc.less(document, between[1])]
        if of is not None:
            wanted.append(pc.is_in(document, of))
        if after is not None:
            wanted.append(pc.greater(table["batch"], after))
        return _as_versions(only(table, *wanted), held.operations, more)


def _as_versions(rows: pa.Table, operations: bool, more: Sequence[str]) -> pa.Table:
    """Rows of operations, or of facts, as versions."""
    removed = pa.repeat(False, rows.num_rows) if operations else pc.equal(rows["state"], REMOVED)
    rows = rows.append_column("payload", pa.repeat(operations, rows.num_rows)).append_column("removed", removed)
    awaited = pa.nulls(rows.num_rows, _VERSIONS.field("awaited").type)
    return rows.append_column("awaited", awaited).select([*VERSIONS.names, *more]).cast(_with(more))


def _with(more: Sequence[str]) -> pa.Schema:
    """The columns of versions, and more."""
    return pa.schema([*_VERSIONS, *(_FACTS.field(name) for name in more)])


def _held(source: Table, known: set[str] | None) -> Iterator[_Held]:
    for file in source.named():
        uri = f"{source.path}/{file.path}"
        yield _Held(uri, file.rows, file.bucket, source.name == "operations", known is None or uri not in known)


def _known(heads: Table, source: Table) -> set[str] | None:
    """The files of a source that the heads were worked out from; None where that cannot be told any more."""
    done = heads.done(source.name)
    try:
        return set(source.files(done)) if done >= 0 else None
    except DeltaError:  # a table's log is cleaned up now and then
        return None


# --- the table -------------------------------------------------------------------------------------------------------


class _Written(msgspec.Struct, frozen=True):
    """What a task has made of a bucket: a file, unless it has no heads or they stayed as they were."""

    bucket: str
    summary: Summary
    file: File | None = None
    same: bool = False


_WRITTEN = t.StructType([t.StructField("written", t.StringType())])


def update(lake: Lake, full: bool = False, wait: float = 0.0) -> Summary:
    """Bring the lake's heads up to its operations and facts. `full` looks at every document again."""
    with lake.lock(wait):
        table = lake.table("heads")
        table.sweep()
        operations, facts = lake.table("operations"), lake.table("facts")
        done = {WORK: operations.done(WORK), operations.name: operations.version, facts.name: facts.version}
        files, before, after = _Files.of(lake), table.named(), table.done(WORK)
        task = _Task(files, table.path, table.folder(), before, after)
        if full or after < 0 or files.fresh_rows > FULL_ABOVE * files.rows:
            task = msgspec.structs.replace(task, before=(), after=None)
        written = task.carry_out(lake)
        kept = {f"bucket={one.bucket}" for one in written if one.same}
        gone = [file.path for file in before if file.path.split("/")[1] not in kept]
        if gone or after < done[WORK]:
            table.take([one.file for one in written if one.file is not None], done, without=gone)
        return reduce(_sum, (one.summary for one in written))


class _Task(msgspec.Struct, frozen=True):
    """The work on every bucket: all of it again, or, with `after`, what later batches have brought to the heads."""

    files: _Files
    table: str
    folder: str
    before: Sequence[File]
    after: int | None

    def carry_out(self, lake: Lake) -> list[_Written]:
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    told = msgspec.json.encode(self._written(BUCKETS[number])).decode()
                    yield pa.RecordBatch.from_pydict({"written": [told]})

        if (self.files.rows if self.after is None else self.files.fresh_rows) < ALONE_BELOW:
            return [self._written(bucket) for bucket in BUCKETS]
        rows = _for_each_bucket(lake).mapInArrow(work, _WRITTEN).collect()
        return [msgspec.json.decode(row["written"], type=_Written) for row in rows]

    def _written(self, bucket: str) -> _Written:
        files = self.files.bucket(bucket)
        if self.after is None:
            found = pa.concat_tables([_HEADS.empty_table(), *map(frontier, files.versions())])
        else:
            own = [f"{self.table}/{file.path}" for file in self.before if f"/bucket={bucket}/" in file.path]
            fresh = files.fresh(self.after)
            if not fresh.num_rows:
                return _Written(bucket, summarise(_table(own, _COUNTED)), same=True)
            found = advance(_table(own, HEADS.names), fresh, files)
        file = write_file(found, self.table, f"{self.folder}/bucket={bucket}") if found.num_rows else None
        return _Written(bucket, summarise(found), file)


def _table(uris: Sequence[str], columns: list[str]) -> pa.Table:
    """Heads that were written."""
    tables = [pa.table([pa.array([], field.type) for field in _HEADS if field.name in columns], names=columns)]
    for uri in uris:
        system, path = filesystem(uri)
        with pq.ParquetFile(path, filesystem=system) as file:
            tables.append(file.read(columns, use_threads=False))
    return pa.concat_tables([one.cast(tables[0].schema) for one in tables])


def advance(current: pa.Table, fresh: pa.Table, files: _Files) -> pa.Table:
    """The heads of a bucket after more versions, given those before: only the touched documents are worked out."""
    touched = pc.unique(fresh["document"])
    whole = _to_be_read(fresh, touched, files)
    in_part = pc.and_(pc.is_in(current["document"], touched), pc.invert(pc.is_in(current["document"], whole)))
    added = fresh.filter(pc.invert(pc.is_in(fresh["document"], whole)))
    looked_at = pa.concat_tables([again(current.filter(in_part)), added, files.of_documents(whole)])
    return pa.concat_tables([current.filter(pc.invert(pc.is_in(current["document"], touched))), frontier(looked_at)])


def _to_be_read(fresh: pa.Table, touched: pa.Array, files: _Files) -> pa.Array:
    """The documents for which heads and what is new are not enough.

    A fact may take a payload away, or come of a revision that is known; and a revision may come that was known by its
    facts, or that descends from one that was removed.
    """
    known = files.facts().of_documents(touched)
    known = known.filter(pc.is_valid(known["revision"]))
    again = known.filter(pc.or_(known["removed"], pc.is_in(_identity(known), _identity(fresh))))
    facts = fresh.filter(pc.invert(fresh["payload"]))
    return pc.unique(pa.chunked_array([*facts["document"].chunks, *again["document"].chunks], pa.string()))


def _identity(revisions: pa.Table) -> pa.Array:
    """What revisions are known by."""
    return pc.binary_join_element_wise(revisions["document"], revisions["revision"], "").combine_chunks()


def summarise(heads: pa.Table) -> Summary:
    first = pc.and_(heads["payload"], pc.equal(heads["number"], 0))
    return Summary(
        documents=_count(first),
        heads=_count(heads["payload"]),
        conflicts=_count(pc.and_(first, pc.greater(heads["heads"], 1))),
        tombstones=_count(pc.and_(first, heads["deleted"])),
    )


def _count(marks: pa.ChunkedArray) -> int:
    return int(pc.sum(marks, min_count=0).as_py())


def _sum(one: Summary, other: Summary) -> Summary:
    return Summary(*(a + b for a, b in zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)))
