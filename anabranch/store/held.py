"""A store that one process holds for writing, and what is remembered beside it.

A lock file in the node's folder keeps a second writer away, whatever is behind the store. It says who holds it, and how
far its log had come: a log that comes back older than that was restored, and opens a new epoch (positions would
otherwise be given twice).
"""

from __future__ import annotations

import fcntl
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from anabranch.core.token import START, Log, Position
from anabranch.store.contract import StoreBusy, StoreError
from anabranch.store.sql_reader import SqlReader
from anabranch.store.sql_writer import SqlWriter

LOCK = "anabranch.lock"

W = TypeVar("W", bound=SqlWriter)
R = TypeVar("R", bound=SqlReader)


class Holder(msgspec.Struct):
    """What the lock file says: who holds the store, and how far its log had come."""

    pid: int = 0
    url: str = ""
    stream: str = ""
    epoch: str = ""
    tip: int = 0
    next_epoch: str = ""
    """The epoch that the log may be of by now: who holds the store was about to open it."""

    @property
    def name(self) -> str:
        if self.url:
            return f"the node at {self.url} (process {self.pid})"
        return f"process {self.pid}" if self.pid else "another process"  # which is just starting


def take_lock(folder: Path) -> int:
    """Hold the folder's store, until the file that is returned is closed. `StoreBusy` when somebody else does."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # access keys lie there
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use {folder}: {error.strerror}; choose another with --data") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreBusy(f"{folder} is in use by {read_holder(folder).name}") from None
    return lock


def is_held(folder: Path) -> bool:
    """Whether a process holds the store right now; the lock file's words may be those of one that is gone."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def read_holder(folder: Path) -> Holder:
    """What the lock file says; nothing where there is none or it cannot be read."""
    try:
        return msgspec.json.decode((folder / LOCK).read_bytes() or b"{}", type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()


def notice_restore(writer: SqlWriter, seen: Holder, moved: bool = False) -> bool:
    """Open a new epoch where the log is older than was once seen, or stands where it was not written. Whether so."""
    log = writer.log()
    same = seen.stream == log.stream
    older = moved or (same and (log.epoch not in (seen.epoch, seen.next_epoch) or seen.tip > log.tip))
    if older:
        writer.new_epoch(Position(seen.tip if same else 0))
    return older


class HeldStore(ABC, Generic[W, R]):
    """A store in a folder, or known by one. Without a lock it only reads."""

    place: str
    """Where the log is kept, as it may be shown to anybody."""

    def __init__(self, folder: Path, lock: int | None, writer: W | None) -> None:
        self.folder = folder
        self.renewed = False  # an older log was put back, so a new epoch was opened
        self._url = ""
        self._lock = lock
        self._writer = writer

    @abstractmethod
    def open_reader(self) -> R:
        """A reader of one's own; close it. Not to be shared between threads."""

    @property
    def writer(self) -> W:
        if self._writer is None:
            raise StoreError("this store was opened for reading")
        return self._writer

    @property
    def closed(self) -> bool:
        """Whether nobody writes through it (any more)."""
        return self._writer is None

    @contextmanager
    def reader(self) -> Iterator[R]:
        reader = self.open_reader()
        try:
            yield reader
        finally:
            reader.close()

    def log(self) -> Log:
        with self.reader() as reader:
            return reader.log()

    def announce(self, url: str = "", next_epoch: str = "") -> None:
        """Write into the lock file who holds the store and how far the log has come."""
        if self._lock is None:
            return
        self._url = url or self._url
        log = self.writer.log()
        holder = Holder(os.getpid(), self._url, log.stream, log.epoch, log.tip, next_epoch)
        said = msgspec.json.encode(holder) + b"\n"
        os.ftruncate(self._lock, os.pwrite(self._lock, said, 0))

    def epoch_of_an_import(self) -> str | None:
        """The epoch that an import opens, with the first that it stores; None into a log that has nothing yet.

        The lock file knows it before the log does: it is not taken for a restore, whenever the import ends.
        """
        if self.writer.log().tip == START:
            return None
        epoch = str(uuid.uuid4())
        self.announce(next_epoch=epoch)
        return epoch

    def _notice_restore(self, moved: bool = False) -> None:
        self.renewed = notice_restore(self.writer, read_holder(self.folder), moved)

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
