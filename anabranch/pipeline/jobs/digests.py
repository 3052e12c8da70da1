"""Digests: a short summary of a set by which two sets are compared, for the whole or for each scope.

A digest is a negentropy fingerprint: over the same set it is what a node itself answers to NEG-OPEN. It hashes the sum
of the ids with their count, and sums add up in any order and in parts; so tasks add up what they have, a row for each
scope, and only these rows are moved. Equal digests mean equal sets, and nothing of such a scope has to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from anabranch.core.negentropy_items import ID_BYTES, fingerprint
from anabranch.core.operation import Family
from anabranch.pipeline.schema import FAMILIES, arrow

WORD_BITS = 32
WORDS = [f"word_{number}" for number in range(ID_BYTES * 8 // WORD_BITS)]
"""An id as columns: sums of 32-bit words stay exact in 64 bits for two thousand million ids."""
SUMMED = ["items", *WORDS]
"""The columns of a sum: how many, and of which words."""


def of_operations(operations: DataFrame, now: int) -> DataFrame:
    """The set that a node reconciles (NIP-77): what it would still serve at that time."""
    return operations.filter(f.coalesce(f.col("expires_at") > now, f.lit(True)))


def of_revisions(heads: DataFrame) -> DataFrame:
    """The set that revision sync reconciles: the heads of every recipient's documents, by their revision ids."""
    current = heads.filter(f.col("family") == FAMILIES[Family.REVISION])
    return current.withColumn("id", f.col("revision")).dropDuplicates(["recipient", "mtime", "id"])


def digests(items: DataFrame, *by: str) -> DataFrame:
    """The digest of the items for each value of `by`, or of all: `items` is how many, `digest` the fingerprint, hex.

    Items are known by `id`, 64 hexadecimal digits, and each is there once.
    """
    scopes = [items.schema[name] for name in by]
    sums = t.StructType([*scopes, *(t.StructField(name, t.LongType()) for name in SUMMED)])
    told = t.StructType([*scopes, t.StructField("items", t.LongType()), t.StructField("digest", t.StringType())])
    sums_schema, told_schema = arrow(sums), arrow(told)

    def add_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = added_up({name: batch.column(name) for name in by}, binary(batch.column("id")))
            yield from found.select(sums.names).cast(sums_schema).to_batches()

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = batch.column("items").to_pylist()
            words = zip(*(batch.column(name).to_pylist() for name in WORDS), strict=True)
            found = [fingerprint(total(some), count).hex() for some, count in zip(words, counts, strict=True)]
            columns = [*(batch.column(name) for name in by), batch.column("items"), pa.array(found, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, schema=told_schema)

    parts = items.select(*by, "id").mapInArrow(add_up, sums)
    whole = parts.groupBy(*by).agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in SUMMED))
    return whole.mapInArrow(tell, told)


def binary(ids: pa.Array | pa.ChunkedArray) -> bytes:
    """Ids one after the other."""
    return bytes.fromhex("".join(ids.to_pylist()))


def added_up(by: Mapping[str, pa.Array], ids: bytes) -> pa.Table:
    """A row for each value of `by`: how many items, and the sums of the words of their ids."""
    words = np.frombuffer(ids, f"<u{WORD_BITS // 8}").reshape(-1, len(WORDS)).astype(np.int64)
    columns = {**by, **{name: pa.array(words[:, number]) for number, name in enumerate(WORDS)}}
    columns["items"] = pa.array(np.ones(len(words), np.int64))
    return together(pa.table(columns), list(by))


def together(sums: pa.Table, by: list[str]) -> pa.Table:
    """Sums of sums: a row for each value of `by`."""
    found = sums.group_by(by, use_threads=False).aggregate([(name, "sum") for name in SUMMED])
    return found.rename_columns([name.removesuffix("_sum") for name in found.column_names])


def total(words: Sequence[int]) -> bytes:
    """The sum of ids, of the sums of their words."""
    total = sum(word << (WORD_BITS * number) for number, word in enumerate(words))
    return (total % (1 << ID_BYTES * 8)).to_bytes(ID_BYTES, "little")
