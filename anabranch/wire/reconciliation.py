"""One reconciliation of one filter with one relay, from the client's side: who lacks what. No I/O.

The way is NIP-77 (negentropy) as long as the relay goes along, and paged REQs (`Pages`) for whatever it does not:

- It says that the set is too large (`NEG-ERR blocked: …`, or a message beyond what we take): the window of time is cut
  in two, at the middle of our own items or of the time, until each part is answered. A second that is still too large
  is paged. A relay that has answered nothing when it refuses even a single second does not mean the size.
- It refuses in any other way (another NEG-ERR, CLOSED, NOTICE, silence, hanging up, babble, a message that is none):
  all that is left is paged. A NOTICE may be about something else, so after one we only wait less.

Windows are worked off from old to new, and none is open twice at a time. Whatever the relay does, the work is bounded:
so many windows, rounds and unknown ids, and the shell's clock runs unless something new was learnt.

    OPENING ── NEG-MSG ──► TALKING ── known ──► next window: OPENING, or finished
       │  └─ too large ─► two windows: OPENING     │
       └─ refused ──────────► PAGING ◄── refused ──┘
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from anabranch.core import filter as filters
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.nostr import TIMESTAMP_MAX, Invalid
from anabranch.wire import dialogue
from anabranch.wire.dialogue import (
    AUTH_REQUIRED,
    BOUNDS,
    Answer,
    Authenticate,
    Bounds,
    Closed,
    Effect,
    Finish,
    Found,
    Hurry,
    NegError,
    NegMessage,
    Notice,
    Overflow,
    Reconnect,
    Send,
    Unknown,
)
from anabranch.wire.paging import VALUES_MAX, Pages

ROUNDS_MIN = 100
ROUNDS_A_WINDOW = 20
ITEMS_A_ROUND, FOUND_A_ROUND = 200, 10
"""What a relay comes past with one message at the least, of ours and of the difference: whoever is slower is paged."""


class State(StrEnum):
    OPENING = "opening"  # NEG-OPEN is out, and nothing came back yet
    TALKING = "talking"
    PAGING = "paging"
    DONE = "done"


class Method(StrEnum):
    NEGENTROPY = "negentropy"
    PAGES = "pages"
    BOTH = "both"  # negentropy where the relay went along, pages for the rest


class Window(msgspec.Struct, frozen=True):
    """A stretch of time, both ends included; without an end it is open."""

    since: int
    until: int | None

    def within(self, filter: Mapping[str, Any]) -> dict[str, Any]:
        """The filter, for this window only."""
        narrowed = {name: value for name, value in filter.items() if name not in ("since", "until")}
        if self.since > 0:
            narrowed["since"] = self.since
        if self.until is not None:
            narrowed["until"] = self.until
        return narrowed


class Difference(msgspec.Struct, frozen=True):
    """Who lacks what; ids are in hex. Where `unsure` is empty, it is all there is."""

    have: list[str]
    """Ours, and the relay lacks them."""
    need: list[str]
    """The relay's, and we lack them."""
    rounds: int
    """Messages of negentropy that the relay answered."""
    method: Method
    windows: int = 1
    refusal: str | None = None
    """Why the relay was paged, when it was."""
    unsure: tuple[int, ...] = ()
    """Seconds that hold more than the relay gives at once: it may have more there than could be seen."""
    more: bool = False
    """What was found was enough: there is more, or may be."""


class Reconciliation:
    """The machine. `result` holds when it has finished."""

    def __init__(
        self,
        filter: Mapping[str, Any],
        items: Items,
        *,
        now: int,
        bounds: Bounds = BOUNDS,
        has_keys: bool = False,
        negentropy: bool = True,
        prefix: str = "",
        have: bool = True,
        need: bool = True,
        need_of_pages: bool = True,
        enough: Callable[[int], bool] | None = None,
    ) -> None:
        """`items` is what we have of the filter. `now` only says where open time is best cut. Without `negentropy` the
        relay is paged from the start: for one that is known not to speak it. `prefix` goes before the name of every
        subscription, where several tasks share a connection. `have` and `need`: which of the two are to be told; with
        `need_of_pages` off, not what is `Found` in pages. `enough` is told how many are known by now, and ends it.
        Raises `Invalid`."""
        wanted = filters.parse(dict(filter), VALUES_MAX)
        if wanted.limit is not None:
            raise Invalid("a set with a limit cannot be reconciled: take the limit out of the filter")
        self._filter = dict(filter)
        self._items = items
        self._now = now
        self._bounds = bounds
        self._has_keys = has_keys
        self._negentropy = negentropy
        self._prefix = prefix
        self._tells_have, self._tells_need, self._tells_paged = have, need, need and need_of_pages
        self._enough = enough
        self._more = False
        self._known = False  # to the relay, on this connection
        whole = Window(wanted.since or 0, wanted.until)
        self._windows = [whole] if whole.until is None or whole.since <= whole.until else []  # the next one is last
        self._state = State.DONE
        self._subscription = ""
        self._opened = 0
        self._rounds = 0
        self._answered = 0  # windows that negentropy settled
        self._retries = 0  # of this window
        self._paged = False
        self._refusal: str | None = None
        self._suspicion: str | None = None  # what looked like a refusal since the window was opened
        self._have: list[str] = []
        self._need: list[str] = []
        self._mark = 0, 0  # how much of both was certain before the present window
        self._unsure: list[int] = []
        self._second: tuple[int, set[str]] = -1, set()

    @property
    def result(self) -> Difference:
        method = Method.NEGENTROPY if not self._paged else Method.BOTH if self._answered else Method.PAGES
        unsure = tuple(self._unsure)
        return Difference(self._have, self._need, self._rounds, method, self._opened, self._refusal, unsure, self._more)

    def start(self) -> list[Effect]:
        return self._next() if self._negentropy or not self._windows else self._page_all("negentropy was not wanted")

    def again(self) -> list[Effect]:
        return self._pages.again() if self._state is State.PAGING else self._open()

    def hear(self, answer: Answer) -> list[Effect] | None:
        if self._state is State.PAGING:
            return self._page(self._pages.hear(answer))
        if isinstance(answer, NegMessage) and answer.subscription == self._subscription:
            return self._message(answer.message)
        if isinstance(answer, (NegError, Closed)) and answer.subscription == self._subscription:
            return self._refused(answer)
        if isinstance(answer, (Notice, Unknown)) and self._state is State.OPENING and self._suspicion is None:
            self._suspicion = answer.text or "it said something that is no message"
            return [Hurry()]
        return None

    def silence(self) -> list[Effect] | None:
        if self._state is State.PAGING:
            return self._pages.silence()
        if self._state is State.TALKING and self._retry():
            return [Reconnect()]
        return self._page_all(self._suspicion or "it did not answer")

    def lost(self, oversized: bool) -> list[Effect] | None:
        self._known = False
        if self._state is State.PAGING:
            return self._pages.lost(oversized)
        if oversized:
            if not self._cut():
                self._page_one("its answer is larger than we take")
        elif not (self._answered or self._state is State.TALKING) or not self._retry():
            # To hang up on the first NEG-OPEN is a refusal as well, and so is doing it each time.
            self._page_all(self._suspicion or "it hung up")
        return [Reconnect()]

    # --- negentropy ---

    def _next(self) -> list[Effect]:
        if not self._windows:
            self._state = State.DONE
            return [Finish()]
        self._retries = 0
        self._mark = len(self._have), len(self._need)
        return self._open()

    def _open(self) -> list[Effect]:
        """Begin the next window. It stays on the list until it is settled, and what it taught before is forgotten."""
        if self._opened >= self._bounds.windows:
            return self._page_all(f"it took more than {self._bounds.windows} windows")
        self._forget()
        self._opened += 1
        self._state = State.OPENING
        self._suspicion = None
        self._subscription = f"{self._prefix}neg-{self._opened}"
        window = self._windows[-1]
        ours, frame = self._ours(window), self._bounds.frame_bytes
        self._reconciler = Reconciler(ours, frame, have=self._tells_have, need=self._tells_need)
        message = self._reconciler.initiate()
        return [Send(dialogue.neg_open(self._subscription, window.within(self._filter), message))]

    def _message(self, text: str) -> list[Effect]:
        self._state = State.TALKING
        self._rounds += 1
        close = Send(dialogue.neg_close(self._subscription))
        try:
            step = self._reconciler.reconcile(bytes.fromhex(text))
        except ValueError as error:  # no hex, or Malformed
            return [close, *self._page_all(f"its message cannot be read: {error}")]
        self._have += [id.hex() for id in step.have]
        self._need += [id.hex() for id in step.need]
        if len(self._need) > self._bounds.need:
            return [close, self._too_many()]
        if step.message is None:
            self._windows.pop()
            self._answered += 1
            return [close, *(self._end_early() if self._is_enough() and self._windows else self._next())]
        if self._is_enough():
            return [close, *self._end_early()]
        if self._rounds >= self._rounds_max:
            return [close, *self._page_all(f"it came to no end in {self._rounds} rounds")]
        return [Send(dialogue.neg_msg(self._subscription, step.message))]

    @property
    def _rounds_max(self) -> int:
        """By what there is to compare, and what came of it so far: a relay that does not converge has soon had them."""
        found = (len(self._have) + len(self._need)) // FOUND_A_ROUND
        settled = ROUNDS_A_WINDOW * self._answered + len(self._items) // ITEMS_A_ROUND
        return min(self._bounds.rounds, ROUNDS_MIN + settled + found)

    def _is_enough(self) -> bool:
        return self._enough is not None and self._enough(len(self._have) + len(self._need))

    def _end_early(self) -> list[Effect]:
        self._more = True
        self._state = State.DONE
        return [Finish()]

    def _refused(self, answer: NegError | Closed) -> list[Effect]:
        reason = answer.reason or "it refused without a reason"
        if reason.startswith(AUTH_REQUIRED) and self._has_keys and not self._known:
            self._known = True
            return [Authenticate(reason)]
        if isinstance(answer, NegError) and _is_about_size(answer):
            return self._open() if self._cut() else self._page_one(reason)
        if self._state is State.TALKING and self._retry():  # it went along before: it has lost the session
            return self._open()
        return self._page_all(reason)

    def _retry(self) -> bool:
        self._retries += 1
        return self._retries <= self._bounds.retries

    def _forget(self) -> None:
        del self._have[self._mark[0] :], self._need[self._mark[1] :]

    def _too_many(self) -> Overflow:
        return Overflow(
            f"names more than {self._bounds.need} events that we lack; narrow the filter, or raise the bound"
        )

    # --- windows ---

    def _cut(self) -> bool:
        """Put two windows in the place of the present one, the older to be next. False: it is a single second."""
        window = self._windows[-1]
        if window.since >= (TIMESTAMP_MAX if window.until is None else window.until):
            return False
        last_of_older = self._middle(window)
        self._windows[-1:] = [Window(last_of_older + 1, window.until), Window(window.since, last_of_older)]
        return True

    def _middle(self, window: Window) -> int:
        """Where to cut: so that half of our items lie on each side, or half of the time."""
        low, high = self._places(window)
        if high - low > 1:
            first, middle = (int(time) for time in self._items.rows(np.array([low, (low + high) // 2]))[0])
            if first < middle:
                return middle - 1
        until = window.until
        if until is None:  # most of what there is was made before now
            until = self._now if window.since < self._now else TIMESTAMP_MAX
        return (window.since + until) // 2

    def _places(self, window: Window) -> tuple[int, int]:
        """Where our items of the window begin and end."""
        until = TIMESTAMP_MAX if window.until is None else window.until
        low, high = self._items.lower_bounds(
            np.array([window.since, until + 1], np.uint64), np.array([b"", b""], "S32")
        )
        return int(low), int(high)

    def _ours(self, window: Window) -> Items:
        low, high = self._places(window)
        if high - low == len(self._items):
            return self._items
        times, ids = self._items.rows(np.arange(low, high))
        return Items.build(times, ids.tobytes())

    # --- pages ---

    def _page_one(self, reason: str) -> list[Effect]:
        """The present window, which is a single second, by pages; then on as before, if there was a before."""
        return self._begin_pages(reason) if self._answered else self._page_all(reason)

    def _page_all(self, reason: str) -> list[Effect]:
        """All windows that are left are neighbours: they are one again."""
        self._windows = [Window(self._windows[-1].since, self._windows[0].until)]
        return self._begin_pages(reason)

    def _begin_pages(self, reason: str) -> list[Effect]:
        self._forget()
        self._state = State.PAGING
        self._paged = True
        self._refusal = self._refusal or reason
        window = self._windows[-1].within(self._filter)
        self._pages = Pages(window, bounds=self._bounds, has_keys=self._has_keys, prefix=self._prefix)
        return self._pages.start()

    def _page(self, effects: list[Effect] | None) -> list[Effect] | None:
        """What the pages taught: an event is needed when we lack it; ours are had where the pages are certain."""
        if effects is None:
            return None
        ours: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Found):
                if effect.event.id not in self._ids_of_second(effect.event.created_at):
                    if self._tells_paged:
                        self._need.append(effect.event.id)
                    ours.append(effect)
            elif not isinstance(effect, Finish):
                ours.append(effect)
        for settled in self._pages.settled():
            if self._tells_have:
                self._have += [id for id in self._ids(settled.since, settled.until) if id not in settled.ids]
        if len(self._need) > self._bounds.need:
            return [*ours, self._too_many()]
        if Finish() in effects:
            self._windows.pop()
            self._unsure += self._pages.unsure
            return [*ours, *(self._end_early() if self._is_enough() and self._windows else self._next())]
        asks = [effect for effect in ours if isinstance(effect, Send) and effect.message.startswith(b'["REQ"')]
        if asks and self._is_enough():  # the next page is not asked for any more
            return [*(effect for effect in ours if effect not in asks), *self._end_early()]
        return ours

    def _ids(self, since: int, until: int) -> list[str]:
        """Ours of that time."""
        ids = self._items.id_list(*self._places(Window(since, until))).hex()
        return [ids[at : at + 64] for at in range(0, len(ids), 64)]

    def _ids_of_second(self, second: int) -> set[str]:
        """The same, kept for the next event: events of one second come one after the other."""
        if self._second[0] != second:
            self._second = second, set(self._ids(second, second))
        return self._second[1]


_SIZE = re.compile(r"blocked|.*too[ _](many|big|large)", re.IGNORECASE)


def _is_about_size(error: NegError) -> bool:
    """NIP-77 says `blocked`, and may name the most that the relay takes; others say it in words of their own
    (`rate-limited: too many negentropy items`, `RESULTS_TOO_BIG`)."""
    return error.records_max is not None or _SIZE.match(error.reason) is not None
