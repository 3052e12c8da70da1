"""Is the store what it says? Every operation proven again, every column derived again, every head found again.

`verify` trusts nothing but the signed bytes: from them it derives what the columns, tag rows and head marks should
say. It reads by pages, keeps memory flat, and runs beside a node: what looks wrong is read a second time before it
is reported, because the log may have moved meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from anabranch.core import nostr, revisions, snapshots
from anabranch.core.nostr import Event, Invalid, Limits
from anabranch.core.operation import (
    Family,
    KindPolicy,
    Operation,
    Standing,
    State,
    classify,
    deleted_by,
    document_key,
    owners,
)
from anabranch.core.token import START, Position
from anabranch.store.contract import Facts, Reader, StoreError
from anabranch.store.signatures import Answer, Signatures
from anabranch.store.sql import tag_keys

T = TypeVar("T")

PAGE = 1_000
FINDINGS_MAX = 1_000
DOCUMENTS_REMEMBERED = 1 << 18
_TRIES = 3
_END = Position(1 << 62)  # of any log

RESTORE = "restore a backup, or export what is sound and import it into a new store"
REPUBLISH = "ask its author's devices or another relay for it again after restoring, or live without it"
REBUILD = "export and import into a new store: it is derived again from the signed bytes"

_UNREADABLE = (
    StoreError,
    ValueError,
    TypeError,
    msgspec.MsgspecError,
)  # SQLite gave up, or a column is not of its type
_ANY_SIZE = Limits(event_bytes=1 << 62, tags=1 << 62, content_characters=1 << 62)


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong. `advice` says what to do about it."""

    position: int | None
    id: str | None
    what: str
    advice: str


class Findings(msgspec.Struct):
    """What a check found: the first thousand findings, how many there were in all, and what was looked at."""

    checked: int = 0
    signatures: int = 0
    documents: int = 0
    count: int = 0
    found: list[Finding] = msgspec.field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.count == 0

    def add(self, position: int | None, id: str | None, what: str, advice: str) -> None:
        self.count += 1
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(position, id, what, advice))


Progress = Callable[[int, int], None]
"""Called with the position reached and the tip."""


def verify(
    reader: Reader,
    progress: Progress = lambda position, tip: None,
    workers: int | None = None,
    kinds: KindPolicy | None = None,
) -> Findings:
    """Check everything up to the tip of now. `workers` processes check signatures; None: as many as cores. `kinds` says
    which requests to vanish are carried out here; None: those that name all relays."""
    with Signatures(workers) as signatures:
        return _Check(reader, signatures, kinds or KindPolicy()).run(progress)


class _Check:
    def __init__(self, reader: Reader, signatures: Signatures, kinds: KindPolicy) -> None:
        self._reader = reader
        self._signatures = signatures
        self._kinds = kinds
        self._vanished: dict[str, tuple[int, bool]] = {}
        self._open: deque[tuple[list[Facts], Answer]] = deque()
        self._documents: OrderedDict[bytes, None] = OrderedDict()  # checked of late: the oldest are let go
        self._tag_rows = 0
        self._findings = Findings()

    def run(self, progress: Progress) -> Findings:
        found = self._findings
        try:
            log = self._reader.log()
        except _UNREADABLE as error:
            found.add(None, None, f"the log cannot be read: {error}", RESTORE)
            return found
        nothing: list[str] = []
        for text in self._attempt("the file", self._reader.damage, nothing):
            found.add(None, None, f"the file itself: {text}", RESTORE)
        if not 1 <= log.floor <= log.tip + 1:
            found.add(None, None, f"floor {log.floor} is outside 1 to {log.tip + 1}", RESTORE)
        self._vanished = self._attempt("who has vanished", self._reader.vanished, self._vanished)
        last = START
        for page in self._pages(log.tip):
            for facts in page:
                self._look_for_missing(last, facts.position)
                last = facts.position
            self._check_page(page)
            progress(last, log.tip)
        self._look_for_missing(last, Position(log.tip + 1))
        progress(log.tip, log.tip)
        if (beyond := self._attempt("what lies beyond the tip", lambda: self._beyond(log.tip), None)) is not None:
            found.add(beyond, None, "lies beyond the tip, where the next operation will want to be", RESTORE)
        self._settle_signatures(0)
        self._attempt("the tag rows", lambda: self._count_tag_rows(log.tip), None)
        return found

    def _attempt(self, what: str, look: Callable[[], T], otherwise: T) -> T:
        """A check that could not be made is a finding too."""
        try:
            return look()
        except _UNREADABLE as error:
            self._findings.add(None, None, f"{what} could not be checked: {error}", RESTORE)
            return otherwise

    # --- reading ---

    def _pages(self, tip: Position) -> Iterator[list[Facts]]:
        """The log by pages up to the tip. Where a page cannot be read, what can be is, and the rest is a finding."""
        after = START
        while after < tip:
            try:
                page = self._reader.facts(after, PAGE)
            except _UNREADABLE as error:
                page, after = self._one_by_one(after, tip, error)
            else:
                if not page:
                    return
                after = page[-1].position
            if page := [facts for facts in page if facts.position <= tip]:
                yield page

    def _one_by_one(self, after: Position, tip: Position, error: Exception) -> tuple[list[Facts], Position]:
        page: list[Facts] = []
        last = Position(min(after + PAGE, tip))
        for before in map(Position, range(after, last)):
            try:
                row = self._reader.facts(before, 1)
            except _UNREADABLE as again:
                if self._exists(Position(before + 1)):
                    self._findings.add(before + 1, None, f"cannot be read: {again or error}", RESTORE)
                continue
            if row and row[0].position == before + 1:
                page.append(row[0])
        return page, last

    def _exists(self, position: Position) -> bool:
        """Whether a failed read was about this position: it may have been about a later one, after a gap."""
        try:
            return bool(self._reader.changes(None, Position(position - 1), position, 1, compacted=True).entries)
        except _UNREADABLE:
            return True

    def _beyond(self, tip: Position) -> int | None:
        taken = [facts.position for facts in self._reader.facts(tip, 1)]
        taken += [removal.position for removal in self._reader.removals(tip, _END, 1) if removal.position is not None]
        return min(taken) if taken and min(taken) > self._reader.log().tip else None

    def _look_for_missing(self, last: Position, next: Position) -> None:
        """Between two rows of the log nothing is missing, unless it was forgotten below the floor."""
        if next <= last:
            self._findings.add(next, None, f"stands after position {last}", RESTORE)
        first = max(last + 1, self._reader.log().floor) if next > last + 1 else next
        if (
            first < next and self._attempt("the removals", lambda: self._removals(first, next), 0) == next - first
        ):  # hard removals stand at positions of their own
            first = next
        if first < next:
            if self._findings.count and any(f.position in range(first, next) for f in self._findings.found):
                return  # said already: it is there and cannot be read
            what = f"positions {first} to {next - 1}" if first < next - 1 else f"position {first}"
            self._findings.add(first, None, f"{what} above the floor: no operation there", REPUBLISH)

    def _removals(self, first: int, next: int) -> int:
        """How many hard removals stand from one position on and before another."""
        count, after = 0, Position(first - 1)
        while found := self._reader.removals(after, Position(next - 1), PAGE):
            count, after = count + len(found), Position(found[-1].position or next)
        return count

    # --- operations ---

    def _check_page(self, page: list[Facts]) -> None:
        proven: list[Facts] = []
        proofs: list[bytes] = []
        for facts in page:
            self._findings.checked += 1
            event, wrong = self._examine(facts)
            if wrong:
                event, wrong = self._examine_again(facts, event, wrong)
            for what, advice in wrong:
                self._findings.add(facts.position, facts.id, what, advice)
            if event is not None:
                self._tag_rows += len(tag_keys(event))
                proven.append(facts)
                proofs.append(nostr.proof(event))
            if facts.family is not Family.PLAIN and facts.state is State.RETAINED and facts.document is not None:
                self._check_document(facts.document, facts.family)
        if proofs:
            self._open.append((proven, self._signatures.start(b"".join(proofs))))
            self._settle_signatures(self._signatures.open_max)

    def _examine_again(
        self, facts: Facts, event: Event | None, wrong: list[tuple[str, str]]
    ) -> tuple[Event | None, list[tuple[str, str]]]:
        """What looked wrong may have been changing just then, or be gone by now."""
        try:
            rows = self._reader.facts(Position(facts.position - 1), 1)
        except _UNREADABLE:
            return event, wrong
        return self._examine(rows[0]) if rows and rows[0].position == facts.position else (None, [])

    def _examine(self, facts: Facts) -> tuple[Event | None, list[tuple[str, str]]]:
        """The event behind the facts, and what is wrong with it or them."""
        if facts.state is not State.RETAINED:
            wrong = []
            if facts.raw is not None:
                wrong.append((f"is {facts.state.name.lower()} and yet has a payload", "compact it again, or ignore it"))
            # A snapshot stays a head when it is removed. A revision may be the last one left when it is compacted.
            lasting = {Family.SNAPSHOT: State.REMOVED, Family.REVISION: State.COMPACTED}.get(facts.family)
            if facts.head and facts.state is not lasting:
                wrong.append((f"is {facts.state.name.lower()} and yet marked as a head", REBUILD))
            wrong += [(text, RESTORE) for text in _missing(facts)]
            return None, wrong
        if facts.raw is None:
            return None, [("payload is missing", REPUBLISH)]
        try:
            event, kept = nostr.parse(facts.raw, _ANY_SIZE)
        except Invalid as invalid:
            return None, [(f"payload is not what was signed: {invalid}", REPUBLISH)]
        wrong = []
        if kept != facts.raw:
            wrong.append(("payload says more than was signed", REBUILD))
        if event.id != facts.id:
            return event, [*wrong, (f"payload is that of another operation, {event.id}", REPUBLISH)]
        try:
            if facts.family is Family.PLAIN and revisions.is_revision(event):  # stored before there were revisions
                operation = Operation(event, facts.raw, Family.PLAIN, expires_at=nostr.expiration(event))
            else:
                operation = classify(event, facts.raw, _policy_of(facts))
        except ValueError as invalid:
            return event, [*wrong, (f"does not belong to its family: {invalid}", REBUILD)]
        wrong += [(text, REBUILD) for text in _differences(facts, operation)]
        try:
            wrong += [(text, REBUILD) for text in self._kept_beside(facts, event)]
        except _UNREADABLE as error:
            wrong.append((f"what is kept beside it cannot be read: {error}", RESTORE))
        return event, wrong

    def _kept_beside(self, facts: Facts, event: Event) -> Iterator[str]:
        """Of a replaceable event, the one head's mark (snapshots: `_check_document`); of a request to delete, what it
        names; of one to vanish, who has asked; of any, that nobody took it along, and the tag rows."""
        if facts.family is Family.PLAIN:
            current = 0 if facts.document is None else len(self._reader.heads(facts.document))
            if (facts.document is not None) != facts.head:
                yield "head mark is wrong" if facts.head else "head mark is missing"
            elif current > 1:
                yield f"is one of {current} current versions, and a replaceable event has one"
        if facts.family is Family.PLAIN and event.kind == nostr.DELETION and (forgotten := self._undeleted(event)):
            yield f"{forgotten} of what it deletes are not remembered as deleted"
        if self._carried_out(event) and self._vanished.get(event.pubkey, (-1, False))[0] < event.created_at:
            yield "this request to vanish is not remembered"
        gone = [self._vanished[owner] for owner in owners(event) if owner in self._vanished]
        if any(done and event.created_at <= until for until, done in gone):
            yield "belongs to somebody who has vanished"
        keys = tag_keys(event)
        if keys and (rows := self._reader.tag_rows(facts.position, event.created_at, keys)) < len(keys):
            yield f"{len(keys) - rows} of its {len(keys)} tag rows are missing"

    def _carried_out(self, event: Event) -> bool:
        """Whether it is a request to vanish that this node heeds."""
        try:
            return event.kind == nostr.VANISH and classify(event, b"", self._kinds).standing is Standing.ORDINARY
        except ValueError:
            return False

    def _undeleted(self, request: Event) -> int:
        """How many of what a request deletes could come back."""
        ids, documents = deleted_by(request)
        until = self._reader.deletions(request.pubkey, [*ids, *documents])
        named = [*((id, nostr.TIMESTAMP_MAX) for id in ids), *((one, request.created_at) for one in documents)]
        return sum(until.get(target, -1) < at for target, at in dict(named).items())

    def _settle_signatures(self, open_max: int) -> None:
        while len(self._open) > open_max:
            proven, answer = self._open.popleft()
            for facts, held in zip(proven, answer(), strict=True):
                self._findings.signatures += 1
                if not held:
                    self._findings.add(facts.position, facts.id, "signature does not hold", REPUBLISH)

    def _count_tag_rows(self, tip: Position) -> None:
        """More tag rows than the events have: some lead to events that do not carry the tag."""
        statistics, log = self._reader.statistics(), self._reader.log()
        moved = log.tip != tip
        if not moved and self._findings.sound and statistics.tag_rows > self._tag_rows:
            extra = statistics.tag_rows - self._tag_rows
            self._findings.add(None, None, f"{extra} tag rows that no event asks for", REBUILD)

    # --- documents ---

    def _check_document(self, document: bytes, family: Family) -> None:
        if document in self._documents:
            self._documents.move_to_end(document)
            return
        self._documents[document] = None
        if len(self._documents) > DOCUMENTS_REMEMBERED:
            self._documents.popitem(last=False)
        self._findings.documents += 1
        lineage = self._snapshot_heads if family is Family.SNAPSHOT else self._revision_heads
        for _ in range(_TRIES):
            try:
                heads, marked = lineage(document)
            except _UNREADABLE as error:
                self._findings.add(None, None, f"the heads of {document.hex()} could not be checked: {error}", RESTORE)
                return
            if heads.keys() == marked.keys():
                return
        for id in sorted(heads.keys() - marked.keys()):
            self._findings.add(heads[id], id, "is a head of its document and not marked as one", REBUILD)
        for id in sorted(marked.keys() - heads.keys()):
            self._findings.add(marked[id], id, "is marked as a head and another one supersedes it", REBUILD)

    def _snapshot_heads(self, document: bytes) -> tuple[_Positions, _Positions]:
        known = self._reader.lineage(document)
        heads = snapshots.heads(version for version, _ in known)
        return (
            {version.id: version.position for version in heads},
            {version.id: version.position for version, head in known if head},
        )

    def _revision_heads(self, document: bytes) -> tuple[_Positions, _Positions]:
        known = self._reader.revision_lineage(document)
        stored = {f.revision.revision: f for f, _ in known if f.revision is not None and f.state is not State.REMOVED}
        gone = [f.revision for f, _ in known if f.revision is not None and f.state is State.REMOVED]
        removed: list[revisions.Linked] = [*gone, *self._reader.told(document)]
        links = [facts.revision for facts in stored.values() if facts.revision is not None]
        if revisions.named(links, removed) != self._reader.named(document):
            last = max(facts.position for facts, _ in known)
            self._findings.add(last, None, "the parents that its document remembers are not those it names", REBUILD)
        heads = [stored[head.revision] for head in revisions.heads(links, removed)]
        return (
            {facts.id: facts.position for facts in heads},
            {facts.id: facts.position for facts, served in known if facts.head or served},
        )


_Positions = dict[str, Position]


def _policy_of(facts: Facts) -> KindPolicy:
    """The classification under which it was stored: what is configured today may be another."""
    kind = frozenset({facts.kind})
    if facts.family is Family.SNAPSHOT:
        return KindPolicy(snapshot=kind)
    if facts.family is Family.REVISION:
        return KindPolicy()
    return KindPolicy(pass_through=kind, snapshot=frozenset())


def _differences(facts: Facts, operation: Operation) -> list[str]:
    event = operation.event
    return [
        f"{column} is {_shown(stored)} and the signed event says {_shown(derived)}"
        for column, stored, derived in (
            ("family", int(facts.family), int(operation.family)),
            ("author", facts.author, event.pubkey),
            ("kind", facts.kind, event.kind),
            ("created_at", facts.created_at, event.created_at),
            ("document", facts.document, operation.document),
            ("coordinate", facts.coordinate, operation.coordinate),
            ("collection", facts.collection, operation.collection),
            ("action", int(facts.action), int(operation.action)),
            ("clock", facts.clock, operation.clock),
            ("revision", facts.revision, _untyped(operation.revision)),
            ("size", facts.size, len(operation.raw)),
            ("expires_at", facts.expires_at, operation.expires_at),
        )
        if stored != derived
    ]


def _missing(facts: Facts) -> Iterator[str]:
    """What the heads of a document depend on must outlast the payload."""
    if facts.family is Family.SNAPSHOT and facts.clock is None:
        yield "has no clock"
    namespace, kind = facts.author, facts.kind if facts.family is Family.PLAIN else 0
    if facts.family is Family.REVISION:
        if facts.revision is None:
            yield "has no facts of a revision"
            return
        namespace = facts.revision.recipient
    named = None if facts.coordinate is None else document_key(facts.family, namespace, kind, facts.coordinate)
    if facts.document != named:
        yield f"document is {_shown(facts.document)} and its coordinate says {_shown(named)}"


def _untyped(facts: revisions.Facts | None) -> revisions.Facts | None:
    """A revision's facts without the hint that is not stored apart."""
    return None if facts is None else msgspec.structs.replace(facts, type=None)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
