"""Reading a store in SQL: each call sees one moment.

What may be long is read in two steps: first the positions that match, at one tip, then payloads by the handful. So
a slow consumer holds no transaction, memory stays flat, and a whole answer is still the answer of one moment. What
differs between SQLite and PostgreSQL is left to `SqliteReader` and `PostgresReader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from anabranch.core import revisions as revision_rules
from anabranch.core.changes import ChangesQuery, RevisionQuery, SnapshotQuery, impossible
from anabranch.core.filter import Filter
from anabranch.core.nostr import is_hex
from anabranch.core.operation import Action, Family, Removal, State
from anabranch.core.retention import Version
from anabranch.core.token import START, Log, Position
from anabranch.store.contract import (
    Begin,
    Entry,
    Facts,
    ItemRows,
    Line,
    Page,
    Selection,
    Statistics,
    TooMany,
)
from anabranch.store.sql import (
    DAMAGES,
    SNAPSHOTS_OF_DOCUMENT,
    Database,
    chunks,
    decode_clock,
    marks,
    operations_by_id,
    reading,
    the_log,
)
from anabranch.store.sql_books import BookReader
from anabranch.store.sql_compaction import CompactionReader, version
from anabranch.store.sql_feed import feed_page, revision_conditions, snapshot_conditions
from anabranch.store.sql_select import Select, is_about, matching_sql
from anabranch.store.sql_told import ToldReader

_STATES = tuple(State)
VARIABLES_MAX = 32_000  # that one statement may bind
_ALL = 2**62  # as a limit
_FACTS = (
    "o.position, o.id, o.author, o.kind, o.created_at, o.family, o.state, o.head, o.action, o.document, o.coordinate, "
    "o.collection, o.clock, p.raw, o.size, o.received_at, o.expires_at, r.recipient, r.revision, r.parents, r.mtime"
)


class SqlReader(BookReader, ToldReader, CompactionReader, ABC):
    """A connection that only reads. `give_up`, when set, is asked now and then whether to stop a long query."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.give_up: Callable[[], bool] | None = None

    def close(self) -> None:
        self._db.close()

    def _rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        with reading():
            return self._db.execute(sql, bindings).fetchall()

    def _one_by_one(self, sql: str, bindings: Sequence[Any]) -> Iterator[Any]:
        """The rows as they come; within a moment, for who may not want all of them."""
        return iter(self._db.execute(sql, bindings))

    def _value(self, sql: str, bindings: Sequence[Any] = ()) -> Any:
        rows = self._rows(sql, bindings)
        return rows[0][0] if rows else None

    def log(self) -> Log:
        return the_log(self._rows("SELECT stream, epoch, floor, tip FROM log"))

    # --- queries ---

    def select(self, filters: Sequence[Filter], limit_max: int, now: int) -> Selection:
        """What a REQ gets: of each filter the newest `limit`; sync kinds ascending, then the others newest first."""
        with self._moment() as log:
            return Selection(Select(self._rows, now).run(filters, limit_max), log.tip)

    def count(self, filters: Sequence[Filter], now: int) -> int:
        """How many stored events match at least one of the filters (`limit` does not count)."""
        possible = [filter for filter in filters if not filter.impossible]
        if not possible:
            return 0
        parts: list[str] = []
        bindings: list[Any] = []
        for filter in possible:
            sql, values = matching_sql(filter, now, len(bindings) + 1)
            parts.append(sql)
            bindings += values
        if len(bindings) <= VARIABLES_MAX:
            return int(self._value(f"SELECT count(*) FROM ({' UNION '.join(parts)}) AS found", bindings))
        with self._moment():
            return len({row[0] for filter in possible for row in self._rows(*matching_sql(filter, now))})

    def payloads(self, positions: Sequence[int], bytes_max: int | None = None) -> list[tuple[Position, bytes]]:
        """The payloads still there, in the order asked for; the first ones, when all are more than `bytes_max`."""
        taken: list[tuple[Position, bytes]] = []
        size = 0
        for chunk in chunks(positions, 128):
            found = dict(
                self._rows(f"SELECT position, raw FROM payloads WHERE position IN ({marks(chunk)})", tuple(chunk))
            )
            for position in chunk:
                if (raw := found.get(position)) is not None:
                    taken.append((Position(position), raw))
                    size += len(raw)
                    if bytes_max is not None and size >= bytes_max:
                        return taken
        return taken

    def compacted(self, filters: Sequence[Filter]) -> list[str]:
        """Which of the ids that filters name are compacted, as far as the filter is about them; sorted."""
        found: set[str] = set()
        for filter in filters:
            for chunk in chunks(sorted(filter.ids or ()), 512):
                rows = self._rows(
                    "SELECT o.id, o.author, o.kind, o.coordinate, "
                    "(SELECT r.recipient FROM revisions r WHERE r.position = o.position) "
                    f"FROM {operations_by_id(len(chunk))} AND o.state = 1",
                    [bytes.fromhex(id) for id in chunk],
                )
                found.update(row[0].hex() for row in rows if is_about(filter, *row[1:]))
        return sorted(found)

    def compacted_revisions(self, filters: Sequence[Filter]) -> list[str]:
        """Which of the revisions that filters name are compacted, as far as the filter is about them; sorted."""
        found: set[str] = set()
        for filter in filters:
            names = sorted(one for one in dict(filter.tags).get("r", ()) if is_hex(one, 64))
            for chunk in chunks(names, 512):
                rows = self._rows(
                    "SELECT r.revision, o.author, o.kind, o.coordinate, r.recipient "
                    "FROM revisions r INDEXED BY revision_by_name JOIN operations o ON o.position = r.position "
                    f"WHERE r.revision IN ({marks(chunk)}) AND o.state = 1",
                    [bytes.fromhex(name) for name in chunk],
                )
                found.update(row[0].hex() for row in rows if is_about(filter, *row[1:]))
        return sorted(found)

    def oldest_mtime(self) -> int | None:
        """The smallest mtime of a revision whose payload is retained."""
        found = self._value(
            "SELECT mtime FROM revisions INDEXED BY revision_retained WHERE retained = 1 ORDER BY mtime LIMIT 1"
        )
        return None if found is None else int(found)

    # --- sets to reconcile ---

    def items(self, filter: Filter, limit_max: int, now: int) -> ItemRows:
        """The set of (created_at, id) that a filter matches; `TooMany` when that is more than `limit_max`."""
        with self._moment() as log:
            found = [] if filter.impossible else Select(self._rows, now).as_set(filter, limit_max + 1)
            return _items(((row[1], row[2]) for row in found), len(found), limit_max, log)

    def expired_items(self, now: int) -> list[tuple[int, bytes]]:
        """The (created_at, id) of what has expired and was not removed yet."""
        return self._rows(
            "SELECT created_at, id FROM operations INDEXED BY operation_expiring "
            "WHERE state = 0 AND expires_at IS NOT NULL AND expires_at <= ?",
            (now,),
        )

    def current_revisions(self, query: RevisionQuery, limit_max: int, now: int) -> ItemRows:
        """The heads of a recipient's documents as a set of (mtime, revision); `TooMany` above `limit_max`."""
        conditions, bindings = revision_conditions(query)
        with self._moment() as log:
            found = (
                []
                if impossible(query)
                else self._rows(
                    "SELECT r.mtime, r.revision FROM revisions r INDEXED BY revision_current "
                    "JOIN operations o ON o.position = r.position "
                    f"WHERE r.current = 1 AND {' AND '.join(conditions)} "
                    "AND (o.expires_at IS NULL OR o.expires_at > ?) "
                    "ORDER BY r.mtime, r.revision LIMIT ?",
                    [*bindings, now, limit_max + 1],
                )
            )
            return _items(iter(found), len(found), limit_max, log)

    def state(self, id: str) -> State | None:
        """Retained, compacted, removed, or None: never heard of."""
        found = self._value(f"SELECT o.state FROM {operations_by_id(1)}", (bytes.fromhex(id),))
        return None if found is None else State(found)

    def position(self, id: str) -> Position | None:
        found = self._value(f"SELECT o.position FROM {operations_by_id(1)}", (bytes.fromhex(id),))
        return None if found is None else Position(found)

    # --- the changes feed ---

    def bootstrap(self, query: SnapshotQuery, limit: int | None, now: int, begin: Begin | None = None) -> Selection:
        """The heads of an author's documents at one moment, by ascending (created_at, id).

        `begin`, if given, is called with the first few of them as soon as these are known.
        """
        conditions, bindings = snapshot_conditions(query)
        positions = array("q")
        with self._moment() as log:
            if not impossible(query):
                if self._value("SELECT EXISTS (SELECT 1 FROM operations WHERE state = 0 AND expires_at IS NOT NULL)"):
                    conditions.append("(o.expires_at IS NULL OR o.expires_at > ?)")
                    bindings.append(now)
                for some in self._by_the_handful(
                    "SELECT o.position FROM operations o INDEXED BY head_by_author "
                    f"WHERE o.head = 1 AND o.family = 1 AND o.state = 0 AND {' AND '.join(conditions)} "
                    "ORDER BY o.created_at, o.id LIMIT ?",
                    [*bindings, _ALL if limit is None else limit],
                ):
                    if begin is not None and not positions:
                        begin(Selection(some, log.tip))
                    positions += some
            return Selection(positions, log.tip)

    def _by_the_handful(self, sql: str, bindings: Sequence[Any]) -> Iterator[array[int]]:
        """The first column of a query's rows, a few and then many at a time."""
        with reading():
            rows = self._one_by_one(sql, bindings)
            size = 64
            while some := array("q", [row[0] for row in islice(rows, size)]):
                yield some
                size = 8_192

    def changes(
        self,
        query: ChangesQuery | None,
        since: Position,
        until: Position | None,
        limit: int,
        compacted: bool = False,
        now: int = 0,
        bytes_max: int | None = None,
    ) -> Page:
        """The next stretch of the log after `since`, at most `limit` entries and hardly more than `bytes_max`.

        `compacted` asks for compacted entries too; without a query it is the whole log, every family.
        """
        with self._moment() as log:
            last = Position(log.tip if until is None else min(until, log.tip))
            if limit == 0:
                return Page([], since, log)
            if query is not None and impossible(query):
                return Page([], max(last, since), log)
            sql, bindings = feed_page(query, compacted)
            rows, cut = self._first_rows(sql, [since, last, limit, *bindings], bytes_max)
            return _page(rows, cut, since, last, limit, log, now)

    def _first_rows(self, sql: str, bindings: Sequence[Any], bytes_max: int | None) -> tuple[list[Any], bool]:
        """The rows of a statement until their payloads (the fourth column) come to `bytes_max`; whether they did."""
        if bytes_max is None:
            return self._rows(sql, bindings), False
        taken: list[Any] = []
        size = 0
        with reading():
            rows = self._one_by_one(sql, bindings)
            while some := list(islice(rows, 8)):
                taken += some
                size += sum([len(row[3] or b"") for row in some])
                if size >= bytes_max:
                    return taken, True
        return taken, False

    # --- facts ---

    def facts(self, after: Position = START, limit: int = 1000) -> list[Facts]:
        """All that is stored of each operation after a position, by position."""
        return self._facts("o.position > ? ORDER BY o.position LIMIT ?", (after, limit))

    def lines(self, after: Position, limit: int) -> list[Line | Facts]:
        """The operations after a position: what is retained as it was signed, and of what is not the facts."""
        with self._moment():
            rows = self._rows(
                "SELECT o.position, p.raw FROM operations o LEFT JOIN payloads p ON p.position = o.position "
                "WHERE o.position > ? ORDER BY o.position LIMIT ?",
                (after, limit),
            )
            if all(raw is not None for _, raw in rows):
                return [Line(Position(position), raw) for position, raw in rows]
            known = self._facts("o.position > ? AND o.position <= ? AND p.position IS NULL", (after, rows[-1][0]))
        facts = {one.position: one for one in known}
        return [facts[position] if raw is None else Line(Position(position), raw) for position, raw in rows]

    def heads(self, document: bytes) -> list[Facts]:
        """The heads of a document that can be fetched."""
        return self._facts("o.head = 1 AND o.state = 0 AND o.document = ? ORDER BY o.id", (document,))

    def lineage(self, document: bytes) -> list[tuple[Version, bool]]:
        """Every known snapshot of a document, retained or not, and whether it is marked as a head."""
        rows = self._rows(f"SELECT position, id, created_at, clock, head FROM {SNAPSHOTS_OF_DOCUMENT}", (document,))
        return [(version(row), bool(row[4])) for row in rows]

    def revision_lineage(self, document: bytes) -> list[tuple[Facts, bool]]:
        """Every known revision of a document, without payloads, and whether it is served as a head."""
        rows = self._rows("SELECT position FROM revisions WHERE document = ? AND current = 1", (document,))
        served = {row[0] for row in rows}
        known = self._facts(
            "o.position IN (SELECT position FROM revisions WHERE document = ?)", (document,), payload="NULL"
        )
        return [(facts, facts.position in served) for facts in known]

    def named(self, document: bytes) -> set[str]:
        """The revisions of a document that are remembered as parents of others."""
        return {row[0].hex() for row in self._rows("SELECT parent FROM parents WHERE document = ?", [document])}

    def removals(self, after: Position, until: Position, limit: int) -> list[Removal]:
        """The first hard removals after a position and up to another, by the positions they stand at."""
        rows = self._rows(
            "SELECT m.position, m.target, m.reason, m.recipient, o.id, o.created_at, o.author, o.coordinate, "
            "r.revision FROM removals m JOIN operations o ON o.position = m.target "
            "LEFT JOIN revisions r ON r.position = m.target "
            "WHERE m.position > ? AND m.position <= ? ORDER BY m.position LIMIT ?",
            (after, until, limit),
        )
        return [
            Removal(
                id=row[4].hex(),
                created_at=row[5],
                author=row[6].hex(),
                reason=row[2],
                position=Position(row[0]),
                recipient=row[3],
                coordinate=row[7],
                revision=None if row[8] is None else row[8].hex(),
                target=Position(row[1]),
            )
            for row in rows
        ]

    def _facts(self, condition: str, bindings: Sequence[Any], payload: str = "p.raw") -> list[Facts]:
        return [
            Facts(
                Position(row[0]),
                row[1].hex(),
                row[2].hex(),
                row[3],
                row[4],
                Family(row[5]),
                State(row[6]),
                bool(row[7]),
                Action(row[8]),
                row[9],
                row[10],
                row[11],
                None if row[12] is None else decode_clock(row[12]),
                row[13],
                row[14],
                row[15],
                row[16],
                None if row[18] is None else _revision_facts(row),
            )
            for row in self._rows(
                f"SELECT {_FACTS.replace('p.raw', payload)} FROM operations o "
                "LEFT JOIN payloads p ON p.position = o.position "
                f"LEFT JOIN revisions r ON r.position = o.position WHERE {condition}",
                bindings,
            )
        ]

    def tag_rows(self, position: Position, created_at: int, keys: Iterable[bytes]) -> int:
        """How many of the tag keys lead to the operation."""
        wanted = list(keys)
        return int(
            self._value(
                f"SELECT count(*) FROM tags WHERE created_at = ? AND position = ? AND tag IN ({marks(wanted)})",
                [created_at, position, *wanted],
            )
        )

    def deletions(self, author: str, targets: Sequence[bytes]) -> dict[bytes, int]:
        """Until when an author has deleted which of the targets: operations by id, and documents."""
        found: dict[bytes, int] = {}
        for some in chunks(targets, 128):
            found |= self._rows(
                f"SELECT target, until FROM deletions WHERE author = ? AND target IN ({marks(some)})",
                [bytes.fromhex(author), *some],
            )
        return found

    def statistics(self) -> Statistics:
        with self._moment():
            states = dict(self._rows("SELECT state, count(*) FROM operations GROUP BY state"))
            documents, conflicts, tombstones = self._rows(
                "SELECT count(*), count(CASE WHEN heads > 1 THEN 1 END), count(CASE WHEN puts = 0 THEN 1 END) FROM ("
                "SELECT count(*) AS heads, count(CASE WHEN action = 0 THEN 1 END) AS puts FROM operations "
                "WHERE head = 1 AND family <> 0 AND state = 0 GROUP BY document) AS known"
            )[0]
            payload_bytes = self._value("SELECT coalesce(sum(size), 0) FROM operations WHERE state = 0")
            tag_rows = self._value("SELECT count(*) FROM tags")
        return Statistics(
            operations=sum(states.values()),
            retained=states.get(0, 0),
            compacted=states.get(1, 0),
            removed=states.get(2, 0),
            documents=documents,
            conflicts=conflicts,
            tombstones=tombstones,
            payload_bytes=int(payload_bytes),
            tag_rows=tag_rows,
            file_bytes=self.file_bytes(),
            wal_bytes=self.wal_bytes(),
        )

    @abstractmethod
    def file_bytes(self) -> int:
        """What the store takes on disk."""

    def wal_bytes(self) -> int:
        """Nothing, where a server keeps its write-ahead log elsewhere."""
        return 0

    @abstractmethod
    def _engine_damage(self) -> list[str]:
        """What the engine itself finds wrong."""

    def damage(self) -> list[str]:
        """What the engine itself finds wrong, and rows that point nowhere."""
        found = self._engine_damage()
        for name, sql in DAMAGES.items():
            if count := self._value(sql):
                found.append(f"{count} {name}")
        return found

    def _moment(self) -> _Moment:
        return _Moment(self)


class _Moment:
    """A read transaction: everything inside sees the same log."""

    def __init__(self, reader: SqlReader) -> None:
        self._reader = reader

    def __enter__(self) -> Log:
        try:
            with reading():
                self._reader._db.execute("BEGIN")
            return self._reader.log()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._reader._db.in_transaction:
            self._reader._db.execute("ROLLBACK")


def _revision_facts(row: Any) -> revision_rules.Facts:
    parents = row[19]
    return revision_rules.Facts(
        row[17],
        row[10],
        row[18].hex(),
        tuple(parents[at : at + 32].hex() for at in range(0, len(parents), 32)),
        row[8] == Action.DELETE,
        row[20],
        None,
    )


def _items(rows: Iterator[Any], count: int, limit_max: int, log: Log) -> ItemRows:
    if count > limit_max:
        raise TooMany(f"more than {limit_max} items")
    timestamps, ids = array("q"), bytearray()
    for timestamp, id in rows:
        timestamps.append(timestamp)
        ids += id
    return ItemRows(timestamps, bytes(ids), log.tip)


def _page(rows: list[Any], cut: bool, since: Position, last: Position, limit: int, log: Log, now: int) -> Page:
    complete_to = rows[-1][0] if cut or len(rows) == limit else max(last, since)
    entries = [
        Entry(position, id.hex(), _STATES[state], raw, None if revision is None else revision.hex(), reason)
        for position, id, state, raw, expires_at, revision, reason in rows
        if expires_at is None or expires_at > now
    ]
    return Page(entries, Position(complete_to), log)
