"""A connection to PostgreSQL that takes the store's statements as they are written for SQLite.

`translated` is all that lies between the two: variables, hints that PostgreSQL has no words for, and the one column
that may be too long for its indexes. What the server cannot do is said in the contract's words, and a password in none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import pq
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from anabranch.store.contract import StoreError, TooSlow

VERSION_MIN = 13
CONNECT_SECONDS = 10
_ASK_EVERY = 64  # statements
_OPEN = (pq.TransactionStatus.ACTIVE, pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_TEXT = 25  # the type's number


class Address:
    """Where a database is. `place` is all of it but the passwords: it can be shown, and opened again with them."""

    def __init__(self, url: str, password: str | None = None) -> None:
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
        except psycopg.Error:  # its words would quote the address
            raise StoreError(
                "the store's address cannot be read; it is postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with every "
                "special character of the password written as %XX"
            ) from None
        self.password = given.pop("password", password)
        self._secrets = [secret for secret in (self.password, given.pop("sslpassword", None)) if secret]
        self._connect_timeout = given.get("connect_timeout", str(CONNECT_SECONDS))
        self.url = url
        self.place = _place(given)

    def without_password(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def connect(self, name: str) -> _Connection:
        try:
            connection = _Connection.connect(
                self.url,
                autocommit=True,
                cursor_factory=psycopg.RawCursor,
                client_encoding="UTF8",
                application_name=name,
                connect_timeout=self._connect_timeout,
                password=self.password,
            )
        except psycopg.Error as error:
            said = " ".join(self.without_password(str(error)).split())
            raise StoreError(f"cannot reach {self.place}: {said}") from None
        connection.server_cursor_factory = psycopg.RawServerCursor
        connection.adapters.register_dumper(
            int, Int8BinaryDumper
        )  # one type, so that every statement is found prepared
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_loader(_TEXT, _TextLoader)
        connection.adapters.register_loader(_TEXT, _BinaryTextLoader)
        return connection


def _place(given: dict[str, str]) -> str:
    host, user = given.pop("host", ""), given.pop("user", "")
    port, database = given.pop("port", ""), given.pop("dbname", "")
    more = {"host": host, **given} if host.startswith("/") else given
    name = (f"{quote(user, safe='')}@" if user else "") + ("" if host.startswith("/") else host)
    name += f":{port}" if port else ""
    return f"postgresql://{name}/{quote(database, safe='')}" + (
        f"?{urlencode(more, safe='/', quote_via=quote)}" if more else ""
    )


class _Connection(psycopg.Connection[Any]):
    give_up: Callable[[], bool] | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen if self.give_up is None else self._asking(gen, self.give_up), interval, timeout)

    def _asking(self, gen: Any, give_up: Callable[[], bool]) -> Generator[Any, Any, Any]:
        """The same, and whenever nothing has come for a while, the question whether to go on waiting."""
        asked = False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and not asked and give_up():
                    asked = True
                    self.cancel_safe()
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresConnection:
    """A `Database`. One that reads comes back by itself after the server was away; one that writes does not."""

    def __init__(self, address: Address, name: str, setup: str, again: bool, failed: str) -> None:
        self.address = address
        self._name, self._setup, self._again, self._failed = name, setup, again, failed
        self._numbers = count()
        self._types: dict[str, list[int]] = {}
        self.give_up: Callable[[], bool] | None = None
        self._connection = self._connect()

    def _connect(self) -> _Connection:
        connection = self.address.connect(self._name)
        try:
            connection.execute(self._setup)
        except psycopg.Error as error:
            connection.close()
            raise self._as_store_error(error) from None
        return connection

    def reconnect(self) -> None:
        """Let the connection go, if there still is one, and make another."""
        self._connection.close()
        self._connection = self._connect()

    @property
    def lost(self) -> bool:
        return self._connection.closed

    @property
    def server_version(self) -> int:
        """The major one."""
        return self._connection.info.server_version // 10_000

    @property
    def in_transaction(self) -> bool:
        return self._connection.pgconn.transaction_status in _OPEN

    def execute(self, statements: str, bindings: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        if self.give_up is not None and next(self._numbers) % _ASK_EVERY == _ASK_EVERY - 1 and self.give_up():
            raise TooSlow("the query took too long")
        between = not self.in_transaction
        try:
            return self._execute(statements, bindings)
        except psycopg.Error as error:
            if not (self._again and between and self._connection.closed):
                raise self._as_store_error(error) from error
        self._connection = self._connect()  # the server was away, and nothing was begun
        try:
            return self._execute(statements, bindings)
        except psycopg.Error as error:
            raise self._as_store_error(error) from error

    def _execute(self, statements: str, bindings: Sequence[Any]) -> psycopg.Cursor[Any]:
        self._connection.give_up = self.give_up
        return self._connection.cursor(binary=True).execute(translated(statements), bindings)

    def executemany(self, statements: str, sequenceofbindings: Sequence[Sequence[Any]], /) -> None:
        if not sequenceofbindings:
            return
        try:
            self._connection.cursor().executemany(translated(statements), sequenceofbindings)
        except psycopg.Error as error:
            raise self._as_store_error(error) from error

    def insert(self, table: str, columns: int, values: Sequence[Any]) -> None:
        """Take many rows at once, each of so many values."""
        if not values:
            return
        try:
            with self._connection.cursor() as cursor:
                if table not in self._types:
                    found = cursor.execute(f"SELECT * FROM {table} LIMIT 0").description or ()
                    self._types[table] = [column.type_code for column in found]
                with cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(self._types[table])
                    for at in range(0, len(values), columns):
                        copy.write_row(values[at : at + columns])
        except psycopg.Error as error:
            raise self._as_store_error(error) from error

    def script(self, statements: str) -> None:
        """Run several statements of PostgreSQL's own, in one transaction."""
        try:
            self._connection.execute(statements)
        except psycopg.Error as error:
            raise self._as_store_error(error) from error

    def one_by_one(self, statements: str, bindings: Sequence[Any]) -> Iterator[Any]:
        """The rows of a statement, a few and then many at a time; only within a transaction."""
        self._connection.give_up = self.give_up
        try:
            with self._connection.cursor(f"rows_{next(self._numbers)}", binary=True) as cursor:
                cursor.execute(translated(statements), bindings)
                size = 64
                while some := cursor.fetchmany(size):
                    yield from some
                    size = min(2 * size, 8_192)
        except psycopg.Error as error:
            raise self._as_store_error(error) from error

    def _as_store_error(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, psycopg.errors.QueryCanceled):
            return TooSlow("the query took too long")
        said = error.diag.message_primary or " ".join(str(error).split())
        return StoreError(f"{self._failed}: {self.address.without_password(said)}")

    def close(self) -> None:
        self._connection.close()


# --- statements ------------------------------------------------------------------------------------------------------

_WORDS = re.compile(r" INDEXED BY \w+| NOT INDEXED| OR ROLLBACK(?= INTO)| IMMEDIATE\b|\bIN \(\)|\?\d*")
# SQLite takes a cross join in the order in which it is written. PostgreSQL does only if each side is asked row by row:
# else a table that was empty when it last looked may lead, and all of it is read for every row of the other.
_IN_ORDER = re.compile(
    r"CROSS JOIN (\w+) (\w+) ON ((?:[^()]|\([^()]*\))+?)(?= WHERE\b| (?:CROSS |LEFT )?JOIN\b| UNION\b|\)|$)"
)
_RECIPIENT = re.compile(r"\b([a-z])\.recipient = (\$\d+)")
_INDEXED = {
    "INDEXED BY operation_by_kind": ("o.kind IN", "(o.kind + 0) IN"),
    "INDEXED BY operation_by_time": ("o.created_at", "(o.created_at + 0)"),
    "NOT INDEXED": ("o.author", "(o.author || '')"),
}
_OURS = {" IMMEDIATE": "", "IN ()": "IN (NULL)"}


@lru_cache(1_024)
def translated(sql: str) -> str:
    """A statement of ours as PostgreSQL takes it. A bare `?` is the variable after the highest before it."""
    highest = 0
    for hint, (column, expression) in _INDEXED.items():
        if hint in sql:
            sql = sql.replace(column, expression)
    sql = _IN_ORDER.sub(r"CROSS JOIN LATERAL (SELECT * FROM \1 \2 WHERE \3 OFFSET 0) \2", sql)

    def word(found: re.Match[str]) -> str:
        nonlocal highest
        text = found.group()
        if text[0] != "?":
            return _OURS.get(text, "")
        number = int(text[1:] or highest + 1)
        highest = max(highest, number)
        return f"${number}"

    # Anything printable may be a recipient, and an index takes 2,700 bytes at the most: it holds the beginning.
    return _RECIPIENT.sub(r"(left(\1.recipient, 64) = left(\2, 64) AND \1.recipient = \2)", _WORDS.sub(word, sql))


# --- text ------------------------------------------------------------------------------------------------------------

_ESCAPE = "\ufdd0"  # a character that Unicode gives no meaning, ever


def stored_text(text: str) -> str:
    """Text as PostgreSQL can keep it: it has no NUL. One to one, so that equal stays equal."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def loaded_text(text: str) -> str:
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE) if _ESCAPE in text else text


class _TextDumper(Dumper):
    format = pq.Format.BINARY
    oid = _TEXT

    def dump(self, obj: str) -> Buffer:
        return stored_text(obj).encode()


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return loaded_text(bytes(data).decode())


class _BinaryTextLoader(_TextLoader):
    format = pq.Format.BINARY
