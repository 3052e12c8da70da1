"""Plain NIP-01 fetching: all the events of a filter page by page, or those of known ids, whatever a relay's limits.

`Pages` goes from the newest to the oldest. A relay answers a REQ with its newest events up to a limit that it may keep
to itself, so only one thing is known of a page: above its oldest second it is complete. The next page ends at that
second, not below it, and what comes twice is dropped; where none of it does, the relay leaves `until` out, and is
asked up to the second after. A page that lies in one second altogether cannot be continued.
That it was cut off shows by what lies below it, by the size of other pages that were, or by holding all we asked for:
then the second goes into `unsure`, and the caller knows where completeness cannot be shown. Where a filter's `since`
or `until` hides what lies around the last such page, the relay is asked for one event more than the page had, whenever
it was made. (A relay whose whole store is one second, cut off at a limit of its own below ours, cannot be told from
one that has no more.) The end is an empty page.

`ByIds` asks for ids in chunks, a few chunks at a time, and asks again for what a relay's limit left out as long as
that brings anything. Both check each event: well-formed, with its own id, matching the filter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from anabranch.core import filter as filters
from anabranch.core import nostr
from anabranch.core.filter import Filter
from anabranch.core.nostr import TIMESTAMP_MAX, Event, Invalid, Strange
from anabranch.wire import dialogue
from anabranch.wire.dialogue import (
    AUTH_REQUIRED,
    BOUNDS,
    PARSING,
    Accuse,
    Answer,
    Authenticate,
    Bounds,
    Closed,
    Effect,
    EndOfStored,
    Finish,
    Found,
    Odd,
    Reconnect,
    Refuse,
    Send,
    Stored,
)

CHUNKS_OPEN = 2
KNOWN_BYTES_MAX = 4_096
VALUES_MAX = 1 << 20
ODD_BYTES_MAX = 1 << 20  # of what we cannot take: more would take long to take apart, and no relay takes it


class Settled(msgspec.Struct, frozen=True):
    """From `since` to `until`, both included, the relay has just these; `ids` are in hex."""

    since: int
    until: int
    ids: frozenset[str]


def checked(raw: bytes, wanted: Filter) -> tuple[Event, bytes] | Odd | str:
    """The event that the relay sent and the bytes to keep, or what is wrong with it."""
    try:
        event, kept = nostr.parse(raw, PARSING)
    except Strange as error:
        claimed = nostr.claims(raw) if len(raw) <= ODD_BYTES_MAX else None
        if claimed is None:
            return f"sent no valid event, nor one that others could have taken: {error}"
        return Odd(claimed[0], str(error), claimed[1])
    except Invalid as error:
        return f"sent no valid event: {error}"
    if not filters.matches(wanted, event):
        return f"sent the event {event.id}, which does not match the filter that it was asked for"
    return event, kept


class _Task:
    """What both share: a few reconnections, and the right to authenticate once on each connection."""

    def __init__(self, bounds: Bounds, has_keys: bool, prefix: str) -> None:
        """`prefix` goes before the name of every subscription, where several tasks share a connection."""
        self._bounds = bounds
        self._prefix = prefix
        self._has_keys = has_keys
        self._known = False  # to the relay, on this connection
        self._reconnects = 0
        self._asked = 0  # every REQ has a name of its own, so that nothing late is taken for something new

    def _name(self, what: str) -> str:
        self._asked += 1
        return f"{self._prefix}{what}{self._asked}"

    def _closed(self, reason: str) -> list[Effect]:
        if reason.startswith(AUTH_REQUIRED) and self._has_keys and not self._known:
            self._known = True
            return [Authenticate(reason)]
        return [Refuse(reason or "it closed the subscription without a reason")]

    def silence(self) -> list[Effect] | None:
        return None

    def lost(self, oversized: bool) -> list[Effect] | None:
        self._reconnects += 1
        self._known = False
        return [Reconnect()] if self._reconnects <= self._bounds.retries and not oversized else None


class Pages(_Task):
    """All that a relay has for a filter, newest first."""

    def __init__(
        self, filter: Mapping[str, Any], *, bounds: Bounds = BOUNDS, has_keys: bool = False, prefix: str = ""
    ) -> None:
        super().__init__(bounds, has_keys, prefix)
        self._filter = {name: value for name, value in filter.items() if name not in ("until", "limit")}
        self._wanted = filters.parse(dict(filter), VALUES_MAX)
        self._since = self._wanted.since or 0
        self._until = TIMESTAMP_MAX if self._wanted.until is None else self._wanted.until
        self._last = 0  # how many the page before had
        self._most = 0  # how many the largest page had
        self._page: frozenset[str] = frozenset()  # the last one that was not empty
        self._cut_off: int | None = None  # the size of the smallest page that is known to have left something out
        self._crowded: int | None = None  # the second that the page before lay in altogether
        self._probed: frozenset[str] | None = None  # the last page, while the relay is asked whether it gives more
        self._bounded = False  # the relay was told where time ends
        self._far = False  # it has something beyond
        self._reach = 0  # 1 for a relay that leaves the second `until` itself out
        self._unsettled: dict[str, int] = {}  # what was found at or below `until`, and when each was made
        self._settled: list[Settled] = []
        self.unsure: list[int] = []
        """The seconds that hold at least a page, so that nobody knows whether the relay has more there."""

    def start(self) -> list[Effect]:
        return self._next() if self._since <= self._until else [Finish()]

    def again(self) -> list[Effect]:
        return self._next() if self._probed is None else self._probe()

    def settled(self) -> list[Settled]:
        """What has become certain since this was asked last."""
        news, self._settled = self._settled, []
        return news

    def _next(self) -> list[Effect]:
        return self._ask(self._filter, self._wanted, self._bounds.page)

    def _ask(self, filter: Mapping[str, Any], wanted: Filter, limit: int) -> list[Effect]:
        self._subscription = self._name("page-")
        self._here: dict[str, int] = {}  # all of this page
        self._new = 0  # of it what had not been found before
        self._beyond: set[str] = set()  # what was made when there is no time any more
        last = min(self._until + self._reach, TIMESTAMP_MAX)
        until = {"until": last} if last < TIMESTAMP_MAX or self._bounded else {}
        self._window = msgspec.structs.replace(wanted, until=last)
        return [Send(dialogue.req(self._subscription, {**filter, **until, "limit": limit}))]

    def hear(self, answer: Answer) -> list[Effect] | None:
        if isinstance(answer, Stored) and answer.subscription == self._subscription:
            return self._event(answer.raw)
        if isinstance(answer, EndOfStored) and answer.subscription == self._subscription:
            return [Send(dialogue.close(self._subscription)), *self._end()]
        if isinstance(answer, Closed) and answer.subscription == self._subscription:
            return self._closed(answer.reason)
        return None

    def _event(self, raw: bytes) -> list[Effect] | None:
        found = checked(raw, self._window)
        if isinstance(found, str):
            return [Accuse(found)]
        if isinstance(found, Odd):
            if found.created_at > TIMESTAMP_MAX and not self._bounded:
                return self._pass_by(found.id)
            made = max(found.created_at, 0)  # there is nothing before time began
            if not (self._window.since or 0) <= made <= (self._window.until or 0):
                return [Accuse(f"sent the event {found.id}, which was not made when it was asked for")]
            return self._note(found.id, made, found)
        event, kept = found
        return self._note(event.id, event.created_at, Found(event, kept))

    def _pass_by(self, id: str) -> list[Effect] | None:
        if id in self._beyond:
            return None
        self._beyond.add(id)
        self._far = True
        return self._overfull() or []

    def _overfull(self) -> list[Effect] | None:
        most = self._bounds.page_most
        if len(self._here) + len(self._beyond) <= most:
            return None
        return [Accuse(f"gives more than {most} events at once, where fewer were asked for")]

    def _note(self, id: str, created_at: int, news: Found | Odd) -> list[Effect] | None:
        if id in self._here:
            return None  # said twice: no progress
        self._here[id] = created_at
        if (accusation := self._overfull()) is not None:
            return accusation
        if id in self._unsettled or self._probed is not None:
            return []
        self._new += 1
        self._unsettled[id] = created_at
        return [news]

    def _end(self) -> list[Effect]:
        """A page is complete: what it settles, and what to ask next."""
        if self._probed is not None:
            return self._judge(self._probed)
        if self._new and self._last:  # the page before could have had these, too: it was cut off
            self._cut_off = min(self._last, self._cut_off or self._last)
            if self._crowded is not None:
                self.unsure.append(self._crowded)
        if not self._reach and self._leaves_out_the_last_second():
            self._reach = 1
            return self._next()
        if self._beyond and not self._here:  # all of a page, and perhaps more: there are others behind them
            self._bounded = True
            return self._next()
        if not self._here:
            self._settle(self._since)
            return self._finish()
        self._last, self._crowded = len(self._here) + len(self._beyond), None
        self._most, self._page = max(self._most, self._last), frozenset(self._here)
        lowest = min(self._here.values())
        if lowest < self._until:
            self._settle(lowest + 1)
            self._until = lowest
            return self._next()
        if self._last >= min(self._bounds.page, self._cut_off or self._bounds.page):
            self.unsure.append(lowest)
        else:
            self._crowded = lowest
        self._settle(lowest)
        self._until = lowest - 1
        return self._next() if self._since <= self._until else self._finish()

    def _leaves_out_the_last_second(self) -> bool:
        """Whether nothing came of the second at which the page ends, though we have seen that there is something."""
        known = [id for id, created_at in self._unsettled.items() if created_at == self._until]
        return bool(known) and len(self._here) < self._bounds.page and self._here.keys().isdisjoint(known)

    def _finish(self) -> list[Effect]:
        """The end, unless the last page lay in one second, and may have been all that the relay gives at once."""
        all_read = not self._since and self._wanted.until is None
        if self._crowded is None or all_read or self._last < self._most:
            return [Finish()]
        self._probed, self._until = self._page, TIMESTAMP_MAX
        # What lies beyond time would only take the room of what shows something.
        self._bounded, self._last = self._bounded or self._far or self._wanted.until is not None, len(self._page)
        return self._probe()

    def _probe(self) -> list[Effect]:
        """Ask for one event more than the page had, whenever it was made; or for one that is older than all of it."""
        filter = {name: value for name, value in self._filter.items() if name != "since"}
        limit = self._last + 1 if self._until == TIMESTAMP_MAX else 1
        return self._ask(filter, msgspec.structs.replace(self._wanted, since=None), limit)

    def _judge(self, page: frozenset[str]) -> list[Effect]:
        """The page was whole if the relay gives more at once, and perhaps not if it has more and does not give it."""
        assert self._crowded is not None
        everywhere = self._until == TIMESTAMP_MAX
        if everywhere and self._here.keys() == page and self._crowded:  # all there is, or the newest of it
            self._until = self._crowded - 1
            return self._probe()
        if self._here and not (everywhere and len(self._here) > self._last):
            self.unsure.append(self._crowded)
        return [Finish()]

    def _settle(self, since: int) -> None:
        """From there up to where we are, all is known."""
        ids = frozenset(id for id, created_at in self._unsettled.items() if created_at >= since)
        for id in ids:
            del self._unsettled[id]
        self._settled.append(Settled(since, self._until, ids))


class ByIds(_Task):
    """The events of these ids. `missing` are those that the relay does not give, whatever it said before."""

    def __init__(
        self,
        ids: Iterable[str],
        filter: Mapping[str, Any] | None = None,
        *,
        bounds: Bounds = BOUNDS,
        has_keys: bool = False,
        prefix: str = "",
    ) -> None:
        super().__init__(bounds, has_keys, prefix)
        known = {name: value for name, value in (filter or {}).items() if name not in ("ids", "limit")}
        self._wanted = filters.parse(known, VALUES_MAX)
        # What we know besides goes along where it is short: a private relay wants to hear whose events we ask for.
        self._besides = known if len(dialogue.req("", known)) <= KNOWN_BYTES_MAX else {}
        unique = list(dict.fromkeys(ids))
        self._waiting = deque(unique[at : at + bounds.chunk] for at in range(0, len(unique), bounds.chunk))
        self._open: dict[str, tuple[list[str], set[str]]] = {}  # what each REQ asked for, and what is still to come
        self.missing: list[str] = []

    def start(self) -> list[Effect]:
        return self._fill()

    def again(self) -> list[Effect]:
        for _, outstanding in self._open.values():
            self._waiting.appendleft(sorted(outstanding))
        self._open.clear()
        return self._fill()

    def _fill(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._open) < CHUNKS_OPEN:
            ids = self._waiting.popleft()
            name = self._name("ids-")
            self._open[name] = (ids, set(ids))
            effects.append(Send(dialogue.req(name, {**self._besides, "ids": ids, "limit": len(ids)})))
        return effects or ([] if self._open else [Finish()])

    def hear(self, answer: Answer) -> list[Effect] | None:
        if not isinstance(answer, (Stored, EndOfStored, Closed)) or answer.subscription not in self._open:
            return None
        asked, outstanding = self._open[answer.subscription]
        if isinstance(answer, Closed):
            return self._closed(answer.reason)
        if isinstance(answer, Stored):
            found = checked(answer.raw, self._wanted)
            if isinstance(found, str):
                return [Accuse(found)]
            news: Found | Odd = found if isinstance(found, Odd) else Found(*found)
            id = news.id if isinstance(news, Odd) else news.event.id
            if id in outstanding:
                outstanding.discard(id)
                return [news]
            return None if id in asked else [Accuse(f"sent the event {id}, which it was not asked for")]
        del self._open[answer.subscription]
        left = [id for id in asked if id in outstanding]
        if left and len(left) < len(asked):
            self._waiting.appendleft(left)
        else:
            self.missing += left
        return [Send(dialogue.close(answer.subscription)), *self._fill()]
