"""Export: a part of a lake as a file that a fresh node imports; whole, or not there at all.

`select` is the part: the twin in columns of `transfer.Selector`, so a lake and a node mean the same by the same words.
`in_order` puts what a version stands on before the version: dominated snapshots, and parents as far as they are known.
Tasks pack their rows and the driver puts the pieces one after another, so neither ever holds more than a few of them;
the file is written under another name and takes its own when it is whole.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from anabranch.core.operation import Family
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.schema import FAMILIES, OPERATIONS, arrow
from anabranch.store.transfer import Selector

UNFINISHED = ".unfinished"
_ORDER = {"moment": LongType(), "depth": LongType()}
_PIECE = StructType([StructField("rows", LongType()), StructField("data", BinaryType())])
_PIECES = arrow(_PIECE)


class Form(StrEnum):
    """What an export is written as; the name of the file says it."""

    PLAIN = ".jsonl"
    GZIP = ".jsonl.gz"
    ZSTD = ".jsonl.zst"
    PARQUET = ".parquet"
    FOLDER = ""


class Summary(msgspec.Struct):
    operations: int = 0
    bytes: int = 0


class BadTarget(ValueError):
    """An export cannot be written there; the text says why and what to do."""


def check(out: Path) -> Form:
    """What a name asks for. Raises `BadTarget`."""
    if not out.absolute().parent.is_dir():
        raise BadTarget(f"{out.parent} is no folder; make it first")
    if out.is_dir() or not out.suffix:
        if out.is_dir() and any(out.iterdir()):
            raise BadTarget(f"{out} is a folder with something in it; name a new one, or a file")
        return Form.FOLDER
    for known in Form:
        if known and out.name.endswith(known):
            return known
    raise BadTarget(
        f"{out.name}: name it .jsonl, .jsonl.gz, .jsonl.zst or .parquet, or a folder for many Parquet files"
    )


# --- what, and in which order ----------------------------------------------------------------------------------------


def select(operations: DataFrame, current: DataFrame, selector: Selector) -> DataFrame:
    """The operations that a selector takes. `current` are the heads of the same lake, as of now."""
    chosen = operations.filter(_condition(selector))
    if not selector.heads_only:
        return chosen
    versions = f.coalesce(f.col("family").isin(heads.VERSIONED), f.lit(False))
    newest = Window.partitionBy("document").orderBy(f.col("created_at").desc(), "id")  # nostr.newer
    replaceable = operations.filter(~versions & f.col("document").isNotNull())
    replaced = replaceable.select("id", f.row_number().over(newest).alias("age")).filter("age > 1")
    return (
        chosen.filter(versions)
        .join(current.select("id"), "id", "left_semi")
        .unionByName(chosen.filter(~versions).join(replaced, "id", "left_anti"))
    )


def _condition(selector: Selector) -> Column:
    conditions = [
        f.col(name).isin(sorted(wanted))
        for name, wanted in (
            ("kind", selector.kinds),
            ("author", selector.authors),
            ("recipient", selector.recipients),
        )
        if wanted is not None
    ]
    if selector.documents is not None:
        names = sorted(selector.documents)
        conditions.append(f.col("document").isin(names) | f.col("coordinate").isin(names))
    if selector.since is not None:
        conditions.append(f.col("created_at") >= selector.since)
    if selector.until is not None:
        conditions.append(f.col("created_at") <= selector.until)
    whole = f.lit(True)
    for condition in conditions:
        whole = whole & condition
    return whole


def in_order(operations: DataFrame) -> DataFrame:
    """By time, but for what would come before something that it stands on."""
    versions = f.coalesce(f.col("family").isin(heads.VERSIONED), f.lit(False))
    plain = operations.filter(~versions).withColumns({"moment": f.col("created_at"), "depth": f.lit(0).cast("long")})
    schema = StructType([*operations.schema.fields, *(StructField(name, kind) for name, kind in _ORDER.items())])
    table_schema = arrow(schema)

    def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if given := list(batches):
            yield from with_places(pa.Table.from_batches(given)).cast(table_schema).to_batches()

    known = operations.filter(versions).repartition("document").mapInArrow(placed, schema)
    return known.unionByName(plain).sort("moment", "depth", "id").drop(*_ORDER)


def with_places(versions: pa.Table) -> pa.Table:
    """Versions of whole documents with the place of each: (moment, depth) is lower for what another stands on.

    A version's moment is its own time, or that of something it stands on where this is later; its depth is how many
    stand below it at the most, or, of a snapshot, the sum of its clock.
    """
    columns = [versions[name].to_pylist() for name in ("document", "family", "created_at", "clock_sum", "revision")]
    parents = versions["parents"].to_pylist()
    documents: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(columns[0], columns[1], strict=True)):
        documents.setdefault(key, []).append(row)
    times, sums, revisions = columns[2:]
    moments, depths = list(times), [total or 0 for total in sums]
    for (_, family), rows in documents.items():
        if family == FAMILIES[Family.REVISION]:
            _descend(rows, revisions, parents, moments, depths)
        else:
            latest = 0
            for row in sorted(rows, key=lambda row: depths[row]):
                latest = moments[row] = max(latest, times[row])
    return versions.append_column("moment", pa.array(moments, pa.int64())).append_column(
        "depth", pa.array(depths, pa.int64())
    )


def _descend(
    rows: list[int], revisions: list[str], parents: list[list[str] | None], moments: list[int], depths: list[int]
) -> None:
    """Give the revisions of a document their places, from those that stand on nothing that is here.

    Ids are hashes that include the parents, so there is no honest circle; in a made up one each keeps what it has.
    """
    here = {revisions[row]: row for row in rows}
    children: dict[int, list[int]] = {}
    waits_for = dict.fromkeys(rows, 0)
    for row in rows:
        for parent in parents[row] or ():
            if parent in here:
                children.setdefault(here[parent], []).append(row)
                waits_for[row] += 1
    ready = [row for row in rows if not waits_for[row]]
    while ready:
        row = ready.pop()
        for child in children.get(row, ()):
            moments[child] = max(moments[child], moments[row])
            depths[child] = max(depths[child], depths[row] + 1)
            waits_for[child] -= 1
            if not waits_for[child]:
                ready.append(child)


# --- into a file -----------------------------------------------------------------------------------------------------


def export(lake: Lake, out: Path, selector: Selector, wait: float = 0.0) -> Summary:
    """Write the operations that a selector takes. Raises `BadTarget`, and `LakeBusy` where heads have to be worked out.

    A file that is there is replaced. What is killed leaves at most a file whose name says that it is unfinished.
    """
    kind = check(out)
    if selector.heads_only:
        heads.update(lake, wait=wait)
    rows = in_order(select(lake.operations(), lake.heads(), selector))
    with _put_in_place(out) as unfinished:
        if kind is Form.FOLDER:
            count = _write_folder(rows, unfinished)
        elif kind is Form.PARQUET:
            count = _write_parquet(rows, unfinished)
        else:
            count = _write_lines(rows, unfinished, kind)
    return Summary(count, _size(out))


@contextmanager
def _put_in_place(out: Path) -> Iterator[Path]:
    unfinished = out.with_name(f".{out.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield unfinished
        if unfinished.is_dir() and out.is_dir():
            out.rmdir()  # it is empty
        os.replace(unfinished, out)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)


def _write_lines(rows: DataFrame, to: Path, kind: Form) -> int:
    count = 0
    with to.open("wb") as file:
        for number, data in _pieces(rows.select("raw"), lambda batch: _packed(_lines(batch), kind)):
            file.write(data)
            count += number
        if not count:
            file.write(_packed(b"", kind))
        _settle(file.fileno(), file.flush)
    return count


def _write_parquet(rows: DataFrame, to: Path) -> int:
    schema, count = arrow(OPERATIONS), 0
    with to.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for number, data in _pieces(rows.select(OPERATIONS.names), _message):
                with pa.ipc.open_stream(data) as stream:
                    writer.write_table(stream.read_all().cast(schema))
                count += number
        _settle(file.fileno(), file.flush)
    return count


def _write_folder(rows: DataFrame, to: Path) -> int:
    rows.select(OPERATIONS.names).write.parquet(str(to))
    for file in to.iterdir():
        if not file.name.endswith(".parquet"):
            file.unlink()
    return sum(pq.read_metadata(file).num_rows for file in to.iterdir())


def _pieces(rows: DataFrame, pack: Callable[[pa.RecordBatch], bytes]) -> Iterator[tuple[int, bytes]]:
    """The rows packed by the tasks, batch by batch, in order."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [pa.array([batch.num_rows], pa.int64()), pa.array([pack(batch)], pa.binary())], schema=_PIECES
                )

    for row in rows.mapInArrow(packed, _PIECE).toLocalIterator(prefetchPartitions=True):
        yield row["rows"], bytes(row["data"])


def _lines(batch: pa.RecordBatch) -> bytes:
    return b"".join(b"%s\n" % line.encode() for line in batch.column("raw").to_pylist())


def _packed(lines: bytes, kind: Form) -> bytes:
    """Lines as a piece of a file: of both forms, a file may be any number of packed pieces."""
    if kind is Form.GZIP:
        return gzip.compress(lines, 6, mtime=0)
    if kind is Form.ZSTD:
        return bytes(pa.Codec("zstd").compress(lines, asbytes=True))
    return lines


def _message(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _settle(descriptor: int, flush: Callable[[], None]) -> None:
    """Have it on disk before it takes its name."""
    flush()
    os.fsync(descriptor)


def _size(out: Path) -> int:
    return sum(file.stat().st_size for file in (out.iterdir() if out.is_dir() else [out]))
