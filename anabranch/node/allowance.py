"""So many bytes for all sockets together; where they have more, whoever has most is let go.

Each socket has bounds of its own, and ten thousand of them at their bounds are more than any machine has. What is added
is only counted; how much everyone really has is looked up when that count is too much. The next look is never near: so
many are let go, and where there is still room a little more than that may come before it, some bytes for each socket
that a look costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_BYTES = 256  # to look at one holder takes as long as to take in so many


class Allowance(Generic[T]):
    def __init__(
        self, bytes_max: int, holders: Collection[T], held: Callable[[T], int], let_go: Callable[[T], None]
    ) -> None:
        """`holders` are those that there are just now, `held` says how much one has, `let_go` takes it away."""
        self._bytes_max = bytes_max
        self._holders = holders
        self._held = held
        self._let_go = let_go
        self._counted = 0  # hardly more than this is held

    @property
    def bytes(self) -> int:
        """How much all of them have."""
        return sum(map(self._held, self._holders))

    def add(self, size: int) -> None:
        """Somebody has so much more."""
        self._counted += size
        if self._counted > self._bytes_max:
            self._settle()

    def _settle(self) -> None:
        held = sorted(((self._held(one), one) for one in self._holders), key=lambda row: row[0], reverse=True)
        total = sum(size for size, _ in held)
        self._counted = min(total, self._bytes_max - LOOK_BYTES * len(held))
        if total <= self._bytes_max:
            return
        for size, one in held:
            if total <= self._bytes_max * 3 // 4:
                break
            self._let_go(one)
            total -= size
        self._counted = total
