"""How many bytes all links of a node may hold in memory at once.

A link reads on as long as it holds little, however much the others do, so none starves; beyond that it waits until
there is room. A slow disk so stops the sockets, and with them the peers, and memory stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

MESSAGE_OVERHEAD = 128  # bytes that a message takes besides its own: also empty ones fill the memory
OPERATION_OVERHEAD = 1_000
LINK_BYTES_MAX = 8 << 20
LINK_BYTES_MIN = 64 << 10
BYTES_MAX = 64 << 20


def weight(messages: Collection[bytes]) -> int:
    """The bytes that these messages take."""
    return sum(map(len, messages)) + MESSAGE_OVERHEAD * len(messages)


def weight_of_operations(size: int, count: int) -> int:
    """The bytes that so many take, of such a size together: as they came, and taken apart."""
    return 2 * size + OPERATION_OVERHEAD * count


class Budget:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.held = 0
        self._bytes_max = bytes_max
        self._waiting: dict[asyncio.Event, None] = {}

    def hold(self, size: int) -> None:
        self.held += size
        if size < 0 and self._waiting and self.held < self._bytes_max:
            for event in self._waiting:
                event.set()
            self._waiting.clear()

    def share_of_one(self) -> int:
        """How much one link may hold just now."""
        return LINK_BYTES_MAX if self.held < self._bytes_max else LINK_BYTES_MIN

    async def wait(self, room: asyncio.Event) -> None:
        """Until the link holds less, or all of them do."""
        self._waiting[room] = None
        try:
            await room.wait()
        finally:
            self._waiting.pop(room, None)
