"""The SQLite store: one file, one writer, any number of readers.

WAL mode, and by default `synchronous=FULL`: when an append returns, the group is on disk. The lock file (`held`) stands
beside the database.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import apsw

from anabranch.store import schema
from anabranch.store.contract import StoreError
from anabranch.store.held import HeldStore, take_lock
from anabranch.store.sqlite_reader import SqliteReader
from anabranch.store.sqlite_writer import WAL_PAGES, SqliteWriter

DATABASE = "anabranch.db"


class SqliteStore(HeldStore[SqliteWriter, SqliteReader]):
    """A store in a folder. `SqliteStore.open` takes the writer's lock, `SqliteStore.inspect` only reads."""

    def __init__(self, folder: Path, lock: int | None, synchronous: str) -> None:
        self.path = folder / DATABASE
        self.place = str(self.path)
        super().__init__(folder, lock, SqliteWriter(connect(self.path, synchronous)) if lock is not None else None)

    @classmethod
    def open(cls, folder: Path, synchronous: str = "FULL") -> SqliteStore:
        """Open for writing; creates the folder and the file. `StoreBusy` when a node has it."""
        lock = take_lock(folder)
        store = None
        try:
            _create(folder / DATABASE)
            store = cls(folder, lock, synchronous)
            store._notice_restore()
        except (OSError, apsw.Error, schema.NewerSchema, StoreError) as error:
            if store is not None:
                store.writer.close()
            os.close(lock)
            raise StoreError(f"cannot open {folder / DATABASE}: {error}") from error
        return store

    @classmethod
    def inspect(cls, folder: Path) -> SqliteStore:
        """Open for reading only, also beside a running node."""
        if not (folder / DATABASE).exists():
            raise StoreError(f"no store in {folder}; `anabranch serve --data {folder}` makes one")
        store = cls(folder, None, "FULL")
        with store.reader() as reader:
            reader.check_schema()
        return store

    def open_reader(self) -> SqliteReader:
        """A reader of one's own; close it. Not to be shared between threads."""
        try:
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(10_000)
            connection.pragma("query_only", True)
            connection.pragma("cache_size", -8_192)
        except apsw.Error as error:
            if isinstance(error, apsw.ReadOnlyError) or not os.access(self.path.parent, os.W_OK):
                raise StoreError(
                    f"cannot read {self.path}: SQLite writes beside the file it reads, and may not; run it as the "
                    "owner of a folder that may be written, or on a copy"
                ) from error
            raise StoreError(f"cannot read {self.path}: {error}") from error
        return SqliteReader(connection, self.path)

    def backup(self, target: Path) -> None:
        """Copy the database as it is now, while it is in use."""
        source = apsw.Connection(str(self.path))
        copy = apsw.Connection(str(target))
        try:
            with copy.backup("main", source, "main") as step:
                step.step(-1)  # all in one read: in parts it would begin anew after every commit
        finally:
            copy.close()
            source.close()


def connect(path: Path, synchronous: str) -> apsw.Connection:
    return tuned(apsw.Connection(str(path), statementcachesize=512), synchronous)


def tuned(connection: apsw.Connection, synchronous: str) -> apsw.Connection:
    """The connection of a writer, set up as every writer's is."""
    connection.set_busy_timeout(10_000)
    connection.pragma("synchronous", synchronous)
    connection.pragma("temp_store", "memory")  # what a statement may have to undo stays off the disk
    connection.pragma("cache_size", -65_536)
    connection.pragma("wal_autocheckpoint", WAL_PAGES)
    connection.pragma("journal_size_limit", 67_108_864)
    return connection


def _create(path: Path) -> None:
    if path.exists():
        schema.check(path)
    else:
        path.touch(mode=0o600)  # access keys are in it; what lies beside it gets the same mode
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(10_000)
        prepare(connection)
    finally:
        connection.close()


def prepare(connection: apsw.Connection) -> None:
    """Make a store of an empty file, or bring one to this release's schema."""
    connection.pragma("page_size", 8_192)
    connection.pragma("auto_vacuum", 2)  # incremental: space goes back in small steps
    connection.pragma("journal_mode", "wal")
    schema.migrate(connection, stream=str(uuid.uuid4()), epoch=str(uuid.uuid4()))
