"""Compaction: forgetting by policy, in small steps beside live traffic.

`steps` reads what may go and yields one small piece of work at a time; whoever drives it carries each out through the
one writer (`carry_out`). The order is what makes a crash harmless: the floor moves first, data goes after, and every
step leaves a correct store. Each step is checked again by the writer, so a plan that has grown old does no harm. A dry
run (`foresee`) drives the same steps over a store as it would be by then.

A plan may also be made elsewhere, over a copy of the log: `judge` holds each of its candidates to the same rule and
policy, here and now, and says why the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from anabranch.core import retention
from anabranch.core.operation import State
from anabranch.core.retention import DeletedDocument, Horizon, Policy, ReplayWindow, Version
from anabranch.core.token import START, Log, Position
from anabranch.store.contract import Facts, Reader, Writer
from anabranch.store.foreseen import Foreseen

DOCUMENTS_A_STEP = 64
OPERATIONS_A_STEP = 256


class RaiseFloor(msgspec.Struct, frozen=True):
    floor: Position


class Compact(msgspec.Struct, frozen=True):
    positions: list[Position]
    bytes: int
    revisions: bool = False  # or else snapshots


class Forget(msgspec.Struct, frozen=True):
    documents: list[bytes]
    bytes: int


class Expire(msgspec.Struct, frozen=True):
    now: int
    count: int
    bytes: int


class Vanish(msgspec.Struct, frozen=True):
    """Remove some of what belongs to those who have asked to vanish."""


class LookOn(msgspec.Struct, frozen=True):
    """Nothing to do: a piece was looked through, and whoever drives may stop here."""


Step = RaiseFloor | Compact | Forget | Expire | Vanish | LookOn

Horizons = Callable[[], Sequence[Horizon]]
"""Asked again and again: the bootstraps that are being sent just then."""


class Report(msgspec.Struct):
    """What a run did, or would do."""

    floor: Position = Position(0)
    compacted_snapshots: int = 0
    compacted_revisions: int = 0
    compacted_bytes: int = 0
    forgotten_documents: int = 0
    forgotten_bytes: int = 0
    expired: int = 0
    expired_bytes: int = 0
    vanished: int = 0

    def add_compacted(self, count: int, bytes: int, revisions: bool) -> None:
        if revisions:
            self.compacted_revisions += count
        else:
            self.compacted_snapshots += count
        self.compacted_bytes += bytes


class Sight(Protocol):
    """What `steps` looks at: a store as it is, or as it is foreseen."""

    def log(self) -> Log: ...
    def window_floor(self, window: ReplayWindow, now_ms: int) -> Position: ...
    def vanishing(self) -> int | None: ...
    def expired(self, now: int) -> tuple[int, int]: ...
    def crowded_authors(self, cap: int) -> list[str]: ...
    def deleted_documents(self, author: str) -> list[DeletedDocument]: ...
    def candidates(self, after: bytes, cutoff: int, limit: int) -> list[bytes]: ...
    def versions(self, document: bytes) -> list[tuple[Version, int]]: ...
    def author_of(self, document: bytes) -> str | None: ...
    def old_revisions(self, after: int, cutoff: int, limit: int) -> list[tuple[Position, int, int]]: ...


class Forgetting(Protocol):
    """What forgets for good: a store's writer, or what only foresees it."""

    def raise_floor(self, floor: Position) -> Position: ...
    def vanish(self, limit: int) -> int: ...
    def forget(self, documents: Sequence[bytes]) -> int: ...
    def expire(self, now: int, limit: int) -> int: ...


def steps(
    reader: Sight,
    policy: Policy,
    window: ReplayWindow,
    now: int,
    horizons: Horizons = lambda: (),
) -> Iterator[Step]:
    """The work to do, a small piece at a time."""
    if (floor := reader.window_floor(window, now * 1000)) > reader.log().floor:
        yield RaiseFloor(floor)
    if (vanishing := reader.vanishing()) is not None:
        for _ in range(vanishing // OPERATIONS_A_STEP + 1):
            yield Vanish()
    yield from _expired(reader, now)
    yield from _forgettable(reader, policy, now, horizons)
    cutoff = policy.cutoff(now)
    after = b""
    while cutoff is not None and (documents := reader.candidates(after, cutoff, DOCUMENTS_A_STEP)):
        after = documents[-1]
        going: list[tuple[Position, int]] = []
        for document in documents:
            versions = reader.versions(document)
            kept = retention.keep(
                [version for version, _ in versions], policy, now, _under_way(reader, document, horizons())
            )
            going += [(version.position, size) for version, size in versions if version.position not in kept]
        for at in range(0, len(going), OPERATIONS_A_STEP):
            some = going[at : at + OPERATIONS_A_STEP]
            yield Compact([position for position, _ in some], sum(size for _, size in some))
        yield LookOn()
    if cutoff is not None:
        yield from _old_revisions(reader, cutoff * 1000)


def _under_way(reader: Sight, document: bytes, horizons: Sequence[Horizon]) -> list[Position]:
    """Where the bootstraps that this document is in began."""
    author = reader.author_of(document) if horizons else None
    return [horizon.position for horizon in horizons if horizon.author == author]


def _old_revisions(reader: Sight, cutoff: int) -> Iterator[Step]:
    """Every revision that is no head and was made before the cutoff; edges and all other facts stay."""
    after, done = 0, frozenset[Position]()
    while rows := reader.old_revisions(after, cutoff, OPERATIONS_A_STEP + len(done)):
        going = [(position, size) for position, size, _ in rows if position not in done]
        if not going:
            return
        yield Compact([position for position, _ in going], sum(size for _, size in going), revisions=True)
        after = rows[-1][2]  # of this millisecond there may be more: what was in this step is left out of the next
        done = frozenset(position for position, _, mtime in rows if mtime == after)


def _expired(reader: Sight, now: int) -> Iterator[Step]:
    count, size = reader.expired(now)
    for left in range(count, 0, -OPERATIONS_A_STEP):
        some = min(left, OPERATIONS_A_STEP)
        yield Expire(now, some, size * some // count)


def _forgettable(reader: Sight, policy: Policy, now: int, horizons: Horizons) -> Iterator[Step]:
    """Which fully deleted documents go. While a bootstrap of their author is being sent none of theirs does: it still
    has to send the tombstones, and the next run sees to them."""
    if policy.deleted_documents is None:
        return
    age = policy.deleted_age_seconds
    recent = reader.window_floor(ReplayWindow(age_seconds=age), now * 1000) if age else None
    for author in reader.crowded_authors(policy.deleted_documents):
        deleted = retention.forgettable(reader.deleted_documents(author), policy, recent)
        if not deleted or _is_sent(author, horizons()):
            yield LookOn()
            continue
        log = reader.log()
        yield RaiseFloor(retention.floor_after(log.floor, log.tip, deleted))
        going = [document.document for document in deleted]
        for at in range(0, len(going), DOCUMENTS_A_STEP):
            some = going[at : at + DOCUMENTS_A_STEP]
            if _is_sent(author, horizons()):
                break
            yield Forget(some, sum(size for document in some for _, size in reader.versions(document)))


def _is_sent(author: str, horizons: Sequence[Horizon]) -> bool:
    return any(horizon.author == author for horizon in horizons)


def carry_out(step: Step, writer: Writer, report: Report) -> None:
    """One transaction, added to the report."""
    if isinstance(step, Compact):
        count, freed = writer.compact(step.positions)
        report.add_compacted(count, freed, step.revisions)
    else:
        _carry_out(step, writer, report)


def _carry_out(step: RaiseFloor | Vanish | Forget | Expire | LookOn, store: Forgetting, report: Report) -> None:
    match step:
        case RaiseFloor(floor):
            report.floor = store.raise_floor(floor)
        case Vanish():
            report.vanished += store.vanish(OPERATIONS_A_STEP)
        case Forget(documents, bytes):
            report.forgotten_documents += store.forget(documents)
            report.forgotten_bytes += bytes
        case Expire(now, _, bytes):
            report.expired += store.expire(now, OPERATIONS_A_STEP)
            report.expired_bytes += bytes


def foresee(reader: Reader, policy: Policy, window: ReplayWindow, now: int, floor: Position = START) -> Report:
    """What a run would do, to the number; nothing is changed."""
    store, report = Foreseen(reader), Report(floor)
    for step in steps(store, policy, window, now):
        if isinstance(step, Compact):  # nothing that follows depends on it
            report.add_compacted(len(step.positions), step.bytes, step.revisions)
        else:
            _carry_out(step, store, report)
    return report


# --- plans of others -------------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What somebody else's plan would let go: the operation of that id at that position."""

    position: Position
    id: str


class Refusal(StrEnum):
    """Why a candidate stays."""

    UNKNOWN = "unknown"  # there is no such operation at that position
    GONE = "gone"  # its payload is not here any more
    HEAD = "head"
    KEPT = "kept"  # by the policy in force here
    BEING_SENT = "being_sent"  # by a bootstrap under way


class Judgement(msgspec.Struct):
    """What of a plan may go, in small steps, and how much of it stays for which reason."""

    steps: list[Compact] = msgspec.field(default_factory=list)
    refused: dict[Refusal, int] = msgspec.field(default_factory=dict)

    def refuse(self, why: Refusal, count: int = 1) -> None:
        if count:
            self.refused[why] = self.refused.get(why, 0) + count


def judge(
    reader: Reader, candidates: Sequence[Candidate], policy: Policy, now: int, horizons: Sequence[Horizon] = ()
) -> Judgement:
    """Hold each candidate to the rule and the policy: only what compaction itself would drop now may go."""
    judgement = Judgement()
    going: dict[bool, list[tuple[Position, int]]] = {False: [], True: []}
    stays = _Stays(reader, policy, now, horizons)
    for position, id in {(one.position, one.id): None for one in candidates}:
        found = reader.facts(Position(position - 1), 1)
        facts = found[0] if found and (found[0].position, found[0].id) == (position, id) else None
        if facts is None:
            judgement.refuse(Refusal.UNKNOWN)
        elif (why := stays.why(facts)) is not None:
            judgement.refuse(why)
        else:
            going[facts.revision is not None].append((position, facts.size))
    for revisions, some in going.items():
        for at in range(0, len(some), OPERATIONS_A_STEP):
            step = some[at : at + OPERATIONS_A_STEP]
            judgement.steps.append(
                Compact([position for position, _ in step], sum(size for _, size in step), revisions)
            )
    return judgement


class _Stays:
    """What stays of the documents that are asked about; each document is looked at once."""

    def __init__(self, reader: Reader, policy: Policy, now: int, horizons: Sequence[Horizon]) -> None:
        self._reader, self._policy, self._now, self._horizons = reader, policy, now, horizons
        self._kept: dict[bytes, tuple[frozenset[Position], frozenset[Position]]] = {}

    def why(self, facts: Facts) -> Refusal | None:
        """Why an operation stays; None: it may go."""
        if facts.state is not State.RETAINED:
            return Refusal.GONE
        if facts.document is None or not (facts.clock or facts.revision):
            return Refusal.KEPT
        if facts.head:
            return Refusal.HEAD
        if facts.revision is not None:
            cutoff = self._policy.cutoff(self._now)
            return Refusal.KEPT if cutoff is None or facts.revision.mtime >= cutoff * 1000 else None
        by_policy, by_all = self._of(facts.document)
        if facts.position in by_policy:
            return Refusal.KEPT
        return Refusal.BEING_SENT if facts.position in by_all else None

    def _of(self, document: bytes) -> tuple[frozenset[Position], frozenset[Position]]:
        """The positions that stay by the policy alone, and with the bootstraps that are being sent."""
        if document not in self._kept:
            versions = [version for version, _ in self._reader.versions(document)]
            by_policy = retention.keep(versions, self._policy, self._now)
            under_way = _under_way(self._reader, document, self._horizons)
            by_all = retention.keep(versions, self._policy, self._now, under_way)
            self._kept[document] = by_policy, by_all
        return self._kept[document]
