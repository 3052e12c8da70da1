"""What a replica knows of a document: its versions, which of them are heads, and what a new one stands on.

One value, `Version`, carries both families: snapshots are ordered by their clocks, revisions by the parents they name.
`read` proves that an event belongs to the owner and says what it is a version of; `advance` gives the heads after one
more version; both only ask the rules of the family. A document with several heads is in conflict, and its next version
has seen them all: that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from anabranch.core import clock as clocks
from anabranch.core import revisions, snapshots
from anabranch.core.closure import dependencies_first
from anabranch.core.nostr import Event, Invalid
from anabranch.core.operation import Family

HISTORY_COUNT = 10
"""How many superseded versions of a document a replica keeps beside its heads."""
DELETED_WITH_HISTORY_COUNT = 100
"""How many deleted documents keep a history at all: the ones deleted last."""


class Version(msgspec.Struct, frozen=True, gc=False):
    """One version of a document: what can be said of it without reading it."""

    id: str  # of a snapshot the event's id, of a revision `r`
    coordinate: str
    deletes: bool
    mtime: int  # milliseconds
    collection: str | None = None
    clock: Mapping[str, int] = {}
    parents: tuple[str, ...] = ()

    @property
    def revision(self) -> str:
        return self.id

    @property
    def recency(self) -> tuple[int, int, str]:
        """By this versions stand in a history. It decides nothing but what is shown first and forgotten last.

        Of two snapshots of one second the one that had seen the other has the heavier clock.
        """
        return self.mtime, self.weight, self.id

    @property
    def weight(self) -> int:
        return clocks.total(self.clock)


def read(event: Event, family: Family, owner: str) -> Version:
    """The version that an event is to its owner, or `Invalid`. Its signature is proven elsewhere."""
    if family is Family.SNAPSHOT:
        if event.kind not in snapshots.KINDS:
            raise Invalid(f"kind {event.kind} is no snapshot")
        if event.pubkey != owner:
            raise Invalid("a snapshot of another author")
        facts = snapshots.validate(event)
        return Version(
            event.id,
            facts.coordinate,
            facts.deletes,
            event.created_at * 1000,
            facts.collection,
            facts.clock,
        )
    if not revisions.is_revision(event):
        raise Invalid(f"kind {event.kind} is no revision")
    known = revisions.validate(event)
    if known.recipient != owner:
        raise Invalid("a revision for another recipient")
    return Version(
        known.revision, known.coordinate, known.deletes, known.mtime, known.type, parents=tuple(sorted(known.parents))
    )


def advance(family: Family, heads: Sequence[Version], version: Version, named: bool = False) -> list[Version]:
    """The heads after one more version. `named`: a revision that is here already names it as a parent."""
    if family is Family.SNAPSHOT:
        return snapshots.advance(heads, version)
    return revisions.advance(heads, version, version.parents, named)


def next_clock(heads: Iterable[Version], device: str) -> dict[str, int]:
    """The clock of what `device` writes after having seen all heads. Raises `Invalid` where it would be too wide."""
    clock = clocks.advance(clocks.merge(head.clock for head in heads), device)
    if len(clock) > clocks.ENTRIES_MAX:
        raise Invalid(f"more than {clocks.ENTRIES_MAX} devices have written this document")
    return clock


def next_parents(heads: Iterable[Version]) -> tuple[str, ...]:
    return tuple(sorted(head.id for head in heads))


def parents_first(versions: Sequence[Version]) -> list[Version]:
    """The same versions, none before a parent of its own that is among them; of equals the older first."""
    ordered = sorted(versions, key=lambda version: version.recency)
    return dependencies_first(ordered, lambda version: version.id, lambda version: version.parents)


def shown(heads: Sequence[Version]) -> Version:
    """The head that stands for a document: of several the one last written that does not delete, on every device."""
    return max(heads, key=lambda head: (not head.deletes, *head.recency))
