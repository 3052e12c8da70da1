"""A lake: the tables of the pipeline in one folder, and the lock that makes one run at a time change them.

    from anabranch.pipeline import Lake
    Lake("lake").heads().filter("heads > 1").show()

The folder may be anything that Spark, delta-rs and Arrow can write to. The lock is one of the operating system, on a
folder of this machine; elsewhere two runs at once meet at the ledger of batches, where the second one fails.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from anabranch.pipeline.delta import Table
from anabranch.pipeline.schema import TABLES
from anabranch.pipeline.session import session

LOCK = ".lock"
_POLL_SECONDS = 0.2


class LakeBusy(Exception):
    """Another run is at work on the lake. Try again when it is done."""


class NoLake(Exception):
    """There is no lake where one was asked for."""


class Lake:
    """The tables in a folder, as DataFrames. Reading needs no lock: every table is seen as of its last commit."""

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession | None = None, create: bool = False) -> None:
        text = os.fspath(path)
        self.local = "://" not in text
        self.path = str(Path(text).resolve()) if self.local else text.rstrip("/")
        if self.local and create:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        elif self.local and not (Path(self.path) / "batches").is_dir():
            raise NoLake(f"no lake in {self.path}; `anabranch pipeline ingest --from SOURCE --lake {text}` makes one")
        self._spark = spark
        self._tables = {name: Table(self.path, name, schema) for name, schema in TABLES.items()}
        if create:
            for table in self._tables.values():
                table.delta()

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            self._spark = session()
        return self._spark

    def on(self, spark: SparkSession) -> Lake:
        """The same lake, read and written by this session."""
        self._spark = spark
        return self

    def table(self, name: str) -> Table:
        return self._tables[name]

    def read(self, name: str) -> DataFrame:
        return self.table(name).read(self.spark)

    def operations(self) -> DataFrame:
        """Every operation, once, proven."""
        return self.read("operations")

    def facts(self) -> DataFrame:
        """What nodes still know of operations whose payload they have no more."""
        return self.read("facts")

    def rejected(self) -> DataFrame:
        """What was no operation, and why."""
        return self.read("rejected")

    def sightings(self) -> DataFrame:
        """Where each operation was seen."""
        return self.read("sightings")

    def gaps(self) -> DataFrame:
        """What was gone before it could be read."""
        return self.read("gaps")

    def batches(self) -> DataFrame:
        """What was read when."""
        return self.read("batches")

    def heads(self) -> DataFrame:
        """The heads of every document, as of the last run of `heads`: those that can be had."""
        return self.read("heads").filter("payload")

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Be the only run on the lake. `LakeBusy` where another is still there after so many seconds."""
        if not self.local:
            yield
            return
        descriptor = os.open(Path(self.path) / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + wait
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        who = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                        raise LakeBusy(
                            f"{self.path} is in use by another run (process {who}); "
                            "try again when it is done, or wait for it with --wait SECONDS"
                        ) from None
                    time.sleep(_POLL_SECONDS)
            os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
            yield
        finally:
            os.close(descriptor)
