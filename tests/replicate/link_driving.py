"""A link driven by hand: virtual time, a store that is a dict, and a peer without I/O."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from relay_model import HANG_UP, RelayModel, items

from anabranch.core import filter as filters
from anabranch.core import nostr, snapshots
from anabranch.core.checkpoint import Blocked, Checkpoint
from anabranch.core.closure import Dependency
from anabranch.core.closure import blocked as blocked_in
from anabranch.core.nostr import Event, Limits
from anabranch.core.scope import EVERYTHING, Scope
from anabranch.core.token import Log, Position
from anabranch.replicate import effects as do
from anabranch.replicate.effects import Applied, Effect, Owed
from anabranch.replicate.identity import Identity
from anabranch.replicate.link import Link
from anabranch.replicate.room import Room
from anabranch.replicate.spec import Direction, LinkSpec, Timing
from anabranch.store.contract import LinkRecord

LIMITS = Limits(event_bytes=1 << 20, created_at_ahead=None)
WALL = 1_800_000_000


class LogPeer(RelayModel):
    """A node with a log: positions, a floor, and a feed of everything."""

    def __init__(self, events: Iterable[Event] = (), **options: Any) -> None:
        super().__init__(events, **options)
        self.stream, self.epoch, self.floor = "stream-1", "epoch-1", 1
        self.log = list(self.events.values())
        self.feeds: list[str] = []

    @property
    def information(self) -> dict[str, Any]:
        feed = {"min_seq": self.floor, "max_seq": len(self.log), "stream_id": self.stream, "epoch": self.epoch}
        return {"changes_feed": {**feed, "log": True}, "supported_nips": [1, 77]}

    def greet(self) -> list[Any]:
        self.feeds = []
        return super().greet()

    def add(self, *events: Event) -> list[Any]:
        """New operations; what the feeds say of them."""
        said = []
        for event in events:
            self.events[event.id] = event
            self.log.append(event)
            said += [self.change(name, len(self.log), event) for name in self.feeds]
        return said

    def change(self, name: str, position: int, event: Event) -> list[Any]:
        return ["CHANGES", name, "EVENT", position, json.loads(nostr.serialise(event))]

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        token = asked.get("token")
        if token is not None and token["epoch"] != self.epoch:
            return [["CHANGES", name, "ERR", f"checkpoint of another epoch: epoch is {self.epoch}", {}]]
        since = asked["since"] if token is None else int(token["position"])
        if since < self.floor - 1:
            return [["CHANGES", name, "ERR", f"checkpoint too old: min_seq is {self.floor}"]]
        if since > len(self.log):
            return [["CHANGES", name, "ERR", f"checkpoint too new: max_seq is {len(self.log)}"]]
        self.feeds.append(name)
        replayed = [self.change(name, at, self.log[at - 1]) for at in range(since + 1, len(self.log) + 1)]
        return [*replayed, ["CHANGES", name, "EOSE", len(self.log)]]

    def on_event(self, raw: dict[str, Any]) -> list[Any]:
        event = nostr.parse(json.dumps(raw).encode(), LIMITS)[0]
        known = event.id in self.events
        echoes = [] if known else self.add(event)
        return [["OK", event.id, True, "duplicate: known" if known else ""], *echoes]


class FeedPeer(LogPeer):
    """A relay with the changes feed of one author's snapshots."""

    @property
    def information(self) -> dict[str, Any]:
        feed = {"min_seq": self.floor, "max_seq": len(self.log)}
        return {"changes_feed": feed, "snapshot_sync": {"changes_feed": True}, "supported_nips": [1, 77]}

    def change(self, name: str, position: int, event: Event) -> list[Any]:
        if not snapshots.in_range(event.kind):
            return ["CHANGES", name, "EOSE", position]
        return super().change(name, position, event)

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        if not all(map(snapshots.in_range, asked["kinds"])):
            return [["CHANGES", name, "ERR", "snapshot CHANGES kinds must be in the sync range 40000 to 49999"]]
        if asked.get("live"):
            self.feeds.append(name)
        replayed = [
            self.change(name, at, event)
            for at, event in enumerate(self.log, 1)
            if at > asked["since"] and snapshots.in_range(event.kind)
        ][: asked.get("limit")]
        return [*replayed, ["CHANGES", name, "EOSE", len(self.log)]]


class Drive:
    """One link; `run` lets things happen until nothing more does, or a time has passed."""

    def __init__(
        self,
        peer: Any,
        events: Iterable[Event] = (),
        direction: str = "pull",
        scope: Scope = EVERYTHING,
        record: LinkRecord | None = None,
        timing: Timing | None = None,
        share: float = 0.5,
        identity: Identity | None = None,
        room: Room | None = None,
    ) -> None:
        self.peer = peer
        self.identity = identity
        self.store: dict[str, bytes] = {event.id: nostr.serialise(event) for event in events}
        self.log = list(self.store)
        self.own = Log("own", "own-epoch", Position(1), Position(len(self.log)))
        self.now = 0.0
        self.reachable = True
        self.connected = False
        self.forged: set[str] = set()
        self.needs: dict[str, str] = {}
        """Which operation needs which other."""
        self.refuses: set[str] = set()
        self.refuses_until: dict[str, int] = {}
        """What our rules take from a time on."""
        self.disk_full = False
        self.payloads_at_once = 200
        self.told: list[do.Told] = []
        self.noted: list[do.Noted] = []
        self.buried: list[do.Bury] = []
        self.dials: list[float] = []
        self.pages: list[do.Apply] = []
        self.saved: list[Checkpoint] = []
        self.remembered: list[tuple[int, ...]] = []
        """The crowded seconds of each time that the record was to be written down."""
        self.echoes: set[str] = set()
        self.record = record or LinkRecord("up", "ws://peer/", direction)
        self.spec = LinkSpec("up", "ws://peer/", scope, Direction(direction))
        wall = lambda: WALL + int(self.now)  # noqa: E731
        self.link = Link(self.spec, self.record, timing or Timing(), lambda: share, wall, room=room)
        self._todo: deque[Effect] = deque()
        self._inbox: deque[Any] = deque()

    # --- time ---

    def run(self, seconds: float = 0.0) -> Drive:
        end = self.now + seconds
        while True:
            self._settle()
            due = self.link.deadline
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self._do(self.link.tick(self.now))
        self.now = max(self.now, end)
        return self

    def _settle(self) -> None:
        """Carry out effects, then take in what the peer said, one thing after the other; then apply what has come."""
        while True:
            if self._todo:
                self._perform(self._todo.popleft())
            elif self._inbox:
                self._take_in(self._inbox.popleft())
            else:
                self._do(self.link.flush(self.now))
                if not self._todo:
                    return

    def _take_in(self, frame: Any) -> None:
        if frame is HANG_UP:
            self._inbox.clear()
            self.connected = False
            self._do(self.link.lost("it hung up", self.now))
        elif self.connected:
            self._do(self.link.heard(json.dumps(frame).encode(), self.now, more=bool(self._inbox)))

    def _do(self, effects: list[Effect]) -> None:
        self._todo.extend(effects)

    # --- what a test makes happen ---

    def say(self, *frames: Any) -> Drive:
        self._inbox.extend(frames)
        self._settle()
        return self

    def cut(self, why: str = "it broke off") -> Drive:
        self._lose()
        self._do(self.link.lost(why, self.now))
        self._settle()
        return self

    def _lose(self) -> None:
        self.connected = False
        self._inbox.clear()

    def tell(self, verb: str) -> Drive:
        self._do(getattr(self.link, verb)(self.now))
        return self.run()

    def write(self, *events: Event) -> Drive:
        """Something is published here."""
        for event in events:
            self._keep(event.id, nostr.serialise(event))
        self._do(self.link.wake(self.now))
        return self.run()

    def _keep(self, id: str, raw: bytes) -> None:
        self.store[id] = raw
        self.log.append(id)
        self.own = Log(self.own.stream, self.own.epoch, self.own.floor, Position(len(self.log)))

    # --- effects ---

    def _perform(self, effect: Effect) -> None:
        link, now = self.link, self.now
        match effect:
            case do.Dial():
                self.dials.append(now)
                if not self.reachable:
                    self._do(link.lost("nothing answers at this address", now))
                    return
                self.connected = True
                greeting = self.peer.greet()
                self._do(link.opened(getattr(self.peer, "information", {}), now, self.identity))
                self._inbox.extend(greeting)
            case do.Send(message):
                if self.connected:
                    self._inbox.extend(self.peer.answer(message))
            case do.HangUp():
                self._lose()
            case do.Apply():
                self._apply(effect)
            case do.LoadItems(filter):
                known = [self._event(id) for id in self.store]
                wanted = nostr_filter(filter)
                self._do(link.items(items(event for event in known if wanted(event)), self.own, now))
            case do.LoadUnknown(ids):
                unknown = [id for id in ids if id not in self.store]
                self._do(link.loaded(lambda running: running.unknown(unknown), now))
            case do.LoadPayloads(ids):
                found = [(id, self.store[id]) for id in ids[: self.payloads_at_once]]
                self._do(link.loaded(lambda running: running.payloads(found, len(found)), now))
            case do.LoadMissing(after, _):
                self._do(link.loaded(lambda running: running.lacking(after, []), now))
            case do.LoadOwed(after, limit):
                page = self.log[after : after + limit]
                owed = [(id, self.store[id]) for id in page if id not in self.echoes]
                self._do(link.owed(Owed(after, tuple(owed), Position(after + len(page)), self.own), now))
            case do.SavePull(checkpoint) | do.SavePush(checkpoint):
                self.saved.append(checkpoint)
            case do.Remember():
                self.remembered.append(link.crowded)
            case do.Bury():
                self.buried.append(effect)
            case do.Told():
                self.told.append(effect)
            case do.Noted():
                self.noted.append(effect)

    def _event(self, id: str) -> Event:
        return nostr.parse(self.store[id], LIMITS)[0]

    def _apply(self, asked: do.Apply) -> None:
        self.pages.append(asked)
        if self.disk_full:
            self._do(self.link.not_applied("disk full", self.now))
            return
        forged = tuple(one.event.id for one in asked.arrivals if one.event.id in self.forged)
        if forged:
            self._do(self.link.applied(Applied(asked.number, forged=forged), self.now))
            return
        kept_back = blocked_in(
            {
                id: (Dependency("ancestry", self.needs[id]),) if id in self.needs else ()
                for one in asked.arrivals
                if (id := one.event.id) not in self.refuses
            },
            self.store,
        )
        arrived, waits, declined, stored = [], [], [], 0
        for one in asked.arrivals:
            id = one.event.id
            why = Blocked(id, need.kind, need.id, "not here") if (need := kept_back.get(id)) is not None else None
            if why is not None:
                waits.append(why)
            elif id in self.refuses or self.refuses_until.get(id, 0) > WALL + self.now:
                declined.append(id)
            elif id not in self.store:
                self._keep(id, one.raw)
                self.echoes.add(id)
                stored += 1
            if one.token is not None:
                arrived.append((one.token, id, why))
        moves = arrived or asked.through is not None
        checkpoint = self.link.pull.settle(arrived, asked.through) if moves else None
        later = tuple((id, self.refuses_until[id]) for id in declined if id in self.refuses_until)
        refused = tuple(declined)
        result = Applied(asked.number, stored, refused, refused, later, blocked=tuple(waits), checkpoint=checkpoint)
        self._do(self.link.applied(result, self.now))

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(told.cue, told.after) for told in self.told]


def nostr_filter(raw: Any) -> Any:
    wanted = filters.parse(dict(raw), 1_000)
    return lambda event: filters.matches(wanted, event)
