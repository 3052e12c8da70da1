"""The oracle of the revision family: `Model`, and beside it revisions and who has vanished.

As in `Model` every answer is computed from the whole list: a head is what no stored revision of its document names,
and what was removed is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from model import DELETED, Model, Record, carries

from anabranch.core import nostr
from anabranch.core.changes import ChangesQuery, RevisionQuery
from anabranch.core.filter import Filter, matches
from anabranch.core.operation import Family, Operation, State
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.snapshots import SYNC_RANGE
from anabranch.store.contract import Duplicate, Outcome, Refused, Stored

VANISHED = "whom it belongs to has asked to vanish"


@dataclass
class RevisionModel(Model):
    vanished: dict[str, int] = field(default_factory=dict)

    # --- writing -------------------------------------------------------------------------------------------------

    def _take(self, operation: Operation, received_at: int) -> Outcome:
        event = operation.event
        known = self.find(event.id)
        if (known is None or known.state is State.REMOVED) and self._was_deleted(operation):
            return Refused("blocked", DELETED)
        if known is None and operation.revision is not None:
            known = self.find_revision(operation)
        if known is not None:
            return Duplicate(known.state)
        if event.kind != nostr.VANISH and any(
            event.created_at <= self.vanished.get(owner, -1) for owner in owners(event)
        ):
            return Refused("blocked", VANISHED)
        outcome = super()._take(operation, received_at)
        if isinstance(outcome, Stored) and event.kind == nostr.VANISH:
            self._vanish(event)
        return outcome

    def find_revision(self, operation: Operation) -> Record | None:
        wanted = (operation.document, operation.revision.revision)
        for record in self.records:
            other = record.operation
            found = other.revision is not None and (other.document, other.revision.revision) == wanted
            if found and record.state is not State.REMOVED:
                return record
        return None

    def _was_deleted(self, operation: Operation) -> bool:
        if operation.event.kind == nostr.VANISH:
            return False
        recipient = operation.revision.recipient if operation.revision is not None else None
        return super()._was_deleted(operation) or (recipient, operation.event.id) in self.deleted_ids

    def _may_delete(self, operation: Operation) -> set[str]:
        recipient = set() if operation.revision is None else {operation.revision.recipient}
        return super()._may_delete(operation) | recipient

    def _vanish(self, request: nostr.Event) -> None:
        until = max(request.created_at, self.vanished.get(request.pubkey, -1))
        self.vanished[request.pubkey] = until
        self._gone(
            [
                record
                for record in self.records
                if record.operation.event.kind != nostr.VANISH
                and record.operation.event.created_at <= until
                and request.pubkey in owners(record.operation.event)
            ],
            "vanished",
        )

    def compact_revisions(self, cutoff: int) -> list[Record]:
        """Every revision older than the cutoff (ms) that is no head loses its payload."""
        gone = [
            r
            for r in self.records
            if r.operation.revision is not None
            and r.state is State.RETAINED
            and r.operation.revision.mtime < cutoff
            and not self.is_head(r)
        ]
        for record in gone:
            record.state = State.COMPACTED
        return gone

    # --- reading -------------------------------------------------------------------------------------------------

    def is_head(self, record: Record) -> bool:
        revision = record.operation.revision
        if revision is None:
            return super().is_head(record)
        family = [r for r in self.records if r.operation.document == record.operation.document]
        stored = [r.operation.revision for r in family if r.state is not State.REMOVED]
        names = [parent for one in stored for parent in one.parents]
        for name in names:  # what was removed counts where something stored descends from it
            if all(one.revision != name for one in stored):
                gone = [r.operation.revision for r in family if r.operation.revision.revision == name]
                names += [parent for one in gone for parent in one.parents if parent not in names]
        return record.state is State.RETAINED and revision.revision not in names

    def select(self, filters: Sequence[Filter], limit_max: int, now: int) -> list[str]:
        chosen: dict[str, Operation] = {}
        for filter in filters:
            found = self._newest(filter, now)
            limit = limit_max if filter.limit is None else min(limit_max, filter.limit)
            chosen |= {one.event.id: one for one in found[:limit]}
        sync = [one.event for one in chosen.values() if one.revision is not None or one.event.kind in SYNC_RANGE]
        other = [one.event for one in chosen.values() if one.revision is None and one.event.kind not in SYNC_RANGE]
        sync.sort(key=lambda e: (e.created_at, e.id))
        other.sort(key=lambda e: (-e.created_at, e.id))
        return [e.id for e in sync + other]

    def _newest(self, filter: Filter, now: int) -> list[Operation]:
        found = [r.operation for r in self.records if r.alive(now) and matches(filter, r.operation.event)]
        return sorted(found, key=lambda one: (-one.event.created_at, one.event.id))

    def items(self, filter: Filter, now: int) -> list[tuple[int, str]]:
        found = self._newest(filter, now)[: filter.limit]
        return sorted((one.event.created_at, one.event.id) for one in found)

    def current_revisions(self, query: RevisionQuery, now: int) -> list[tuple[int, str]]:
        return sorted(
            (r.operation.revision.mtime, r.operation.revision.revision)
            for r in self.records
            if r.operation.revision is not None
            and self.is_head(r)
            and r.alive(now)
            and carries_revision(query, r.operation)
        )

    def compacted_revisions(self, wanted: Iterable[str], recipients: Iterable[str] | None) -> list[str]:
        asked, whose = set(wanted), None if recipients is None else set(recipients)
        return sorted(
            {
                r.operation.revision.revision
                for r in self.records
                if r.operation.revision is not None
                and r.state is State.COMPACTED
                and r.operation.revision.revision in asked
                and (whose is None or r.operation.revision.recipient in whose)
            }
        )

    def oldest_mtime(self) -> int | None:
        retained = [r.operation.revision for r in self.records if r.state is State.RETAINED]
        return min((one.mtime for one in retained if one is not None), default=None)

    def feed(
        self, query: ChangesQuery, since: int, until: int | None, compacted: bool, now: int
    ) -> list[tuple[int, str, State, str | None]]:
        """What a feed carries: operations, and in their places the removals of revisions."""
        last = self.tip if until is None else until
        states = (State.RETAINED, State.COMPACTED) if compacted else (State.RETAINED,)
        entries = [
            (r.position, r.id, r.state, None)
            for r in self.records
            if r.state in states
            and (r.operation.expires_at is None or r.operation.expires_at > now)
            and carried(query, r.operation)
        ]
        if isinstance(query, RevisionQuery):
            entries += [
                (told.position, told.record.id, State.REMOVED, told.reason)
                for told in self.told
                if carried(query, told.record.operation)
            ]
        return sorted(entry for entry in entries if since < entry[0] <= last)


def owners(event: nostr.Event) -> set[str]:
    """Whose an event is when somebody asks to vanish: its author's, and of a gift wrap its recipients'."""
    return {event.pubkey, *(event.values("p") if event.kind == GIFT_WRAP else ())}


def recipient_of(record: Record) -> str | None:
    return record.operation.revision.recipient if record.operation.revision is not None else None


def carried(query: ChangesQuery, operation: Operation) -> bool:
    return carries_revision(query, operation) if isinstance(query, RevisionQuery) else carries(query, operation)


def carries_revision(query: RevisionQuery, operation: Operation) -> bool:
    """Whether a feed carries an operation: a revision for the recipient that meets every condition."""
    facts = operation.revision
    return (
        operation.family is Family.REVISION
        and facts.recipient == query.recipient
        and (query.kinds is None or operation.event.kind in query.kinds)
        and (query.authors is None or operation.event.pubkey in query.authors)
        and (query.coordinates is None or facts.coordinate in query.coordinates)
        and (query.revisions is None or facts.revision in query.revisions)
    )


def by_name(revisions: Iterable[str], recipients: Iterable[str] | None) -> Filter:
    """The filter that asks for revisions by `#r`, and perhaps of some recipients only."""
    named = (("r", frozenset(revisions)),)
    return Filter(tags=named if recipients is None else (("p", frozenset(recipients)), *named))
