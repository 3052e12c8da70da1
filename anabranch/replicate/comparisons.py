"""What comparisons with a peer say one after the other: equal, not clear yet, or different. No I/O.

Two that are written to all the time are never caught with equal digests: something is always on its way. So each
comparison answers for the one before it. What differed then and differs still, stays different; what the peer named
then, names no more and never gave, was never there. Where neither is the case for some comparisons, all that differed
has come, and the two are equal but for what is on its way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

WITHHELD_MAX = 3  # comparisons in a row in which a peer did not give what it named and was asked for
COMPARISONS_MAX = 6  # of two that are written to all the time


class Verdict(StrEnum):
    EQUAL = "equal"
    UNCERTAIN = "uncertain"  # equal as far as can be seen
    UNCLEAR = "unclear"
    DIFFERENT = "different"


class Finding(msgspec.Struct, frozen=True):
    """What one comparison found; ids."""

    open: frozenset[str] = frozenset()
    """What differs, in either direction."""
    lacked: frozenset[str] = frozenset()
    """What of it the peer has, as it says, and we do not."""
    missing: frozenset[str] = frozenset()
    """What of that it was asked for, and did not give."""
    vanished: frozenset[str] = frozenset()
    """What it had the last time, as it said, and has no more, though it never came."""
    more: bool = False
    """There is more than was looked at."""


class Portions:
    """A difference that is closed portion by portion goes on as long as the peer gives what it names, or most of it:
    something may be deleted there between two messages."""

    def __init__(self) -> None:
        self._vain = 0
        self._open: frozenset[str] = frozenset()

    def are_in_vain(self, found: Finding) -> bool:
        withheld = 2 * len(found.missing) > len(found.lacked)
        same = bool(found.open) and found.open == self._open
        self._open = found.open
        self._vain = self._vain + 1 if withheld or same else 0
        return self._vain >= WITHHELD_MAX


class Comparisons:
    """Those of one connection."""

    def __init__(self) -> None:
        self.equal = False
        """Whether the last one found the two equal; of none that is not to be said."""
        self.equal_as_of: float | None = None
        """All that either had before this moment, and has still, the other knew when they were last found equal."""
        self.stays: frozenset[str] = frozenset()
        """What makes them different."""
        self._last = Finding()
        self._last_began: float | None = None
        self._count = self._withheld = self._vanished = 0

    @property
    def named(self) -> frozenset[str]:
        """What the next comparison is to look for: it has come by then, or is named again."""
        return self._last.lacked if not self._last.more else frozenset()

    def judge(self, found: Finding, certain: bool = True, began: float = 0.0) -> Verdict:
        """It is not `certain` when the peer may have more than could be seen. It `began` before either set was read;
        where something is on its way, it answers only for what the one before it saw."""
        last, before = self._last, self._last_began
        self.stays = found.open & last.open
        self._last, self._last_began = found, began
        self._count += 1
        self._withheld = self._withheld + 1 if found.missing else 0
        self._vanished = self._vanished + 1 if found.vanished else 0
        if self._withheld >= WITHHELD_MAX:
            self.stays = found.missing
        elif self._vanished >= COMPARISONS_MAX:
            self.stays |= found.vanished
        answered = not self.stays and not found.vanished and not found.more
        closed = self._count >= COMPARISONS_MAX and not found.missing and not last.more
        settled = answered and (not found.open or closed)
        self.equal = settled and certain
        self.equal_as_of = (before if found.open else began) if self.equal else None
        if settled:
            self._last, self._count, self._withheld = Finding(), 0, 0
            return Verdict.EQUAL if certain else Verdict.UNCERTAIN
        return Verdict.DIFFERENT if self.stays else Verdict.UNCLEAR
