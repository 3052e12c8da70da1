"""The feed hub: who gets what, live. No I/O; it runs on the event loop's thread alone.

The hub knows the position up to which it has published (`tip`) and keeps the last stretch of the log in memory. A
subscription replays on its own; when it has read up to some position, `join` hands it what lies between there and the
tip and from then on every new operation. So nothing is lost or repeated between replay and live, in whatever order
things happen.

Subscriptions with the same selector form a group that is matched once; groups are indexed by what they ask for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby
from typing import Protocol

from anabranch.core import changes
from anabranch.core import filter as filters
from anabranch.core.changes import ChangesQuery, LogQuery, RevisionQuery
from anabranch.core.filter import Filter
from anabranch.core.operation import Operation, Removal
from anabranch.core.retention import Horizon
from anabranch.core.token import Position
from anabranch.wire import frames, messages

Selector = tuple[Filter, ...] | ChangesQuery

RECENT_OPERATIONS = 8_192
RECENT_BYTES = 4_194_304  # what one subscription may be handed at once when it joins


class Outlet(Protocol):
    """Where frames go."""

    def send(self, data: bytes) -> None: ...

    def send_now(self, data: bytes) -> None:
        """The same, before anything else is done."""
        ...


class Style(Enum):
    """How an event is framed for a subscription."""

    EVENT = "EVENT"
    EVENTS = "EVENTS"
    CHANGE = "CHANGE"
    SNAPSHOT = "SNAPSHOT"


_OPENINGS = {
    Style.EVENT: messages.event_opening,
    Style.EVENTS: messages.events_opening,
    Style.CHANGE: messages.change_opening,
    Style.SNAPSHOT: messages.snapshot_opening,
}


class Subscription:
    """One subscription of one connection. `complete_to` is how far it has been sent everything that matches."""

    __slots__ = ("complete_to", "name", "opening", "outlet", "selector", "style")

    def __init__(self, outlet: Outlet, name: str, selector: Selector, style: Style) -> None:
        self.outlet = outlet
        self.name = name
        self.selector = selector
        self.style = style
        self.opening = _OPENINGS[style](name)
        self.complete_to = Position(0)


Published = tuple[Position | None, Operation | Removal]
"""An operation, or the removal of a revision, and its position; an ephemeral operation has none."""


def frame_events(style: Style, opening: bytes, items: Iterable[tuple[int | None, bytes]]) -> bytes:
    """The frames of raw events with their positions, joined."""
    parts: list[bytes] = []
    header, closing = frames.header, b"]]" if style is Style.EVENTS else b"]"
    beside = len(opening) + len(closing)
    if style is Style.CHANGE:
        for position, raw in items:
            seq = b"%d," % (position or 0)
            parts += (header(beside + len(seq) + len(raw)), opening, seq, raw, closing)
    else:
        for _, raw in items:
            parts += (header(beside + len(raw)), opening, raw, closing)
    return b"".join(parts)


class _Group:
    __slots__ = ("keys", "last", "members", "selector")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.members: dict[Subscription, None] = {}
        self.keys = list(_index_keys(selector))
        self.last = Position(0)  # of what was published to it

    def matches(self, change: Operation | Removal) -> bool:
        if isinstance(self.selector, ChangesQuery):
            return changes.matches(self.selector, change)
        if isinstance(change, Removal):
            return False
        event = change.event
        return any(filters.matches(filter, event) for filter in self.selector)


class Hub:
    def __init__(self, tip: Position, send_buffer_bytes: int) -> None:
        """With `send_buffer_bytes` waiting a reader is behind: whoever joins is handed half of that at the most."""
        self.tip = tip
        self._recent_bytes_max = min(RECENT_BYTES, send_buffer_bytes // 2)
        self._groups: dict[Selector, _Group] = {}
        self._index: dict[object, dict[_Group, None]] = {}
        self._tagged: dict[str, int] = {}  # how many index keys there are for a tag name
        self._recent: deque[tuple[Position, Operation | Removal]] = deque()
        self._recent_bytes = 0
        self.horizons: list[Horizon] = []  # the bootstraps being sent

    @property
    def subscriptions(self) -> int:
        return sum(len(group.members) for group in self._groups.values())

    # --- joining and leaving ---

    def join(self, subscription: Subscription, complete_to: Position) -> bool:
        """Go live from `complete_to` on. False when that is too long ago: read on from there, then try again."""
        missed: list[tuple[Position, Operation | Removal]] = []
        if complete_to < self.tip:
            if not self._recent or self._recent[0][0] > complete_to + 1:
                return False
            for entry in reversed(self._recent):
                if entry[0] <= complete_to:
                    break
                missed.append(entry)
        subscription.complete_to = complete_to
        group = self._groups.get(subscription.selector)
        if group is None:
            group = self._groups[subscription.selector] = _Group(subscription.selector)
            for key in group.keys:
                self._index.setdefault(key, {})[group] = None
                if isinstance(key, tuple):
                    self._tagged[key[0]] = self._tagged.get(key[0], 0) + 1
        group.members[subscription] = None
        if matched := [entry for entry in reversed(missed) if group.matches(entry[1])]:
            self._send(subscription, matched)
        return True

    def leave(self, subscription: Subscription) -> None:
        group = self._groups.get(subscription.selector)
        if group is None or subscription not in group.members:
            return
        del group.members[subscription]
        if not group.members:
            del self._groups[subscription.selector]
            for key in group.keys:
                del self._index[key][group]
                if not self._index[key]:
                    del self._index[key]
                if isinstance(key, tuple):
                    self._tagged[key[0]] -= 1

    # --- publishing ---

    def publish(self, batch: Sequence[Published]) -> int:
        """Send a committed group to everybody who asked for it. How many deliveries that was."""
        matched: dict[_Group, list[Published]] = {}
        anybody = bool(self._index)
        for published in batch:
            position, change = published
            if anybody:
                for group in self._candidates(change):
                    if group.matches(change):
                        matched.setdefault(group, []).append(published)
            if position is not None:
                self.tip = position
                self._recent.append((position, change))
                self._recent_bytes += _weight(change)
        self._forget_what_is_too_much()
        deliveries = 0
        told: set[Outlet] = set()
        for group, entries in matched.items():
            group.last = max(group.last, entries[-1][0] or Position(0))
            built: dict[bytes, bytes] = {}  # subscriptions of one name and style share their bytes
            first = next((position for position, _ in entries if position is not None), self.tip + 1)
            for member in list(group.members):
                if member.complete_to >= first:  # its replay had already read what is only now published
                    fresh = [e for e in entries if e[0] is None or e[0] > member.complete_to]
                    self._send(member, fresh)
                    deliveries += len(fresh)
                    continue
                data = built.get(member.opening)
                if data is None:
                    data = _frames(member, entries)
                    built[member.opening] = data
                outlet = member.outlet
                if outlet in told:  # by another of its subscriptions: the rest goes out together
                    outlet.send(data)
                else:
                    told.add(outlet)
                    outlet.send_now(data)
                deliveries += len(entries)
        return deliveries

    def tell_passed(self) -> None:
        """Tell the live followers of the log how far it has come where the last of it was not for them.

        Removals, and what lies outside of their scope, so move their checkpoints too.
        """
        for selector, group in list(self._groups.items()):  # whoever is sent too much leaves at once
            if not isinstance(selector, LogQuery) or group.last >= self.tip:
                continue
            for member in list(group.members):
                if member.complete_to < self.tip:
                    member.complete_to = self.tip
                    member.outlet.send(frames.text(messages.changes_passed(member.name, self.tip)))

    def _send(self, subscription: Subscription, entries: Sequence[Published]) -> None:
        if entries:
            subscription.outlet.send(_frames(subscription, entries))

    def _forget_what_is_too_much(self) -> None:
        while len(self._recent) > RECENT_OPERATIONS or self._recent_bytes > self._recent_bytes_max:
            self._recent_bytes -= _weight(self._recent.popleft()[1])

    def _candidates(self, change: Operation | Removal) -> Iterable[_Group]:
        """The groups that may want an operation, or want to know of a removal, each once."""
        index = self._index
        if isinstance(change, Removal):
            return index.get(("p", change.recipient), {})
        event = change.event
        found: dict[_Group, None] = {}
        for key in (None, event.kind, event.pubkey, event.id):
            if (groups := index.get(key)) is not None:
                found.update(groups)
        if self._tagged:
            for tag in event.tags:
                if len(tag) > 1 and self._tagged.get(tag[0]) and (groups := index.get((tag[0], tag[1]))) is not None:
                    found.update(groups)
        return found


def _weight(operation: Operation | Removal) -> int:
    """What an operation takes in memory, roughly: its bytes, and the parsed tags beside them."""
    if isinstance(operation, Removal):
        return 500
    return len(operation.raw) + 200 * len(operation.event.tags)


def _frames(subscription: Subscription, entries: Sequence[Published]) -> bytes:
    style, opening, name = subscription.style, subscription.opening, subscription.name
    parts: list[bytes] = []
    for removals, run in groupby(entries, lambda entry: isinstance(entry[1], Removal)):
        if removals:
            parts += (frame_removal(name, at, one.id, one.reason) for at, one in run if isinstance(one, Removal) and at)
        else:
            parts.append(frame_events(style, opening, ((at, one.raw) for at, one in run if isinstance(one, Operation))))
    return b"".join(parts)


def frame_removal(name: str, position: Position, id: str, reason: str) -> bytes:
    return frames.text(messages.changes_deleted(name, position, id, reason))


def _index_keys(selector: Selector) -> Iterator[object]:
    """Under which keys a selector is found: an id, an author, a (tag, value), a kind, or None for everything."""
    if isinstance(selector, RevisionQuery):
        yield ("p", selector.recipient)
        return
    if isinstance(selector, LogQuery):
        selector = (selector.filter,)
    if isinstance(selector, ChangesQuery):
        yield selector.author
        return
    keys: dict[object, None] = {}
    for filter in selector:
        if filter.ids is not None:
            keys.update(dict.fromkeys(filter.ids))
        elif filter.authors is not None:
            keys.update(dict.fromkeys(filter.authors))
        elif filter.tags:
            name, values = min(filter.tags, key=lambda tag: len(tag[1]))
            keys.update(dict.fromkeys((name, value) for value in values))
        elif filter.kinds is not None:
            keys.update(dict.fromkeys(filter.kinds))
        else:
            keys[None] = None
    yield from keys
