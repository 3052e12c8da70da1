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
from typing import cast

ENDING = (signal.SIGINT, signal.SIGTERM)


def start(count: int) -> ProcessPoolExecutor:
    """All of them at once, and whole: one that is torn away while it is being started would complain, and whoever
    gives to it what a pipe does not hold would wait for ever."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    with _uninterrupted(), _deaf_children():
        for _ in range(count):
            pool.submit(os.getpid)
    return pool


def end(pool: ProcessPoolExecutor) -> None:
    """Once they are done with what they have begun; at once where one of them has been killed."""
    workers, asked = dict(pool._processes), pool._call_queue  # type: ignore[attr-defined]
    pool.shutdown(wait=False, cancel_futures=True)
    left = {worker.sentinel: worker for worker in workers.values()}
    while left:
        for sentinel in multiprocessing.connection.wait(list(left)):
            worker = left.pop(cast(int, sentinel))
            worker.join()
            if worker.exitcode != 0:
                # Before Python 3.12 a pool waits for what it is writing to a worker that reads no more (gh-94777).
                asked._reader.close()
                for other in left.values():
                    other.kill()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started here are deaf to signals that end us from their first moment: a mask is inherited."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    """In a worker: leave the signals that end us to the parent, and end when the parent does, however it ends."""
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
