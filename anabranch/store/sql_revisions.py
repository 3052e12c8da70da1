"""Revisions in the writer: which are heads, decided for a group in memory and written at once.

A revision is known by its document and its own id, whatever the outer event's is. What is named as a parent is
remembered whether it is there or not, so that heads are right in every order of arrival. What was removed for good
counts only as long as something stored descends from it (`revisions.heads`): `parents` holds the edges that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from anabranch.core import revisions
from anabranch.core.operation import Family, Operation, Removal, State, document_key
from anabranch.store.contract import Offer
from anabranch.store.sql import Database, chunks, evened, insert, marks

_COLUMNS = 8
_CURRENT = 7  # the place in a row that a later revision of the same group may change


class Head(msgspec.Struct, frozen=True, gc=False):
    position: int
    revision: str


class _Node(msgspec.Struct, frozen=True, gc=False):
    revision: str
    parents: tuple[str, ...]


def _names(joined: bytes) -> tuple[str, ...]:
    return tuple(joined[at : at + 32].hex() for at in range(0, len(joined), 32))


class Edges:
    """The edges of one document that count, while revisions are removed from it or come back to it.

    A removed revision's edges are there exactly while something stored leads to it; `unlink` and `link` go on from one
    removed revision to the next. Each works on many parents with few statements.
    """

    def __init__(self, db: Database, document: bytes) -> None:
        self._db = db
        self._document = document

    def _all(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        return self._db.execute(sql, bindings).fetchall()

    def removed(self, position: int) -> None:
        """The revision at this position has been removed: if nobody that counts names it, it names nobody any more."""
        if self._heard():
            self.rebuild()
            return
        revision, parents = self._facts(position)
        if not self._is_reached(revision):
            self._unlink(position, parents)

    def stored(self, revision: bytes, parents: Sequence[bytes]) -> None:
        """A revision has been stored: removed copies of it count no more, removed parents of it count again."""
        if self._heard():
            self.rebuild()
            return
        for position in self._copies([revision], removed=True):
            self._unlink(position, self._facts(position)[1])
        self._link(parents)

    def rebuild(self) -> None:
        """Work out all edges and heads of the document by the rule itself, and write what has changed.

        What is heard of may be a lie, and go round in circles; to follow it from one to the next would not do.
        """
        stored: dict[int, _Node] = {}
        gone: dict[int, _Node] = {}
        marked: dict[int, bool] = {}
        for position, revision, parents, state, head in self._all(
            "SELECT r.position, r.revision, r.parents, o.state, o.head FROM revisions r "
            "JOIN operations o ON o.position = r.position WHERE r.document = ?",
            (self._document,),
        ):
            (gone if state == State.REMOVED else stored)[position] = _Node(revision.hex(), _names(parents))
            marked[position] = bool(head)
        for number, revision, parents in self._heard():
            gone[-number] = _Node(revision.hex(), _names(parents))
        named = revisions.named(stored.values(), gone.values())
        counting = named - {one.revision for one in stored.values()}
        between = {at: one for at, one in gone.items() if one.revision in counting}
        edges = {(bytes.fromhex(parent), at) for at, one in {**stored, **between}.items() for parent in one.parents}
        before = {
            (bytes(parent), child)
            for parent, child in self._all("SELECT parent, child FROM parents WHERE document = ?", (self._document,))
        }
        for sql, changed in (
            ("DELETE FROM parents WHERE document = ? AND parent = ? AND child = ?", before - edges),
            ("INSERT INTO parents VALUES (?, ?, ?)", edges - before),
        ):
            self._db.executemany(sql, [(self._document, *edge) for edge in sorted(changed)])
        for head in (False, True):
            wrong = [at for at, one in stored.items() if marked[at] is not head is (one.revision not in named)]
            self._mark(wrong, int(head))

    def _heard(self) -> list[Any]:
        return self._all("SELECT number, revision, parents FROM told WHERE document = ?", (self._document,))

    def _unlink(self, position: int, parents: Sequence[bytes]) -> None:
        pending = [(position, parents)]
        while pending:
            position, parents = pending.pop()
            for some in chunks(parents, 256):
                self._db.execute(
                    f"DELETE FROM parents WHERE document = ? AND child = ? AND parent IN ({marks(some)})",
                    (self._document, position, *some),
                )
                named = self._named(some)
                unnamed = [parent for parent in some if parent not in named or not self._is_reached(parent)]
                self._mark(self._copies(unnamed, removed=False), head=1)
                further = ((at, self._facts(at)[1]) for at in self._copies(unnamed, removed=True))
                pending += (one for one in further if self._is_linked(*one))  # or it was gone through before

    def _link(self, names: Sequence[bytes]) -> None:
        pending = list(names)
        while pending:
            some, pending = pending[:256], pending[256:]
            there = {self._facts(at)[0] for at in self._copies(some, removed=False)}
            for position in self._copies([name for name in some if name not in there], removed=True):
                parents = self._facts(position)[1]
                if not parents or self._is_linked(position, parents):
                    continue
                self._db.executemany(
                    "INSERT INTO parents VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(self._document, parent, position) for parent in parents],
                )
                self._mark(self._copies(parents, removed=False), head=0)
                pending += parents

    def _facts(self, position: int) -> tuple[bytes, list[bytes]]:
        revision, joined = self._all("SELECT revision, parents FROM revisions WHERE position = ?", (position,))[0]
        return revision, [joined[at : at + 32] for at in range(0, len(joined), 32)]

    def _named(self, revisions: Sequence[bytes]) -> set[bytes]:
        sql = f"SELECT DISTINCT parent FROM parents WHERE document = ? AND parent IN ({marks(revisions)})"
        return {row[0] for row in self._all(sql, (self._document, *revisions))}

    def _is_reached(self, revision: bytes) -> bool:
        """Whether something stored names it, or something removed that is reached itself: those that only name each
        other do not count."""
        sql = (
            "WITH RECURSIVE above(revision) AS (SELECT ?1 UNION SELECT r.revision FROM above a "
            "JOIN parents n ON n.document = ?2 AND n.parent = a.revision JOIN revisions r ON r.position = n.child) "
            "SELECT 1 FROM above a JOIN parents n ON n.document = ?2 AND n.parent = a.revision "
            "JOIN operations o ON o.position = n.child WHERE o.state <> 2 LIMIT 1"
        )
        return bool(self._all(sql, (revision, self._document)))

    def _is_linked(self, position: int, parents: Sequence[bytes]) -> bool:
        """Whether the edges of a revision are there: all of them, or none."""
        sql = "SELECT 1 FROM parents WHERE document = ? AND parent = ? AND child = ?"
        return bool(self._all(sql, (self._document, *parents[:1], position))) if parents else False

    def _copies(self, revisions: Sequence[bytes], removed: bool) -> list[int]:
        """Where these revisions stand, stored or removed."""
        return [
            row[0]
            for some in chunks(revisions, 256)
            for row in self._all(
                "SELECT r.position FROM revisions r JOIN operations o ON o.position = r.position "
                f"WHERE r.document = ? AND r.revision IN ({marks(some)}) AND o.state {'=' if removed else '<>'} 2",
                (self._document, *some),
            )
        ]

    def _mark(self, positions: Sequence[int], head: int) -> None:
        for some in chunks(positions, 256):
            self._db.execute(f"UPDATE operations SET head = ? WHERE position IN ({marks(some)})", (head, *some))
            self._db.execute(
                f"UPDATE revisions SET current = retained * ? WHERE position IN ({marks(some)})", (head, *some)
            )


class RevisionsOfGroup:
    """What a group has to know of revisions, and what it adds to them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[tuple[bytes, str], State] = {}
        self._named: set[tuple[bytes, str]] = set()
        self._removed: set[tuple[bytes, str]] = set()
        self._heads: dict[bytes, list[Head]] = {}
        self._stale: set[bytes] = set()
        self._rows: list[Any] = []
        self._row_of: dict[int, int] = {}  # where the row of a revision begins, by position
        self._edges: list[Any] = []
        self._demoted: list[int] = []  # stored before this group, no head any more

    def _all(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        return self._db.execute(sql, bindings).fetchall()

    def look_up(self, offers: Sequence[Offer], anything_removed: bool) -> None:
        """Read, with few statements, all that the decisions depend on."""
        operations = [offer.operation for offer in offers if offer.operation.revision is not None]
        keys = {(op.document, bytes.fromhex(op.revision.revision)) for op in operations if op.revision and op.document}
        if anything_removed:
            self._look_up_removed(operations, keys)
        self._read(keys)

    def _read(self, keys: set[tuple[bytes, bytes]]) -> None:
        for chunk in evened(list(keys)):
            asked, values = pairs(len(chunk)), [value for key in chunk for value in key]
            for document, revision, state in self._all(
                f"SELECT r.document, r.revision, o.state FROM {asked} CROSS JOIN revisions r "
                "ON r.document = asked.column1 AND r.revision = asked.column2 "
                "CROSS JOIN operations o ON o.position = r.position WHERE o.state <> 2",
                values,
            ):
                self._known[document, revision.hex()] = State(state)
            for document, parent in self._all(
                f"SELECT column1, column2 FROM {asked} WHERE EXISTS "
                "(SELECT 1 FROM parents n WHERE n.document = asked.column1 AND n.parent = asked.column2)",
                values,
            ):
                self._named.add((document, parent.hex()))
        for some in evened(list({document for document, _ in keys})):
            for document, position, revision in self._all(
                "SELECT o.document, o.position, r.revision FROM operations o INDEXED BY head_by_document "
                f"JOIN revisions r ON r.position = o.position WHERE o.head = 1 AND o.document IN ({marks(some)})",
                some,
            ):
                self._heads.setdefault(document, []).append(Head(position, revision.hex()))

    def _look_up_removed(self, operations: Sequence[Operation], keys: set[tuple[bytes, bytes]]) -> None:
        wanted = keys | {
            (op.document, bytes.fromhex(parent))
            for op in operations
            if op.revision is not None and op.document is not None
            for parent in op.revision.parents
        }
        for chunk in evened(list(wanted)):
            asked, values = pairs(len(chunk)), [value for key in chunk for value in key]
            for document, revision in self._all(
                f"SELECT r.document, r.revision FROM {asked} CROSS JOIN revisions r "
                "ON r.document = asked.column1 AND r.revision = asked.column2 "
                "CROSS JOIN operations o ON o.position = r.position WHERE o.state = 2",
                values,
            ) + self._all(
                f"SELECT t.document, t.revision FROM {asked} CROSS JOIN told t "
                "ON t.document = asked.column1 AND t.revision = asked.column2",
                values,
            ):
                self._removed.add((document, revision.hex()))

    def meets_removed(self, operation: Operation) -> bool:
        """Whether it is, or names, a revision that was removed: then more edges than its own change."""
        if not self._removed:
            return False
        assert operation.document is not None and operation.revision is not None
        names = (operation.revision.revision, *operation.revision.parents)
        return any((operation.document, name) in self._removed for name in names)

    def settle(self, operation: Operation) -> None:
        """It has been written, and meets what was removed."""
        assert operation.document is not None and operation.revision is not None
        facts = operation.revision
        parents = [bytes.fromhex(parent) for parent in facts.parents]
        Edges(self._db, operation.document).stored(bytes.fromhex(facts.revision), parents)
        self._stale.add(operation.document)

    def removed(self, removals: Iterable[Removal]) -> None:
        """These are stored no more, as far as this group is concerned too."""
        for removal in removals:
            assert removal.recipient is not None and removal.coordinate is not None and removal.revision is not None
            document = document_key(Family.REVISION, removal.recipient, 0, removal.coordinate)
            self._stale.add(document)
            self._known.pop((document, removal.revision), None)
            self._removed.add((document, removal.revision))

    def is_stale(self, operation: Operation) -> bool:
        """Whether revisions of its document were removed or came back in this group, so that it must be read anew."""
        return operation.document in self._stale

    def look_again(self, operation: Operation) -> None:
        """Read what the decision on this one depends on, after all before it was written."""
        assert operation.document is not None and operation.revision is not None
        self._heads.pop(operation.document, None)
        self._named.discard((operation.document, operation.revision.revision))
        self._read({(operation.document, bytes.fromhex(operation.revision.revision))})

    def state(self, operation: Operation) -> State | None:
        """What is known of the revision, whichever event brought it."""
        assert operation.document is not None and operation.revision is not None
        return self._known.get((operation.document, operation.revision.revision))

    def advance(self, operation: Operation, position: int) -> tuple[list[Head], list[int]]:
        """The document's heads with this revision, and the positions of those that are heads no more."""
        assert operation.document is not None and operation.revision is not None
        current, facts = self._heads.get(operation.document, []), operation.revision
        named = (operation.document, facts.revision) in self._named
        remaining = revisions.advance(current, Head(position, facts.revision), facts.parents, named)
        kept = {head.position for head in remaining}
        return remaining, [head.position for head in current if head.position not in kept]

    def add(self, operation: Operation, position: int, remaining: list[Head], demoted: list[int]) -> bool:
        """Take it in, with the heads that `advance` gave; whether it is one of them."""
        document, facts = operation.document, operation.revision
        assert document is not None and facts is not None
        self._heads[document] = remaining
        self._known[document, facts.revision] = State.RETAINED
        head = remaining[-1:] == [Head(position, facts.revision)]
        parents = [bytes.fromhex(parent) for parent in facts.parents]
        self._named.update((document, parent) for parent in facts.parents)
        for parent in parents:
            self._edges += (document, parent, position)
        for one in demoted:
            if (row := self._row_of.get(one)) is not None:
                self._rows[row + _CURRENT] = 0
            else:
                self._demoted.append(one)
        self._row_of[position] = len(self._rows)
        self._rows += (
            position,
            document,
            bytes.fromhex(facts.revision),
            facts.recipient,
            facts.mtime,
            b"".join(parents),
            1,
            int(head),
        )
        return head

    def write(self) -> None:
        insert(self._db, "revisions", _COLUMNS, self._rows)
        insert(self._db, "parents", 3, self._edges)
        for chunk in evened(self._demoted):
            self._db.execute(f"UPDATE revisions SET current = 0 WHERE position IN ({marks(chunk)})", chunk)
        self._rows, self._row_of, self._edges, self._demoted = [], {}, [], []


@lru_cache(maxsize=64)
def pairs(count: int) -> str:
    """So many bound pairs (document, revision), to be joined."""
    return f"(VALUES {','.join(['(?,?)'] * count)}) AS asked"
