"""A few threads that read the store, each with a reader of its own, so that the event loop never waits for a disk.

Who has read little lately is read for at once. The others wait for each other, whoever has read least comes first, and
one thread is never theirs; so does whoever has something under way already. So a client with long queries waits for
itself, and not others for it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple, TypeVar, cast

from anabranch.node import now
from anabranch.store.contract import Reader, Store

T = TypeVar("T")

HALF_LIFE = 2.0  # seconds after which what somebody has used counts for half
LITTLE = 0.2  # seconds, of those that count: so much is little
REMEMBERED = 1_000  # who read something of late, before those are let go who read a sixteenth of little


class _Waiting(NamedTuple):
    use: float
    number: int
    who: Hashable
    turn: asyncio.Future[None]


class Use:
    """How long each has had a thread, as far as it counts still.

    It is kept as the logarithm of what it would have counted at the time 0: so it need not change as time goes on.
    """

    def __init__(self) -> None:
        self._use: dict[Hashable, float] = {}
        self._most = REMEMBERED

    def of(self, who: Hashable) -> float:
        return self._use.get(who, -math.inf)

    def is_little(self, use: float, time: float) -> bool:
        return use < math.log2(LITTLE) + time / HALF_LIFE

    def add(self, who: Hashable, seconds: float, time: float) -> None:
        fresh, before = math.log2(max(seconds, 1e-9)) + time / HALF_LIFE, self.of(who)
        more, less = max(fresh, before), min(fresh, before)
        self._use[who] = more + math.log2(1 + 2.0 ** (less - more))
        if len(self._use) > self._most:
            self._use = {one: use for one, use in self._use.items() if not self.is_little(use + 4, time)}
            self._most = max(REMEMBERED, 2 * len(self._use))


class Readers:
    def __init__(self, store: Store, threads: int, seconds_max: float) -> None:
        self._store = store
        self._seconds_max = seconds_max
        self._threads = threads
        self._free = max(1, threads - 1)  # of those who have to wait for each other
        self._under_way: Counter[Hashable] = Counter()
        self._use = Use()
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._own = threading.local()
        self._open: list[Reader] = []
        self._closing = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    async def run(self, read: Callable[[Reader], T], who: Hashable = None) -> T:
        """Run `read` with a reader on one of the threads, when it is the turn of `who`. Raises `TooSlow` when it takes
        too long."""
        waited = await self._turn(who)
        self._under_way[who] += 1
        abandoned, spent = threading.Event(), [0.0]
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._run, read, abandoned, spent)
        work.add_done_callback(lambda work: self._give_back(who, spent[0], waited))
        try:
            return cast(T, await asyncio.shield(work))
        except asyncio.CancelledError:
            abandoned.set()  # the thread comes back when it notices
            raise

    async def start(self) -> None:
        """Open every thread's reader now, so that the first query does not wait for it. `StoreError`: one cannot be."""
        together = threading.Barrier(self._threads)
        try:
            await asyncio.gather(
                *(self.run(lambda reader: (together.wait(), reader.log())) for _ in range(self._threads))
            )
        except BaseException:
            together.abort()  # or else the others would wait for the one that does not come
            raise

    # --- whose turn it is ---

    async def _turn(self, who: Hashable) -> bool:
        """Whether it is one of those who wait for each other, and has had to."""
        use = self._use.of(who)
        if not self._under_way[who] and self._use.is_little(use, now.monotonic()):
            return False
        if self._free and not self._waiting:
            self._free -= 1
            return True
        waiting = _Waiting(use, next(self._numbers), who, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():  # it was told, and did not come to it
                self._go_on(1)
            raise
        return True

    def _go_on(self, freed: int) -> None:
        self._free += freed
        while self._free and self._waiting:
            first = self._waiting[0]
            if first.turn.done():  # it was given up
                heapq.heappop(self._waiting)
            elif (use := self._use.of(first.who)) > first.use:  # it has read since
                heapq.heapreplace(self._waiting, first._replace(use=use))
            else:
                heapq.heappop(self._waiting)
                self._free -= 1
                first.turn.set_result(None)

    def _give_back(self, who: Hashable, seconds: float, waited: bool) -> None:
        self._use.add(who, seconds, now.monotonic())
        self._under_way[who] -= 1
        if not self._under_way[who]:
            del self._under_way[who]
        self._go_on(waited)

    # --- on the threads ---

    def _reader(self) -> Reader:
        """The thread's own; where it could not be opened, the next who asks tries again."""
        if not hasattr(self._own, "reader"):
            self._own.reader = self._store.open_reader()
            self._open.append(self._own.reader)
        reader: Reader = self._own.reader
        return reader

    def _run(self, read: Callable[[Reader], T], abandoned: threading.Event, spent: list[float]) -> T | None:
        reader, began = self._reader(), now.monotonic()
        deadline = began + self._seconds_max
        reader.give_up = lambda: self._closing or abandoned.is_set() or now.monotonic() > deadline
        try:
            return read(reader)
        except Exception:
            if abandoned.is_set():  # it was told to give up, and nobody waits to hear how that went
                return None
            raise
        finally:
            spent[0] = now.monotonic() - began

    def close(self) -> None:
        self._closing = True
        for waiting in self._waiting:
            waiting.turn.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._open:
            reader.close()
