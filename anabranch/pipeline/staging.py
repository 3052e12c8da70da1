"""From rows to files, where the rows are made: what a task has read and proven it writes itself, table by table.

Only the names of the files go back, how many rows each has, and of operations the short keys, by which is found what is
known already. A task that is tried again writes other files, and the names that the first try would have told are never
heard of: so nothing is there twice. Operations are split by the bucket of their document, so that heads are found
without moving anything; a few are left together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from anabranch.pipeline.delta import File, write_file
from anabranch.pipeline.schema import FACTS, MIXED, OPERATIONS, REJECTED, SIGHTINGS, Outcome, arrow

ROWS_AT_ONCE = 62_500
BYTES_AT_ONCE = 192 << 20
"""So much is in a task's memory before it is written."""

STAGED = t.StructType(
    [
        t.StructField("table", t.StringType()),
        t.StructField("path", t.StringType()),
        t.StructField("rows", t.LongType()),
        t.StructField("size", t.LongType()),
        t.StructField("modified", t.LongType()),
        t.StructField("keys", t.BinaryType()),
        t.StructField("removals", t.LongType()),
    ]
)
"""What a task tells of a file that it has written."""

Numbers = npt.NDArray[np.int64]


class Staged(msgspec.Struct, frozen=True):
    """A file that a table may take; of operations the short keys of its rows, in order; how many rows are removals."""

    table: str
    file: File
    keys: Numbers | None = None
    removals: int = 0


class Seen(msgspec.Struct, frozen=True):
    """The places of a log that a table has already: positions, ascending, and the ids of what has none."""

    positions: bytes = b""
    ids: frozenset[str] = frozenset()

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which of the rows the table has."""
        found = among(np.frombuffer(self.positions, np.int64), rows["position"].fill_null(-1).to_numpy())
        if self.ids and "id" in rows.column_names:
            nowhere = pc.and_(pc.is_null(rows["position"]), pc.is_in(rows["id"], pa.array(sorted(self.ids))))
            found = found | nowhere.to_numpy()
        return found


class Stager(msgspec.Struct, frozen=True):
    """Where the rows of a batch are to be written: tables by their address and a folder in it.

    `seen` tells, by table, stream and epoch, what is there already.
    """

    tables: Mapping[str, tuple[str, str]]
    batch: int
    buckets: bool
    seen: Mapping[tuple[str, str, str], Seen]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Staged]:
        """Write the rows (of `PROVEN`), so many at a time."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield from self._written(pa.Table.from_batches(waiting))
                waiting, rows, size = [], 0, 0
        if rows:
            yield from self._written(pa.Table.from_batches(waiting))

    def _written(self, rows: pa.Table) -> Iterator[Staged]:
        rows = rows.append_column("batch", pa.array(np.full(rows.num_rows, self.batch, np.int64)))
        of = {outcome: only(rows, pc.equal(rows["outcome"], outcome.value)) for outcome in Outcome}
        operations, facts = of[Outcome.OPERATION], of[Outcome.FACT]
        removals, rejected = of[Outcome.REMOVAL], of[Outcome.REJECTED]
        seen = pa.concat_tables([some.select(SIGHTINGS.names) for some in (operations, facts, removals)])
        refused = rejected.drop_columns(["raw"]).rename_columns({"problem": "reason", "line": "raw"})
        for bucket, some in self._by_bucket(operations.select(OPERATIONS.names)):
            yield from self._file("operations", some, f"/bucket={bucket}")
        for bucket, some in self._by_bucket(facts.select(FACTS.names)):
            yield from self._file("facts", some, f"/bucket={bucket}")
        yield from self._file("rejected", refused.select(REJECTED.names))
        yield from self._file("sightings", seen, removals=removals.num_rows)

    def _file(self, table: str, rows: pa.Table, inside: str = "", removals: int = 0) -> Iterator[Staged]:
        if table not in self.tables:
            return
        rows = self._not_seen(table, rows)
        if rows.num_rows:
            address, folder = self.tables[table]
            keys = rows["key"].to_numpy() if table == "operations" else None
            yield Staged(table, write_file(rows, address, folder + inside), keys, removals)

    def _not_seen(self, table: str, rows: pa.Table) -> pa.Table:
        for (name, stream, epoch), seen in self.seen.items():
            if name == table and rows.num_rows:
                own = pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["epoch"], epoch)).to_numpy()
                rows = only(rows, pa.array(~(own & seen.mask(rows))))
        return rows

    def _by_bucket(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not self.buckets or not rows.num_rows:
            yield MIXED, rows
            return
        digit = pc.utf8_slice_codeunits(rows["document"], 0, 1).fill_null(MIXED).combine_chunks()
        coded = digit.dictionary_encode()
        codes = coded.indices.to_numpy()
        rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
        at = 0
        for bucket, count in zip(coded.dictionary.to_pylist(), np.bincount(codes).tolist(), strict=True):
            yield bucket, rows.slice(at, count)
            at += count


def among(ascending: Numbers, values: Numbers) -> npt.NDArray[np.bool_]:
    """Which of the values are among others, which ascend."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[at] == values
    return found


def told(staged: Iterable[Staged]) -> Iterator[pa.RecordBatch]:
    """Files that were written, as a task tells of them: rows of `STAGED`."""
    for one in staged:
        keys = None if one.keys is None else np.ascontiguousarray(one.keys).tobytes()
        row = {"table": one.table, **msgspec.to_builtins(one.file), "keys": keys, "removals": one.removals}
        yield pa.RecordBatch.from_pylist([row], _TOLD)


def heard(rows: pa.Table) -> list[Staged]:
    """The files that tasks have told of."""
    return [
        Staged(
            row["table"],
            File(row["path"], row["rows"], row["size"], row["modified"]),
            None if row["keys"] is None else np.frombuffer(row["keys"], np.int64),
            row["removals"],
        )
        for row in rows.to_pylist()
    ]


_TOLD = arrow(STAGED)


def only(rows: pa.Table, *conditions: pa.ChunkedArray) -> pa.Table:
    """The rows that meet all conditions; the very same table where all rows do."""
    met = reduce(pc.and_kleene, conditions).fill_null(False)
    return rows if pc.all(met, min_count=0).as_py() else rows.filter(met)
