"""Compaction: forgetting by policy, in small steps beside live traffic.

`steps` reads what may go and yields one small piece of work at a time; whoever drives it carries each out through the
one writer (`carry_out`) or only adds it up (a dry run). The order is what makes a crash harmless: the floor moves
first, data goes after, and every step leaves a correct store. Each step is checked again by the writer, so a plan
that has grown old does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from anabranch.core import retention
from anabranch.core.retention import Policy, ReplayWindow
from anabranch.core.token import Position
from anabranch.store.contract import Reader, Writer

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


Step = RaiseFloor | Compact | Forget | Expire | Vanish


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


def steps(
    reader: Reader,
    policy: Policy,
    window: ReplayWindow,
    now: int,
    horizons: Callable[[], Sequence[Position]] = lambda: (),
) -> Iterator[Step]:
    """The work to do, a small piece at a time. `horizons` tells of the bootstraps that are being sent just then."""
    if (floor := reader.window_floor(window, now * 1000)) > reader.log().floor:
        yield RaiseFloor(floor)
    if (vanishing := reader.vanishing()) is not None:
        for _ in range(vanishing // OPERATIONS_A_STEP + 1):
            yield Vanish()
    yield from _expired(reader, now)
    if not horizons():  # a bootstrap under way still has to send their tombstones; the next run sees to them
        yield from _forgettable(reader, policy)
    cutoff = policy.cutoff(now)
    after = b""
    while cutoff is not None and (documents := reader.candidates(after, cutoff, DOCUMENTS_A_STEP)):
        after = documents[-1]
        going: list[tuple[Position, int]] = []
        for document in documents:
            versions = reader.versions(document)
            kept = retention.keep([version for version, _ in versions], policy, now, horizons())
            going += [(version.position, size) for version, size in versions if version.position not in kept]
        for at in range(0, len(going), OPERATIONS_A_STEP):
            some = going[at : at + OPERATIONS_A_STEP]
            yield Compact([position for position, _ in some], sum(size for _, size in some))
    if cutoff is not None:
        yield from _old_revisions(reader, cutoff * 1000)


def _old_revisions(reader: Reader, cutoff: int) -> Iterator[Step]:
    """Every revision that is no head and was made before the cutoff; edges and all other facts stay."""
    after, done = 0, frozenset[Position]()
    while rows := reader.old_revisions(after, cutoff, OPERATIONS_A_STEP + len(done)):
        going = [(position, size) for position, size, _ in rows if position not in done]
        if not going:
            return
        yield Compact([position for position, _ in going], sum(size for _, size in going), revisions=True)
        after = rows[-1][2]  # of this millisecond there may be more: what was in this step is left out of the next
        done = frozenset(position for position, _, mtime in rows if mtime == after)


def _expired(reader: Reader, now: int) -> Iterator[Step]:
    count, size = reader.expired(now)
    for left in range(count, 0, -OPERATIONS_A_STEP):
        some = min(left, OPERATIONS_A_STEP)
        yield Expire(now, some, size * some // count)


def _forgettable(reader: Reader, policy: Policy) -> Iterator[Step]:
    if policy.deleted_documents is None:
        return
    for author in reader.crowded_authors(policy.deleted_documents):
        deleted = retention.forgettable(reader.deleted_documents(author), policy)
        if not deleted:
            continue
        log = reader.log()
        yield RaiseFloor(retention.floor_after(log.floor, log.tip, deleted))
        going = [document.document for document in deleted]
        for at in range(0, len(going), DOCUMENTS_A_STEP):
            some = going[at : at + DOCUMENTS_A_STEP]
            yield Forget(some, sum(size for document in some for _, size in reader.versions(document)))


def carry_out(step: Step, writer: Writer, report: Report) -> None:
    """One transaction, added to the report."""
    match step:
        case RaiseFloor(floor):
            report.floor = writer.raise_floor(floor)
        case Compact(positions, _, revisions):
            count, freed = writer.compact(positions)
            _count(report, count, revisions)
            report.compacted_bytes += freed
        case Vanish():
            writer.vanish(OPERATIONS_A_STEP)
        case Forget(documents, bytes):
            report.forgotten_documents += writer.forget(documents)
            report.forgotten_bytes += bytes
        case Expire(now, _, bytes):
            report.expired += writer.expire(now, OPERATIONS_A_STEP)
            report.expired_bytes += bytes


def add_up(step: Step, report: Report) -> None:
    """What carrying the step out would do, as far as can be told without doing it."""
    match step:
        case RaiseFloor(floor):
            report.floor = max(report.floor, floor)
        case Compact(positions, bytes, revisions):
            _count(report, len(positions), revisions)
            report.compacted_bytes += bytes
        case Forget(documents, bytes):
            report.forgotten_documents += len(documents)
            report.forgotten_bytes += bytes
        case Expire(_, count, bytes):
            report.expired += count
            report.expired_bytes += bytes


def _count(report: Report, count: int, revisions: bool) -> None:
    if revisions:
        report.compacted_revisions += count
    else:
        report.compacted_snapshots += count
