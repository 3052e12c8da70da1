"""Small pieces of SQL that every part of a store writes the same way.

Statements are written for SQLite, in words that PostgreSQL has too wherever there are any; the few that it has not are
put into its own by `postgres_connection`, which is all that stands between them and a `Database` there.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import apsw
import msgspec

from anabranch.core.nostr import DELETION, VANISH, Event
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.token import Log, Position
from anabranch.store.contract import StoreError, TooSlow

T = TypeVar("T")

decode_clock = msgspec.json.Decoder(dict[str, int]).decode


class Rows(Protocol):
    """What a statement gives."""

    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection, as far as reading and writing a store needs one. Variables are `?` and `?N`, as SQLite has them."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Any] = (), /) -> Rows: ...
    def executemany(self, statements: str, sequenceofbindings: Sequence[Sequence[Any]], /) -> object: ...
    def close(self) -> None: ...


def tag_keys(event: Event) -> list[bytes]:
    """The keys under which an event is found by its single-letter tags: each once, and in their order, so that the same
    events make the same file."""
    keys = [tag_key(tag[0], tag[1]) for tag in event.tags if len(tag) > 1 and tag[0] in _LETTERS]
    return keys if len(keys) < 2 else list(dict.fromkeys(keys))


_LETTERS = frozenset(string.ascii_letters)


def tag_key(name: str, value: str) -> bytes:
    """A tag as an index key. Long values are hashed behind a byte that no UTF-8 text begins with."""
    encoded = value.encode()
    if len(encoded) > 64:
        encoded = b"\xff" + hashlib.sha256(encoded).digest()
    return name.encode() + encoded


@contextmanager
def transaction(db: Database) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on any exception. What SQLite cannot do is a `StoreError`."""
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise StoreError(f"nothing was changed: {error}") from error


@contextmanager
def reading() -> Iterator[None]:
    """What SQLite cannot read, in the contract's words. PostgreSQL's connection speaks them itself."""
    try:
        yield
    except apsw.InterruptError:
        raise TooSlow("the query took too long") from None
    except apsw.Error as error:
        raise StoreError(f"read failed: {error}") from error


def the_log(rows: Sequence[Any]) -> Log:
    """The log, of the one row that tells of it."""
    if not rows:
        raise StoreError("the row that tells of the log is missing")
    stream, epoch, floor, tip = rows[0]
    return Log(stream, epoch, Position(floor), Position(tip))


AT_ONCE = 64
"""Rows or values of one statement, where there may be many: wide enough, and few enough forms to be found prepared."""


def insert(db: Database, table: str, columns: int, values: list[Any]) -> None:
    """Insert many rows with few statements. The widths are powers of two, so that every statement is found prepared. A
    connection that has an `insert` of its own takes them in its own way."""
    if (own := getattr(db, "insert", None)) is not None:
        own(table, columns, values)
        return
    at, rows = 0, len(values) // columns
    while rows:
        width = min(AT_ONCE, 1 << (rows.bit_length() - 1))
        db.execute(_insert_sql(table, columns, width), values[at : at + width * columns])
        at, rows = at + width * columns, rows - width


_INSERTS: dict[tuple[str, int, int], str] = {}


def _insert_sql(table: str, columns: int, width: int) -> str:
    key = (table, columns, width)
    if key not in _INSERTS:
        row = "(" + ",".join("?" * columns) + ")"
        _INSERTS[key] = f"INSERT OR ROLLBACK INTO {table} VALUES " + ",".join([row] * width)
    return _INSERTS[key]


@lru_cache(maxsize=512)
def operations_by_id(count: int, first: int = 1) -> str:
    """`… operations o WHERE` it has one of the ids bound to ?first and those after it; more conditions may follow. What
    is bound twice is found twice.

    The tables of ids hold the first eight bytes of each; the rest is compared with the operation's own.
    """
    if not count:
        return "operations o WHERE 1 = 0"
    ids = ",".join(f"(?{number})" for number in range(first, first + count))
    found = " UNION ALL ".join(
        f"SELECT s.position, asked.column1 AS id FROM (VALUES {ids}) AS asked "
        f"CROSS JOIN {table} s ON s.short = substr(asked.column1,1,{SHORT})"
        for table in ("fresh_ids", "settled_ids")
    )
    return f"({found}) f CROSS JOIN operations o ON o.position = f.position WHERE o.id = f.id"


SHORT = 8
"""How many bytes of an id the tables of ids hold."""

SNAPSHOTS_OF_DOCUMENT = (
    "(SELECT * FROM operations INDEXED BY history WHERE family = 1 AND head = 0 AND document = ?1 "
    "UNION ALL SELECT * FROM operations INDEXED BY head_by_document WHERE head = 1 AND document = ?1) AS snapshots"
)
"""Every known snapshot of the document bound to ?1, whatever became of its payload."""


DAMAGES = {
    "ids that stand twice": "SELECT count(*) - count(DISTINCT id) FROM operations",
    "operations that are not found by their id": "SELECT count(*) FROM operations o WHERE NOT EXISTS "
    f"(SELECT 1 FROM settled_ids s WHERE s.short = substr(o.id,1,{SHORT}) AND s.position = o.position) "
    "AND NOT EXISTS (SELECT 1 FROM fresh_ids f "
    f"WHERE f.short = substr(o.id,1,{SHORT}) AND f.position = o.position)",
    "ids without an operation": "SELECT (SELECT count(*) FROM settled_ids) + (SELECT count(*) FROM fresh_ids) "
    "- (SELECT count(*) FROM operations)",
    "operations whose head mark is neither 0 nor 1": "SELECT count(*) FROM operations WHERE head NOT IN (0, 1)",
    "payloads without an operation": "SELECT count(*) FROM payloads p WHERE NOT EXISTS "
    "(SELECT 1 FROM operations o WHERE o.position = p.position AND o.state = 0)",
    "revisions without an operation": "SELECT count(*) FROM revisions r WHERE NOT EXISTS "
    "(SELECT 1 FROM operations o WHERE o.position = r.position AND o.family = 2)",
    "revisions whose marks are not those of their operations": "SELECT count(*) FROM revisions r "
    "JOIN operations o ON o.position = r.position WHERE r.document <> o.document "
    "OR r.retained <> CASE WHEN o.state = 0 THEN 1 ELSE 0 END "
    "OR r.current <> CASE WHEN o.head = 1 AND o.state = 0 THEN 1 ELSE 0 END",
    "removals told to somebody else": "SELECT count(*) FROM removals m "
    "LEFT JOIN revisions r ON r.position = m.target WHERE r.recipient IS DISTINCT FROM m.recipient",
    "removals in the place of an operation": "SELECT count(*) FROM removals m "
    "JOIN operations o ON o.position = m.position",
    "removals of nothing": "SELECT count(*) FROM removals m WHERE NOT EXISTS "
    "(SELECT 1 FROM operations o WHERE o.position = m.target AND o.state = 2)",
    "tags without an operation": "SELECT count(*) FROM tags t WHERE NOT EXISTS "
    "(SELECT 1 FROM operations o WHERE o.position = t.position AND o.state = 0)",
    "operations whose place in the log's length is wrong": "SELECT count(*) FROM (SELECT position, "
    "reach - size AS start, lag(reach) OVER (ORDER BY position) AS until, lag(position) OVER (ORDER BY position) "
    "AS before FROM operations) AS o WHERE o.start < o.until OR (o.start > o.until AND o.before = o.position - 1)",
    "operations that are said to have come before what stands before them": "SELECT count(*) FROM (SELECT received_at, "
    "lag(received_at) OVER (ORDER BY position) AS before FROM operations) AS o WHERE o.received_at < o.before",
    "operations beyond the log's length in bytes": "SELECT count(*) FROM operations o WHERE o.reach > "
    "(SELECT bytes FROM log)",
    "operations that their author has deleted, and that are still there": "SELECT count(*) FROM operations o "
    f"WHERE o.state = 0 AND o.kind NOT IN ({DELETION}, {VANISH}) AND (EXISTS (SELECT 1 FROM deletions d "
    "WHERE d.target = o.id AND d.author = o.author) OR EXISTS (SELECT 1 FROM deletions d "
    "WHERE d.target = o.document AND d.author = o.author AND o.created_at <= d.until))",
}
"""Rows that point nowhere or contradict each other, in words, and SQL that counts them."""


NAMED_BY_MORE_THAN_HEARSAY = (
    "EXISTS (SELECT 1 FROM parents n WHERE n.document = r.document AND n.parent = r.revision AND n.child > 0)"
)
"""Of `revisions r`: a revision that was stored here names it as a parent."""


def belongings(author: str, until: int) -> tuple[str, list[Any]]:
    """The positions of what goes with somebody who has asked to vanish (NIP-62): what they wrote, and what was wrapped
    for them, up to then. More variables may follow, from ?6 on."""
    return (
        "SELECT position FROM operations INDEXED BY operation_by_author "
        "WHERE state = 0 AND author = ?1 AND created_at <= ?2 AND kind <> ?3 "
        "UNION SELECT o.position FROM tags t CROSS JOIN operations o ON o.position = t.position "
        "WHERE t.tag = ?4 AND t.created_at <= ?2 AND o.kind = ?5",
        [bytes.fromhex(author), until, VANISH, tag_key("p", author), GIFT_WRAP],
    )


def marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(values), size):
        yield values[at : at + size]


def evened(values: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """`chunks` whose lengths are powers of two, for what is asked for by value: the last one is said again. So a
    statement has few forms, and every one is found prepared."""
    for chunk in chunks(values, size):
        missing = min(size, 1 << (len(chunk) - 1).bit_length()) - len(chunk)
        yield [*chunk, *[chunk[-1]] * missing] if missing else chunk
