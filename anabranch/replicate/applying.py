"""Applying what a peer sent: proof, then our own rules, then one transaction with the checkpoint.

Nothing is stored unproven, nor written down as refused. What our rules refuse becomes a dead letter, with its reason;
what is known already, in whatever form, or superseded, is declined. A page with a forged event stores nothing at all
and moves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Protocol, TypeVar

import msgspec

from anabranch.core import nostr
from anabranch.core.checkpoint import Blocked, Checkpoint
from anabranch.core.closure import Dependency, blocked, dependencies, dependencies_first
from anabranch.core.filter import Filter
from anabranch.core.negentropy import Items
from anabranch.core.nostr import Event, Invalid, TooEarly
from anabranch.core.operation import Operation, Unsupported
from anabranch.core.token import Log
from anabranch.replicate.effects import Applied, Apply, Arrival
from anabranch.store.contract import (
    Advance,
    DeadLetter,
    Duplicate,
    Lacking,
    LinkChange,
    Offer,
    Outcome,
    Reader,
    Refused,
    Stored,
    StoreError,
    Writer,
)

T = TypeVar("T")


class Host(Protocol):
    """What a node gives to its links."""

    @property
    def log(self) -> Log: ...
    async def read(self, read: Callable[[Reader], T]) -> T: ...
    async def write(self, job: Callable[[Writer], T]) -> T: ...
    async def items(self, filter: Filter) -> tuple[Items, Log]:
        """What we have of a filter, and our log as it was before that was read."""
        ...

    async def prove(self, proofs: bytes) -> bytes | None:
        """One byte a proof; None when they could not be checked."""
        ...

    def operation(self, event: Event, raw: bytes) -> Operation:
        """The operation that an event is under the node's own rules. Raises `Invalid` and `Unsupported`."""
        ...

    def store(self, offers: Sequence[Offer], advance: Advance) -> Awaitable[list[Outcome]]:
        """Append a proven group, and publish it. Raises `StoreError`."""
        ...


class _Fit(msgspec.Struct):
    """What of a page our rules take, and what is wrong with the rest."""

    offers: list[Offer]
    places: list[int]
    refused: list[tuple[str, str]]
    blocked: dict[int, Blocked]
    fleeting: list[str]  # ephemeral, and so never stored
    fleeting_asked_for: list[str]  # and named by a comparison: it would be again. What a stream brings is gone
    later: list[tuple[str, int]]  # of what is refused, and from when on it may not be


class Page:
    """One page on its way to the disk: `prove` may run while others are stored, `store` in order."""

    def __init__(self, host: Host, link: str, echo_for: tuple[str, ...], at: int, asked: Apply) -> None:
        self._host = host
        self._link = link
        self._echo_for = echo_for
        self._at = at
        self._asked = asked
        self._fit = _Fit([], [], [], {}, [], [], [])
        self._forged: tuple[str, ...] = ()
        self._blocked: dict[int, Blocked] = {}
        self._written: Checkpoint | None = None

    @property
    def number(self) -> int:
        return self._asked.number

    @property
    def count(self) -> int:
        return len(self._asked.arrivals)

    async def prove(self) -> None:
        """Raises `StoreError` when it could not be checked: that is never a yes."""
        arrivals = self._asked.arrivals
        if not arrivals:
            return
        held = await self._host.prove(nostr.proofs(arrival.event for arrival in arrivals))
        if held is None:
            raise StoreError("the signatures could not be checked")
        if 0 in held:
            pairs = zip(arrivals, held, strict=True)
            self._forged = tuple(arrival.event.id for arrival, holds in pairs if not holds)
        self._fit = _fit(self._host, arrivals)

    async def store(self, checkpoint: Checkpoint) -> Applied:
        """`checkpoint` is where the link stands before this page."""
        if self._forged:
            return Applied(self.number, forged=self._forged)
        await self._find_blocked()
        outcomes = await self._host.store(self._fit.offers, lambda found: self._advance(checkpoint, found))
        arrivals = self._asked.arrivals
        stored = sum(isinstance(outcome, Stored) for outcome in outcomes)
        here = await self._known_by_id(outcomes)
        declined = [
            id
            for place, outcome in zip(self._fit.places, outcomes, strict=True)
            if not isinstance(outcome, Stored | Lacking) and (id := arrivals[place].event.id) not in here
        ]
        return Applied(
            self.number,
            stored,
            (*declined, *(id for id, _ in self._fit.refused), *self._fit.fleeting_asked_for),
            refused=tuple(id for id, _ in self._all_refused(outcomes)),
            later=tuple(self._fit.later),
            blocked=tuple(self._blocked.values()),
            checkpoint=self._written,
        )

    async def _known_by_id(self, outcomes: Sequence[Outcome]) -> set[str]:
        """The duplicates that nobody needs to remember, since the store does: not a revision in another wrap."""
        duplicates = [
            (offer.operation.event.id, offer.operation.revision is not None)
            for offer, outcome in zip(self._fit.offers, outcomes, strict=True)
            if isinstance(outcome, Duplicate)
        ]
        wraps = [id for id, is_revision in duplicates if is_revision]
        known = await self._host.read(lambda reader: reader.known(wraps)) if wraps else set()
        return {id for id, is_revision in duplicates if not is_revision or id in known}

    async def _find_blocked(self) -> None:
        """What needs something that is neither here nor stored with the page waits, and all that comes with tokens
        after it. The rest is stored after what it needs; of that the store has still to say whether it takes it."""
        fit = self._fit
        needs = {offer.operation.event.id: dependencies(offer.operation.event) for offer in fit.offers}
        asked = {id for id, some in needs.items() if some}
        if not asked:
            return
        wanted = sorted(asked.union(need.id for some in needs.values() for need in some))
        here = await self._host.read(lambda reader: reader.known(wanted))
        kept_back = blocked(needs, here)
        kept: list[tuple[int, Offer]] = []
        for place, offer in zip(fit.places, fit.offers, strict=True):
            id = offer.operation.event.id
            if (missing := kept_back.get(id)) is None:
                kept.append((place, offer))
            else:
                why = self._why_missing(missing.id, kept_back, fit.refused)
                fit.blocked[place] = Blocked(id, missing.kind, missing.id, why)
        ordered = dependencies_first(
            kept,
            lambda one: one[1].operation.event.id,
            lambda one: [need.id for need in needs[one[1].operation.event.id]],
        )
        fit.places = [place for place, _ in ordered]
        fit.offers = [_needing(offer, needs[offer.operation.event.id], here) for _, offer in ordered]

    def _why_missing(self, id: str, kept_back: Container[str], refused: Sequence[tuple[str, str]]) -> str:
        if id in kept_back:
            return "it came with it, and waits for another itself"
        if id in self._fit.fleeting:
            return "it came with it, and is ephemeral: it is never stored"
        reason = next((reason for refused_id, reason in refused if refused_id == id), None)
        if reason is not None:
            return f"it came with it, and is refused by {reason}"
        came = any(arrival.event.id == id for arrival in self._asked.arrivals)
        return "it came with it, and was not taken" if came else "it is not here, and did not come with it"

    def _all_blocked(self, outcomes: Sequence[Outcome]) -> dict[int, Blocked]:
        """With what the store has found out: it did not take what another needs."""
        lacking = {
            place: (offer.operation.event, outcome.need)
            for place, offer, outcome in zip(self._fit.places, self._fit.offers, outcomes, strict=True)
            if isinstance(outcome, Lacking)
        }
        if not lacking:
            return self._fit.blocked
        kept_back, refused = {event.id for event, _ in lacking.values()}, self._all_refused(outcomes)
        found = {
            place: Blocked(event.id, need.kind, need.id, self._why_missing(need.id, kept_back, refused))
            for place, (event, id) in lacking.items()
            for need in dependencies(event)
            if need.id == id
        }
        return {**self._fit.blocked, **found}

    def _advance(self, checkpoint: Checkpoint, outcomes: Sequence[Outcome]) -> LinkChange:
        """Within the transaction: how far the link has come, what not to send back, and what is refused."""
        blocked, through = self._all_blocked(outcomes), self._asked.through
        arrived = [
            (arrival.token, arrival.event.id, blocked.get(place))
            for place, arrival in enumerate(self._asked.arrivals)
            if arrival.token is not None
        ]
        self._blocked = blocked
        self._written = checkpoint.settle(arrived, through) if arrived or through is not None else None
        return LinkChange(
            self._link,
            pull=self._written,
            echoes=tuple(outcome.position for outcome in outcomes if isinstance(outcome, Stored)),
            echo_for=self._echo_for,
            dead=tuple(DeadLetter("pull", id, reason, self._at) for id, reason in self._all_refused(outcomes)),
            taken=tuple(
                ("pull", self._asked.arrivals[place].event.id)
                for place, outcome in zip(self._fit.places, outcomes, strict=True)
                if isinstance(outcome, Stored | Duplicate)
            ),
        )

    def _all_refused(self, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
        """With the reasons: what our rules refuse at once, and what the store does."""
        return [
            *self._fit.refused,
            *(
                (self._asked.arrivals[place].event.id, f"{outcome.code}: {outcome.reason}")
                for place, outcome in zip(self._fit.places, outcomes, strict=True)
                if isinstance(outcome, Refused) and not isinstance(outcome, Lacking)
            ),
        ]


def _needing(offer: Offer, needs: Sequence[Dependency], here: Container[str]) -> Offer:
    """What is not here comes with it: otherwise it would be blocked."""
    return msgspec.structs.replace(offer, needs=tuple(need.id for need in needs if need.id not in here))


def _fit(host: Host, arrivals: Sequence[Arrival]) -> _Fit:
    fit = _Fit([], [], [], {}, [], [], [])
    for place, arrival in enumerate(arrivals):
        try:
            operation = host.operation(arrival.event, arrival.raw)
        except (Invalid, Unsupported) as error:
            fit.refused.append((arrival.event.id, f"our rules: {error}"))
            if isinstance(error, TooEarly):
                fit.later.append((arrival.event.id, error.at))
            continue
        if operation.ephemeral:
            fit.fleeting.append(arrival.event.id)
            if arrival.token is None:
                fit.fleeting_asked_for.append(arrival.event.id)
        else:
            fit.offers.append(Offer(operation))
            fit.places.append(place)
    return fit
