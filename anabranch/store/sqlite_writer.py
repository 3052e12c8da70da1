"""The writer of a SQLite store: what is SQLite's own beside `SqlWriter`."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path

import apsw

from anabranch.store.contract import StoreError
from anabranch.store.sql_writer import SqlWriter

log = logging.getLogger(__name__)

WAL_PAGES = 2_000  # after so many what is in the write-ahead log goes into the database
ROOM = 16  # times as much has to be free where the log is laid out: the rest is for what it is there for


class _Undone(Exception):
    """Nothing of this is to be kept."""


class SqliteWriter(SqlWriter):
    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def make_ready(self) -> None:
        """Lay the write-ahead log out, as long as it gets between two checkpoints.

        While a commit makes the file longer, it waits for the file system's own journal as well; what has been written
        there and was never committed counts for nothing. Without ample room for it the log grows as it is needed, is
        brought into the database sooner, and what was taken in vain is given back.
        """
        page, cached, few = self._value("PRAGMA page_size"), self._value("PRAGMA cache_size"), 100
        length = (WAL_PAGES + few) * page
        free = shutil.disk_usage(Path(self._connection.filename).parent).free
        if free < ROOM * length:
            self._all(f"PRAGMA wal_autocheckpoint = {max(few, WAL_PAGES * free // (ROOM * length))}")
            log.info("the write-ahead log was not laid out", extra={"cause": "the disk has little room"})
            return
        self._all(f"PRAGMA cache_size = {few}")  # what does not fit goes into the log at once
        try:
            with suppress(_Undone), self._transaction():
                self._all("INSERT INTO settings VALUES ('', zeroblob(?))", (length,))
                raise _Undone
            with self._transaction():
                self._all("UPDATE log SET tip = tip")  # with this all that was written is on disk
        except StoreError as error:
            log.info("the write-ahead log was not laid out", extra={"cause": str(error)})
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._all(f"PRAGMA cache_size = {cached}")

    def return_space(self, pages: int) -> bool:
        """Give free pages back to the file system, at most so many; True while there are more."""
        try:
            before = self._value("PRAGMA freelist_count")
            self._all(f"PRAGMA incremental_vacuum({int(pages)})")
            left = self._value("PRAGMA freelist_count")
            if 0 < left < before:
                return True
        except apsw.Error as error:
            raise StoreError(f"space could not be returned: {error}") from error
        self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        return False

    def _checkpoint(self, mode: int) -> None:
        try:
            self._connection.wal_checkpoint(mode=mode)
        except apsw.Error as error:  # it is made up for later, and until then the write-ahead log has everything
            log.warning("the write-ahead log could not be brought into the database", extra={"cause": str(error)})
