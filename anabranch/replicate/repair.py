"""One round of a repair: who lacks what, by digest; what we lack is fetched, what the peer lacks is given. No I/O.

    loading → reconciling → asking → fetching → giving → [tracing] → done

A round only compares what is open: what is here in any state, what our own rules decline, and what the peer has
acknowledged or refused for good is settled. A round that found nothing open proves that the two are equal in the scope.
`hear` answers None for what is not the round's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.core.negentropy import Items
from anabranch.core.revisions import Name
from anabranch.core.scope import Scope
from anabranch.core.token import Position
from anabranch.replicate.comparisons import Finding
from anabranch.replicate.effects import Arrival, Bury, Effect, LoadItems, LoadPayloads, LoadUnknown, Send, Tell
from anabranch.replicate.lineage import Lineage, Request
from anabranch.replicate.refusals import may_be_about_one
from anabranch.replicate.room import Share
from anabranch.replicate.settled import Settled
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Answer, Bounds, Machine
from anabranch.wire.paging import ByIds
from anabranch.wire.publication import Publication
from anabranch.wire.reconciliation import Method, Reconciliation

GIVE_AT_ONCE = 200
GIVE_TO_TRY = 10  # to a peer that did not take all of it the last time
CROWDED_MAX = 100  # seconds that are named


class RoundFailed(Exception):
    """The round cannot be brought to an end with this peer now. `accuses`: because it breaks its word."""

    def __init__(self, reason: str, accuses: bool = False) -> None:
        super().__init__(reason)
        self.accuses = accuses


class Step(StrEnum):
    LOADING = "loading our own set"
    RECONCILING = "comparing digests"
    ASKING = "looking up what is here"
    FETCHING = "fetching what we lack"
    GIVING = "giving what the peer lacks"
    TRACING = "asking for what revisions stand on"
    DONE = "done"


class Round:
    def __init__(
        self,
        scope: Scope,
        settled: Settled,
        share: Share,
        *,
        name: str,
        pulls: bool,
        pushes: bool,
        closes: bool,
        negentropy: bool,
        since: int | None,
        wall: int,
        bounds: Bounds,
        message_bytes_max: int | None = None,
        lineage: Lineage | None = None,
        named: frozenset[str] = frozenset(),
        began: float = 0.0,
    ) -> None:
        """`closes`: fetch and give; otherwise only compare. `since`: only what was made from then on. With a `lineage`
        the peer is asked for what it completes. `named` is what it had the last time, as it said, and we lacked."""
        self.began = began
        self.step = Step.LOADING
        self.found: list[Arrival] = []
        self.found_bytes = 0
        """What has come and was not taken yet."""
        self.finding = Finding()
        """What was not equal, once it is known."""
        self.left: set[str] = set()
        """What of it the peer does not take now, or was not offered because of that."""
        self.crowded: tuple[int, ...] = ()
        """The seconds in which the peer may have more than it showed: they hold more than it gives at once."""
        self.method: Method | None = None
        self.talked = False  # the peer went along with negentropy
        self.hurried = False  # it said something that looks like a refusal
        self._scope = scope
        self._settled = settled
        self._share = share
        self._name = name
        self._pulls, self.pushes, self.closes = pulls, pushes, closes
        self.negentropy = negentropy
        self.whole = since is None
        self._filter: dict[str, Any] = {**scope.filter(), **({"since": since} if since else {})}
        self._wall = wall
        self._bounds = bounds
        self._message_bytes_max = message_bytes_max
        self._lineage = lineage
        self._named = named
        self._traced = 0
        self._machine: Machine | None = None
        self._more = False  # differs than was found
        self._need: list[str] = []
        self._have: list[str] = []
        self._asked: tuple[str, ...] = ()  # of our own store
        self._brought: set[str] = set()  # by pages, of what was named

    def begin(self) -> list[Effect]:
        self._settled.look()
        return [LoadItems(self._filter)]

    @property
    def awaits_peer(self) -> bool:
        return self._machine is not None

    # --- our own side answers ---

    def items(self, items: Items) -> list[Effect]:
        self.step = Step.RECONCILING
        reconciliation = Reconciliation(
            self._filter,
            items,
            now=self._wall,
            bounds=self._bounds,
            negentropy=self.negentropy,
            prefix=self._name,
            have=self.pushes,
            need=self._pulls,
            need_of_pages=not self.closes,
            enough=self._share.found,
        )
        return self._start(reconciliation)

    def unknown(self, ids: Sequence[str]) -> list[Effect]:
        lacking = frozenset(ids).difference(self._settled.declined, self._settled.kept_back.aside)
        self._need = [id for id in self._need if id in lacking]
        lacked = frozenset(self._need)
        self.finding = Finding(
            lacked.union(self._have), lacked, vanished=(self._named & lacking) - lacked, more=self._more
        )
        if not self.closes:
            return self._finish()
        self.step = Step.FETCHING
        return self._start(ByIds(self._need, self._scope.filter(), bounds=self._bounds, prefix=self._name))

    def payloads(self, operations: Sequence[tuple[str, bytes]], done: int) -> list[Effect]:
        """The answer to `LoadPayloads`: of so many of the ids; the others are asked for with the next ones."""
        self._have = [*self._asked[done:], *self._have]
        if not operations:
            return self._give()
        return self._start(Publication(operations, message_bytes_max=self._message_bytes_max))

    def lacking(self, looked: Position, names: Sequence[Name]) -> list[Effect]:
        """The answer to `LoadMissing`."""
        assert self._lineage is not None
        self._lineage.loaded(looked, names)
        self._traced += 1
        request = self._lineage.request(f"{self._name}lineage-{self._traced}")
        if request is not None:
            return self._start(request)
        self.step = Step.DONE
        return []

    # --- the peer answers ---

    def hear(self, answer: Answer) -> list[Effect] | None:
        if self._machine is None:
            return None
        if isinstance(answer, dialogue.NegMessage):
            self.talked = True
        effects = self._machine.hear(answer)
        if effects is None:
            return None
        self.hurried = False
        return self._carry_out(effects)

    def silence(self) -> list[Effect] | None:
        """Nothing that mattered came in time. None: then the round has failed."""
        effects = self._machine.silence() if self._machine is not None else None
        if effects is None or any(isinstance(effect, dialogue.Reconnect) for effect in effects):
            return None
        self.hurried = False
        return self._carry_out(effects)

    def _start(self, machine: Machine) -> list[Effect]:
        self._machine = machine
        return self._carry_out(machine.start())

    def _carry_out(self, effects: Sequence[dialogue.Effect]) -> list[Effect]:
        ours: list[Effect] = []
        for effect in effects:
            match effect:
                case dialogue.Send(message):
                    ours.append(Send(message))
                case dialogue.Found(event, raw):
                    self._take(Arrival(event, raw))
                case dialogue.Odd() if self._pulls:
                    self._settled.bury(effect)
                case dialogue.Finish():
                    ours += self._machine_finished()
                case dialogue.Refuse(reason) | dialogue.Overflow(reason):
                    raise RoundFailed(reason)
                case dialogue.Accuse(reason):
                    raise RoundFailed(reason, accuses=True)
                case dialogue.Authenticate(reason):
                    raise RoundFailed(reason)
                case dialogue.Hurry():
                    self.hurried = True
                case dialogue.Reconnect():
                    raise RoundFailed("it has to be tried on a new connection")
        return ours

    def _take(self, arrival: Arrival) -> None:
        if self.closes and self._pulls:
            if arrival.event.id in self._named:
                self._brought.add(arrival.event.id)
            self.found.append(arrival)
            self.found_bytes += len(arrival.raw)

    def _machine_finished(self) -> list[Effect]:
        machine, self._machine = self._machine, None
        if isinstance(machine, Reconciliation):
            result = machine.result
            self.method = result.method
            self.crowded = result.unsure[:CROWDED_MAX] if self._pulls else ()
            self._more = result.more
            all_seen = self.whole and not result.more
            self._have = self._settled.lacking(result.have, all_seen) if self.pushes else []
            self._need = result.need
            if self.pushes and all_seen:
                self._settled.keep_deferred(self._have)
            self.step = Step.ASKING
            return [LoadUnknown((*self._need, *sorted(self._named.difference(self._need, self._brought))))]
        if isinstance(machine, ByIds):
            self.finding = msgspec.structs.replace(self.finding, missing=frozenset(machine.missing))
            self.step = Step.GIVING
            return self._give()
        if isinstance(machine, Request):
            return self._told(machine)
        assert isinstance(machine, Publication)
        return self._given(machine.accepted, machine.refused)

    # --- giving ---

    def _give(self) -> list[Effect]:
        count = GIVE_TO_TRY if self._settled.deferred else GIVE_AT_ONCE
        self._asked, self._have = tuple(self._have[:count]), self._have[count:]
        return [LoadPayloads(self._asked)] if self._asked else self._finish()

    def _given(self, accepted: Sequence[str], refused: Mapping[str, str]) -> list[Effect]:
        """What is refused for now is left for another time, and so is the rest, unless it is only about some."""
        buried: list[Effect] = []
        for id in accepted:
            self._settled.give(id)
        for id, reason in refused.items():
            if self._settled.refuse(id, reason):
                buried.append(Bury(id, reason))
                continue
            self.left.add(id)
            if not accepted or not may_be_about_one(reason) or self._settled.overflows:
                self.left.update(self._have)
                self._have = []
        return [*buried, *self._give()]

    def _finish(self) -> list[Effect]:
        if self.left:
            self.finding = msgspec.structs.replace(self.finding, open=self.finding.open - self.left)
        if self._lineage is None:
            self.step = Step.DONE
            return []
        self.step = Step.TRACING
        return [self._lineage.begin()]

    def _told(self, request: Request) -> list[Effect]:
        assert self._lineage is not None
        return [*([Tell(tuple(request.found))] if request.found else []), self._lineage.answered(request)]
