"""What must hold in the world, after each step and at the end; every breach is put down with the time it was seen at.

- What was acknowledged is there, after every crash, unless an old backup was put back over it.
- A position is given once in an epoch, and always the next one is higher.
- Nothing forged is ever stored.
- Compaction changes no heads.
- A link's checkpoint is never ahead of what was applied.
- A feed is served in order and whole, and a gap is told.
- In the end all nodes agree: heads, conflicts, tombstones; and equal digests mean equal sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from anabranch.core import nostr
from anabranch.core.operation import Operation, State
from anabranch.core.token import Position
from anabranch.store.contract import Duplicate, Offer, Outcome, Refused, Stored

if TYPE_CHECKING:
    from anabranch.sim.host import Host
    from anabranch.sim.trace import Trace

LogName = tuple[str, str]
_HEADS = (
    "SELECT o.document, coalesce(r.revision, o.id), o.action FROM operations o "
    "LEFT JOIN revisions r ON r.position = o.position WHERE o.head = 1 AND o.state = 0"
)


class Checks:
    def __init__(self, trace: Trace, time: Callable[[], float]) -> None:
        self._trace = trace
        self._time = time
        self.breaches: list[str] = []
        self.marks: Counter[str] = Counter()
        self.operations = 0
        self.made: dict[str, Operation] = {}  # every operation that was ever stored anywhere
        self.logs: dict[LogName, dict[int, str]] = {}  # what was given each position
        self.acknowledged: dict[str, set[str]] = {}  # host → ids
        self.excused: set[str] = set()  # lost with every copy of them
        self.holding: dict[str, set[str]] = {}  # host → every id that its disk has
        self._tips: dict[LogName, int] = {}

    def breach(self, text: str) -> None:
        self._trace.note("BREACH", text)
        if len(self.breaches) < 20:
            self.breaches.append(f"{self._time():.3f} {text}")

    def mark(self, name: str) -> None:
        self.marks[name] += 1

    # --- what hosts tell ---

    def committed(self, host: Host, offers: Sequence[Offer], outcomes: Sequence[Outcome]) -> None:
        log = host.store.log()
        name = log.stream, log.epoch
        given = self.logs.setdefault(name, {})
        tip = self._tips.get(name, 0)
        self.operations += len(outcomes)
        for offer, outcome in zip(offers, outcomes, strict=True):
            id = offer.operation.event.id
            if not isinstance(outcome, Refused):
                self.made.setdefault(id, offer.operation)
            if isinstance(outcome, Stored):
                at = outcome.position
                if given.setdefault(at, id) != id:
                    self.breach(f"{host.name} gave position {at} to {given[at][:8]} and again to {id[:8]}")
                elif at <= tip:
                    self.breach(f"{host.name} gave position {at} after {tip}")
                tip = at
                self.holding[host.name].add(id)
                if not all(nostr.verify([offer.operation.event])):
                    self.breach(f"{host.name} stored the forged {id[:8]}")
                elif offer.operation.raw != self.made[id].raw:
                    self.breach(f"{host.name} stored {id[:8]} in other bytes than it was sent in")
            elif isinstance(outcome, Duplicate):
                self.marks["duplicate"] += 1
        self._tips[name] = tip
        stored = [o.operation.event.id[:8] for o, out in zip(offers, outcomes, strict=True) if isinstance(out, Stored)]
        self._trace.note(host.name, f"commits {log.tip}: {' '.join(stored)} of {len(offers)}")

    def booted(self, host: Host) -> None:
        """Nothing that was acknowledged may be missing from what the disk has kept."""
        held = self.holding[host.name] = ids(host.store.connection)
        for id in sorted(self.acknowledged.get(host.name, set()) - held - self.excused):
            if not self.stands_for(host, id):
                self.breach(f"{host.name} has lost {id[:8]}, which it had acknowledged")

    def acknowledge(self, host: Host, id: str) -> None:
        self.acknowledged.setdefault(host.name, set()).add(id)
        if host.process.alive and id not in self.holding[host.name] and not self.stands_for(host, id):
            self.breach(f"{host.name} acknowledged {id[:8]} and has it not")

    def restoring(self, host: Host) -> None:
        """An old backup is in place: what nobody else has is lost, and its loss is nobody's fault."""
        mine = self.acknowledged.pop(host.name, set())
        elsewhere = set().union(*(held for name, held in self.holding.items() if name != host.name))
        self.excused |= mine - elsewhere
        self.acknowledged.setdefault("", set()).update(mine)  # somebody has them, and in the end all do

    @contextmanager
    def forgetting(self, host: Host) -> Iterator[None]:
        """Around a step of compaction."""
        before = current(host)
        yield
        after = current(host)
        if before != after:
            self.breach(
                f"compaction on {host.name} changed the heads of {len(before.items() ^ after.items())} documents"
            )
        self.holding[host.name] = ids(host.store.connection)
        self.marks["compaction step"] += 1

    # --- in the end ---

    def all_there(self, hosts: Sequence[Host]) -> None:
        """Whatever was acknowledged anywhere is known everywhere, or has been replaced or deleted there."""
        wanted = set().union(*self.acknowledged.values()) if self.acknowledged else set()
        for host in hosts:
            known = ids(host.store.connection)
            for id in sorted(wanted - known - self.excused):
                if not self.stands_for(host, id):
                    self.breach(f"{host.name} never got {id[:8]} (kind {self.made[id].event.kind})")

    def stands_for(self, host: Host, id: str) -> bool:
        """Whether there is a good reason for a host not to know an operation: something else stands for it."""
        operation = self.made.get(id)
        if operation is None:
            return True
        connection = host.store.connection
        if operation.revision is not None:  # the same revision in another wrap
            return bool(
                connection.execute(
                    "SELECT 1 FROM revisions WHERE document = ? AND revision = ?",
                    (operation.document, bytes.fromhex(operation.revision.revision)),
                ).fetchall()
            )
        if operation.document is not None and operation.clock is None:  # a newer version
            return bool(
                connection.execute(
                    "SELECT 1 FROM operations WHERE document = ? AND created_at >= ?",
                    (operation.document, operation.event.created_at),
                ).fetchall()
            )
        return bool(connection.execute("SELECT 1 FROM deletions WHERE target = ?", (bytes.fromhex(id),)).fetchall())


def ids(connection: apsw.Connection) -> set[str]:
    return {row[0].hex() for row in connection.execute("SELECT id FROM operations")}


def current(host: Host, tombstones: bool = False) -> dict[bytes, frozenset[bytes]]:
    """The heads of every document; without those that are wholly deleted, unless they are wanted too."""
    heads: dict[bytes, dict[bytes, int]] = {}
    for document, name, action in host.store.connection.execute(_HEADS):
        heads.setdefault(document, {})[name] = action
    return {
        document: frozenset(found)
        for document, found in heads.items()
        if document is not None and (tombstones or not all(found.values()))
    }


def retained(host: Host, positions: Sequence[Position]) -> bool:
    """Whether any of these still has its payload."""
    marks = ",".join("?" * len(positions))
    return bool(
        host.store.connection.execute(
            f"SELECT 1 FROM operations WHERE state = {int(State.RETAINED)} AND position IN ({marks})", positions
        ).fetchall()
    )
