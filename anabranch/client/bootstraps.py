"""Bootstraps: from nothing, or from too long ago, to all that is current at one position of a relay's log.

Machines without I/O, one for each family. Snapshots: CHANGES in bootstrap mode, whose STATUS and EOSE must name the
same position and between which nothing but snapshots comes (seed 000). Revisions: NEG-OPEN over the heads at S, then
what is lacking is fetched by `#r` (seed 001). What arrives is staged; `Apply` comes last and once, with the position.
A relay that answers anything else has said nothing: `ProtocolError`, and nothing is applied. Nor is there an answer
without an end: beyond a bound of events, bytes, rounds or ids the relay is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from anabranch.client import messages
from anabranch.client.effects import Absent, Effect, LoadItems, LoadUnknown, Send, Stage
from anabranch.client.messages import Frame, ProtocolError
from anabranch.core.nostr import is_hex
from anabranch.core.revisions import STRATEGY

if TYPE_CHECKING:
    from anabranch.core.negentropy import Reconciler

FETCH_COUNT = 256
"""Revisions asked for at once: below what any relay bounds a filter or an answer to."""
AGAIN_COUNT = 16
"""Of what did not come: the square of it is below what relays answer at most, so nobody's junk can crowd it out."""
STAGE_COUNT = 256
STAGE_BYTES = 4 << 20
"""Events that are proven as one batch."""
EVENTS_MAX, BYTES_MAX = 1_000_000, 1 << 30
"""Of a bootstrap, which is in memory until it is whole. What comes twice counts twice."""
FETCH_EVENTS_MAX, FETCH_BYTES_MAX = 4_096, 256 << 20
"""Of one answer to one request: others may have put something under the same revisions, but not without end."""
ROUNDS_MAX = 20_000
NEED_MAX = 1_000_000
HINTED_MAX = 10_000
"""Revisions that are asked for once more: on a public relay most of many would be junk."""


class Wanted(msgspec.Struct, frozen=True):
    """A revision to ask for. `again`: it did not come when it was asked for among many others."""

    revision: str
    d: str | None = None
    again: bool = False


class CannotReconcile(Exception):
    """The relay will not reconcile, and says so. What it has can still be read from the beginning of its log."""


class Allowance:
    """How much an answer may bring; a relay that sends more is left."""

    def __init__(self, what: str, events_max: int, bytes_max: int) -> None:
        self._what = what
        self._events_max, self._events = events_max, 0
        self._bytes_max, self._bytes = bytes_max, 0

    def take(self, events: Sequence[bytes]) -> None:
        self._events += len(events)
        self._bytes += sum(map(len, events))
        if self._events > self._events_max:
            raise ProtocolError(f"{self._what} of more than {self._events_max} events")
        if self._bytes > self._bytes_max:
            raise ProtocolError(f"{self._what} of more than {self._bytes_max >> 20} MiB")


class SnapshotBootstrap:
    def __init__(self, name: str, owner: str, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.name = name
        self.position: int | None = None
        """Set when all has come."""
        self.seen: tuple[str, ...] = ()
        self.hinted: tuple[str, ...] = ()
        self._owner = owner
        self._promised: int | None = None
        self._events: list[bytes] = []
        self._bytes = 0
        self._allowance = Allowance("a bootstrap", events_max, bytes_max)

    def begin(self) -> list[Effect]:
        return [Send(messages.bootstrap(self.name, self._owner))]

    def receive(self, frame: Frame) -> list[Effect]:
        if frame.verb == "CLOSED":
            raise ProtocolError(f"the bootstrap was closed: {frame.text(2)}")
        if frame.verb != "CHANGES":
            raise ProtocolError(f"{str(frame.verb)[:20]} in the middle of a bootstrap")
        match frame[2]:
            case "SNAPSHOT" if self._promised is not None:
                raw = frame.raw(3)
                self._allowance.take((raw,))
                self._events.append(raw)
                self._bytes += len(raw)
                return self.stage() if len(self._events) >= STAGE_COUNT or self._bytes >= STAGE_BYTES else []
            case "STATUS" if self._promised is None:
                status = frame[3]
                at = status.get("snapshot_seq") if isinstance(status, dict) else None
                if not isinstance(at, int) or at < 0:
                    raise ProtocolError("a bootstrap whose STATUS names no snapshot_seq")
                self._promised = at
                return []
            case "EOSE" if self._promised is not None:
                at = frame.position(3)
                if at != self._promised:
                    raise ProtocolError(f"a bootstrap at {self._promised} that ends with {at}")
                self.position = at
                return self.stage()
        raise ProtocolError(f"{str(frame[2])[:20]} in the middle of a bootstrap")

    def stage(self) -> list[Effect]:
        events, self._events, self._bytes = self._events, [], 0
        return [Stage(tuple(events))] if events else []


class Fetch:
    """Revisions by their ids, some at a time. After each `Absent` names all that were asked for: with the reason that
    holds for those that did not come: «compacted», «unproven» the first time, «unknown» when it was asked again."""

    def __init__(self, name: str, owner: str, wanted: Sequence[Wanted], batched: bool) -> None:
        self.name = name
        self.finished = not wanted
        self._owner = owner
        self._batched = batched
        self._wanted = list(wanted)
        self._asked: list[Wanted] = []
        self._compacted: set[str] = set()
        self._allowance = self._fresh_allowance()

    @staticmethod
    def _fresh_allowance() -> Allowance:
        return Allowance("an answer to a fetch", FETCH_EVENTS_MAX, FETCH_BYTES_MAX)

    def begin(self) -> list[Effect]:
        count = AGAIN_COUNT if any(one.again for one in self._wanted) else FETCH_COUNT
        self._asked, self._wanted = self._wanted[:count], self._wanted[count:]
        self._allowance = self._fresh_allowance()
        self._compacted.clear()
        self.finished = not self._asked
        if self.finished:
            return []
        known = sorted({one.d for one in self._asked if one.d is not None})
        within = known if all(one.again and one.d is not None for one in self._asked) else []
        revisions = [one.revision for one in self._asked]
        return [Send(messages.by_revision(self.name, self._owner, revisions, self._batched, within))]

    def receive(self, frame: Frame) -> list[Effect]:
        match frame.verb:
            case "EVENTS" | "EVENT":
                events = frame.raws(2) if frame.verb == "EVENTS" else [frame.raw(2)]
                self._allowance.take(events)
                return [Stage(tuple(events))]
            case "EVENT-STATUS":
                status = frame[2]
                if isinstance(status, dict) and status.get("status") == "payload_compacted":
                    self._compact(str(status.get("rev")))
                return []
            case "EOSE":
                # A REQ goes live after EOSE; the next has the same name, and the last is closed.
                unless = [(one.revision, self._reason(one)) for one in self._asked]
                more = self.begin()
                return [Absent(tuple(unless)), *(more or [Send(messages.close(self.name))])]
            case "CLOSED":
                raise ProtocolError(f"a fetch was closed: {frame.text(2)}")
        raise ProtocolError(f"{str(frame.verb)[:20]} in the middle of a fetch")

    def _compact(self, revision: str) -> None:
        if any(one.revision == revision for one in self._asked):
            self._compacted.add(revision)

    def _reason(self, one: Wanted) -> str:
        if one.revision in self._compacted:
            return "compacted"
        return "unknown" if one.again else "unproven"


class RevisionBootstrap:
    """NEG-OPEN → NEG-STATUS S → reconcile with the local heads → fetch what is lacking."""

    def __init__(self, name: str, owner: str, batched: bool, frame_bytes_max: int) -> None:
        self.name = name
        self.position: int | None = None
        self.seen: tuple[str, ...] = ()
        """Revisions that the relay says it has although it did not send them."""
        self.hinted: tuple[str, ...] = ()
        """Those it was asked for: what did not come, or does not hold, is asked for once more."""
        self.fetch: Fetch | None = None
        self._owner = owner
        self._batched = batched
        self._frame_bytes_max = frame_bytes_max
        self._promised: int | None = None
        self._reconciler: Reconciler | None = None
        self._ours: list[str] = []
        self._have: set[str] = set()
        self._need: dict[str, None] = {}
        self._rounds = 0

    def begin(self) -> list[Effect]:
        return [Send(messages.negotiate(self.name, self._owner))]

    def receive(self, frame: Frame) -> list[Effect]:
        if self.fetch is not None and frame[1] == self.fetch.name:
            return self._fetched(self.fetch.receive(frame))
        match frame.verb:
            case "NEG-STATUS" if self._promised is None:
                self._promised = self._position(frame[2])
                return [LoadItems()]
            case "NEG-MSG" if self._reconciler is not None and self.fetch is None:
                return self._step(frame.text(2))
            case "NEG-ERR" | "CLOSED" if self.fetch is None:
                raise CannotReconcile(f"the relay will not reconcile: {frame.text(2)}")
            case "CLOSED":
                return []  # the answer to NEG-CLOSE
        raise ProtocolError(f"{str(frame.verb)[:20]} in the middle of a reconciliation")

    @staticmethod
    def _position(status: Any) -> int:
        if not isinstance(status, dict) or status.get("strategy") != STRATEGY:
            raise ProtocolError(f"a reconciliation by another strategy than {STRATEGY}")
        at = status.get("snapshot_seq")
        if not isinstance(at, int) or at < 0:
            raise ProtocolError("a reconciliation whose NEG-STATUS names no snapshot_seq")
        return at

    def items(self, items: Sequence[tuple[int, str]]) -> list[Effect]:
        """The local heads: (mtime in ms, revision)."""
        from anabranch.core.negentropy import Items, Reconciler  # brings numpy, which only revisions need

        self._ours = [revision for _, revision in items]
        ids = b"".join(bytes.fromhex(revision) for revision in self._ours)
        self._reconciler = Reconciler(Items.build([mtime for mtime, _ in items], ids), self._frame_bytes_max)
        return [Send(messages.negotiation(self.name, self._reconciler.initiate()))]

    def _step(self, text: str) -> list[Effect]:
        assert self._reconciler is not None
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise ProtocolError(f"a reconciliation that does not end within {ROUNDS_MAX} rounds")
        try:
            step = self._reconciler.reconcile(bytes.fromhex(text))
        except ValueError as error:
            raise ProtocolError(f"a reconciliation that cannot be read: {error}") from None
        self._have.update(map(_hex, step.have))
        self._need.update(dict.fromkeys(map(_hex, step.need)))
        if len(self._need) > NEED_MAX:
            raise ProtocolError(f"a reconciliation that names more than {NEED_MAX} revisions")
        if step.message is not None:
            return [Send(messages.negotiation(self.name, step.message))]
        need = tuple(self._need)
        self.seen = (*(one for one in self._ours if one not in self._have), *need)
        return [Send(messages.close(self.name, "NEG-CLOSE")), LoadUnknown(need)]

    def unknown(self, revisions: Sequence[str]) -> list[Effect]:
        """Of what the relay has, these are not here."""
        self.hinted = tuple(revisions[:HINTED_MAX])
        wanted = [Wanted(revision) for revision in revisions]
        self.fetch = Fetch(f"{self.name}-fetch", self._owner, wanted, self._batched)
        return self._fetched(self.fetch.begin())

    def _fetched(self, effects: list[Effect]) -> list[Effect]:
        if self.fetch is not None and self.fetch.finished:
            self.position = self._promised
        # Nothing is given up here: what did not come is asked for again when the relay is followed.
        return [effect for effect in effects if not isinstance(effect, Absent)]

    def stage(self) -> list[Effect]:
        return []


Bootstrap = SnapshotBootstrap | RevisionBootstrap


def _hex(id: bytes | str) -> str:
    text = id.hex() if isinstance(id, bytes) else id
    if not is_hex(text, 64):
        raise ProtocolError("a reconciliation with an id that is none")
    return text
