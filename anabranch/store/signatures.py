"""Checking many signatures: inline while they are few, then over processes.

A small store is done before a process could have started, so the first few thousand are checked where one stands.
Answers come in the order of the questions; whoever asks keeps a bounded number of them open.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

from anabranch.core import nostr

INLINE_FIRST = 2_000
WORKERS_MAX = 4

Answer = Callable[[], bytes]


def default_workers() -> int:
    return min(os.cpu_count() or 1, WORKERS_MAX)


class Signatures:
    """`start` a run of proofs, and call what it returns for one byte each: 1 for a signature that holds."""

    def __init__(self, workers: int | None = None) -> None:
        """None: one worker for each core, at most four; 0: everything inline."""
        self.workers = default_workers() if workers is None else workers
        self._pool: ProcessPoolExecutor | None = None
        self._seen = 0

    @property
    def open_max(self) -> int:
        """How many answers are worth waiting for at once: enough to keep every worker busy."""
        return 2 * self.workers if self._pool is not None else 1

    def start(self, proofs: bytes) -> Answer:
        self._seen += len(proofs) // nostr.PROOF_BYTES
        if self.workers == 0 or self._seen <= INLINE_FIRST:
            held = nostr.verify_proofs(proofs)
            return lambda: held
        if self._pool is None:
            # Spawned, not forked: a forked worker would share the descriptor of the store's lock, and could outlive us.
            self._pool = ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent
            )
        return self._pool.submit(nostr.verify_proofs, proofs).result

    def __enter__(self) -> Signatures:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when the parent does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
