"""What is open on a connection: its subscriptions, and how much room their filters take.

Filters stay in memory as long as they are open, and every event is held against many of them. So there is a bound for
one connection, and another for all of a node together, from which each takes and to which it gives back.
"""

from __future__ import annotations

from collections.abc import Iterator


class NoRoom(Exception):
    """For one more; the text says of what there is too much."""


class Together:
    """The room that is left for all connections."""

    __slots__ = ("room",)

    def __init__(self, room: int) -> None:
        self.room = room


class Opened:
    __slots__ = ("_most", "_sizes", "_together", "room")

    def __init__(self, most: int, room: int, together: Together) -> None:
        """At most so many subscriptions of one connection, with so much room."""
        self._most = most
        self.room = room
        self._together = together
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._sizes))

    def add(self, name: str, size: int) -> None:
        """Open one more. Raises `NoRoom`."""
        if len(self._sizes) >= self._most:
            raise NoRoom("too many subscriptions")
        if size > self.room:
            raise NoRoom("too many filter values")
        if size > self._together.room:
            raise NoRoom("the relay has too many filters open; try again later")
        self._sizes[name] = size
        self._take(size)

    def drop(self, name: str) -> bool:
        """Whether there was one of this name."""
        size = self._sizes.pop(name, None)
        self._take(-(size or 0))
        return size is not None

    def clear(self) -> None:
        for name in self:
            self.drop(name)

    def _take(self, size: int) -> None:
        self.room -= size
        self._together.room -= size
