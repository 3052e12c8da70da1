"""What the node asks of a store, whatever is behind it.

One writer appends in groups; an append is one transaction, and when it returns the group is on disk. Readers see
whole groups only. Positions ascend without reuse; the facts of an operation outlive its payload, so that
«compacted» and «unknown» are different answers. One contract suite runs on every implementation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from anabranch.core import revisions
from anabranch.core.changes import ChangesQuery, RevisionQuery, SnapshotQuery
from anabranch.core.checkpoint import Checkpoint
from anabranch.core.filter import Filter
from anabranch.core.operation import Action, Family, Operation, Removal, State
from anabranch.core.retention import DeletedDocument, ReplayWindow, Version
from anabranch.core.revisions import Ancestor, Name
from anabranch.core.token import START, Log, Position


class StoreError(Exception):
    """The store could not do it. Retry later; nothing was changed. The cause is for the log, not for a peer."""


class TooSlow(StoreError):
    """A query was given up because it took too long; a narrower one may do."""


class StoreBusy(StoreError):
    """Another process holds the store."""


# --- what becomes of an operation that is offered ------------------------------------------------------------------


class Stored(msgspec.Struct, frozen=True, gc=False):
    position: Position


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """It is known already: retained, compacted or removed."""

    state: State


class Superseded(msgspec.Struct, frozen=True, gc=False):
    """A replaceable event of which a newer version is stored."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    code: str  # the NIP-01 prefix
    reason: str


class Lacking(Refused, frozen=True, gc=False):
    """What it needs was offered with it, and is not stored."""

    need: str


Outcome = Stored | Duplicate | Superseded | Refused


class Offer(msgspec.Struct, frozen=True, gc=False):
    """An operation to append, and the access key whose storage it counts against.

    `needs` are ids of others that are offered before it in the same group: unless they are stored, it is `Lacking`.
    """

    operation: Operation
    access_key: str | None = None
    needs: tuple[str, ...] = ()


# --- what is read ----------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One place in the log. `raw` is None unless the payload is retained.

    An entry with a `reason` tells of the hard removal of the revision that `id` names.
    """

    position: Position
    id: str
    state: State
    raw: bytes | None
    revision: str | None = None
    reason: str | None = None


class Page(msgspec.Struct, frozen=True):
    """A stretch of the log: `entries` are all there is in it that matches, up to and with `complete_to`."""

    entries: list[Entry]
    complete_to: Position
    log: Log


class Selection(msgspec.Struct, frozen=True):
    """The positions that matched at one moment, in the order they are to be sent; `tip` is that moment."""

    positions: array[int]
    tip: Position


class ItemRows(msgspec.Struct, frozen=True):
    """What two sides reconcile, at one moment: timestamps and 32-byte ids, joined, by ascending (timestamp, id)."""

    timestamps: array[int]
    ids: bytes
    tip: Position


class TooMany(StoreError):
    """A set has more members than were asked for at the most."""


Begin = Callable[[Selection], None]
"""Called with the beginning of a selection while the rest of it is still being read."""


class Facts(msgspec.Struct, frozen=True):
    """All that is stored about one operation; what `verify` and `export` read."""

    position: Position
    id: str
    author: str
    kind: int
    created_at: int
    family: Family
    state: State
    head: bool
    action: Action
    document: bytes | None
    coordinate: str | None
    collection: str | None
    clock: Mapping[str, int] | None
    raw: bytes | None
    size: int
    received_at: int
    expires_at: int | None = None
    revision: revisions.Facts | None = None


class Line(msgspec.Struct, frozen=True, gc=False):
    """A retained operation as it stands in the log."""

    position: Position
    raw: bytes


class Going(msgspec.Struct, frozen=True, gc=False):
    """A retained operation that the next compaction removes for good."""

    position: Position
    size: int
    document: bytes | None
    family: Family


class AccessKey(msgspec.Struct, frozen=True):
    """A secret that lets its holder authenticate on a private node."""

    key: str
    label: str = ""
    pubkey: str | None = None
    created_at: int = 0
    expires_at: int | None = None
    revoked: bool = False
    storage_limit_bytes: int | None = None
    used_bytes: int = 0

    def usable(self, now: int) -> bool:
        return not self.revoked and (self.expires_at is None or now < self.expires_at)


# --- links: what a node knows of those it follows and feeds ----------------------------------------------------------


class LinkRecord(msgspec.Struct, frozen=True):
    """A link as it is on disk: peer × scope × direction, its state and its checkpoints."""

    name: str
    peer: str
    direction: str
    scope: str = "{}"  # canonical
    origin: str = "command"  # or "config"
    state: str = "initial"
    unsure: bool = False  # the checkpoints may not hold: compare before resuming
    crowded: tuple[int, ...] = ()  # seconds of which the peer may have more than it shows
    created_at: int = 0
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_error: str | None = None
    failures: int = 0
    pull: Checkpoint = Checkpoint()
    push: Checkpoint = Checkpoint()
    key_file: str | None = None
    access_key_file: str | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """An operation that one side of a link refuses for good, until somebody says to try again."""

    direction: str
    id: str
    reason: str
    at: int


class Transition(msgspec.Struct, frozen=True):
    """One that leads back to where it was takes the place of the same one just before it."""

    at: int
    before: str
    after: str
    cue: str
    why: str = ""


class LinkChange(msgspec.Struct, frozen=True):
    """What one step of a link changes on disk, in one transaction. None and () change nothing."""

    link: str
    pull: Checkpoint | None = None
    push: Checkpoint | None = None
    echoes: tuple[Position, ...] = ()
    """What came from the peer that these links feed: it is not sent back there."""
    echo_for: tuple[str, ...] = ()
    dead: tuple[DeadLetter, ...] = ()
    taken: tuple[tuple[str, str], ...] = ()
    """(direction, id) of what is taken now, though it may have been refused before: no dead letter any more."""
    transition: Transition | None = None


Advance = Callable[[Sequence[Outcome]], LinkChange]
"""What an append changes in the ledger of links, once its outcomes are known."""
KEYS_ASKED_FOR = "access_keys_asked_for"
"""The name among the settings under which it stands that access keys were made once; `save_access_key` sees to it."""
TRANSITIONS_KEPT = 20
DEAD_LETTERS_MAX = 10_000
TOLD_MAX = 100_000  # revisions that are only heard of


class Statistics(msgspec.Struct, frozen=True):
    operations: int
    retained: int
    compacted: int
    removed: int
    documents: int
    conflicts: int
    tombstones: int
    payload_bytes: int
    tag_rows: int
    file_bytes: int
    wal_bytes: int  # how much of these a write-ahead log beside the database takes


class Reader(Protocol):
    """Reads one consistent moment a call. Not shared between threads."""

    give_up: Callable[[], bool] | None  # asked now and then during a long query: whether to stop with `TooSlow`

    def log(self) -> Log: ...
    def select(self, filters: Sequence[Filter], limit_max: int, now: int) -> Selection:
        """What a REQ gets: of each filter the newest `limit`; sync kinds ascending, then the others newest first."""
        ...

    def count(self, filters: Sequence[Filter], now: int) -> int: ...
    def items(self, filter: Filter, limit_max: int, now: int) -> ItemRows:
        """The set of (created_at, id) that a filter matches; `TooMany` when that is more than `limit_max`."""
        ...

    def current_revisions(self, query: RevisionQuery, limit_max: int, now: int) -> ItemRows:
        """The heads of a recipient's documents as a set of (mtime, revision); `TooMany` above `limit_max`."""
        ...

    def bootstrap(self, query: SnapshotQuery, limit: int | None, now: int, begin: Begin | None = None) -> Selection:
        """The heads of an author's documents, by ascending (created_at, id); `begin` gets the first few early."""
        ...

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
        ...

    def payloads(self, positions: Sequence[int], bytes_max: int | None = None) -> list[tuple[Position, bytes]]:
        """The payloads still there, in the order asked for; the first ones, when all are more than `bytes_max`."""
        ...

    def compacted(self, filters: Sequence[Filter]) -> list[str]:
        """Which of the ids that filters name are compacted, as far as the filter is about them; sorted.

        A filter is held to author, kind and recipient: what it would not have given it is not told of either.
        """
        ...

    def compacted_revisions(self, filters: Sequence[Filter]) -> list[str]:
        """Which of the revisions that filters name are compacted, as far as the filter is about them; sorted."""
        ...

    def expired_items(self, now: int) -> list[tuple[int, bytes]]:
        """The (created_at, id) of what has expired and was not removed yet."""
        ...

    def oldest_mtime(self) -> int | None:
        """The smallest mtime of a revision whose payload is retained."""
        ...

    def state(self, id: str) -> State | None: ...
    def position(self, id: str) -> Position | None:
        """Where an operation stands in the log, whatever became of it; None: it is unknown, or forgotten."""
        ...

    def facts(self, after: Position = START, limit: int = 1000) -> list[Facts]: ...
    def lines(self, after: Position, limit: int) -> list[Line | Facts]:
        """The operations after a position: what is retained as it was signed, and of what is not the facts."""
        ...

    def heads(self, document: bytes) -> list[Facts]:
        """The heads of a document that can be fetched."""
        ...

    def lineage(self, document: bytes) -> list[tuple[Version, bool]]:
        """Every known snapshot of a document, retained or not, and whether it is marked as a head."""
        ...

    def revision_lineage(self, document: bytes) -> list[tuple[Facts, bool]]:
        """Every known revision of a document, without payloads, and whether it is served as a head."""
        ...

    def named(self, document: bytes) -> set[str]:
        """The revisions of a document that are remembered as parents of others."""
        ...

    def deletions(self, author: str, targets: Sequence[bytes]) -> dict[bytes, int]:
        """Until when an author has deleted which of the targets: operations by id, and documents."""
        ...

    def told(self, document: bytes) -> list[Ancestor]:
        """The revisions of a document that are only heard of."""
        ...

    def ancestors(self, query: RevisionQuery) -> list[Ancestor]:
        """Of the revisions that a query names those whose payload is compacted, and those that are only heard of; then
        the same of what these stood on, and so on, each after one that names it. It may end before all is told."""
        ...

    def missing_parents(self, after: Position, also: Sequence[Name] = ()) -> tuple[Position, list[Name]]:
        """What stored revisions after a position name as parents and is not here in any form; and how far was looked.

        From the start on, also what is only heard of. `also` are names that are looked up besides. Where the first of
        both is `after`, there is nothing further on.
        """
        ...

    def removals(self, after: Position, until: Position, limit: int) -> list[Removal]:
        """The first hard removals after a position and up to another, by the positions they stand at."""
        ...

    def tag_rows(self, position: Position, created_at: int, keys: Iterable[bytes]) -> int:
        """How many of the tag keys lead to the operation."""
        ...

    def statistics(self) -> Statistics: ...
    def file_bytes(self) -> int: ...
    def damage(self) -> list[str]:
        """What is wrong with the file itself, in words."""
        ...

    # What compaction reads:
    def candidates(self, after: bytes, cutoff: int, limit: int) -> list[bytes]:
        """Documents beyond `after` with a dominated snapshot older than `cutoff` whose payload is retained."""
        ...

    def versions(self, document: bytes) -> list[tuple[Version, int]]:
        """Its snapshots with a payload, each with its size."""
        ...

    def author_of(self, document: bytes) -> str | None:
        """Who writes a document of snapshots; None: nothing is known of it."""
        ...

    def old_revisions(self, after: int, cutoff: int, limit: int) -> list[tuple[Position, int, int]]:
        """Revisions that are no heads, with a payload, older than `cutoff` (ms) and not older than `after`.

        By mtime: position, size and mtime of each.
        """
        ...

    def vanishing(self) -> int | None:
        """How much is left, at the most, of those who have asked to vanish; None: of nobody anything."""
        ...

    def vanished(self) -> dict[str, tuple[int, bool]]:
        """Who has asked to vanish: until when, and whether all of theirs is gone."""
        ...

    def expired(self, now: int) -> tuple[int, int]:
        """How many retained operations have expired, and their bytes."""
        ...

    def expiring(self, now: int) -> list[Going]:
        """What these are, in the order in which they go."""
        ...

    def belongings(self) -> list[Going]:
        """What is left of those who have asked to vanish, in the order in which it goes."""
        ...

    def crowded_authors(self, cap: int) -> list[str]: ...
    def deleted_documents(self, author: str) -> list[DeletedDocument]: ...
    def window_floor(self, window: ReplayWindow, now_ms: int) -> Position: ...

    # Access keys and the settings that change at run time:
    def access_keys(self) -> list[AccessKey]: ...
    def setting(self, name: str) -> bytes | None: ...

    # Links:
    def links(self) -> list[LinkRecord]: ...
    def dead_letters(self, link: str, limit: int = DEAD_LETTERS_MAX) -> list[DeadLetter]: ...
    def dead_letter_count(self, link: str) -> int: ...
    def transitions(self, link: str) -> list[Transition]:
        """The last ones, oldest first."""
        ...

    def echoes(self, link: str, after: Position, until: Position) -> set[Position]:
        """Which operations of a stretch came from the peer that the link feeds."""
        ...

    def known(self, ids: Sequence[str]) -> set[str]:
        """Which of these operations are stored, whatever became of their payloads."""
        ...

    def close(self) -> None: ...


class Writer(Protocol):
    """The one writer. Every method is one transaction, durable when it returns."""

    def log(self) -> Log: ...
    def make_ready(self) -> None:
        """See to it that the first groups are stored as quickly as later ones."""
        ...

    def append(
        self, offers: Sequence[Offer], received_at: int, advance: Advance | None = None, epoch: str | None = None
    ) -> list[Outcome]:
        """Store a group; what `advance` makes of the outcomes is written in the same transaction, and if anything of
        it is stored, that the log is of `epoch` from here on."""
        ...

    def take_removals(self) -> list[Removal]:
        """What has lost its payload since this was last asked, in the order of the log."""
        ...

    def compact(self, positions: Sequence[Position]) -> tuple[int, int]:
        """Drop payloads of what is still no head; returns how many went, and their bytes."""
        ...

    def raise_floor(self, floor: Position) -> Position: ...
    def forget(self, documents: Sequence[bytes]) -> int:
        """Let documents go altogether that are still fully deleted and below the floor; returns how many went."""
        ...

    def expire(self, now: int, limit: int) -> int: ...
    def remove(self, ids: Sequence[str]) -> int: ...
    def vanish(self, limit: int) -> int:
        """Remove what belongs to those who have asked to vanish, at most so much; 0 when all of it is gone."""
        ...

    def return_space(self, pages: int) -> bool:
        """Give free pages back to the file system, at most so many; True while there are more."""
        ...

    def new_epoch(self, beyond: Position = START) -> str:
        """Open a new epoch whose positions lie beyond all that were given before, so that no old checkpoint fits."""
        ...

    def save_access_key(self, key: AccessKey) -> None: ...
    def delete_access_key(self, key: str) -> bool: ...
    def save_setting(self, name: str, value: bytes) -> None: ...
    def tell(self, ancestors: Sequence[Ancestor]) -> None:
        """Take down what a peer says of revisions that are not here. What was told first stands."""
        ...

    def save_link(self, link: LinkRecord) -> None:
        """Everything but its checkpoints, which move by `note_link` and `append` alone."""
        ...

    def note_link(self, change: LinkChange) -> None:
        """Write a step of a link; of a link that is not there nothing is written."""
        ...

    def delete_link(self, name: str) -> bool: ...
    def forget_link(self, name: str) -> None:
        """Begin anew: no checkpoints, no dead letters, no echoes."""
        ...

    def retry_dead_letters(self, link: str) -> int:
        """Forget what was refused, so that it is tried again; how many that was."""
        ...


class Store(Protocol):
    @property
    def writer(self) -> Writer: ...
    def open_reader(self) -> Reader: ...
    def log(self) -> Log: ...
    def announce(self, url: str = "") -> None:
        """Leave word, beside the store, of who holds it and how far its log has come."""
        ...

    def close(self) -> None: ...
