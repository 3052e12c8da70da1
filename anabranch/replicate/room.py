"""How many ids the links of a node hold at once: what is settled, and what a comparison has found. No I/O.

An id takes some 300 bytes while it is compared and asked for. A link holds on to what it needs as long as there is
room for all; a few it may hold in any case, so that none comes to a halt. What a comparison finds beyond that is left
for the next one.
"""

from __future__ import annotations

IDS_MAX = 300_000
LINK_IDS_MIN = 200
PORTION = 50_000  # of a difference that is closed at once


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
        return count >= PORTION or (count >= LINK_IDS_MIN and self._room.taken >= self._room.most)
