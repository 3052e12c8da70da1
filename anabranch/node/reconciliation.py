"""Reconciliation at work: what a peer and this node both have is found by negentropy, set against set.

A session's set is frozen when it opens. The sets of filters that come again are kept, and follow the log: what is
published or removed is noted, and worked in when the set is next asked for, so that opening a session over a million
events reads nothing. Sessions are bounded in number, size and idle time, and end with their socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from anabranch.core import filter as filters
from anabranch.core.changes import RevisionQuery
from anabranch.core.filter import Filter
from anabranch.core.negentropy import Items, Malformed, Reconciler
from anabranch.core.operation import Operation, Removal
from anabranch.core.token import Position
from anabranch.node import now
from anabranch.node.metrics import Metrics
from anabranch.store.contract import ItemRows, Reader, StoreError, TooMany, TooSlow
from anabranch.wire import frames, messages
from anabranch.wire.session import Reconcile

log = logging.getLogger(__name__)
T = TypeVar("T")

KEPT_SETS = 16
CHANGES_MAX = 65_536  # that a kept set has not worked in; beyond them it is read anew
UNREAD_MAX = 4  # messages that may wait for their turn


class Peer(Protocol):
    """The connection that a session answers."""

    def send(self, data: bytes) -> None: ...
    async def read(self, read: Callable[[Reader], T]) -> T: ...
    def reconciliation_ended(self, session: Session) -> None: ...


class Session:
    """One reconciliation of one connection."""

    def __init__(self, asked: Reconcile) -> None:
        self.name = asked.subscription
        self.asked = asked
        self.inbox: asyncio.Queue[bytes] = asyncio.Queue(UNREAD_MAX)
        self.task: asyncio.Task[None] | None = None

    def receive(self, message: bytes) -> bool:
        """Whether there was room for it: who does not wait for answers is not waited for."""
        try:
            self.inbox.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True


class _Kept:
    """The set of one filter, and what has changed since it was last asked for."""

    def __init__(self) -> None:
        self.items: Items | None = None
        self.changes: dict[tuple[int, bytes], bool] = {}  # whether it came or went, the last that happened to it
        self.lock = asyncio.Lock()
        self.asked = 0  # by so many who have not got it yet


class Read(Protocol):
    """Somebody's turn at the store: a connection's, or a link's."""

    def __call__(self, read: Callable[[Reader], Items]) -> Awaitable[Items]: ...


class Sets:
    """The sets of filters that were asked for of late, kept up with the log. On the event loop's thread alone."""

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Filter, _Kept] = OrderedDict()

    @property
    def bytes(self) -> int:
        return _bytes(kept.items for kept in self._kept.values() if kept.items is not None)

    async def of(self, read: Read, filter: Filter, items_max: int | None = None) -> Items:
        """The set of a filter as it is published now. `TooMany` where it has more items than a session may compare, or
        than `items_max`."""
        items_max = self._items_max if items_max is None else items_max
        if filter.limit is not None:  # the newest few: another set at every moment
            return await read(lambda reader: _read(reader, filter, items_max))
        items = None
        while items is None:
            items = await self._current(read, filter, items_max)
        if len(items) > items_max:
            raise TooMany(f"more than {items_max} items")
        self._make_room(filter)
        return items

    async def _current(self, read: Read, filter: Filter, items_max: int) -> Items | None:
        """None: while somebody else was at the set it was given up, and with it what has changed since."""
        kept = self._kept.setdefault(filter, _Kept())
        self._kept.move_to_end(filter)
        kept.asked += 1
        try:
            async with kept.lock:
                if self._kept.get(filter) is not kept:
                    return None
                if kept.items is None:
                    kept.changes = {}  # what changes from here on is noted, whether it will be read or not
                    kept.items = await read(lambda reader: _read(reader, filter, items_max))
                if kept.changes:
                    await self._bring_up_to_date(kept, kept.items)
                kept.items = await self._without_expired(read, kept.items)
                return kept.items
        finally:
            kept.asked -= 1
            if kept.items is None and not kept.lock.locked() and self._kept.get(filter) is kept:
                del self._kept[filter]

    async def _without_expired(self, read: Read, items: Items) -> Items:
        """What has expired is served to nobody, also when it was not removed yet."""

        def purged(reader: Reader) -> Items:
            expired = [item for item in reader.expired_items(now.seconds()) if item in items]
            return items.changed([], expired) if expired else items

        return await read(purged)

    async def _bring_up_to_date(self, kept: _Kept, items: Items) -> None:
        noted, kept.changes = kept.changes, {}
        added = [item for item, came in noted.items() if came]
        removed = [item for item, came in noted.items() if not came]
        try:
            kept.items = await asyncio.to_thread(items.changed, added, removed)
        except BaseException:  # the session was cut off: what was noted is still to be done
            kept.changes = noted | kept.changes
            raise

    def _make_room(self, newest: Filter) -> None:
        """The oldest go first; one that has no room even alone is not kept either."""
        while len(self._kept) > KEPT_SETS or (self.bytes > self._bytes_max and self._kept):
            oldest = next((one for one in self._kept if one != newest), newest)
            if oldest == newest and self._kept[newest].asked:
                break  # the last of those who have asked for it lets it go
            del self._kept[oldest]

    def published(self, operations: Iterable[Operation]) -> None:
        if not self._kept:
            return
        for operation in operations:
            event = operation.event
            for filter, kept in self._kept.items():
                if filters.matches(filter, event):
                    kept.changes[event.created_at, bytes.fromhex(event.id)] = True
        self._forget_the_busy()

    def removed(self, removals: Sequence[Removal]) -> None:
        if not self._kept or not removals:
            return
        gone = [(removal.created_at, bytes.fromhex(removal.id)) for removal in removals]
        for kept in self._kept.values():
            kept.changes.update(dict.fromkeys(gone, False))
        self._forget_the_busy()

    def _forget_the_busy(self) -> None:
        for filter, kept in list(self._kept.items()):
            if len(kept.changes) > CHANGES_MAX and not kept.lock.locked():
                del self._kept[filter]


class Reconciliation:
    """Every session of a node."""

    def __init__(
        self, metrics: Metrics, items_max: int, bytes_max: int, idle_seconds: float, message_bytes: int
    ) -> None:
        self._metrics = metrics
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._idle_seconds = idle_seconds
        self._frame_bytes = max(4_096, (message_bytes - 512) // 2)  # they go out as hex
        self._open: dict[Session, Items] = {}
        self.sets = Sets(items_max, bytes_max // 2)

    @property
    def sessions(self) -> int:
        return len(self._open)

    async def run(self, peer: Peer, session: Session) -> None:
        """Serve a session to its end."""
        try:
            await self._serve(peer, session)
        except TooMany:
            self._refuse(peer, session, messages.TOO_MANY, self._items_max)
        except Malformed as error:
            self._refuse(peer, session, f"invalid: {error}")
        except TimeoutError:
            self._refuse(peer, session, messages.TOO_LONG)
        except TooSlow:
            self._refuse(peer, session, messages.TOO_SLOW)
        except StoreError as error:
            log.error("a set could not be read", extra={"cause": str(error)})
            self._refuse(peer, session, messages.NOT_READ)
        finally:
            self._open.pop(session, None)
            peer.reconciliation_ended(session)

    async def _serve(self, peer: Peer, session: Session) -> None:
        items, tip = await self._items(peer, session.asked)
        if not self._has_room(items):
            self._refuse(peer, session, messages.NO_ROOM)
            return
        self._open[session] = items
        self._metrics.reconciliations.inc()
        reconciler = Reconciler(items, self._frame_bytes)
        message = session.asked.message
        if message is None:
            peer.send(frames.text(messages.neg_status(session.name, tip)))
        while True:
            if message is None:
                async with asyncio.timeout(self._idle_seconds):
                    message = await session.inbox.get()
            asked, message = message, None
            reply = await peer.read(lambda _, asked=asked: reconciler.respond(asked))  # type: ignore[misc]
            peer.send(frames.text(messages.neg_message(session.name, reply)))

    async def _items(self, peer: Peer, asked: Reconcile) -> tuple[Items, Position]:
        query = asked.query
        if isinstance(query, RevisionQuery):
            rows = await peer.read(lambda reader: reader.current_revisions(query, self._items_max, now.seconds()))
            return await asyncio.to_thread(_build, rows), rows.tip
        return await self.sets.of(peer.read, query), Position(0)

    def _has_room(self, items: Items) -> bool:
        """Whether one more set fits beside those of the sessions under way; a set that several share counts once."""
        return not self._open or _bytes((*self._open.values(), items)) <= self._bytes_max

    def _refuse(self, peer: Peer, session: Session, text: str, *more: int) -> None:
        peer.send(frames.text(messages.neg_error(session.name, text, *more)))


def _bytes(sets: Iterable[Items]) -> int:
    """What sets take in memory; a part that several share counts once."""
    return sum({part: size for items in sets for part, size in items.parts.items()}.values())


def _read(reader: Reader, filter: Filter, items_max: int) -> Items:
    return _build(reader.items(filter, items_max, now.seconds()))


def _build(rows: ItemRows) -> Items:
    return Items.build(rows.timestamps, rows.ids)
