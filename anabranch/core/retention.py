"""Retention: what a node must keep, may forget, and has to say about it.

Three layers that vary independently (seed 002): the heads of every document are always fetchable; of the rest, a
bounded recent history; and a window of the log that can be replayed. `keep` decides payloads, `floor_after` the
window, `forgettable` which fully deleted documents go altogether.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from anabranch.core.snapshots import heads
from anabranch.core.token import Position

DAY = 86_400
DAYS_MAX = 36_500


class Mode(StrEnum):
    CURRENT_ONLY = "current_only"
    RECENT_HISTORY = "nondominated_plus_recent_history"
    FULL = "full_retention"


class Policy(msgspec.Struct, frozen=True):
    """Which payloads stay.

    `payload_days` is how old a dominated snapshot must be before its payload may go; None: none ever goes.
    """

    mode: Mode = Mode.RECENT_HISTORY
    recent_count: int = 4  # in total, heads included
    payload_days: int | None = None
    deleted_documents: int | None = 100  # fully deleted documents kept for one author; None: all
    deleted_age_seconds: int = 0  # what the log has told so lately stays, however many there are

    @property
    def compacts(self) -> bool:
        return self.mode is not Mode.FULL and self.payload_days is not None

    def cutoff(self, now: int) -> int | None:
        """Payloads created at or after this time all stay; None when all stay anyway."""
        return max(0, now - self.payload_days * DAY) if self.compacts and self.payload_days is not None else None


class ReplayWindow(msgspec.Struct, frozen=True):
    """How much of the log stays replayable. None is no bound; the tightest bound rules."""

    count: int | None = None
    age_seconds: int | None = None
    bytes: int | None = None


class Version(msgspec.Struct, frozen=True):
    """A stored snapshot as retention sees it."""

    position: Position
    id: str
    created_at: int
    clock: Mapping[str, int]


class Horizon(msgspec.Struct, frozen=True):
    """A bootstrap that is being sent: whose documents it has, and a position at or before its own."""

    author: str
    position: Position


def keep(
    versions: Sequence[Version], policy: Policy, now: int, horizons: Iterable[Position] = ()
) -> frozenset[Position]:
    """The versions of one document whose payloads stay.

    `versions` are those with a payload; every head is among them. Each of `horizons` is the position of a `Horizon` of
    their author's: what was a head at any moment since then must stay until it has been sent.
    """
    cutoff = policy.cutoff(now)
    if cutoff is None:
        return frozenset(version.position for version in versions)
    kept = {version.position for version in heads(versions)}
    if policy.mode is Mode.RECENT_HISTORY:
        for version in sorted(versions, key=lambda v: (v.created_at, v.id), reverse=True):
            if len(kept) >= policy.recent_count:
                break
            kept.add(version.position)
    kept |= {version.position for version in versions if version.created_at >= cutoff}
    for horizon in horizons:
        kept |= {version.position for version in heads([v for v in versions if v.position <= horizon])}
        kept |= {version.position for version in versions if version.position > horizon}
    return frozenset(kept)


class DeletedDocument(msgspec.Struct, frozen=True):
    """A document whose every head deletes."""

    document: bytes
    deleted_at: int  # the latest created_at of its heads
    last_position: Position  # the highest position of its operations and of their removals


def forgettable(
    documents: Iterable[DeletedDocument], policy: Policy, recent: Position | None = None
) -> list[DeletedDocument]:
    """Which fully deleted documents of one author go altogether: the oldest above the cap.

    The floor goes above what is forgotten, for every author. So nothing from `recent` on is: whoever deletes a lot, and
    dates it back, sends nobody to a bootstrap who was here since.
    """
    if policy.deleted_documents is None or policy.mode is Mode.FULL:
        return []
    newest_first = sorted(documents, key=lambda d: (d.deleted_at, d.document), reverse=True)
    going = newest_first[policy.deleted_documents :]
    return going if recent is None else [document for document in going if document.last_position < recent]


def floor_after(floor: Position, tip: Position, forgotten: Iterable[DeletedDocument]) -> Position:
    """Where the floor stands once documents are gone: above their last position, never lower than before."""
    last = max((document.last_position for document in forgotten), default=Position(0))
    return Position(min(max(floor, last + 1), tip + 1))
