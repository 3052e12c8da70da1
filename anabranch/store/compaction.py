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
EXPIRED_A_STEP = 200


class RaiseFloor(msgspec.Struct, frozen=True):
    floor: Position


class Compact(msgspec.Struct, frozen=True):
    positions: list[Position]
    bytes: int


class Forget(msgspec.Struct, frozen=True):
    documents: list[bytes]


class Expire(msgspec.Struct, frozen=True):
    now: int
    count: int


Step = RaiseFloor | Compact | Forget | Expire


class Report(msgspec.Struct):
    """What a run did, or would do."""

    floor: Position = Position(0)
    compacted_snapshots: int = 0
    compacted_bytes: int = 0
    forgotten_documents: int = 0
    expired: int = 0


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
    if expired := reader.expired(now):
        yield Expire(now, expired)
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
        if going:
            yield Compact([position for position, _ in going], sum(size for _, size in going))


def _forgettable(reader: Reader, policy: Policy) -> Iterator[Step]:
    if policy.deleted_documents is None:
        return
    for author in reader.crowded_authors(policy.deleted_documents):
        going = retention.forgettable(reader.deleted_documents(author), policy)
        if not going:
            continue
        log = reader.log()
        yield RaiseFloor(retention.floor_after(log.floor, log.tip, going))
        for at in range(0, len(going), DOCUMENTS_A_STEP):
            yield Forget([document.document for document in going[at : at + DOCUMENTS_A_STEP]])


def carry_out(step: Step, writer: Writer, report: Report) -> None:
    """One transaction (expiry: a few), added to the report."""
    match step:
        case RaiseFloor(floor):
            report.floor = writer.raise_floor(floor)
        case Compact(positions):
            count, freed = writer.compact(positions)
            report.compacted_snapshots += count
            report.compacted_bytes += freed
        case Forget(documents):
            report.forgotten_documents += writer.forget(documents)
        case Expire(now):
            while count := writer.expire(now, EXPIRED_A_STEP):
                report.expired += count


def add_up(step: Step, report: Report) -> None:
    """What carrying the step out would do, as far as can be told without doing it."""
    match step:
        case RaiseFloor(floor):
            report.floor = max(report.floor, floor)
        case Compact(positions, bytes):
            report.compacted_snapshots += len(positions)
            report.compacted_bytes += bytes
        case Forget(documents):
            report.forgotten_documents += len(documents)
        case Expire(_, count):
            report.expired += count
