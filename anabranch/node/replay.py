"""Replay: what is stored, sent to one subscription at the reader's pace, and the hand-off to live.

A REQ and a bootstrap first take down the positions that match at one moment, then send payloads by the handful; a tail
goes through the log page by page. Between two handfuls the consumer's socket is waited for, so memory stays flat
whatever is asked. At the end the hub takes over from the exact position that was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import structs

from anabranch.core import changes
from anabranch.core import filter as filters
from anabranch.core.changes import ChangesQuery, ChangesRequest, RevisionQuery, SnapshotQuery
from anabranch.core.changes import Mode as FeedMode
from anabranch.core.filter import Filter
from anabranch.core.nostr import Event, is_hex
from anabranch.core.retention import Horizon
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.token import Gap, Log, Position, ProgressToken, gap, message_gap, token_gap
from anabranch.node import now
from anabranch.node.hub import Hub, Style, Subscription, frame_events, frame_removal
from anabranch.node.metrics import Metrics
from anabranch.store.contract import Entry, Page, Reader, Selection, StoreError, TooSlow
from anabranch.wire import frames, messages
from anabranch.wire.session import Changes, Count, Query

log = logging.getLogger(__name__)
T = TypeVar("T")

EVENTS_A_FRAME = 128
HANDFUL = 512
HANDFUL_BYTES = 1_048_576
HANDFULS_MAX = 8  # that may wait for a reader at once: those of queries that were answered side by side
EVENTS_FRAME_BYTES = 524_288
BOOTSTRAP_BYTES_A_SECOND = 16_384  # whoever reads as fast is never too slow

_event = msgspec.json.Decoder(Event).decode


class Consumer(Protocol):
    """The connection that a replay sends to."""

    def send(self, data: bytes) -> None: ...
    async def read(self, read: Callable[[Reader], T]) -> T:
        """Read the store, when it is this consumer's turn."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the socket takes nothing more just now. Asked from any thread."""
        ...

    async def writable(self) -> None:
        """Wait until the socket takes more. Raises `ConnectionError` when it never will."""
        ...

    def has(self, subscription: Subscription) -> bool:
        """Whether the subscription is still the one of its name."""
        ...

    def subscription_ended(self, subscription: Subscription) -> None: ...


class Replay:
    def __init__(
        self,
        hub: Hub,
        metrics: Metrics,
        query_limit: int,
        send_buffer_bytes: int,
        bootstrap_seconds: int = 600,
        private: bool = False,
    ) -> None:
        """On a `private` node nobody learns of what their query does not name, not even where it stands."""
        self._handful_bytes = min(HANDFUL_BYTES, send_buffer_bytes // HANDFULS_MAX)
        self._hub = hub
        self._metrics = metrics
        self._query_limit = query_limit
        self._bootstrap_seconds = bootstrap_seconds
        self._private = private

    # --- REQ, REQ-BATCH and COUNT ---

    async def query(self, consumer: Consumer, asked: Query, subscription: Subscription) -> None:
        """Stored events, then EOSE, then live ones."""

        def refuse(text: str) -> bytes:
            return messages.closed(asked.subscription, text)

        async def run() -> None:
            selection = await self._select(
                consumer, lambda r: r.select(asked.filters, self._query_limit, now.seconds())
            )
            await self._send_selection(consumer, subscription, selection)
            named = [filter for filter in asked.filters if filter.ids is not None]
            if named:
                for id in await consumer.read(lambda r: r.compacted(named)):
                    consumer.send(frames.text(messages.compacted(asked.subscription, id)))
            if wanted := [filter for filter in asked.filters if _names_revisions(filter)]:
                for revision in await consumer.read(lambda r: r.compacted_revisions(wanted)):
                    consumer.send(frames.text(messages.compacted_revision(asked.subscription, revision)))
            consumer.send(frames.text(messages.eose(asked.subscription)))
            await self._go_live(consumer, subscription, selection.tip)

        await self._guarded(consumer, subscription, run, refuse)

    async def count(self, consumer: Consumer, asked: Count) -> None:
        async def run() -> None:
            number = await consumer.read(lambda r: r.count(asked.filters, now.seconds()))
            consumer.send(frames.text(messages.count(asked.subscription, number)))

        try:
            await run()
        except TooSlow:
            consumer.send(frames.text(messages.closed(asked.subscription, messages.TOO_SLOW)))
        except StoreError:
            log.exception("a count failed")
            consumer.send(frames.text(messages.closed(asked.subscription, messages.NOT_READ)))

    # --- CHANGES ---

    async def changes(self, consumer: Consumer, asked: Changes, subscription: Subscription) -> None:
        def refuse(text: str) -> bytes:
            return messages.changes_error(asked.subscription, text)

        async def run() -> None:
            if asked.request.mode is FeedMode.BOOTSTRAP:
                await self._bootstrap(consumer, asked, subscription)
            elif asked.request.mode is FeedMode.COMPACTED:
                await self._ancestors(consumer, asked, subscription)
            else:
                await self._tail(consumer, asked, subscription)

        await self._guarded(consumer, subscription, run, refuse)

    async def _ancestors(self, consumer: Consumer, asked: Changes, subscription: Subscription) -> None:
        """What the compacted revisions that are asked for stood on, then EOSE."""
        query, tip = asked.request.query, self._hub.tip
        assert isinstance(query, RevisionQuery)
        found = await consumer.read(lambda reader: reader.ancestors(query))
        await consumer.writable()
        if consumer.has(subscription):
            told = [messages.changes_compacted(asked.subscription, one) for one in found]
            consumer.send(b"".join(map(frames.text, [*told, messages.changes_eose(asked.subscription, tip)])))
            consumer.subscription_ended(subscription)

    async def _bootstrap(self, consumer: Consumer, asked: Changes, subscription: Subscription) -> None:
        """STATUS, the heads at one snapshot, EOSE with the same position.

        Meanwhile compaction leaves its author's documents alone, so whoever reads too slowly is not waited for.
        """
        query = asked.request.query
        assert isinstance(query, SnapshotQuery)
        horizon = Horizon(query.author, self._hub.tip)  # from here on whatever is or becomes a head stays
        self._hub.horizons.append(horizon)
        try:
            async with asyncio.timeout(self._bootstrap_seconds) as bound:
                end = await self._send_bootstrap(consumer, asked, query, subscription, bound)
        except TimeoutError:
            end = messages.changes_error(asked.subscription, messages.BOOTSTRAP_TOO_SLOW)
        finally:
            self._hub.horizons.remove(horizon)
        consumer.send(frames.text(end))
        consumer.subscription_ended(subscription)

    async def _send_bootstrap(
        self,
        consumer: Consumer,
        asked: Changes,
        query: SnapshotQuery,
        subscription: Subscription,
        bound: asyncio.Timeout,
    ) -> bytes:
        """Everything but its EOSE, which is returned. What is sent moves the bound in time."""
        begun = 0

        def begin(reader: Reader, first: Selection) -> None:
            """On the reader's thread: send the beginning while the rest is still being looked up."""
            nonlocal begun
            if consumer.congested:
                return
            status = frames.text(messages.changes_status(asked.subscription, first.tip))
            data, sent, begun = _framed(reader, subscription, first.positions, self._handful_bytes)
            loop.call_soon_threadsafe(send, status + data, sent)

        def send(data: bytes, sent: int) -> None:
            if consumer.has(subscription):  # it may have been closed or replaced since
                consumer.send(data)
                self._metrics.replayed.inc(sent)

        def more_time(size: int) -> None:
            bound.reschedule((bound.when() or 0) + size / BOOTSTRAP_BYTES_A_SECOND)

        loop = asyncio.get_running_loop()
        selection = await self._select(
            consumer,
            lambda r: r.bootstrap(query, asked.request.limit, now.seconds(), lambda first: begin(r, first)),
        )
        if not begun:
            consumer.send(frames.text(messages.changes_status(asked.subscription, selection.tip)))
        await self._send_selection(consumer, subscription, selection, begun, more_time)
        return messages.changes_eose(asked.subscription, selection.tip)

    async def _tail(self, consumer: Consumer, asked: Changes, subscription: Subscription) -> None:
        """The log after `since`, in order; EOSE says how far this subscription is complete."""
        request = asked.request
        token = request.token
        if token is not None and await self._is_of_another_history(consumer, subscription, request.query, token):
            return
        since, left = request.since, request.limit
        reading: asyncio.Task[Page] | None = None
        try:
            while True:
                page = await (reading or self._page(consumer, request, since, _next_size(left)))
                reading = None
                if self._lost(consumer, subscription, page, since, request.token):
                    return
                since = page.complete_to
                if left is not None:
                    left -= len(page.entries)
                last = page.log.tip if request.until is None else min(request.until, page.log.tip)
                finished = left == 0 or since >= last
                if not finished:  # while this page is sent, the next is read
                    reading = asyncio.create_task(self._page(consumer, request, since, _next_size(left)))
                await consumer.writable()
                self._send_page(consumer, subscription, page)
                await consumer.writable()
                if left == 0:
                    await self._end_at_limit(consumer, asked, subscription, page)
                    return
                if finished:
                    await self._complete(consumer, asked, subscription, since)
                    return
        finally:
            if reading is not None:
                reading.cancel()

    async def _end_at_limit(self, consumer: Consumer, asked: Changes, subscription: Subscription, page: Page) -> None:
        """The limit was reached: complete to the end of what was asked for if nothing more matches, else to the last
        entry sent."""
        request = asked.request
        sent_to = page.entries[-1].position if page.entries else request.since
        last = page.log.tip if request.until is None else min(request.until, page.log.tip)
        complete_to, size = sent_to, 1
        while True:
            rest = await self._page(consumer, request, complete_to, size)
            if self._lost(consumer, subscription, rest, complete_to, request.token):
                return
            complete_to, size = rest.complete_to, HANDFUL  # a page may hold nothing but what has expired
            if rest.entries:
                consumer.send(frames.text(messages.changes_eose(asked.subscription, sent_to)))
                consumer.subscription_ended(subscription)
                return
            if complete_to >= last:
                await self._complete(consumer, asked, subscription, complete_to)
                return

    async def _complete(
        self, consumer: Consumer, asked: Changes, subscription: Subscription, complete_to: Position
    ) -> None:
        consumer.send(frames.text(messages.changes_eose(asked.subscription, complete_to)))
        if asked.request.live and asked.request.until is None:
            await self._go_live(consumer, subscription, complete_to, asked.request)
        else:
            consumer.subscription_ended(subscription)

    def _lost(
        self,
        consumer: Consumer,
        subscription: Subscription,
        page: Page,
        since: Position,
        token: ProgressToken | None = None,
    ) -> bool:
        """Whether the floor has passed `since`, or this is not the log of the token that was shown; then the consumer
        is told, and the subscription is over."""
        lost = gap(page.log, since) if token is None else token_gap(page.log, structs.replace(token, position=since))
        if lost is not None:
            self._tell_gap(consumer, subscription, lost, page.log, token)
        return lost is not None

    async def _is_of_another_history(
        self, consumer: Consumer, subscription: Subscription, query: ChangesQuery, token: ProgressToken
    ) -> bool:
        """Whether what the token names is not in this log as far as it has come; then the consumer is told."""
        if not token.message:
            return False

        def look(reader: Reader) -> tuple[Log, Position | None]:
            stands_at = reader.position(token.message) if is_hex(token.message, 64) else None
            if stands_at is not None and self._private:
                for facts in reader.facts(Position(stands_at - 1), 1):
                    recipient = None if facts.revision is None else facts.revision.recipient
                    if not changes.concerns(query, facts.author, recipient):
                        stands_at = None
            return reader.log(), stands_at

        log, stands_at = await consumer.read(look)
        lost = token_gap(log, token) or message_gap(log, token, stands_at)
        if lost is not None:
            self._tell_gap(consumer, subscription, lost, log, token)
        return lost is not None

    def _tell_gap(
        self, consumer: Consumer, subscription: Subscription, lost: Gap, log: Log, token: ProgressToken | None
    ) -> None:
        told = None if token is None else lost.to_wire(log, token)
        text = changes.gap_text(lost, log)
        consumer.send(frames.text(messages.changes_error(subscription.name, text, told)))
        consumer.subscription_ended(subscription)

    async def _page(self, consumer: Consumer, request: ChangesRequest | None, since: Position, size: int) -> Page:
        """Of the feed that was asked for, or of the whole log."""
        query, until, told = (
            (None, None, False) if request is None else (request.query, request.until, request.include_compacted)
        )
        return await consumer.read(
            lambda r: r.changes(query, since, until, size, told, now.seconds(), self._handful_bytes)
        )

    def _send_page(self, consumer: Consumer, subscription: Subscription, page: Page) -> None:
        """Entries in order: events, for what is compacted its status, and removals."""
        run: list[tuple[int | None, bytes]] = []
        for entry in page.entries:
            if entry.raw is not None:
                run.append((entry.position, entry.raw))
                continue
            self._send_run(consumer, subscription, run)
            run = []
            consumer.send(_told(subscription.name, entry))
        self._send_run(consumer, subscription, run)

    def _send_run(
        self, consumer: Consumer, subscription: Subscription, run: Sequence[tuple[int | None, bytes]]
    ) -> None:
        if run:
            consumer.send(frame_events(subscription.style, subscription.opening, run))
            self._metrics.replayed.inc(len(run))

    # --- what both share ---

    async def _select(self, consumer: Consumer, read: Callable[[Reader], Selection]) -> Selection:
        started = now.monotonic()
        selection = await consumer.read(read)
        self._metrics.query_seconds.observe(now.monotonic() - started)
        return selection

    async def _send_selection(
        self,
        consumer: Consumer,
        subscription: Subscription,
        selection: Selection,
        start: int = 0,
        sent_bytes: Callable[[int], None] = lambda size: None,
    ) -> None:
        """The payloads of a selection by the handful; while one is sent, the next is read."""
        positions, at = selection.positions, start

        async def read(at: int) -> tuple[bytes, int, int]:
            return await consumer.read(
                lambda r: _framed(r, subscription, positions[at : at + HANDFUL], self._handful_bytes)
            )

        reading: asyncio.Task[tuple[bytes, int, int]] | None = None
        try:
            while at < len(positions):
                data, sent, taken = await (reading or read(at))
                at += taken
                reading = asyncio.create_task(read(at)) if at < len(positions) else None
                await consumer.writable()  # another subscription may have filled the socket meanwhile
                consumer.send(data)
                sent_bytes(len(data))
                self._metrics.replayed.inc(sent)
                await consumer.writable()
        finally:
            if reading is not None:
                reading.cancel()

    async def _go_live(
        self,
        consumer: Consumer,
        subscription: Subscription,
        complete_to: Position,
        request: ChangesRequest | None = None,
    ) -> None:
        """Hand over to the hub; where the log has run ahead meanwhile, read on until the hub can take over.

        What the hub hands over comes on top of what waits already: so a reader that is behind is waited for first.
        """
        selector = subscription.selector
        if consumer.congested:
            await consumer.writable()
        while consumer.has(subscription) and not self._hub.join(subscription, complete_to):
            page = await self._page(consumer, request, complete_to, HANDFUL)
            await consumer.writable()
            if request is not None:
                if self._lost(consumer, subscription, page, complete_to, request.token):
                    return
                self._send_page(consumer, subscription, page)
            else:
                assert not isinstance(selector, ChangesQuery)
                wanted = [(e.position, e.raw) for e in page.entries if e.raw is not None and _wanted(selector, e.raw)]
                self._send_run(consumer, subscription, wanted)
            await consumer.writable()
            complete_to = page.complete_to

    async def _guarded(
        self,
        consumer: Consumer,
        subscription: Subscription,
        run: Callable[[], Awaitable[None]],
        refuse: Callable[[str], bytes],
    ) -> None:
        """Run a replay; whatever goes wrong in the store is told to the consumer in words that tell nothing else."""
        try:
            await run()
        except TooSlow:
            consumer.send(frames.text(refuse(messages.TOO_SLOW)))
            consumer.subscription_ended(subscription)
        except StoreError as error:
            log.error("a replay failed", extra={"cause": str(error)})
            consumer.send(frames.text(refuse(messages.NOT_READ)))
            consumer.subscription_ended(subscription)
        except ConnectionError:
            pass  # the consumer is gone, and its subscriptions with it


def _next_size(left: int | None) -> int:
    return HANDFUL if left is None else min(HANDFUL, left)


def _framed(
    reader: Reader, subscription: Subscription, positions: Sequence[int], bytes_max: int
) -> tuple[bytes, int, int]:
    """The frames of the first of these positions, as many as are not too many bytes; how many events that is, and how
    many positions are done with."""
    payloads = reader.payloads(positions, bytes_max)
    cut = payloads and sum(len(raw) for _, raw in payloads) >= bytes_max
    taken = positions.index(payloads[-1][0]) + 1 if cut else len(positions)
    if subscription.style is not Style.EVENTS:
        return frame_events(subscription.style, subscription.opening, payloads), len(payloads), taken
    data, frame, size = [], list[bytes](), 0
    for _, raw in payloads:
        if frame and (len(frame) == EVENTS_A_FRAME or size + len(raw) > EVENTS_FRAME_BYTES):
            data.append(frames.text(messages.events(subscription.opening, frame)))
            frame, size = [], 0
        frame.append(raw)
        size += len(raw)
    if frame:
        data.append(frames.text(messages.events(subscription.opening, frame)))
    return b"".join(data), len(payloads), taken


def _names_revisions(filter: Filter) -> bool:
    return (filter.kinds is None or GIFT_WRAP in filter.kinds) and any(name == "r" for name, _ in filter.tags)


def _told(name: str, entry: Entry) -> bytes:
    """What is said of an entry that has no payload."""
    if entry.reason is not None:
        return frame_removal(name, entry.position, entry.id, entry.reason)
    if entry.revision is not None:
        return frames.text(messages.compacted_revision(name, entry.revision, entry.id, entry.position))
    return frames.text(messages.compacted(name, entry.id, entry.position))


def _wanted(filters_: tuple[Filter, ...], raw: bytes) -> bool:
    """Whether an entry of the log is for a query that catches up with the hub."""
    event = _event(raw)
    return any(filters.matches(filter, event) for filter in filters_)
