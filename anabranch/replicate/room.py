"""How many ids the links of a node hold at once: what is settled, and what a comparison has found. No I/O.

An id takes some 300 bytes while it is compared and asked for. A link holds on to what it needs as long as there is
room for all; a few it may hold in any case, so that none comes to a halt. What a comparison finds beyond that is left
for the next one. Most of what it found may turn out to be known here, or settled: then the next one looks further.
"""

from __future__ import annotations

IDS_MAX = 300_000
LINK_IDS_MIN = 1_000
PORTION = 50_000  # of a difference that is closed at once
FURTHER = 4  # times


class Room:
    """Of all links together."""

    def __init__(self, most: int = IDS_MAX) -> None:
        self.most = most
        self.taken = 0


class Share:
    """Of one link."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._settled = self._found = 0
        self._reach = 1

    def settle(self, count: int) -> None:
        """So many more are settled; or less."""
        self._settled += count
        self._room.taken += count

    @property
    def full(self) -> bool:
        return self._settled >= LINK_IDS_MIN and self._room.taken >= self._room.most

    def found(self, count: int) -> bool:
        """A comparison has found so many by now. Whether they are enough for this time."""
        self._room.taken += count - self._found
        self._found = count
        most = LINK_IDS_MIN if self._room.taken >= self._room.most else PORTION
        return count >= most * self._reach

    def end(self, open: int, more: bool) -> None:
        """A comparison of both sides is over: so many of what it found are open, and there is `more`, or not."""
        self._reach = 1 if not more else self._reach * FURTHER if 2 * open < self._found else self._reach
