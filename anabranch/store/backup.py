"""Copies of a store, made while it is in use, and put back as a new epoch.

A backup is one SQLite file of one moment. A restore keeps the stream and opens a new epoch, because positions given
after the backup was made may be given again and would then mean something else. The copy is proven readable and
given its epoch before it takes the place of anything.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw

from anabranch.core.token import START, Log, Position
from anabranch.store import schema
from anabranch.store.contract import StoreError
from anabranch.store.held import LOCK, Holder, read_holder, take_lock
from anabranch.store.sqlite import DATABASE, SqliteStore, connect, prepare
from anabranch.store.sqlite_writer import SqliteWriter

_BESIDE = ("-wal", "-shm", "-journal")


class NotEmpty(StoreError):
    """There is something already where the copy should go."""


def make(store: SqliteStore, target: Path) -> None:
    """Copy a store into one file, all or nothing; replaces the target."""
    partial = target.with_name(target.name + ".partial")
    try:
        _remove(partial)
        partial.touch(mode=0o600)  # access keys are in it
        store.backup(partial)
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    except apsw.Error as error:
        raise StoreError(f"cannot write {target}: {error}") from error
    finally:
        _remove(partial)


def restore(source: Path, folder: Path, replace: bool = False) -> Log:
    """Put a backup in place as the store of `folder`; the log it has from now on.

    `NotEmpty` unless the folder is empty or `replace` is said; `StoreBusy` while a node holds it.
    """
    if not source.is_file():
        raise StoreError(f"no backup at {source}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not replace and any(path.name != LOCK for path in folder.iterdir()):
            raise NotEmpty(f"{folder} is not empty; --force puts the backup in the place of the store there")
        lock = take_lock(folder)
        arriving = folder / (DATABASE + ".restoring")
        try:
            _remove(arriving)
            arriving.touch(mode=0o600)
            shutil.copyfile(source, arriving)
            log = _renew(arriving, source, read_holder(folder))
            _sync(arriving)
            # The old write-ahead log goes before the new file comes: it must never be taken for the new one's.
            for suffix in ("-wal", "-shm"):
                (folder / (DATABASE + suffix)).unlink(missing_ok=True)
            arriving.replace(folder / DATABASE)
            os.ftruncate(lock, 0)  # what it says of the log is no longer so
            _sync(folder)
        finally:
            _remove(arriving)
            os.close(lock)
    except OSError as error:
        raise StoreError(f"cannot restore into {folder}: {error.strerror or error}") from error
    return log


def _renew(copy: Path, source: Path, seen: Holder) -> Log:
    """Prove the copy readable and ours, and open its new epoch, beyond what the folder's log had come to."""
    try:
        connection = connect(copy, "FULL")
        try:
            version = int(connection.pragma("user_version"))
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if found != ["ok"]:
                raise StoreError(f"{source} is damaged: {'; '.join(map(str, found))}")
            if version == 0 or "operations" not in tables:
                raise StoreError(f"{source} is a database, but not a backup of a store")
            if version > schema.VERSION:
                raise StoreError(f"{source} has schema {version}, and this release knows {schema.VERSION}")
            prepare(connection)
            writer = SqliteWriter(connection)
            writer.new_epoch(Position(seen.tip) if seen.stream == writer.log().stream else START)
            return writer.log()
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreError(f"{source} is not a backup, or is damaged: {error}") from error


def _remove(database: Path) -> None:
    for path in (database, *(database.with_name(database.name + suffix) for suffix in _BESIDE)):
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
