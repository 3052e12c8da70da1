"""A store so simple that it can be believed: a list, and every answer computed from scratch.

It is the oracle of the contract suite. Nothing here is kept up to date on write except the list itself and its
states; heads come from comparing every pair, queries from `filter.matches` on every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.core import nostr
from anabranch.core.changes import SnapshotQuery
from anabranch.core.filter import Filter, matches
from anabranch.core.operation import Family, Operation, State, document_key
from anabranch.core.snapshots import SYNC_RANGE
from anabranch.store.contract import Duplicate, Outcome, Refused, Stored, Superseded

DELETED = "deleted by its author"


def slow_dominates(a: dict[str, int], b: dict[str, int]) -> bool:
    devices = set(a) | set(b)
    return all(a.get(d, 0) >= b.get(d, 0) for d in devices) and any(a.get(d, 0) > b.get(d, 0) for d in devices)


@dataclass
class Record:
    position: int
    operation: Operation
    state: State
    received_at: int

    @property
    def id(self) -> str:
        return self.operation.event.id

    def alive(self, now: int) -> bool:
        expires_at = self.operation.expires_at
        return self.state is State.RETAINED and (expires_at is None or expires_at > now)


@dataclass(frozen=True)
class Told:
    """A hard removal, at a position of its own."""

    position: int
    record: Record
    reason: str


@dataclass
class Model:
    records: list[Record] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    deleted_ids: set[tuple[str, str]] = field(default_factory=set)  # (author, id)
    deleted_until: dict[bytes, int] = field(default_factory=dict)  # by document
    tip: int = 0

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, operations: Iterable[Operation], received_at: int = 0) -> list[Outcome]:
        return [self._take(operation, received_at) for operation in operations]

    def _take(self, operation: Operation, received_at: int) -> Outcome:
        event = operation.event
        known = self.find(event.id)
        if (known is None or known.state is State.REMOVED) and self._was_deleted(operation):
            return Refused("blocked", DELETED)
        if known is not None:
            return Duplicate(known.state)
        if operation.family is Family.PLAIN and operation.document is not None:
            for other in self._retained(operation.document):
                theirs = other.operation.event
                same_time_lower_id = theirs.created_at == event.created_at and theirs.id < event.id
                if theirs.created_at > event.created_at or same_time_lower_id:
                    return Superseded()
            for other in self._retained(operation.document):
                other.state = State.REMOVED
        self.tip += 1
        stored = Stored(self.tip)
        self.records.append(Record(self.tip, operation, State.RETAINED, received_at))
        if event.kind == nostr.DELETION:
            self._delete(event)
        return stored

    def _was_deleted(self, operation: Operation) -> bool:
        event = operation.event
        if event.kind == nostr.DELETION:
            return False
        if (event.pubkey, event.id) in self.deleted_ids:
            return True
        return operation.document is not None and event.created_at <= self.deleted_until.get(operation.document, -1)

    def _delete(self, deletion: nostr.Event) -> None:
        for value in deletion.values("e"):
            self.deleted_ids.add((deletion.pubkey, value))
        addresses = set(deletion.values("a"))
        self._gone([record for record in self.records if self._deletes(deletion, addresses, record)], DELETED)
        for address in addresses:
            kind, _, rest = address.partition(":")
            author, _, coordinate = rest.partition(":")
            if author == deletion.pubkey and kind.isdecimal():
                document = document_key(Family.PLAIN, author, int(kind), coordinate)
                until = self.deleted_until.get(document, -1)
                self.deleted_until[document] = max(until, deletion.created_at)

    def _deletes(self, deletion: nostr.Event, addresses: set[str], record: Record) -> bool:
        event, operation = record.operation.event, record.operation
        if event.kind in (nostr.DELETION, nostr.VANISH) or deletion.pubkey not in self._may_delete(operation):
            return False
        address = f"{event.kind}:{event.pubkey}:{operation.coordinate}"
        addressed = operation.family is Family.PLAIN and operation.document is not None and address in addresses
        return event.id in deletion.values("e") or (addressed and event.created_at <= deletion.created_at)

    def _may_delete(self, operation: Operation) -> set[str]:
        return {operation.event.pubkey}

    def _gone(self, records: Iterable[Record], reason: str) -> int:
        """Removed for good, each at a position of its own."""
        gone = [record for record in records if record.state is State.RETAINED]
        for record in gone:
            record.state = State.REMOVED
            self.tip += 1
            self.told.append(Told(self.tip, record, reason))
        return len(gone)

    def expire(self, now: int) -> int:
        return self._gone([r for r in self.records if not r.alive(now)], "expired")

    def remove(self, ids: Iterable[str]) -> int:
        wanted = set(ids)
        return self._gone([r for r in self.records if r.id in wanted], "removed by the relay's operator")

    def forget(self, document: bytes) -> None:
        self.records = [record for record in self.records if record.operation.document != document]
        self.told = [told for told in self.told if told.record.operation.document != document]

    # --- reading -------------------------------------------------------------------------------------------------

    def find(self, id: str) -> Record | None:
        return next((record for record in self.records if record.id == id), None)

    def _retained(self, document: bytes | None) -> list[Record]:
        return [r for r in self.records if r.operation.document == document and r.state is State.RETAINED]

    def is_head(self, record: Record) -> bool:
        operation = record.operation
        if record.state is not State.RETAINED or operation.document is None:
            return False
        if operation.family is Family.PLAIN:
            return True
        known = [other for other in self.records if other.operation.document == operation.document]
        return not any(slow_dominates(other.operation.clock, operation.clock) for other in known)

    def heads(self) -> set[str]:
        return {record.id for record in self.records if self.is_head(record)}

    def select(self, filters: Sequence[Filter], limit_max: int, now: int) -> list[str]:
        chosen: dict[str, nostr.Event] = {}
        for filter in filters:
            found = [r.operation.event for r in self.records if r.alive(now) and matches(filter, r.operation.event)]
            found.sort(key=lambda e: (-e.created_at, e.id))
            limit = limit_max if filter.limit is None else min(limit_max, filter.limit)
            chosen |= {e.id: e for e in found[:limit]}
        sync = [e for e in chosen.values() if e.kind in SYNC_RANGE]
        other = [e for e in chosen.values() if e.kind not in SYNC_RANGE]
        sync.sort(key=lambda e: (e.created_at, e.id))
        other.sort(key=lambda e: (-e.created_at, e.id))
        return [e.id for e in sync + other]

    def count(self, filters: Sequence[Filter], now: int) -> int:
        return sum(r.alive(now) and any(matches(f, r.operation.event) for f in filters) for r in self.records)

    def changes(
        self, query: SnapshotQuery | None, since: int, until: int | None, compacted: bool, now: int
    ) -> list[tuple[int, str, State]]:
        last = self.tip if until is None else until
        states = (State.RETAINED, State.COMPACTED) if compacted else (State.RETAINED,)
        return [
            (r.position, r.id, r.state)
            for r in self.records
            if since < r.position <= last
            and r.state in states
            and (r.operation.expires_at is None or r.operation.expires_at > now)
            and (query is None or carries(query, r.operation))
        ]

    def bootstrap(self, query: SnapshotQuery, limit: int | None, now: int) -> list[str]:
        found = [r for r in self.records if self.is_head(r) and r.alive(now) and carries(query, r.operation)]
        found.sort(key=lambda r: (r.operation.event.created_at, r.id))
        return [r.id for r in found[:limit]]


def carries(query: SnapshotQuery, operation: Operation) -> bool:
    """Whether a feed carries an operation: a snapshot of the author that meets every condition."""
    return (
        operation.family is Family.SNAPSHOT
        and operation.event.pubkey == query.author
        and (query.kinds is None or operation.event.kind in query.kinds)
        and (query.coordinates is None or operation.coordinate in query.coordinates)
        and (query.actions is None or operation.action in query.actions)
        and (query.collections is None or operation.collection in query.collections)
    )
