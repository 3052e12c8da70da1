"""Vector clocks: who had seen what.

Everything here is a pure function of the `vc` tags. A missing entry is zero; a clock dominates another when no
entry is smaller and one is greater; two clocks that are neither equal nor dominating are concurrent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

Clock = Mapping[str, int]

COUNTER_MAX = 9_007_199_254_740_991  # 2^53 - 1: what every JSON peer can hold
ENTRIES_MAX = 32
_COUNTER = re.compile(r"[1-9][0-9]{0,15}")


class Order(Enum):
    """How one clock stands to another."""

    EQUAL = "equal"
    BEFORE = "before"
    AFTER = "after"
    CONCURRENT = "concurrent"


def dominates(a: Clock, b: Clock) -> bool:
    """Whether `a` has seen all that `b` had, and more."""
    for device, counter in b.items():
        if a.get(device, 0) < counter:
            return False
    # Nothing in b is ahead of a, so they are equal exactly when a has no other entry and no greater one.
    return len(a) > len(b) or any(a[device] > counter for device, counter in b.items())


def compare(a: Clock, b: Clock) -> Order:
    if dominates(a, b):
        return Order.AFTER
    if dominates(b, a):
        return Order.BEFORE
    return Order.EQUAL if dict(a) == dict(b) else Order.CONCURRENT


def merge(clocks: Iterable[Clock]) -> dict[str, int]:
    """The pointwise maximum: what somebody has seen who has seen all of them."""
    merged: dict[str, int] = {}
    for clock in clocks:
        for device, counter in clock.items():
            if merged.get(device, 0) < counter:
                merged[device] = counter
    return merged


def advance(clock: Clock, device: str) -> dict[str, int]:
    """The clock of the next write that `device` makes after having seen `clock`."""
    return {**clock, device: clock.get(device, 0) + 1}


def total(clock: Clock) -> int:
    """The sum of the entries: a dominating clock has a greater one, so equal sums need no comparison."""
    return sum(clock.values())


def parse(tags: Iterable[Sequence[str]]) -> dict[str, int] | None:
    """The clock that the `vc` tags spell, or None when one of them is malformed, out of order or twice there.

    Devices must stand in strictly ascending order (by code point, which is also the order of their UTF-8 bytes).
    """
    clock: dict[str, int] = {}
    last = ""
    for tag in tags:
        if tag[0] != "vc":
            continue
        if len(tag) != 3 or not tag[1].strip() or (clock and tag[1] <= last):
            return None
        if not _COUNTER.fullmatch(tag[2]) or (counter := int(tag[2])) > COUNTER_MAX:
            return None
        last = tag[1]
        clock[last] = counter
    return clock if 1 <= len(clock) <= ENTRIES_MAX else None


def tags(clock: Clock) -> list[list[str]]:
    """The `vc` tags of a clock, in the order that `parse` asks for."""
    return [["vc", device, str(clock[device])] for device in sorted(clock)]
