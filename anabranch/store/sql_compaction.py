"""What compaction reads: what may go by age, by deletion and by request, and where the replay window begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.core.operation import Family
from anabranch.core.retention import DeletedDocument, ReplayWindow, Version
from anabranch.core.token import Log, Position
from anabranch.store.contract import Going
from anabranch.store.sql import (
    NAMED_BY_MORE_THAN_HEARSAY,
    SNAPSHOTS_OF_DOCUMENT,
    belongings,
    decode_clock,
    marks,
    tag_key,
)


class CompactionReader:
    def _rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError

    def _value(self, sql: str, bindings: Sequence[Any] = ()) -> Any:
        raise NotImplementedError

    def log(self) -> Log:
        raise NotImplementedError

    def candidates(self, after: bytes, cutoff: int, limit: int) -> list[bytes]:
        """Documents beyond `after` with a dominated snapshot older than `cutoff` whose payload is retained."""
        rows = self._rows(
            "SELECT DISTINCT document FROM operations INDEXED BY history "
            "WHERE family = 1 AND head = 0 AND document > ? AND state = 0 AND created_at < ? ORDER BY document LIMIT ?",
            (after, cutoff, limit),
        )
        return [row[0] for row in rows]

    def versions(self, document: bytes) -> list[tuple[Version, int]]:
        """The snapshots of a document that have a payload, each with its size."""
        rows = self._rows(
            f"SELECT position, id, created_at, clock, size FROM {SNAPSHOTS_OF_DOCUMENT} WHERE state = 0", (document,)
        )
        return [(version(row), row[4]) for row in rows]

    def author_of(self, document: bytes) -> str | None:
        """Who writes a document of snapshots; None: nothing is known of it."""
        author = self._value(f"SELECT author FROM {SNAPSHOTS_OF_DOCUMENT} LIMIT 1", (document,))
        return None if author is None else author.hex()

    def old_revisions(self, after: int, cutoff: int, limit: int) -> list[tuple[Position, int, int]]:
        """Revisions that are no heads, with a payload, with `after` <= mtime < `cutoff`, by mtime.

        Where only hearsay says that one is no head, it is not among them: nothing is lost by what nobody has proven.
        """
        rows = self._rows(
            "SELECT r.position, o.size, r.mtime FROM revisions r INDEXED BY revision_history "
            "JOIN operations o ON o.position = r.position "
            "WHERE r.retained = 1 AND r.current = 0 AND r.mtime >= ? AND r.mtime < ? AND o.head = 0 "
            f"AND {NAMED_BY_MORE_THAN_HEARSAY} ORDER BY r.mtime LIMIT ?",
            (after, cutoff, limit),
        )
        return [(Position(row[0]), row[1], row[2]) for row in rows]

    def vanishing(self) -> int | None:
        """How much is left, at the most, of those who have asked to vanish; None: of nobody anything."""
        going = [row[0] for row in self._rows("SELECT author FROM vanished WHERE done = 0")]
        if not going:
            return None
        written = f"SELECT count(*) FROM operations WHERE state = 0 AND author IN ({marks(going)})"
        addressed = f"SELECT count(*) FROM tags WHERE tag IN ({marks(going)})"
        return int(self._value(written, [bytes.fromhex(author) for author in going])) + int(
            self._value(addressed, [tag_key("p", author) for author in going])
        )

    def vanished(self) -> dict[str, tuple[int, bool]]:
        """Who has asked to vanish: until when, and whether all of theirs is gone."""
        return {row[0]: (row[1], bool(row[2])) for row in self._rows("SELECT author, until, done FROM vanished")}

    def expired(self, now: int) -> tuple[int, int]:
        """How many retained operations have expired, and their bytes."""
        count, size = self._rows(
            "SELECT count(*), coalesce(sum(size), 0) FROM operations INDEXED BY operation_expiring "
            "WHERE state = 0 AND expires_at IS NOT NULL AND expires_at <= ?",
            (now,),
        )[0]
        return count, int(size)

    def expiring(self, now: int) -> list[Going]:
        """What has expired and is retained, in the order in which it goes."""
        return self._going(
            "state = 0 AND expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at, position", [now]
        )

    def belongings(self) -> list[Going]:
        """What is left of those who have asked to vanish, in the order in which it goes."""
        found: list[Going] = []
        for author, until in self._rows("SELECT author, until FROM vanished WHERE done = 0 ORDER BY author"):
            sql, bindings = belongings(author, until)
            found += self._going(f"position IN ({sql}) ORDER BY position", bindings)
        return found

    def _going(self, condition: str, bindings: Sequence[Any]) -> list[Going]:
        rows = self._rows(f"SELECT position, size, document, family FROM operations WHERE {condition}", bindings)
        return [Going(Position(row[0]), row[1], row[2], Family(row[3])) for row in rows]

    def crowded_authors(self, cap: int) -> list[str]:
        """Authors with more than `cap` documents that have a tombstone for a head."""
        rows = self._rows(
            "SELECT author FROM operations INDEXED BY tombstone_by_author "
            "WHERE head = 1 AND family = 1 AND action = 1 AND state = 0 "
            "GROUP BY author HAVING count(DISTINCT document) > ?",
            (cap,),
        )
        return [row[0].hex() for row in rows]

    def deleted_documents(self, author: str) -> list[DeletedDocument]:
        """The documents of an author whose every head deletes."""
        rows = self._rows(
            "SELECT t.document, max(t.created_at), ("
            "  SELECT max(h.position) FROM operations h INDEXED BY head_by_document "
            "  WHERE h.head = 1 AND h.document = t.document), ("  # a removed head too
            "  SELECT max(h.position) FROM operations h INDEXED BY history "
            "  WHERE h.family = 1 AND h.head = 0 AND h.document = t.document), ("
            "  SELECT max(m.position) FROM operations h INDEXED BY head_by_document "
            "  JOIN removals m ON m.target = h.position WHERE h.head = 1 AND h.document = t.document), ("
            "  SELECT max(m.position) FROM operations h INDEXED BY history JOIN removals m ON m.target = h.position "
            "  WHERE h.family = 1 AND h.head = 0 AND h.document = t.document) "
            "FROM operations t INDEXED BY tombstone_by_author "
            "WHERE t.head = 1 AND t.family = 1 AND t.action = 1 AND t.state = 0 AND t.author = ? AND NOT EXISTS ("
            "  SELECT 1 FROM operations p INDEXED BY head_by_document "
            "  WHERE p.head = 1 AND p.document = t.document AND p.action = 0 AND p.state = 0) "
            "GROUP BY t.document",
            (bytes.fromhex(author),),
        )
        return [DeletedDocument(row[0], row[1], Position(max(at or 0 for at in row[2:]))) for row in rows]

    def window_floor(self, window: ReplayWindow, now_ms: int) -> Position:
        """The lowest floor that the replay window allows: positions below it are outside."""
        log = self.log()
        floor = log.floor
        if window.count is not None:
            floor = Position(max(floor, log.tip - window.count + 1))
        if window.age_seconds is not None:
            floor = max(floor, self._first("received_at >= ?", now_ms - window.age_seconds * 1000, log))
        if window.bytes is not None:
            length = self._value("SELECT bytes FROM log")
            floor = max(floor, self._first("reach - size >= ?", length - window.bytes, log))
        return floor

    def _first(self, condition: str, bound: int, log: Log) -> Position:
        """The first position that meets a condition which only grows along the log, by bisection."""
        low, high = int(log.floor), int(log.tip) + 1
        while low < high:
            middle = (low + high) // 2
            row = self._rows(
                f"SELECT position, {condition} FROM operations WHERE position >= ? ORDER BY position LIMIT 1",
                (bound, middle),
            )
            if row and not row[0][1]:
                low = row[0][0] + 1
            else:
                high = middle
        return Position(low)


def version(row: Any) -> Version:
    return Version(Position(row[0]), row[1].hex(), row[2], decode_clock(row[3]))
