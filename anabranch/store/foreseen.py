"""A store as it will be once some of it was removed and forgotten: what a dry run of compaction looks at.

It stands in for the reader and the writer at once. What it is told to remove it only takes down, and answers from then
on as the store itself would: later steps of a run depend on the earlier ones. What was removed may have been a head, so
what its document is then is worked out anew, by the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from msgspec import structs

from anabranch.core import revisions
from anabranch.core.operation import Action, Family, State
from anabranch.core.retention import DeletedDocument, ReplayWindow, Version
from anabranch.core.token import Log, Position
from anabranch.store.contract import Going, Reader

OldRevision = tuple[Position, int, int]
"""Position, size and mtime."""


class Foreseen:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._log = reader.log()
        self._gone: set[Position] = set()
        self._forgotten: set[bytes] = set()
        self._touched: dict[Family, dict[bytes, Position]] = {family: {} for family in Family}
        """Documents of which something was removed, and the position of the last removal."""
        self._vanishing: Iterator[Going] | None = None
        self._expiring: Iterator[Going] = iter(())

    # --- as a writer ---

    def raise_floor(self, floor: Position) -> Position:
        raised = max(self._log.floor, min(floor, Position(self._log.tip + 1)))
        self._log = structs.replace(self._log, floor=raised)
        return raised

    def vanish(self, limit: int) -> int:
        if self._vanishing is None:
            self._vanishing = iter(self._reader.belongings())
        return self._remove(islice((one for one in self._vanishing if one.position not in self._gone), limit))

    def expire(self, now: int, limit: int) -> int:
        return self._remove(sorted(islice(self._expiring, limit), key=lambda one: one.position))

    def forget(self, documents: Sequence[bytes]) -> int:
        self._forgotten.update(documents)
        return len(documents)

    def _remove(self, going: Iterable[Going]) -> int:
        """Each removal takes a position of its own."""
        tip = self._log.tip
        for one in going:
            tip = Position(tip + 1)
            self._gone.add(one.position)
            if one.document is not None:
                self._touched[one.family][one.document] = tip
        removed, self._log = tip - self._log.tip, structs.replace(self._log, tip=tip)
        return removed

    # --- as a reader ---

    def log(self) -> Log:
        return self._log

    def window_floor(self, window: ReplayWindow, now_ms: int) -> Position:
        return max(self._log.floor, self._reader.window_floor(window, now_ms))

    def vanishing(self) -> int | None:
        return self._reader.vanishing()

    def expired(self, now: int) -> tuple[int, int]:
        left = [one for one in self._reader.expiring(now) if one.position not in self._gone]
        self._expiring = iter(left)
        return len(left), sum(one.size for one in left)

    def crowded_authors(self, cap: int) -> list[str]:
        return self._reader.crowded_authors(cap)  # a removal makes nobody more crowded

    def deleted_documents(self, author: str) -> list[DeletedDocument]:
        touched = self._touched[Family.SNAPSHOT]
        known = self._reader.deleted_documents(author)
        return [one for one in known if one.document not in touched] + self._newly_deleted.get(author, [])

    @cached_property
    def _newly_deleted(self) -> dict[str, list[DeletedDocument]]:
        """Of the documents of which something was removed those whose every head deletes now, by author."""
        found: dict[str, list[DeletedDocument]] = {}
        for document, removed_at in self._touched[Family.SNAPSHOT].items():
            heads = [one for one in self._reader.heads(document) if one.position not in self._gone]
            if heads and all(one.action is Action.DELETE for one in heads):
                deleted_at = max(one.created_at for one in heads)
                found.setdefault(heads[0].author, []).append(DeletedDocument(document, deleted_at, removed_at))
        return found

    def candidates(self, after: bytes, cutoff: int, limit: int) -> list[bytes]:
        return self._reader.candidates(after, cutoff, limit)

    def versions(self, document: bytes) -> list[tuple[Version, int]]:
        if document in self._forgotten:
            return []
        return [one for one in self._reader.versions(document) if one[0].position not in self._gone]

    def author_of(self, document: bytes) -> str | None:
        return self._reader.author_of(document)

    def old_revisions(self, after: int, cutoff: int, limit: int) -> list[OldRevision]:
        elsewhere, here = self._revisions_of_touched
        asked = limit
        while True:
            rows = self._reader.old_revisions(after, cutoff, asked)
            left = [row for row in rows if row[0] not in elsewhere]
            if len(left) >= limit or len(rows) < asked:
                break
            asked *= 2
        left += [row for row in here if after <= row[2] < cutoff]
        return sorted(left, key=lambda row: row[2])[:limit]

    @cached_property
    def _revisions_of_touched(self) -> tuple[set[Position], list[OldRevision]]:
        """All revisions of documents of which something was removed, and those of them that may be compacted now."""
        known: set[Position] = set()
        going: list[OldRevision] = []
        for document in self._touched[Family.REVISION]:
            every = [facts for facts, _ in self._reader.revision_lineage(document)]
            known |= {one.position for one in every}
            stored = [one for one in every if one.state is not State.REMOVED and one.position not in self._gone]
            there = {one.position for one in stored}
            present = [one.revision for one in stored if one.revision is not None]
            removed = [one.revision for one in every if one.revision is not None and one.position not in there]
            named = revisions.named(present, [*removed, *self._reader.told(document)])
            counting = named - {one.revision for one in present}
            edges = [*present, *(one for one in removed if one.revision in counting)]  # hearsay compacts nothing
            parents = {parent for one in edges for parent in one.parents}
            going += [
                (one.position, one.size, one.revision.mtime)
                for one in stored
                if one.revision is not None and one.state is State.RETAINED and one.revision.revision in parents
            ]
        return known, going
