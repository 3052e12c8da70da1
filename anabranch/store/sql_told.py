"""Revisions that are only heard of: a peer has compacted them, and says what they named as parents.

Nothing proves it, and nothing has to: a wrap is signed by a key that nobody knows, so whoever could lie here could as
well have made the wrap. A revision that is heard of counts like one that was removed (`revisions.named`): only while a
stored one descends from it, and no longer once it comes itself. It is in no feed, in no set, and known under no id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from anabranch.core.changes import RevisionQuery
from anabranch.core.nostr import is_hex
from anabranch.core.operation import Family, document_key
from anabranch.core.revisions import Ancestor, Name
from anabranch.core.token import START, Position
from anabranch.store.contract import TOLD_MAX
from anabranch.store.sql import Database, evened, marks
from anabranch.store.sql_revisions import Edges, pairs

ROWS_A_PAGE = 2_000
NAMES_AT_ONCE = 256
NAMES_FOLLOWED = 1_000  # from what was asked for to what it stood on


class ToldKeeper:
    _db: Database
    _anything_removed: bool

    def _changing(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _all(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError

    def tell(self, ancestors: Sequence[Ancestor]) -> None:
        """Take down what a peer says of revisions that are not here in any form. What was told first stands."""
        with self._changing():
            room = TOLD_MAX - int(self._all("SELECT count(*) FROM told")[0][0])
            documents: dict[bytes, None] = {}
            keyed = {_key(one.name): one for one in ancestors[: max(room, 0)]}
            here = set(_there(self._all, "revisions", list(keyed)))
            for (document, revision), one in keyed.items():
                if (document, revision) in here:
                    continue
                parents = b"".join(map(bytes.fromhex, one.parents))
                told = self._all(
                    "INSERT INTO told (document, revision, recipient, coordinate, parents) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT (document, revision) DO NOTHING RETURNING number",
                    (document, revision, one.recipient, one.coordinate, parents),
                )
                if told:
                    documents[document] = None
            for document in documents:
                self._anything_removed = True
                Edges(self._db, document).rebuild()


class ToldReader:
    def _rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError

    def told(self, document: bytes) -> list[Ancestor]:
        """The revisions of a document that are only heard of."""
        rows = self._rows("SELECT recipient, coordinate, revision, parents FROM told WHERE document = ?", (document,))
        return [_ancestor(row) for row in rows]

    def ancestors(self, query: RevisionQuery) -> list[Ancestor]:
        """Of the revisions that a query names those whose payload is compacted, and those that are only heard of; then
        the same of what these stood on, and so on, each after one that names it. It may end before all is told."""
        coordinates = query.coordinates
        found = {
            one.name: one
            for one in self._without_payload(query.recipient, [one for one in query.revisions or () if is_hex(one, 64)])
            if coordinates is None or one.coordinate in coordinates
        }
        told, followed = list(found.values()), 0
        while told and followed < NAMES_FOLLOWED:
            names = dict.fromkeys(Name(one.recipient, one.coordinate, parent) for one in told for parent in one.parents)
            followed += len(names)
            some = {name.revision for name in islice(names, NAMES_AT_ONCE)}
            parents = self._without_payload(query.recipient, some)
            told = [one for one in parents if one.name in names and one.name not in found]
            found.update((one.name, one) for one in told)
        return list(found.values())

    def _without_payload(self, recipient: str, revisions: Iterable[str]) -> list[Ancestor]:
        """What is known of revisions that are compacted, or only heard of, by document and name."""
        found: dict[tuple[str, str], Ancestor] = {}
        for some in evened(sorted(map(bytes.fromhex, revisions))):
            rows = self._rows(
                "SELECT recipient, coordinate, revision, parents FROM told "
                f"WHERE revision IN ({marks(some)}) AND recipient = ?",
                (*some, recipient),
            )
            rows += self._rows(
                "SELECT r.recipient, o.coordinate, r.revision, r.parents "
                "FROM revisions r INDEXED BY revision_by_name JOIN operations o ON o.position = r.position "
                f"WHERE r.revision IN ({marks(some)}) AND r.recipient = ? AND o.state = 1",
                (*some, recipient),
            )
            found.update(((one.coordinate, one.revision), one) for one in map(_ancestor, rows))
        return [found[key] for key in sorted(found)]

    def missing_parents(self, after: Position, also: Sequence[Name] = ()) -> tuple[Position, list[Name]]:
        """What stored revisions after a position name as parents and is not here in any form; and how far was looked.

        From the start on, also what is only heard of. `also` are names that are looked up besides. Where the first of
        both is `after`, there is nothing further on.
        """
        rows = self._rows(
            "SELECT r.position, r.document, r.recipient, o.coordinate, r.parents FROM revisions r "
            "JOIN operations o ON o.position = r.position "
            "WHERE r.position > ? AND o.state <> 2 ORDER BY r.position LIMIT ?",
            (after, ROWS_A_PAGE),
        )
        heard_of = []
        if after == START:
            heard_of = self._rows("SELECT number, document, recipient, coordinate, parents FROM told")
        whose = {_key(name): (name.recipient, name.coordinate) for name in also}
        for _, document, recipient, coordinate, parents in (*rows, *heard_of):
            for at in range(0, len(parents), 32):
                whose[document, parents[at : at + 32]] = recipient, coordinate
        for table in ("revisions", "told"):
            for key in _there(self._rows, table, list(whose)):
                whose.pop(key, None)
        names = [Name(recipient, coordinate, key[1].hex()) for key, (recipient, coordinate) in whose.items()]
        return Position(rows[-1][0]) if rows else after, names


Key = tuple[bytes, bytes]


def _key(name: Name) -> Key:
    """The document and the revision, as the tables have them."""
    return document_key(Family.REVISION, name.recipient, 0, name.coordinate), bytes.fromhex(name.revision)


def _there(rows: Callable[[str, list[bytes]], list[Any]], table: str, keys: list[Key]) -> Iterator[Key]:
    """Which of the revisions a table has."""
    for some in evened(keys):
        for document, revision in rows(
            f"SELECT t.document, t.revision FROM {pairs(len(some))} CROSS JOIN {table} t "
            "ON t.document = asked.column1 AND t.revision = asked.column2",
            [value for key in some for value in key],
        ):
            yield bytes(document), bytes(revision)


def _ancestor(row: Any) -> Ancestor:
    return Ancestor(row[0], row[1], row[2].hex(), tuple(_split(row[3])))


def _split(joined: bytes) -> list[str]:
    return [joined[at : at + 32].hex() for at in range(0, len(joined), 32)]
