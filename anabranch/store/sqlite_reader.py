"""Reading a SQLite store: what is SQLite's own beside `SqlReader`."""

from __future__ import annotations

from pathlib import Path

import apsw

from anabranch.store import schema
from anabranch.store.contract import StoreError
from anabranch.store.sql import reading
from anabranch.store.sql_reader import SqlReader


class SqliteReader(SqlReader):
    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        super().__init__(connection)
        self._connection = connection
        self._path = path
        connection.set_progress_handler(lambda: self.give_up is not None and self.give_up(), 20_000)

    def check_schema(self) -> None:
        """Raise `StoreError` for a file that this release cannot read."""
        version = self._value("PRAGMA user_version")
        if version != schema.VERSION:
            raise StoreError(schema.unreadable(str(self._path), version))

    def file_bytes(self) -> int:
        """What the database takes on disk, with its write-ahead log."""
        return _size(self._path) + self.wal_bytes()

    def wal_bytes(self) -> int:
        """What the write-ahead log takes, laid out or filled."""
        return _size(self._path.with_name(self._path.name + "-wal"))

    def _engine_damage(self) -> list[str]:
        found = [row[0] for row in self._rows("PRAGMA integrity_check") if row[0] != "ok"]
        with reading():
            there = schema.defined(self._connection)
        for name, definition in schema.parts().items():
            if name not in there:
                found.append(f"{name} is missing")
            elif there[name] != definition:
                found.append(f"{name} is not what this release makes of it")
        return found


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
