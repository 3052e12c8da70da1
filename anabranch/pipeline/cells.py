"""Cells: what a replica knows, in small parts that can be compared one by one, straight from its files.

A cell holds the documents whose keys begin alike, or, of what is no version of anything, the operations whose ids do.
`sums` goes through the files once and adds up what is in each cell and in each namespace (an author's, a recipient's):
equal sums are equal sets (`digests`). `rows` gives all that is in some cells, and so every version of a document that
lies in one. What has expired counts for nobody, and is a version all the same.

A part of a replica is what one task reads: the files of a bucket of documents, or, of a small one, all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import types as t

from anabranch.core.operation import State
from anabranch.pipeline.delta import filesystem
from anabranch.pipeline.frontier import numbered
from anabranch.pipeline.jobs.digests import SUMMED, added_up, binary, together
from anabranch.pipeline.known import identity
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Scope
from anabranch.pipeline.schema import BUCKETS, FACTS, STATES, VERSIONS, arrow
from anabranch.pipeline.staging import only

DIGITS = 4
"""So many digits of a document's key name its cell: more than sixty thousand cells."""

WHOLE, NAMESPACE, CELL = "whole", "namespace", "cell"
"""What a sum is of: all operations that a node would serve, by their ids; or copies, of a namespace or a cell."""

RETAINED, REMOVED = STATES[State.RETAINED], STATES[State.REMOVED]

_SIGNATURE = r'"sig"\s*:\s*"(?P<sig>[0-9a-f]{128})"'
"""Only the signature itself is written so: inside a text every quote has a backslash before it."""

_BEFORE = ',"sig":"'
_END = f'^{_BEFORE}[0-9a-f]{{128}}"}}$'
_END_BYTES = len(_BEFORE) + 128 + 2
"""Likewise: at the end of an event it can be nothing else."""

SUMS = t.StructType(
    [
        t.StructField("replica", t.IntegerType()),
        t.StructField("of", t.StringType()),
        t.StructField("name", t.StringType()),
        *(t.StructField(name, t.LongType()) for name in SUMMED),
    ]
)

ROWS = t.StructType(
    [
        t.StructField("replica", t.IntegerType()),
        t.StructField("identity", t.StringType()),
        t.StructField("copy", t.StringType()),
        t.StructField("state", t.StringType()),
        t.StructField("expired", t.BooleanType()),
        FACTS["kind"],
        *VERSIONS,
    ]
)
"""`identity` is what an operation is known by, `copy` stands for the very bytes that count."""

_SUMS, _ROWS = arrow(SUMS), arrow(ROWS)
_NAMED = ["id", "family", "author", "recipient", "document", "expires_at"]
_ASKED = [*_NAMED, "kind", *(name for name in VERSIONS.names if name in FACTS.names and name not in _NAMED)]


class Part(msgspec.Struct, frozen=True):
    """Files of a replica, and the bucket of documents that is read of them: "" is what has no document, None all."""

    replica: int
    bucket: str | None
    operations: Sequence[str]
    facts: Sequence[str]
    scope: Scope
    now: int

    def sums(self) -> Iterator[pa.RecordBatch]:
        """Rows of `SUMS`, one for each name."""
        found = []
        for table in self._known(_NAMED):
            there = table.filter(pc.invert(table["expired"]))
            served = there.filter(pc.equal(there["state"], RETAINED))
            copies = b"".join(there["copy"].to_pylist())
            found.append(_summed(WHOLE, pa.repeat("", served.num_rows), binary(served["id"])))
            found.append(_summed(NAMESPACE, pc.coalesce(there["recipient"], there["author"]), copies))
            found.append(_summed(CELL, _cells(there), copies))
        if found:
            summed = together(pa.concat_tables(found), ["of", "name"])
            summed = summed.append_column("replica", self._number(summed.num_rows))
            yield from summed.select(SUMS.names).cast(_SUMS).to_batches()

    def rows(self, cells: pa.Array) -> Iterator[pa.RecordBatch]:
        """Rows of `ROWS`: all that is in some cells."""
        for table in self._known(_ASKED, cells):
            count = table.num_rows
            added = {
                "replica": self._number(count),
                "identity": identity(table),
                "copy": pa.array([copy.hex() for copy in table["copy"].to_pylist()], pa.string()),
                "payload": pc.equal(table["state"], RETAINED),
                "removed": pc.equal(table["state"], REMOVED),
                "awaited": pa.nulls(count, _ROWS.field("awaited").type),
            }
            columns = [added[name] if name in added else table[name] for name in _ROWS.names]
            yield from pa.table(columns, names=_ROWS.names).cast(_ROWS).to_batches()

    def _number(self, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(self.replica, pa.int32()), count)

    def _known(self, columns: list[str], cells: pa.Array | None = None) -> Iterator[pa.Table]:
        """All that the replica knows in the scope: operations a file at a time, then each fact once."""
        for uri in self.operations:
            table = self._read(uri, [*columns, "raw"], cells)
            signatures = _signatures(table["raw"])
            yield self._completed(table.append_column("state", pa.repeat(RETAINED, table.num_rows)), signatures)
        if self.facts:
            table = pa.concat_tables([self._read(uri, [*columns, "state"], cells) for uri in self.facts])
            told, _ = numbered(_joined(table["id"], table["state"]))
            table = table.take(pa.array(np.unique(told, return_index=True)[1]))
            yield self._completed(table, table["state"])

    def _read(self, uri: str, columns: list[str], cells: pa.Array | None) -> pa.Table:
        """The rows of a file that are of the bucket, in the scope and in the cells."""
        system, path = filesystem(uri)
        with pq.ParquetFile(path, filesystem=system) as file:
            table = file.read(columns, use_threads=False)
        document, wanted = table["document"], [self.scope.mask(table)]
        if self.bucket is not None:
            wanted.append(pc.starts_with(document, self.bucket) if self.bucket else pc.is_null(document))
        if cells is not None:
            wanted.append(pc.is_in(_cells(table), cells))
        return only(table, *wanted)

    def _completed(self, table: pa.Table, said: pa.Array) -> pa.Table:
        """With what stands for the very bytes, and whether it has expired."""
        copies = [sha256(text.encode()).digest() for text in _joined(table["id"], said).to_pylist()]
        expired = pc.less_equal(table["expires_at"], self.now).fill_null(False)
        return table.append_column("copy", pa.array(copies, pa.binary())).append_column("expired", expired)


def parts(number: int, lake: Lake, scope: Scope, now: int, together: bool) -> list[Part]:
    """The parts of a replica; `together`: one of all."""
    tables = [lake.table("operations"), lake.table("facts")]
    held = [[(f"{table.path}/{file.path}", file.bucket) for file in table.named()] for table in tables]

    def part(bucket: str | None) -> Part:
        own = [[uri for uri, other in files if bucket is None or other in (None, bucket)] for files in held]
        return Part(number, bucket, *own, scope, now)

    return [part(None)] if together else [part(bucket) for bucket in (*BUCKETS, "")]


def _summed(of: str, name: pa.Array, ids: bytes) -> pa.Table:
    summed = added_up({"name": name}, ids)
    return summed.append_column("of", pa.repeat(of, summed.num_rows))


def _signatures(raw: pa.ChunkedArray) -> pa.ChunkedArray:
    """The signature of each event. Nearly all end with it, and are not searched."""
    end = pc.binary_slice(raw.cast(pa.binary()), -_END_BYTES)
    ends, found = pc.match_substring_regex(end, _END), pc.binary_slice(end, len(_BEFORE), -2)
    if not pc.all(ends, min_count=0).as_py():
        searched = pc.struct_field(pc.extract_regex(raw, _SIGNATURE), "sig").fill_null("")
        found = pc.if_else(ends, found, searched.cast(pa.binary()))
    return found.cast(pa.string())


def _cells(table: pa.Table) -> pa.ChunkedArray:
    """The name of the cell that each row is in."""
    document, id = table["document"], table["id"]
    alone = _joined(pa.repeat("-", len(id)), pc.utf8_slice_codeunits(id, 0, DIGITS - 1))
    return pc.if_else(pc.is_null(document), alone, pc.utf8_slice_codeunits(document, 0, DIGITS))


def _joined(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(one, other, "")
