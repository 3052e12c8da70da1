"""Processes that share a long piece of work. They end with us, however we end.

Spawned, not forked: a forked worker would share the descriptor of the store's lock, and could outlive us.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


def start(count: int) -> ProcessPoolExecutor:
    """All of them at once, and whole: one that is torn away while it is being started would complain."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    with _uninterrupted():
        for _ in range(count):
            pool.submit(os.getpid)
    return pool


def end(pool: ProcessPoolExecutor) -> None:
    """Once they are done with what they have begun."""
    pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end us are heard afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in ENDING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)


def _end_with_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when the parent does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
