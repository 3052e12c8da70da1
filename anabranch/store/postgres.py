"""The PostgreSQL store: a log that others may read where it is, and one writer.

By default `synchronous_commit` is on: when an append returns, the group is on the server's disk. The writer's session
holds an advisory lock, so there is one writer however many folders name the database. A log that comes back older, or
stands on another server, on another timeline or in other tables than it was written to, was restored and opens a new
epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from anabranch.core.token import Log
from anabranch.store import postgres_schema, schema
from anabranch.store.contract import StoreBusy, StoreError
from anabranch.store.held import HeldStore, Holder, take_lock
from anabranch.store.postgres_connection import VERSION_MIN, Address, PostgresConnection
from anabranch.store.sql import marks, transaction
from anabranch.store.sql_reader import SqlReader
from anabranch.store.sql_writer import SqlWriter

# Every statement is written for one index that leads, and the others looked up row by row. The planner would have to
# know as much of the data to find the same, and of a table that has just grown it knows nothing.
_BY_INDEX = """
    SET jit = off;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET join_collapse_limit = 1;
"""
_READS = f"""
    SET default_transaction_isolation = 'repeatable read';
    SET default_transaction_read_only = on;
    {_BY_INDEX}
"""
_WRITES = f"""
    {_BY_INDEX}
    SET tcp_keepalives_idle = 30;
    SET tcp_keepalives_interval = 10;
    SET tcp_keepalives_count = 3;
"""
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';"
_NOT_DURABLE = "SET synchronous_commit = off;"

_KEY = f"(({int.from_bytes(b'Anab')}::bigint << 32) | current_schema()::regnamespace::oid::bigint)"
_HOME = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || "
    "left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || 'log'::regclass::oid::text"
)
_HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = "
    f"(SELECT oid FROM pg_database WHERE datname = current_database()) "
    f"AND ((l.classid::bigint << 32) | l.objid::bigint) = {_KEY}"
)

LOCK_WITHIN = 2
"""For how many seconds the lock is asked for at the start."""

BACK_WITHIN = 60
"""For how many seconds a writer that was cut off while it committed tries to find out whether it has."""

LOOK_EVERY = 0.1

_OUTRUN = "the log has gone on without this process; start it again"


class PostgresReader(SqlReader):
    def __init__(self, db: PostgresConnection) -> None:
        super().__init__(db)
        self._postgres = db
        db.give_up = lambda: self.give_up is not None and self.give_up()

    def check_schema(self) -> None:
        """Raise `StoreError` for a database that this release cannot read."""
        version, place = postgres_schema.version_of(self._postgres), self._postgres.address.place
        if version == 0:
            raise StoreError(f"no store in {place}; `anabranch serve --store {place}` makes one")
        if version != postgres_schema.VERSION:
            raise StoreError(schema.unreadable(place, version, postgres_schema.VERSION))

    def _one_by_one(self, sql: str, bindings: Sequence[Any]) -> Iterator[Any]:
        return self._postgres.one_by_one(sql, bindings)

    def file_bytes(self) -> int:
        """What the tables take on the server's disk, with their indexes."""
        return int(
            self._value(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' "
                "AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'log'::regclass) "
                f"AND relname IN ({marks(postgres_schema.TABLES)})",
                postgres_schema.TABLES,
            )
        )

    def _engine_damage(self) -> list[str]:
        """Which indexes are missing. For what is inside the server has tools of its own: data checksums, pg_amcheck."""
        rows = self._rows(
            "SELECT indexname FROM pg_indexes WHERE schemaname = (SELECT n.nspname FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'log'::regclass)"
        )
        there = {row[0] for row in rows}
        return [f"{name} is missing" for name in postgres_schema.INDEXES if name not in there]


class PostgresWriter(SqlWriter):
    """Holds the lock as long as its session lasts, and takes both up again when the server was away.

    A log that has changed meanwhile is not written to any more: what this process has told its subscribers would not
    be all there is.
    """

    def __init__(self, db: PostgresConnection) -> None:
        self._postgres = db
        self._outrun = False
        super().__init__(db)
        self._known = self.log()

    def _remember(self) -> None:
        if not self._postgres.lost:  # or else when it is back
            super()._remember()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._postgres.lost and not self._outrun:
            self._come_back(0)
            self._outrun = self.log() != self._known
        if self._outrun:
            self._postgres.close()  # and with it goes the lock
            raise StoreError(_OUTRUN)
        number = None
        try:
            with transaction(self._db):
                yield
                *log, number = self._all("SELECT stream, epoch, floor, tip, pg_current_xact_id()::text FROM log")[0]
        except StoreError:
            if number is None or not self._postgres.lost:
                raise
            if not self._has_committed(number):
                raise
        self._known = Log(*log)

    def _has_committed(self, number: str) -> bool:
        """Whether a commit that was asked for has happened, when the connection was lost before the answer.

        Whoever has the lock again knows that the session before is over: it is done, or it never will be.
        """
        self._outrun = True  # unless this can be found out
        self._come_back(BACK_WITHIN)
        status = self._value("SELECT pg_xact_status(?::xid8)", (number,))
        self._outrun = False
        return bool(status == "committed")

    def _come_back(self, seconds: float) -> None:
        """Connect and take the lock again, trying for so long."""
        for left in range(int(seconds / LOOK_EVERY), -1, -1):
            try:
                self._postgres.reconnect()
                if take_advisory_lock(self._postgres):
                    self._remember()
                    return
            except StoreError:
                if not left:
                    raise
            sleep(LOOK_EVERY)
        self._postgres.close()
        raise StoreBusy(f"{self._postgres.address.place} is in use by another process")

    def return_space(self, pages: int) -> bool:
        """Nothing: autovacuum does it."""
        return False


def take_advisory_lock(db: PostgresConnection) -> bool:
    return bool(db.execute(f"SELECT pg_try_advisory_lock({_KEY})").fetchall()[0][0])


class PostgresStore(HeldStore[PostgresWriter, PostgresReader]):
    """A log in a database. `open` takes the writer's locks, `inspect` only reads."""

    def __init__(self, address: Address, folder: Path, lock: int | None, db: PostgresConnection | None) -> None:
        self._address = address
        self._db = db
        self.place = address.place
        super().__init__(folder, lock, None if db is None else PostgresWriter(db))

    @classmethod
    def open(cls, url: str, folder: Path, durable: bool = True) -> PostgresStore:
        """Open for writing; makes the tables where there are none. `StoreBusy` when a node has it.

        The folder keeps who holds the store and how far its log had come.
        """
        address = Address(url)
        lock = take_lock(folder)
        db = None
        try:
            db = PostgresConnection(
                address, _name(""), _WRITES + (_DURABLE if durable else _NOT_DURABLE), False, "nothing was changed"
            )
            _check_server(db)
            _hold(db)
            postgres_schema.migrate(db)
            store = cls(address, folder, lock, db)
            store._notice_move()
        except BaseException:
            if db is not None:
                db.close()
            os.close(lock)
            raise
        return store

    @classmethod
    def inspect(cls, url: str | Address, folder: Path = Path()) -> PostgresStore:
        """Open for reading only, also beside a running node."""
        store = cls(Address(url) if isinstance(url, str) else url, folder, None, None)
        with store.reader() as reader:
            reader.check_schema()
        return store

    def open_reader(self) -> PostgresReader:
        """A reader of one's own; close it. Not to be shared between threads."""
        return PostgresReader(PostgresConnection(self._address, "anabranch reader", _READS, True, "read failed"))

    def announce(self, url: str = "", next_epoch: str = "") -> None:
        """Say in the lock file, and to the server, who holds the store; in the file also how far the log has come."""
        try:
            super().announce(url, next_epoch)
            if self._db is not None:
                self._db.execute("SELECT set_config('application_name', ?, false)", (_name(self._url),))
        except StoreError:
            if self._db is None or not self._db.lost:
                raise  # or else the server is away: what was said last still holds

    def _notice_move(self) -> None:
        """Open a new epoch where the log is older than it was, or does not stand where it was written."""
        assert self._db is not None
        (home,) = self._db.execute(_HOME).fetchall()[0]
        before = [row[0] for row in self._db.execute("SELECT place FROM home").fetchall()]
        self._notice_restore(moved=bool(before) and before != [home])
        with transaction(self._db):
            self._db.execute("DELETE FROM home")
            self._db.execute("INSERT INTO home VALUES (?)", (home,))


def _check_server(db: PostgresConnection) -> None:
    if db.server_version < VERSION_MIN:
        raise StoreError(f"{db.address.place} is PostgreSQL {db.server_version}; {VERSION_MIN} or newer is needed")
    encoding, schema_there, standby = db.execute(
        "SELECT current_setting('server_encoding'), current_schema() IS NOT NULL, pg_is_in_recovery()"
    ).fetchall()[0]
    if encoding != "UTF8":
        raise StoreError(f"{db.address.place} is encoded as {encoding}; make a database with ENCODING 'UTF8'")
    if not schema_there:
        raise StoreError(f"{db.address.place} has no schema to put tables in; see search_path, or make one")
    if standby:
        raise StoreError(f"{db.address.place} is a standby, which only reads; name the primary server")


def _hold(db: PostgresConnection) -> None:
    """Take the lock. One who has just been killed may hold it for another moment."""
    for _ in range(int(LOCK_WITHIN / LOOK_EVERY)):
        if take_advisory_lock(db):
            return
        sleep(LOOK_EVERY)
    said = next((row[0] for row in db.execute(_HOLDER).fetchall()), None) or ""
    _, _, who = said.partition(" ")
    raise StoreBusy(f"{db.address.place} is in use by {who or 'another process'}")


def _name(url: str) -> str:
    """What the server calls our session: who holds the store. It keeps 63 bytes of it."""
    return f"anabranch {Holder(os.getpid(), url).name}"
