"""A lake: the tables of the pipeline in one folder, and the lock that makes one run at a time change them.

    from anabranch.pipeline import Lake
    lake = Lake("lake")
    lake.conflicts().show()
    lake.history(lake.conflicts().first().document).show()

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
from pyspark.sql import functions as f

from anabranch.core.operation import State
from anabranch.core.retention import Policy
from anabranch.pipeline.delta import Table
from anabranch.pipeline.schema import FACTS, STATES, TABLES
from anabranch.pipeline.session import session

LOCK = ".lock"
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
"""In these words every system says, through whatever library, that a disk takes no more."""
_POLL_SECONDS = 0.2


class LakeBusy(Exception):
    """Another run is at work on the lake. Try again when it is done."""


class LakeFull(Exception):
    """There is no room for what was to be written. Nothing is lost; make room and run it again."""


class NoLake(Exception):
    """There is no lake where one was asked for."""


def is_lake(path: str | os.PathLike[str]) -> bool:
    """Whether there is a lake in a folder of this machine."""
    return (Path(path) / "batches").is_dir()


class Lake:
    """The tables in a folder, as DataFrames. Reading needs no lock: every table is seen as of its last commit."""

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession | None = None, create: bool = False) -> None:
        text = os.fspath(path)
        self.local = "://" not in text
        self.path = str(Path(text).resolve()) if self.local else text.rstrip("/")
        if self.local and create:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        elif self.local and not is_lake(self.path):
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

    def conflicts(self) -> DataFrame:
        """The heads of documents that have several: what somebody has to settle."""
        return self.heads().filter("heads > 1")

    def tombstones(self) -> DataFrame:
        """The heads of documents whose every head deletes."""
        return self.heads().filter("deleted")

    def history(self, document: str) -> DataFrame:
        """All that is known of a document, oldest first: its key, or its coordinate (the `d` tag).

        `state` says whether a version can still be had, `head` whether it is one as of the last run of `heads`.
        """
        wanted = (f.col("document") == document) | (f.col("coordinate") == document)
        retained = f.lit(STATES[State.RETAINED])
        stored = self.operations().filter(wanted).withColumn("state", retained).select(FACTS.names)
        others = self.facts().filter(wanted).join(stored, "id", "left_anti").dropDuplicates(["id"])
        heads = self.read("heads").filter(wanted).select("id", f.lit(True).alias("head"))
        return (
            stored.unionByName(others)
            .join(heads, "id", "left")
            .withColumn("head", f.coalesce("head", f.lit(False)))
            .select(*FACTS.names, "head")
            .orderBy("created_at", "mtime", "clock_sum", "id")
        )

    def retention(self, policy: Policy | str, now: int) -> DataFrame:
        """Every operation, and why it would go under a policy at that time: `reason` is null for what stays."""
        from anabranch.pipeline.jobs import retention

        written = retention.policy(policy) if isinstance(policy, str) else policy
        return retention.plan(retention.standing_of(self, now), written, now)

    def digests(self, *by: str, now: int) -> DataFrame:
        """The digest of what a node with these operations would serve at that time, for each value of some columns."""
        from anabranch.pipeline.jobs import digests

        return digests.digests(digests.of_operations(self.operations(), now), *by)

    def __repr__(self) -> str:
        return f"Lake({self.path!r})"

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

    @contextmanager
    def room(self) -> Iterator[None]:
        """`LakeFull` for whatever is raised because the disk takes no more."""
        try:
            yield
        except Exception as error:
            if any(words in str(error) for words in NO_ROOM):
                raise LakeFull(
                    f"there is no room left for {self.path}: make some and run it again. The tables are as they were "
                    "after the last commit, and what was begun is done again"
                ) from error
            raise
