"""What an app sees of a replica: documents and their versions, what changed, and how each relay stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One version. `content` is None where it was not asked for, deletes or cannot be read: `problem` says why."""

    id: str
    deleted: bool
    mtime: int
    """Milliseconds, as its writer's clock said; to show, never to decide by."""
    current: bool
    """Whether it is a head."""
    written_here: bool
    content: dict[str, Any] | None = None
    problem: str | None = None
    clock: Mapping[str, int] = field(default_factory=dict)
    """Of a snapshot: what its writer had seen. With it one can be written upon after it was let go."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it stands: one current version, or several that were written apart.

    In a conflict `content` is that of the version last written that does not delete: to be shown, not to be edited.
    Give it back as `base` to whatever writes: what was written since you read it then stays visible.
    """

    d: str
    content: dict[str, Any] | None
    collection: str | None
    mtime: int
    versions: tuple[DocumentVersion, ...]
    problem: str | None = None
    """Why `content` is None although there is one."""

    @property
    def in_conflict(self) -> bool:
        return len(self.versions) > 1

    @property
    def deleted(self) -> bool:
        return all(version.deleted for version in self.versions)


# --- what changed ----------------------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    WRITTEN = "written"  # the current versions of a document are others than before
    CONFLICT_BEGUN = "conflict_begun"
    CONFLICT_ENDED = "conflict_ended"
    RELAY = "relay"  # a relay's state is another; `detail` says why
    NEW_LOG = "new_log"  # a relay's log is not the one followed so far, or too much of it is gone: bootstrap
    REMOVED = "removed"  # a relay removed a version for good; the copy here stays
    DROPPED = "dropped"  # a relay sent what does not hold; it was not applied
    REFUSED = "refused"  # a relay will not take a version
    MISSED = "missed"  # this reader was too slow; `detail` says how many changes it did not get


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened. `relay` is None for what was written here."""

    kind: ChangeKind
    d: str | None = None
    relay: str | None = None
    detail: str = ""


# --- how a relay stands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    version: str
    d: str
    reason: str


@dataclass(frozen=True, slots=True)
class RelayStatus:
    url: str
    state: str
    caught_up: bool
    """It is followed live, it has all that is here, and all that it has is here."""
    stream: str | None
    epoch: str | None
    position: int | None
    owed: int
    """Versions that it has not been seen to have."""
    refused: tuple[Refusal, ...]
    removed: int
    """Versions that it removed for good."""
    dropped: int
    """What it sent that does not hold, since it was added."""
    last_dropped: str | None
    last_error: str | None
    last_notice: str | None
    retry_in: float | None
    """Seconds to the next try, while it waits for one."""
