"""Checking many signatures: inline while they are few, then over processes.

A small store is done before a process could have started, so the first few thousand are checked where one stands.
Answers come in the order of the questions; whoever asks keeps a bounded number of them open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

from anabranch.core import nostr
from anabranch.store import workers

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
            self._pool = workers.start(self.workers)
        return self._pool.submit(nostr.verify_proofs, proofs).result

    def __enter__(self) -> Signatures:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            workers.end(self._pool)
