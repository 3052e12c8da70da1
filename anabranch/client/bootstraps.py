"""Bootstraps: from nothing, or from too long ago, to all that is current at one position of a relay's log.

Machines without I/O, one for each family. Snapshots: CHANGES in bootstrap mode, whose STATUS and EOSE must name the
same position and between which nothing but snapshots comes (seed 000). Revisions: NEG-OPEN over the heads at S, then
what is lacking is fetched by `#r` (seed 001). What arrives is staged; `Apply` comes last and once, with the position.
A relay that answers anything else has said nothing: `ProtocolError`, and nothing is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anabranch.client import messages
from anabranch.client.effects import Absent, Effect, LoadItems, LoadUnknown, Send, Stage
from anabranch.client.messages import Frame, ProtocolError
from anabranch.core.nostr import is_hex
from anabranch.core.revisions import STRATEGY

if TYPE_CHECKING:
    from anabranch.core.negentropy import Reconciler

FETCH_COUNT = 256
"""Revisions asked for at once: below what any relay bounds a filter or an answer to."""
STAGE_COUNT = 256
"""Events that are proven as one batch."""


class CannotReconcile(Exception):
    """The relay will not reconcile, and says so. What it has can still be read from the beginning of its log."""


class SnapshotBootstrap:
    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.position: int | None = None
        """Set when all has come."""
        self.seen: tuple[str, ...] = ()
        self._owner = owner
        self._promised: int | None = None
        self._events: list[bytes] = []

    def begin(self) -> list[Effect]:
        return [Send(messages.bootstrap(self.name, self._owner))]

    def receive(self, frame: Frame) -> list[Effect]:
        if frame.verb == "CLOSED":
            raise ProtocolError(f"the bootstrap was closed: {frame.text(2)}")
        if frame.verb != "CHANGES":
            raise ProtocolError(f"{str(frame.verb)[:20]} in the middle of a bootstrap")
        match frame[2]:
            case "SNAPSHOT" if self._promised is not None:
                self._events.append(frame.raw(3))
                return self.stage() if len(self._events) >= STAGE_COUNT else []
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
        events, self._events = self._events, []
        return [Stage(tuple(events))] if events else []


class Fetch:
    """Revisions by their ids, some at a time. After each `Absent` names all that were asked for: with the reason that
    holds for those that did not come."""

    def __init__(self, name: str, owner: str, wanted: Sequence[str], batched: bool) -> None:
        self.name = name
        self.finished = not wanted
        self._owner = owner
        self._batched = batched
        self._wanted = list(wanted)
        self._asked: list[str] = []
        self._compacted: set[str] = set()

    def begin(self) -> list[Effect]:
        self._asked, self._wanted = self._wanted[:FETCH_COUNT], self._wanted[FETCH_COUNT:]
        self.finished = not self._asked
        if self.finished:
            return []
        return [Send(messages.by_revision(self.name, self._owner, self._asked, self._batched))]

    def receive(self, frame: Frame) -> list[Effect]:
        match frame.verb:
            case "EVENTS":
                return [Stage(tuple(frame.raws(2)))]
            case "EVENT":
                return [Stage((frame.raw(2),))]
            case "EVENT-STATUS":
                status = frame[2]
                if isinstance(status, dict) and status.get("status") == "payload_compacted":
                    self._compacted.add(str(status.get("rev")))
                return []
            case "EOSE":
                # A REQ goes live after EOSE; the next has the same name, and the last is closed.
                unless = [(one, "compacted" if one in self._compacted else "unknown") for one in self._asked]
                more = self.begin()
                return [Absent(tuple(unless)), *(more or [Send(messages.close(self.name))])]
            case "CLOSED":
                raise ProtocolError(f"a fetch was closed: {frame.text(2)}")
        raise ProtocolError(f"{str(frame.verb)[:20]} in the middle of a fetch")


class RevisionBootstrap:
    """NEG-OPEN → NEG-STATUS S → reconcile with the local heads → fetch what is lacking."""

    def __init__(self, name: str, owner: str, batched: bool, frame_bytes_max: int) -> None:
        self.name = name
        self.position: int | None = None
        self.seen: tuple[str, ...] = ()
        """Revisions that the relay has although it did not send them."""
        self.fetch: Fetch | None = None
        self._owner = owner
        self._batched = batched
        self._frame_bytes_max = frame_bytes_max
        self._promised: int | None = None
        self._reconciler: Reconciler | None = None
        self._ours: list[str] = []
        self._have: set[str] = set()
        self._need: list[str] = []

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
        try:
            step = self._reconciler.reconcile(bytes.fromhex(text))
        except ValueError as error:
            raise ProtocolError(f"a reconciliation that cannot be read: {error}") from None
        self._have.update(map(_hex, step.have))
        self._need.extend(map(_hex, step.need))
        if step.message is not None:
            return [Send(messages.negotiation(self.name, step.message))]
        need = tuple(dict.fromkeys(self._need))
        self.seen = (*(one for one in self._ours if one not in self._have), *need)
        return [Send(messages.close(self.name, "NEG-CLOSE")), LoadUnknown(need)]

    def unknown(self, revisions: Sequence[str]) -> list[Effect]:
        """Of what the relay has, these are not here."""
        self.fetch = Fetch(f"{self.name}-fetch", self._owner, revisions, self._batched)
        return self._fetched(self.fetch.begin())

    def _fetched(self, effects: list[Effect]) -> list[Effect]:
        if self.fetch is not None and self.fetch.finished:
            self.position = self._promised
        # A head that went away since S is no ancestor: who asks for it later may be answered otherwise.
        return [effect for effect in effects if not isinstance(effect, Absent)]

    def stage(self) -> list[Effect]:
        return []


Bootstrap = SnapshotBootstrap | RevisionBootstrap


def _hex(id: bytes | str) -> str:
    text = id.hex() if isinstance(id, bytes) else id
    if not is_hex(text, 64):
        raise ProtocolError("a reconciliation with an id that is none")
    return text
