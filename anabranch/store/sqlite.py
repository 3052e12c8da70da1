"""The SQLite store: one file, one writer, any number of readers.

WAL mode, and by default `synchronous=FULL`: when an append returns, the group is on disk. A lock file beside the
database keeps a second writer away and remembers the highest position seen, so that a database put back from an
older backup is noticed and opens a new epoch (positions would otherwise be given twice).
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from anabranch.core.token import Log, Position
from anabranch.store import schema
from anabranch.store.contract import StoreBusy, StoreError
from anabranch.store.sqlite_reader import SqliteReader
from anabranch.store.sqlite_writer import SqliteWriter

DATABASE = "anabranch.db"
LOCK = "anabranch.lock"


class Holder(msgspec.Struct):
    """What the lock file says: who holds the store, and how far its log had come."""

    pid: int = 0
    url: str = ""
    stream: str = ""
    epoch: str = ""
    tip: int = 0


class SqliteStore:
    """A store in a folder. `SqliteStore.open` takes the writer's lock, `SqliteStore.inspect` only reads."""

    def __init__(self, folder: Path, lock: int | None, synchronous: str) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self.renewed = False  # an older database was put back, so a new epoch was opened
        self._url = ""
        self._lock = lock
        self._writer = SqliteWriter(connect(self.path, synchronous)) if lock is not None else None

    @classmethod
    def open(cls, folder: Path, synchronous: str = "FULL") -> SqliteStore:
        """Open for writing; creates the folder and the file. `StoreBusy` when a node has it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use {folder}: {error.strerror}; choose another with --data") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StoreBusy(f"{folder} is in use by {_who(read_holder(folder))}") from None
        store = None
        try:
            _create(folder / DATABASE)
            store = cls(folder, lock, synchronous)
            store.renewed = notice_restore(store.writer, read_holder(folder))
        except (apsw.Error, schema.NewerSchema, StoreError) as error:
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

    @property
    def writer(self) -> SqliteWriter:
        if self._writer is None:
            raise StoreError("this store was opened for reading")
        return self._writer

    def open_reader(self) -> SqliteReader:
        """A reader of one's own; close it. Not to be shared between threads."""
        try:
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(10_000)
            connection.pragma("query_only", True)
            connection.pragma("cache_size", -8_192)
        except apsw.Error as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error
        return SqliteReader(connection, self.path)

    @contextmanager
    def reader(self) -> Iterator[SqliteReader]:
        reader = self.open_reader()
        try:
            yield reader
        finally:
            reader.close()

    def log(self) -> Log:
        with self.reader() as reader:
            return reader.log()

    def announce(self, url: str = "") -> None:
        """Write into the lock file who holds the store and how far the log has come."""
        if self._lock is None:
            return
        self._url = url or self._url
        log = self.writer.log()
        holder = Holder(os.getpid(), self._url, log.stream, log.epoch, log.tip)
        said = msgspec.json.encode(holder) + b"\n"
        os.ftruncate(self._lock, os.pwrite(self._lock, said, 0))

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

    def close(self) -> None:
        if self._writer is not None:
            self._url = ""
            try:
                self.announce()
            finally:
                self._writer.close()
                self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def notice_restore(writer: SqliteWriter, seen: Holder) -> bool:
    """Open a new epoch where the log has not come as far as was once seen. Whether it was so."""
    log = writer.log()
    older = seen.stream == log.stream and (seen.epoch != log.epoch or seen.tip > log.tip)
    if older:
        writer.new_epoch(Position(seen.tip))
    return older


def connect(path: Path, synchronous: str) -> apsw.Connection:
    return tuned(apsw.Connection(str(path), statementcachesize=512), synchronous)


def tuned(connection: apsw.Connection, synchronous: str) -> apsw.Connection:
    """The connection of a writer, set up as every writer's is."""
    connection.set_busy_timeout(10_000)
    connection.pragma("synchronous", synchronous)
    connection.pragma("temp_store", "memory")  # what a statement may have to undo stays off the disk
    connection.pragma("cache_size", -65_536)
    connection.pragma("wal_autocheckpoint", 2_000)
    connection.pragma("journal_size_limit", 67_108_864)
    return connection


def _create(path: Path) -> None:
    if path.exists():
        schema.check(path)
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


def read_holder(folder: Path) -> Holder:
    """What the lock file says; nothing where there is none or it cannot be read."""
    try:
        return msgspec.json.decode((folder / LOCK).read_bytes() or b"{}", type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()


def _who(holder: Holder) -> str:
    return f"the node at {holder.url} (process {holder.pid})" if holder.url else f"process {holder.pid}"
