"""Revisions in the SQLite writer: which are heads, decided for a group in memory and written at once.

A revision is known by its document and its own id, whatever the outer event's is. What is named as a parent is
remembered whether it is there or not, so that heads are right in every order of arrival. What was removed for good is
no longer stored: it names nobody, and a parent that nobody else names is a head again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from anabranch.core import revisions
from anabranch.core.operation import Operation, State
from anabranch.store.contract import Offer
from anabranch.store.sql import chunks, insert, marks

_COLUMNS = 8


class Head(msgspec.Struct, frozen=True, gc=False):
    position: int
    revision: str


class Unlinked(msgspec.Struct, frozen=True):
    """What the hard removal of a revision changed in its document."""

    document: bytes
    revision: str
    unnamed: tuple[str, ...]  # parents that nobody names any more
    revived: tuple[Head, ...]  # those of them that are stored


def unlink(db: apsw.Connection, position: int) -> Unlinked:
    """Take the edges of a removed revision away; its parents that nobody else names are heads again."""
    row: Any = db.execute(
        "SELECT document, revision, parents FROM revisions WHERE position = ?", (position,)
    ).fetchone()
    document, revision, joined = row
    unnamed: list[str] = []
    revived: list[Head] = []
    for parent in (joined[at : at + 32] for at in range(0, len(joined), 32)):
        db.execute("DELETE FROM parents WHERE document = ? AND parent = ? AND child = ?", (document, parent, position))
        if db.execute("SELECT 1 FROM parents WHERE document = ? AND parent = ? LIMIT 1", (document, parent)).fetchall():
            continue
        unnamed.append(parent.hex())
        stored: list[Any] = db.execute(
            "SELECT r.position FROM revisions r JOIN operations o ON o.position = r.position "
            "WHERE r.document = ? AND r.revision = ? AND o.state <> 2",
            (document, parent),
        ).fetchall()
        for (at,) in stored:
            db.execute("UPDATE operations SET head = 1 WHERE position = ?", (at,))
            db.execute("UPDATE revisions SET current = retained WHERE position = ?", (at,))
            revived.append(Head(at, parent.hex()))
    return Unlinked(document, revision.hex(), tuple(unnamed), tuple(revived))


class RevisionsOfGroup:
    """What a group has to know of revisions, and what it adds to them."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._known: dict[tuple[bytes, str], State] = {}
        self._named: set[tuple[bytes, str]] = set()
        self._heads: dict[bytes, list[Head]] = {}
        self._rows: list[Any] = []
        self._edges: list[tuple[bytes, bytes, int]] = []
        self._demoted: list[int] = []

    def _all(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        return self._db.execute(sql, bindings).fetchall()

    def look_up(self, offers: Sequence[Offer]) -> None:
        """Read, with few statements, all that the decisions depend on."""
        keys = {
            (op.document, bytes.fromhex(op.revision.revision))
            for offer in offers
            if (op := offer.operation).revision is not None and op.document is not None
        }
        for chunk in chunks(list(keys), 128):
            pairs, values = ",".join(["(?,?)"] * len(chunk)), [value for key in chunk for value in key]
            for document, revision, state in self._all(
                "SELECT r.document, r.revision, o.state FROM revisions r JOIN operations o ON o.position = r.position "
                f"WHERE (r.document, r.revision) IN (VALUES {pairs}) AND o.state <> 2",
                values,
            ):
                self._known[document, revision.hex()] = State(state)
            for document, parent in self._all(
                f"SELECT DISTINCT document, parent FROM parents WHERE (document, parent) IN (VALUES {pairs})", values
            ):
                self._named.add((document, parent.hex()))
        for some in chunks(list({document for document, _ in keys}), 256):
            for document, position, revision in self._all(
                "SELECT o.document, o.position, r.revision FROM operations o INDEXED BY head_by_document "
                f"JOIN revisions r ON r.position = o.position WHERE o.head = 1 AND o.document IN ({marks(some)})",
                some,
            ):
                self._heads.setdefault(document, []).append(Head(position, revision.hex()))

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
        self._edges += ((document, parent, position) for parent in parents)
        self._demoted += demoted
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

    def removed(self, unlinked: Unlinked) -> None:
        """It is stored no more, as far as this group is concerned too."""
        document = unlinked.document
        self._known.pop((document, unlinked.revision), None)
        self._named.difference_update((document, parent) for parent in unlinked.unnamed)
        current = [head for head in self._heads.get(document, ()) if head.revision != unlinked.revision]
        self._heads[document] = [*current, *unlinked.revived]

    def write(self) -> None:
        insert(self._db, "revisions", _COLUMNS, self._rows)
        self._db.executemany("INSERT INTO parents VALUES (?, ?, ?)", self._edges)
        for chunk in chunks(self._demoted, 256):
            self._db.execute(f"UPDATE revisions SET current = 0 WHERE position IN ({marks(chunk)})", chunk)
        self._rows, self._edges, self._demoted = [], [], []
