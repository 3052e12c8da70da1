"""Delta tables whose files Spark writes and whose log delta-rs keeps.

A file counts when the table's log names it, and the log is the only way to find files: what a killed run has left
behind is never read. A commit carries the number of the work it belongs to; the same number is never committed twice,
so work that is done again after a crash changes nothing. Whatever knows Delta reads the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from anabranch.pipeline.schema import arrow


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
        return (self.delta() if version is None else DeltaTable(self.path, version=version)).file_uris()

    def count(self) -> int:
        """How many rows there are, from the log alone."""
        actions = pa.table(self.delta().get_add_actions())
        return sum(actions["num_records"].to_pylist()) if actions.num_rows else 0

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
        folder = f"{self.path}/{uuid4().hex}"
        rows.write.partitionBy(*split_by).parquet(folder)
        return folder

    def commit(self, folders: Iterable[str], done: dict[str, int], replace: bool = False) -> int:
        """Make the files in the folders part of the table, or all of it; how many rows that is.

        `done` says of which work, and up to which number, this is the outcome.
        """
        added = [action for folder in folders for action in self._added(folder)]
        table = self.delta()
        table.create_write_transaction(
            added,
            "overwrite" if replace else "append",
            table.schema(),
            commit_properties=_properties(done),
        )
        return sum(json.loads(action.stats)["numRecords"] for action in added)

    def append(self, rows: list[dict[str, Any]], done: dict[str, int]) -> None:
        """Append a few rows, without Spark."""
        if rows:
            data = pa.Table.from_pylist(rows, arrow(self.schema))
            write_deltalake(self.delta(), data, mode="append", commit_properties=_properties(done))
        else:
            self.commit((), done)

    def discard(self, folder: str) -> None:
        """Remove a folder that was staged and not taken, if it is there."""
        system, path = filesystem(folder)
        if system.get_file_info(path).type == pafs.FileType.Directory:
            system.delete_dir(path)

    def sweep(self) -> None:
        """Remove what runs that were killed have left: folders of which the table's log knows no file.

        Only for whoever holds the lake's lock: otherwise it may be somebody's work.
        """
        known = {uri.removeprefix(f"{self.path}/").partition("/")[0] for uri in self.delta().file_uris()}
        system, path = filesystem(self.path)
        for info in system.get_file_info(pafs.FileSelector(path)):
            if info.type == pafs.FileType.Directory and _is_ours(info.base_name) and info.base_name not in known:
                system.delete_dir(info.path)

    def _added(self, folder: str) -> list[AddAction]:
        system, path = filesystem(folder)
        found = system.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True))
        actions = []
        for info in found:
            if not info.path.endswith(".parquet") or "/_temporary/" in info.path:
                continue
            with system.open_input_file(info.path) as file:
                rows = pq.read_metadata(file).num_rows
            if rows:
                relative = folder.removeprefix(f"{self.path}/") + info.path[len(path.rstrip("/")) :]
                modified = int(info.mtime.timestamp() * 1000) if info.mtime is not None else 0
                actions.append(AddAction(relative, info.size, {}, modified, True, json.dumps({"numRecords": rows})))
        return actions


def filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Where a folder is: a local path, or whatever Arrow knows an address of."""
    return pafs.FileSystem.from_uri(uri)


def _is_ours(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def _properties(done: dict[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(work, number) for work, number in done.items()])
