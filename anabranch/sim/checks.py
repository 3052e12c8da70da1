"""What must hold in the world, after each step and at the end; every breach is put down with the time it was seen at.

- What was acknowledged is there, after every crash, unless an old backup was put back over it.
- A position is given once in an epoch, and always the next one is higher.
- Nothing forged is ever stored.
- Compaction changes no heads.
- A link's checkpoint is never ahead of what was applied.
- A feed is served in order and whole, and a gap is told.
- A link that says it is caught up has, both ways, what was there when it began to compare.
- In the end all nodes agree: heads, conflicts, tombstones; they are what the definition says, and the digests of two
  nodes are equal exactly where what they have stored is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from anabranch.core import nostr
from anabranch.core.negentropy import Items
from anabranch.core.operation import Family, Operation, State
from anabranch.core.token import Position
from anabranch.sim.link_checks import LinkChecks
from anabranch.store.contract import Duplicate, LinkChange, Offer, Outcome, Refused, Stored

if TYPE_CHECKING:
    from anabranch.replicate.link import Link
    from anabranch.sim.host import Host
    from anabranch.sim.trace import Trace

LogName = tuple[str, str]
_clock = msgspec.json.Decoder(dict[str, int]).decode
BREACHES_MAX = 20
_HEADS = (
    "SELECT o.document, coalesce(r.revision, o.id), o.action FROM operations o "
    "LEFT JOIN revisions r ON r.position = o.position WHERE o.head = 1 AND o.state = 0"
)


class Checks:
    def __init__(self, trace: Trace, time: Callable[[], float]) -> None:
        self._trace = trace
        self._time = time
        self.breaches: list[str] = []
        self.breached: Callable[[], None] = lambda: None
        self.marks: Counter[str] = Counter()
        self.operations = 0
        self.made: dict[str, Operation] = {}  # every operation that was ever stored anywhere
        self.logs: dict[LogName, dict[int, str]] = {}  # what was given each position
        self.acknowledged: dict[str, set[str]] = {}  # host → ids
        self.excused: set[str] = set()  # lost with every copy of them
        self.holding: dict[str, set[str]] = {}  # host → every id that its disk has
        self.links = LinkChecks(self)
        self._put_back: dict[str, float] = {}  # hosts on which an old backup was put back, and when it last was
        self._forgotten: dict[str, set[str]] = {}
        self._stored_at: dict[str, dict[str, float]] = {}
        self._latest: dict[str, dict[bytes, int]] = {}  # host → the time of the latest version of what is replaceable
        self._tips: dict[LogName, int] = {}
        self._began: dict[LogName, int] = {}  # after which position an epoch was opened

    def breach(self, text: str) -> None:
        self._trace.note("BREACH", text)
        if len(self.breaches) < BREACHES_MAX:
            self.breaches.append(f"{self._time():.3f} {text}")
        self.breached()

    def mark(self, name: str) -> None:
        self.marks[name] += 1

    # --- what hosts tell ---

    def committed(
        self, host: Host, offers: Sequence[Offer], outcomes: Sequence[Outcome], change: LinkChange | None
    ) -> None:
        log = host.store.log()
        name = log.stream, log.epoch
        given, tip = self.logs[name], self._tips[name]
        stored: list[str] = []
        since, now = self._stored_at.setdefault(host.name, {}), self._time()
        self.operations += len(outcomes)
        for offer, outcome in zip(offers, outcomes, strict=True):
            operation = offer.operation
            id = operation.event.id
            first = operation if isinstance(outcome, Refused) else self.made.setdefault(id, operation)
            if isinstance(outcome, Stored):
                at = outcome.position
                if given.setdefault(at, id) != id:
                    self.breach(f"{host.name} gave position {at} to {given[at][:8]} and again to {id[:8]}")
                elif at <= tip:
                    self.breach(f"{host.name} gave position {at} after {tip}")
                tip = at
                stored.append(id[:8])
                self.holding[host.name].add(id)
                self._note_version(host, operation)
                since[id] = now
                # Who says the same twice in one second may sign it anew: then there are two that hold.
                anew = first is operation or operation.event.sig != first.event.sig
                if anew and not all(nostr.verify([operation.event])):
                    self.breach(f"{host.name} stored the forged {id[:8]}")
                elif not anew and operation.raw != first.raw:
                    self.breach(f"{host.name} stored {id[:8]} in other bytes than it was sent in")
            elif isinstance(outcome, Duplicate):
                self.marks["duplicate"] += 1
        self._tips[name] = tip
        self._trace.note(host.name, f"commits {log.tip}: {' '.join(stored)} of {len(offers)}")
        if change is not None:
            self.links.moved(host, change, offers, outcomes)

    def link_moved(self, host: Host, change: LinkChange) -> None:
        told = change.transition
        if told is not None:
            self._trace.note(host.name, f"link {change.link} {told.before} → {told.after}: {told.cue} {told.why}")
        self.links.moved(host, change)

    def link_said(self, host: Host, link: Link) -> None:
        self.links.said(host, link)

    def offered(self, host: Host, source: str, id: str, since: float) -> None:
        self.links.offered(host, source, id, since)

    def booted(self, host: Host) -> None:
        """Nothing that was acknowledged may be missing from what the disk has kept."""
        log = host.store.log()
        name = log.stream, log.epoch
        if name not in self.logs:
            self.logs[name], self._tips[name] = {}, log.tip
            self._began[name] = log.tip
        given = self.logs[name]
        for at, id in host.store.connection.execute(
            "SELECT position, id FROM operations WHERE position > ?", (self._began[name],)
        ):  # a commit may have reached the disk although it was never told of
            if given.setdefault(at, id.hex()) != id.hex():
                self.breach(f"{host.name} has {id.hex()[:8]} at {at}, where {given[at][:8]} stood")
        self._tips[name] = max(self._tips[name], log.tip)
        held = self.holding[host.name] = ids(host.store.connection)
        self._latest[host.name] = dict(
            host.store.connection.execute(
                "SELECT document, max(created_at) FROM operations WHERE family = 0 AND document IS NOT NULL GROUP BY 1"
            )
        )
        self.links.booted(host, held)
        for id in sorted(self.acknowledged.get(host.name, set()) - held - self.excused):
            if not self.stands_for(host, id):
                self.breach(f"{host.name} has lost {id[:8]}, which it had acknowledged")

    def _note_version(self, host: Host, operation: Operation) -> None:
        if operation.family is Family.PLAIN and operation.document is not None:
            latest = self._latest[host.name]
            latest[operation.document] = max(operation.event.created_at, latest.get(operation.document, 0))

    def acknowledge(self, host: Host, id: str) -> None:
        alive = host.process.alive
        if id not in self.holding[host.name] and not (alive and self.stands_for(host, id)):
            if host.name in self._put_back:  # said before an old backup was put back, and heard after it
                self._lose({id})
                return
            if alive:
                self.breach(f"{host.name} acknowledged {id[:8]} and has it not")
        self.acknowledged.setdefault(host.name, set()).add(id)

    def restoring(self, host: Host) -> None:
        """An old backup is in place: what nobody else has is lost, and its loss is nobody's fault."""
        self._put_back[host.name] = self._time()
        self.holding[host.name] = set()
        self._lose(self.acknowledged.pop(host.name, set()))

    def was_put_back(self, host: Host, since: float = 0.0) -> bool:
        """Whether it has lost something by an old backup."""
        return self._put_back.get(host.name, -1.0) >= since

    def _lose(self, acknowledged: set[str]) -> None:
        """Whoever acknowledged these has them no longer. If somebody else has who can be believed, all will have them
        in the end."""
        honest = (held for name, held in self.holding.items() if name not in self.links.liars)
        self.excused |= acknowledged.difference(*honest)
        self.acknowledged.setdefault("", set()).update(acknowledged)

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
        self.marks["compaction step"] += 1

    def forgot(self, host: Host) -> None:
        """Documents may have gone altogether, facts and all."""
        left = ids(host.store.connection)
        self._forgotten.setdefault(host.name, set()).update(self.holding[host.name] - left)
        self.holding[host.name] = left

    # --- in the end ---

    def all_there(self, hosts: Sequence[Host], compacted: bool) -> None:
        """Whatever was acknowledged anywhere is known to all."""
        for host, id in self.lacking(hosts, compacted):
            self.breach(f"{host.name} never got {id[:8]} (kind {self.made[id].event.kind})")

    def lacking(self, hosts: Sequence[Host], compacted: bool) -> Iterator[tuple[Host, str]]:
        """Who does not know what was acknowledged; where some compact, of what nobody knows: it may be no head."""
        wanted = set().union(*self.acknowledged.values()) if self.acknowledged else set()
        for host in hosts:
            for id in sorted(wanted - self.holding[host.name] - self.excused):
                known_to = hosts if compacted else [host]
                if not any(id in self.holding[one.name] or self.stands_for(one, id) for one in known_to):
                    yield host, id

    def digests_are_right(self, sets: Mapping[str, Items]) -> None:
        """Of any two nodes the digests are equal exactly where the sets are; and of a node and itself less one item,
        so that both are seen where all nodes agree."""
        whole = list(sets.items())
        less = [(f"{name} without one", one.changed([], [next(iter(one))])) for name, one in whole if len(one)]
        for (name, one), (other_name, other) in combinations([*whole, *less], 2):
            same = one.id_list(0, len(one)) == other.id_list(0, len(other))
            self.mark("digests of equal sets" if same else "digests of different sets")
            if (one.fingerprint == other.fingerprint) != same:
                self.breach(
                    f"the digests of {name} and {other_name} are {'different' if same else 'equal'}, and their sets of "
                    f"{len(one)} and {len(other)} are not"
                )

    def heads_are_right(self, host: Host) -> None:
        """What a store calls heads is what the definition says, worked out anew from all that it knows."""
        documents: dict[bytes, list[tuple[bytes, dict[str, int], bool]]] = {}
        for document, id, clock, head in host.store.connection.execute(
            "SELECT document, id, clock, head FROM operations WHERE family = 1"
        ):
            documents.setdefault(document, []).append((id, _clock(clock), bool(head)))
        for versions in documents.values():
            right = _maximal([(id, clock) for id, clock, _ in versions])
            if {id for id, _, head in versions if head} != right:
                self.breach(f"{host.name} has the wrong heads of a document with {len(versions)} versions")
        self._replaceables_are_right(host)
        self._revisions_are_right(host)

    def _revisions_are_right(self, host: Host) -> None:
        """A head is what nothing that is stored stands on, also by way of what is only heard of."""
        revisions: list[Any] = host.store.connection.execute(
            "SELECT r.document, r.revision, r.parents, o.head FROM revisions r JOIN operations o USING (position)"
        ).fetchall()
        stored = {(document, revision) for document, revision, _, _ in revisions}
        heard_of = {
            (document, revision): parents
            for document, revision, parents in host.store.connection.execute(
                "SELECT document, revision, parents FROM told"
            )
            if (document, revision) not in stored
        }
        named: set[tuple[bytes, bytes]] = set()
        open = [(document, parents) for document, _, parents, _ in revisions]
        while open:
            document, parents = open.pop()
            for at in range(0, len(parents), 32):
                name = document, parents[at : at + 32]
                if name not in named:
                    named.add(name)
                    open.append((document, heard_of.get(name, b"")))
        for document, revision, _, head in revisions:
            if bool(head) == ((document, revision) in named):
                self.breach(
                    f"{host.name} is wrong about {revision.hex()[:8]}, which it calls {'a' if head else 'no'} head"
                )

    def _replaceables_are_right(self, host: Host) -> None:
        """Of all versions of a replaceable event that a store took the latest is there; of equal times, the least."""
        rows = host.store.connection.execute(
            "SELECT document, created_at, id, head FROM operations WHERE family = 0 AND document IS NOT NULL"
        )
        best: dict[bytes, tuple[int, bytes, bool]] = {}
        for document, created_at, id, head in rows:
            told = (-created_at, id, bool(head))
            best[document] = min(best.get(document, told), told)
        for document, (_, id, head) in best.items():
            if not head:
                self.breach(f"{host.name} has another version of {document.hex()[:8]} than {id.hex()[:8]}")

    def stands_for(self, host: Host, id: str) -> bool:
        """Whether there is a good reason for a host not to know an operation: something else stands for it."""
        operation = self.made.get(id)
        if id in self._forgotten.get(host.name, ()):
            return True
        if operation is None:  # nobody ever committed it
            return False
        connection = host.store.connection
        if operation.revision is not None:  # the same revision in another wrap
            return bool(
                connection.execute(
                    "SELECT 1 FROM revisions WHERE document = ? AND revision = ?",
                    (operation.document, bytes.fromhex(operation.revision.revision)),
                ).fetchall()
            )
        if operation.document is not None and operation.clock is None:  # a newer version
            return self._latest[host.name].get(operation.document, -1) >= operation.event.created_at
        return bool(connection.execute("SELECT 1 FROM deletions WHERE target = ?", (bytes.fromhex(id),)).fetchall())

    def retains(self, host: Host, id: str) -> bool:
        """Whether a host has the payload of an operation."""
        return host.process.alive and host.store.open_reader().state(id) is State.RETAINED

    def position(self, host: Host, id: str) -> Position | None:
        """Where an operation stands in a host's log."""
        rows = host.store.connection.execute("SELECT position FROM operations WHERE id = ?", (bytes.fromhex(id),))
        return next((Position(at) for (at,) in rows), None)

    def stored_before(self, host: Host, moment: float) -> list[str]:
        """What a host had committed by then."""
        return [id for id, at in self._stored_at.get(host.name, {}).items() if at < moment]


def _maximal(versions: list[tuple[bytes, dict[str, int]]]) -> set[bytes]:
    """Of versions with clocks those that no other exceeds: nowhere smaller, and somewhere greater."""
    kept: list[tuple[bytes, dict[str, int]]] = []
    for id, clock in sorted(versions, key=lambda version: -sum(version[1].values())):
        if not any(head != clock and all(head.get(name, 0) >= n for name, n in clock.items()) for _, head in kept):
            kept.append((id, clock))
    return {id for id, _ in kept}


def ids(connection: apsw.Connection) -> set[str]:
    return {row[0].hex() for row in connection.execute("SELECT id FROM operations")}


def current(host: Host, tombstones: bool = False) -> dict[bytes, frozenset[bytes]]:
    """The heads of every document, without those that are wholly deleted, unless they are wanted too; and, under no
    name, all that is no version of anything."""
    return host.store.read(("current", tombstones), lambda: _current(host.store.connection, tombstones))


def _current(connection: apsw.Connection, tombstones: bool) -> dict[bytes, frozenset[bytes]]:
    heads: dict[bytes, dict[bytes, int]] = {}
    for document, name, action in connection.execute(_HEADS):
        heads.setdefault(document, {})[name] = action
    kept = {document: frozenset(found) for document, found in heads.items() if tombstones or not all(found.values())}
    rows = connection.execute("SELECT id FROM operations WHERE document IS NULL AND state = 0")
    return {**kept, b"": frozenset(row[0] for row in rows)}


def retained(host: Host, positions: Sequence[Position]) -> bool:
    """Whether any of these still has its payload."""
    marks = ",".join("?" * len(positions))
    return bool(
        host.store.connection.execute(
            f"SELECT 1 FROM operations WHERE state = {int(State.RETAINED)} AND position IN ({marks})", positions
        ).fetchall()
    )
