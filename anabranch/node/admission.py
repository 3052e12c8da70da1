"""Admission: prove, store, acknowledge, publish — in this order, in batches, and in the order of arrival.

What arrives while a batch is being proven forms the next one. Batches are proven side by side and pass on to the
writer in the order in which they came, so that what one client sends in order is stored in order. An OK goes out
after the commit; subscribers see a position only then.

Where only a few are on their way, the writer proves them itself: that is quicker than asking another process. And a
commit costs the same for one operation as for hundreds. So while more is being proven, what is proven waits for
company, four milliseconds at the most; when nothing more is on its way it is committed at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from anabranch.core import nostr
from anabranch.core.operation import Operation, Removal
from anabranch.core.token import Position
from anabranch.node.gate import Gate
from anabranch.node.hub import Hub, Published
from anabranch.node.metrics import Metrics
from anabranch.node.prover import Checkers
from anabranch.node.reconciliation import Sets
from anabranch.node.writing import FORGED, WriterThread
from anabranch.store.contract import Advance, Duplicate, Offer, Outcome, Refused, Stored, Superseded
from anabranch.wire import messages

FEW = 4  # so few are proven where they are stored
BATCH_MIN, BATCH_MAX = 16, 256
GROUP_MAX, GROUP_BYTES = 1_536, 4_194_304  # all of a group goes to each live subscriber at once
LINGER_SECONDS = 0.004
MANY = 1_000  # removals at once


class Publisher(Protocol):
    """Whoever sent an event and waits for its OK."""

    def acknowledge(self, answer: bytes, size: int, forged: bool = False) -> None:
        """The answer to an event of `size` bytes, and whether its signature was wrong."""
        ...


_Item = tuple[Publisher, Offer]


class _Batch:
    __slots__ = ("held", "items", "proven")

    def __init__(self, items: list[_Item]) -> None:
        self.items = items
        self.proven = False
        self.held: bytes | None = None


class Admission:
    def __init__(
        self,
        prover: Checkers,
        writer: WriterThread,
        hub: Hub,
        sets: Sets,
        metrics: Metrics,
        gate: Gate,
        send_buffer_bytes: int,
        many_removed: Callable[[], None] = lambda: None,
        grown: Callable[[], None] = lambda: None,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """The gate is told what is answered. With `send_buffer_bytes` waiting a reader is behind: a group has half of
        that at the most. `many_removed` is called when a group has removed so much that there may be more to remove,
        `grown` whenever something was published, `answered` when a group is answered and not yet published."""
        self._many_removed = many_removed
        self._grown = grown
        self._answered = answered
        self._sets = sets
        self._prover = prover
        self._writer = writer
        self._hub = hub
        self._metrics = metrics
        self._waiting: deque[_Item] = deque()
        self._proving: deque[_Batch] = deque()
        self._proven: list[_Item] = []  # waiting for the writer
        self._committing = False
        self._linger: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._in_flight = 0
        self._gate = gate
        self._group_bytes = min(GROUP_BYTES, send_buffer_bytes // 2)
        self._drained: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def offer(self, publisher: Publisher, operation: Operation, access_key: str | None) -> None:
        self._waiting.append((publisher, Offer(operation, access_key)))
        self._in_flight += 1
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    async def drain(self) -> None:
        """Wait until everything offered has been answered."""
        while self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _dispatch(self) -> None:
        self._scheduled = False
        if self._in_flight <= FEW and len(self._waiting) == self._in_flight:
            items = list(self._waiting)
            if not any(offer.operation.ephemeral for _, offer in items):
                self._waiting.clear()
                self._committing = True
                offers = [offer for _, offer in items]
                self._writer.prove_and_append(offers, partial(self._committed, items))
                return
        size = max(BATCH_MIN, min(BATCH_MAX, self._in_flight // 16))  # fine enough that every stage always has work
        while self._waiting and (self._prover.idle or (self._prover.working and not self._proving)):
            batch = _Batch([self._waiting.popleft() for _ in range(min(size, len(self._waiting)))])
            self._proving.append(batch)
            proofs = nostr.proofs(offer.operation.event for _, offer in batch.items)
            self._prover.submit(proofs, lambda held, batch=batch: self._proved(batch, held))  # type: ignore[misc]
        if self._waiting and not self._proving:  # no worker to be had: say so, rather than wait for ever
            items = list(self._waiting)
            self._waiting.clear()
            self._metrics.refused.inc(len(items))
            self._answer(items, [messages.ok(o.operation.event.id, False, messages.UNPROVEN) for _, o in items])

    def _proved(self, batch: _Batch, held: bytes | None) -> None:
        batch.proven, batch.held = True, held
        while self._proving and self._proving[0].proven:
            self._pass_on(self._proving.popleft())
        if self._waiting and not self._scheduled:
            self._dispatch()

    def _pass_on(self, batch: _Batch) -> None:
        items = batch.items
        if batch.held is None or 0 in batch.held:
            text = messages.UNPROVEN if batch.held is None else messages.FORGED
            held = batch.held or bytes(len(items))
            bad = [item for item, holds in zip(items, held, strict=True) if not holds]
            items = [item for item, holds in zip(items, held, strict=True) if holds]
            self._metrics.refused.inc(len(bad))
            answers = [messages.ok(offer.operation.event.id, False, text) for _, offer in bad]
            self._answer(bad, answers, [batch.held is not None] * len(bad))
        if ephemeral := [item for item in items if item[1].operation.ephemeral]:
            items = [item for item in items if not item[1].operation.ephemeral]
            self._answer(ephemeral, [messages.ok(offer.operation.event.id, True) for _, offer in ephemeral])
            self._metrics.deliveries.inc(self._hub.publish([(None, offer.operation) for _, offer in ephemeral]))
        self._proven += items
        self._commit_when_worth_it()

    def _commit_when_worth_it(self) -> None:
        if not self._proven or self._committing:
            return
        enough = min(GROUP_MAX, self._in_flight // 4)  # while they are written, the others are on their way
        if len(self._proven) >= enough or not (self._proving or self._waiting):
            self._commit()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._commit)

    def _commit(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._committing or not self._proven:
            return
        items, self._proven = self._proven, []
        if self._gate.bytes > self._group_bytes:
            items, self._proven = _first(items, self._group_bytes)
        self._committing = True
        self._writer.append([offer for _, offer in items], partial(self._committed, items))

    def _committed(self, items: list[_Item], outcomes: Sequence[Outcome] | None, removals: Sequence[Removal]) -> None:
        self._committing = False
        self._commit_when_worth_it()
        if outcomes is None:
            self._metrics.failed.inc(len(items))
            self._answer(items, [messages.ok(o.operation.event.id, False, messages.NOT_STORED) for _, o in items])
            return
        published: list[tuple[Position, Operation]] = []
        answers: list[bytes] = []
        forged = [outcome is FORGED for outcome in outcomes]
        for (_, offer), outcome in zip(items, outcomes, strict=True):
            operation = offer.operation
            if isinstance(outcome, Stored):
                published.append((outcome.position, operation))
            elif outcome is FORGED:
                self._metrics.refused.inc()
            answers.append(_ok(operation, outcome))
        self._answer(items, answers, forged)
        self._answered()
        self._publish_stored(published, removals)

    def take(self, offers: list[Offer], advance: Advance, done: asyncio.Future[list[Outcome] | None]) -> None:
        """Store a proven page of a link's, and its checkpoint with it; None: nothing could be stored."""
        self._writer.append(offers, partial(self._taken, offers, done), advance)

    def _taken(
        self,
        offers: list[Offer],
        done: asyncio.Future[list[Outcome] | None],
        outcomes: Sequence[Outcome] | None,
        removals: Sequence[Removal],
    ) -> None:
        pairs = zip(offers, outcomes, strict=True) if outcomes is not None else ()
        stored = [(outcome.position, offer.operation) for offer, outcome in pairs if isinstance(outcome, Stored)]
        self._publish_stored(stored, removals)
        if not done.done():
            done.set_result(None if outcomes is None else list(outcomes))

    def _publish_stored(self, stored: list[tuple[Position, Operation]], removals: Sequence[Removal]) -> None:
        self._metrics.stored.inc(len(stored))
        self._sets.published(operation for _, operation in stored)
        self.publish(stored, removals)

    def publish(self, stored: list[tuple[Position, Operation]], removals: Sequence[Removal]) -> None:
        """Tell the live subscribers, in the order of the log, and those who keep sets."""
        published: list[Published] = [*stored]
        if removals:
            published += [(removal.position, removal) for removal in removals if removal.position is not None]
            published.sort(key=lambda entry: entry[0] or 0)
            self._sets.removed(removals)
            if len(removals) >= MANY:
                self._many_removed()
        self._metrics.deliveries.inc(self._hub.publish(published))
        self._grown()

    def _answer(self, items: Sequence[_Item], answers: Sequence[bytes], forged: Sequence[bool] = ()) -> None:
        self._in_flight -= len(items)
        total = 0
        for (publisher, offer), answer, wrong in zip(items, answers, forged or [False] * len(items), strict=True):
            size = len(offer.operation.raw)
            total += size
            publisher.acknowledge(answer, size, wrong)
        self._gate.answered(len(items), total)
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _first(items: list[_Item], bytes_max: int) -> tuple[list[_Item], list[_Item]]:
    """As many as make a group by their bytes, one at least; and the others."""
    size = 0
    for number, (_, offer) in enumerate(items):
        size += len(offer.operation.raw)
        if size > bytes_max and number:
            return items[:number], items[number:]
    return items, []


def _ok(operation: Operation, outcome: Outcome) -> bytes:
    match outcome:
        case Stored():
            return messages.ok(operation.event.id, True, messages.stored_text(operation))
        case Duplicate():
            return messages.ok(operation.event.id, True, messages.duplicate_text(operation))
        case Superseded():
            return messages.ok(operation.event.id, True, messages.SUPERSEDED)
        case Refused(code, reason):
            return messages.ok(operation.event.id, False, f"{code}: {reason}")
