"""A few threads that read the store, each with a reader of its own, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anabranch.node import now
from anabranch.store.contract import Reader, Store

T = TypeVar("T")


class Readers:
    def __init__(self, store: Store, threads: int, seconds_max: float) -> None:
        self._store = store
        self._seconds_max = seconds_max
        self._threads = threads
        self._own = threading.local()
        self._open: list[Reader] = []
        self._closing = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    async def run(self, read: Callable[[Reader], T]) -> T:
        """Run `read` with a reader on one of the threads. Raises `TooSlow` when it takes too long."""
        abandoned = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, read, abandoned)
        except asyncio.CancelledError:
            abandoned.set()
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

    def _reader(self) -> Reader:
        """The thread's own; where it could not be opened, the next who asks tries again."""
        if not hasattr(self._own, "reader"):
            self._own.reader = self._store.open_reader()
            self._open.append(self._own.reader)
        reader: Reader = self._own.reader
        return reader

    def _run(self, read: Callable[[Reader], T], abandoned: threading.Event) -> T:
        reader = self._reader()
        deadline = now.monotonic() + self._seconds_max
        reader.give_up = lambda: self._closing or abandoned.is_set() or now.monotonic() > deadline
        return read(reader)

    def close(self) -> None:
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._open:
            reader.close()
