"""Tidying: many small files of a table become few, with the same rows, and what nobody reads any more goes.

Every increment leaves some small files, and each of them costs whoever reads the table a little. When there are many,
those of one bucket are put together: one commit names the new file instead of the old ones, and says that no row has
changed. Who is reading the old ones goes on: they stay for a while (`Table.sweep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.pipeline.delta import File, Table, filesystem, write_file
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.schema import arrow

TABLES = ("operations", "facts", "rejected", "sightings", "gaps", "batches")
SMALL_BYTES = 2 << 20
TOGETHER_BYTES = 32 << 20
FILES_MAX = 32
"""So many small files of a bucket are left as they are; with one more they are put together."""


def tidy(lake: Lake) -> None:
    """Put the small files of the lake's tables together where there are many. Only for whoever holds the lock."""
    for name in TABLES:
        lake.table(name).sweep()
        put_together(lake.table(name), FILES_MAX)


def put_together(table: Table, files_max: int) -> None:
    by_bucket: dict[str, list[File]] = {}
    for file in table.named():
        if file.size < SMALL_BYTES:
            by_bucket.setdefault(_bucket(file.path), []).append(file)
    for bucket, files in by_bucket.items():
        if len(files) > files_max:
            for some in _handfuls(files):
                rows = _rows(table, some)
                new = write_file(rows, table.path, "/".join(filter(None, (table.folder(), bucket))))
                table.take([new], {}, without=[file.path for file in some], same_rows=True)


def _bucket(path: str) -> str:
    """The folder in which the files of a bucket are: the last of a path, if it is one."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    return folder if folder.startswith("bucket=") else ""


def _handfuls(files: Sequence[File]) -> Iterator[list[File]]:
    """Several files at a time, that make one of a good size."""
    some: list[File] = []
    for file in files:
        some.append(file)
        if sum(one.size for one in some) >= TOGETHER_BYTES:
            yield some
            some = []
    if len(some) > 1:
        yield some


def _rows(table: Table, files: Sequence[File]) -> pa.Table:
    found = []
    for file in files:
        system, path = filesystem(f"{table.path}/{file.path}")
        found.append(pq.read_table(path, filesystem=system, use_threads=False, partitioning=None))
    return pa.concat_tables(found).cast(arrow(table.schema))
