"""Delta tables whose files we or Spark write and whose log delta-rs keeps.

A file counts when the table's log names it, and the log is the only way to find files: what a killed run has left
behind is never read. A commit carries the number of the work it belongs to; the same number is never committed twice,
so work that is done again after a crash changes nothing. A file that is no longer named stays for an hour, for those
who are reading it. Whatever knows Delta reads the tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from anabranch.core.nostr import is_hex
from anabranch.pipeline.schema import BUCKETS, arrow

KEPT_HOURS = 1
"""So long a file that the log no longer names is left to those who are reading it."""

_COMPARED = ["stream", "epoch", "position", "family", "kind", "author", "document", "created_at", "batch"]
"""Columns whose least and greatest values a file tells, so that readers may pass it over."""
_REPEATED = [
    *("stream", "epoch", "family", "kind", "author", "recipient", "document", "coordinate", "collection", "action"),
    *("clock.key_value.key", "source", "state", "reason"),
]
"""Columns whose values come again; of the others a dictionary would only cost time."""


class File(msgspec.Struct, frozen=True):
    """A file of a table; its path is told from the table's folder on."""

    path: str
    rows: int
    size: int
    modified: int  # milliseconds

    @property
    def bucket(self) -> str | None:
        """The bucket of documents that it holds nothing beside of; None: it may hold something of each."""
        bucket = self.path.rpartition("bucket=")[2].partition("/")[0]
        return bucket if bucket in BUCKETS else None


class Table:
    """One table of a lake."""

    def __init__(self, root: str, name: str, schema: StructType) -> None:
        self.name = name
        self.schema = schema
        self.path = f"{root}/{name}"
        self._delta: DeltaTable | None = None

    def delta(self) -> DeltaTable:
        """The table as it is now; made when it is not there."""
        if self._delta is not None:
            self._delta.update_incremental()
            return self._delta
        try:
            self._delta = DeltaTable(self.path)
        except TableNotFoundError:
            self._delta = DeltaTable.create(
                self.path, Schema.from_arrow(arrow(self.schema)), mode="ignore", name=self.name
            )
        return self._delta

    def done(self, work: str) -> int:
        """The highest number of a kind of work that is committed here; -1: none."""
        version = self.delta().transaction_version(work)
        return -1 if version is None else version

    @property
    def version(self) -> int:
        return self.delta().version()

    def files(self, version: int | None = None) -> list[str]:
        files = (self.delta() if version is None else DeltaTable(self.path, version=version)).file_uris()
        return files if "://" in self.path else [unquote(file) for file in files]  # a folder may have any name

    def named(self) -> list[File]:
        """The files that make up the table now, as its log tells of them."""
        actions = pa.table(self.delta().get_add_actions())
        if not actions.num_rows:
            return []
        columns = [actions[name].to_pylist() for name in ("path", "num_records", "size_bytes")]
        return [File(path, rows, size, 0) for path, rows, size in zip(*columns, strict=True)]

    def count(self) -> int:
        """How many rows there are, from the log alone."""
        return sum(file.rows for file in self.named())

    # --- reading ---

    def read(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """The table, or the rows of some of its files."""
        files = self.files() if files is None else files
        if not files:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*files)

    def rows(self) -> list[dict[str, Any]]:
        """All of a small table, without Spark."""
        return self.delta().to_pyarrow_table().to_pylist()

    # --- writing ---

    def stage(self, rows: DataFrame, *split_by: str) -> str:
        """Let Spark write rows as files of no account yet; the folder they are in, split by the values of columns."""
        folder = self.folder()
        rows.write.partitionBy(*split_by).parquet(folder)
        return folder

    def folder(self) -> str:
        """A new name for a folder of files."""
        return f"{self.path}/{uuid4().hex}"

    def commit(self, folders: Iterable[str], done: dict[str, int], replace: bool = False) -> int:
        """Make the files in the folders part of the table, or all of it; how many rows that is.

        `done` says of which work, and up to which number, this is the outcome.
        """
        files = [file for folder in folders for file in self._in_folder(folder)]
        self._transact([_add(file) for file in files], done, replace)
        return sum(file.rows for file in files)

    def take(
        self, files: Sequence[File], done: dict[str, int], without: Iterable[str] = (), same_rows: bool = False
    ) -> int:
        """Make files part of the table and others, by their paths, no longer, in one commit; how many rows are added.

        With `same_rows` the ones hold what the others held: whoever follows the table need not look.
        """
        gone = [_remove(path, changes=not same_rows) for path in without]
        self._transact([*(_add(file, changes=not same_rows) for file in files), *gone], done)
        return sum(file.rows for file in files)

    def _transact(self, actions: list[AddAction | RemoveAction], done: dict[str, int], replace: bool = False) -> None:
        table = self.delta()
        table.create_write_transaction(
            actions, "overwrite" if replace else "append", table.schema(), commit_properties=_properties(done)
        )

    def append(self, rows: list[dict[str, Any]], done: dict[str, int]) -> None:
        """Append a few rows, without Spark."""
        if rows:
            data = pa.Table.from_pylist(rows, arrow(self.schema))
            write_deltalake(self.delta(), data, mode="append", commit_properties=_properties(done))
        else:
            self.commit((), done)

    def sweep(self, kept_hours: int = KEPT_HOURS) -> None:
        """Remove files that the table's log does not name: those of runs that were killed, and those it named once.

        Only for whoever holds the lake's lock: otherwise it may be somebody's work.
        """
        table = self.delta()
        kept: dict[str, Any] = {"retention_hours": kept_hours, "enforce_retention_duration": False, "full": True}
        if table.vacuum(dry_run=True, **kept):
            table.vacuum(dry_run=False, **kept)
            system, path = filesystem(self.path)
            for folder in system.get_file_info(pafs.FileSelector(path)):
                if _is_ours(folder) and not _files_in(system, folder.path):
                    system.delete_dir(folder.path)

    def _in_folder(self, folder: str) -> list[File]:
        system, path = filesystem(folder)
        files = []
        for info in _files_in(system, path):
            if not info.path.endswith(".parquet") or "/_temporary/" in info.path:
                continue
            with system.open_input_file(info.path) as file:
                rows = pq.read_metadata(file).num_rows
            if rows:
                relative = folder.removeprefix(f"{self.path}/") + info.path[len(path.rstrip("/")) :]
                files.append(File(relative, rows, info.size, _milliseconds(info)))
        return files


def write_file(rows: pa.Table, table: str, folder: str) -> File:
    """Write a file into a folder of the table at an address, under a name that nothing else ever has."""
    uri = f"{folder}/{uuid4().hex}.parquet"
    system, path = filesystem(uri)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    own = [field.name for field in rows.schema]
    pq.write_table(
        rows,
        path,
        filesystem=system,
        compression="zstd",
        use_dictionary=[name for name in _REPEATED if name.partition(".")[0] in own],
        write_statistics=[name for name in _COMPARED if name in own],
    )
    info = system.get_file_info(path)
    return File(uri.removeprefix(f"{table}/"), rows.num_rows, info.size, _milliseconds(info))


def rewritten(table: str, path: str, dropped: npt.NDArray[np.int64]) -> File:
    """A file of the table at an address again, in the same bucket, without some of its rows."""
    system, own = filesystem(f"{table}/{path}")
    rows = pq.read_table(own, filesystem=system, use_threads=False, partitioning=None)
    kept = np.ones(rows.num_rows, np.bool_)
    kept[dropped] = False
    return write_file(rows.filter(pa.array(kept)), table, f"{table}/{path.rpartition('/')[0]}")


def filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Where a folder is: a local path, or whatever Arrow knows an address of."""
    return pafs.FileSystem.from_uri(uri)


def _files_in(system: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    found = system.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True))
    return [info for info in found if info.type == pafs.FileType.File]


def _milliseconds(info: pafs.FileInfo) -> int:
    return int(info.mtime.timestamp() * 1000) if info.mtime is not None else 0


def _add(file: File, changes: bool = True) -> AddAction:
    return AddAction(file.path, file.size, {}, file.modified, changes, json.dumps({"numRecords": file.rows}))


def _remove(path: str, changes: bool) -> RemoveAction:
    return RemoveAction(path, changes, int(time.time() * 1000))


def _is_ours(info: pafs.FileInfo) -> bool:
    """Whether it is a folder that `Table.folder` has named."""
    return info.type == pafs.FileType.Directory and is_hex(info.base_name, 32)


def _properties(done: dict[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(work, number) for work, number in done.items()])
