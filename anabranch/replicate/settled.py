"""What two sides need not talk about again, though only one of them has it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

SETTLED_MAX = 500_000
PUSHED_MAX = 1_000  # of what goes out as it comes in; a thousand links must have room


class Settled:
    """What needs no more talk on this link: ours that the peer does not keep, the peer's that we do not take."""

    def __init__(self) -> None:
        self.declined: set[str] = set()
        self._given: set[str] = set()  # the peer has answered for it, and it was not looked for since
        self._sought: set[str] = set()  # the same, when the comparison that is under way began
        self._vain: set[str] = set()  # it refused it, or it was not there when it was looked for

    def clear(self) -> None:
        self.declined.clear()
        self.lost()
        self._vain.clear()

    def lost(self) -> None:
        """The connection is gone, and perhaps with it what the peer had just answered for."""
        self._given.clear()
        self._sought.clear()

    def give(self, id: str, refused: bool = False) -> None:
        if len(self._given) + len(self._vain) < SETTLED_MAX:
            (self._vain if refused else self._given).add(id)

    def push(self, id: str) -> None:
        """The same outside of a round."""
        if len(self._given) < PUSHED_MAX:
            self._given.add(id)

    def look(self) -> None:
        """A comparison begins: it shows what was answered for before it, and perhaps not what is from now on."""
        self._sought, self._given = self._sought | self._given, set()

    def lacking(self, have: Sequence[str]) -> list[str]:
        """What is to be given of what only we have, as a comparison shows: not what had been given in vain."""
        self._vain |= self._sought.intersection(have)
        self._sought.clear()
        return [id for id in have if id not in self._vain]

    @property
    def unkept(self) -> int:
        """How many the peer has refused, or taken and does not keep."""
        return len(self._vain)

    def decline(self, id: str) -> None:
        if len(self.declined) < SETTLED_MAX:
            self.declined.add(id)
