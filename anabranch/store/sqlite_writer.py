"""The writer of a SQLite store: what is SQLite's own beside `SqlWriter`."""

from __future__ import annotations

import logging

import apsw

from anabranch.store.contract import StoreError
from anabranch.store.sql_writer import SqlWriter

log = logging.getLogger(__name__)


class SqliteWriter(SqlWriter):
    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._connection = connection

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
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:  # it is made up for later, and until then the write-ahead log has everything
            log.warning("the write-ahead log could not be brought into the database", extra={"cause": str(error)})
        return False
