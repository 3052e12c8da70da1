"""Signature checks in processes of their own, in batches.

A check costs some fifty microseconds of pure computation: in the node's own process it would hold up everything else.
A batch goes to a worker as bare proofs (id, key, signature) over a socket and comes back as one byte each. A worker
that dies is replaced; what it had not answered counts as not checked, which is never a yes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import cast

from anabranch.core import nostr
from anabranch.node import now
from anabranch.node.checker import LENGTH

log = logging.getLogger(__name__)

HUNG_SECONDS = 8.0
AHEAD = 4  # batches that a worker is given before it has answered: it does not run dry while the node is busy
BESIDE = 2  # of them, for each worker, from those who can wait: nobody who publishes stands behind more

Done = Callable[[bytes | None], None]


class Prover:
    """Takes batches of proofs, and calls back with one byte each, or None when they could not be checked."""

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._beside = asyncio.Semaphore(BESIDE * workers)

    async def start(self) -> None:
        """Start the workers and wait until each has answered once: from then on they are as fast as they get."""
        for worker in self._workers:
            await worker.start()
        await asyncio.gather(*(_answer(worker.submit, bytes(nostr.PROOF_BYTES)) for worker in self._workers))

    @property
    def working(self) -> bool:
        return any(worker.working for worker in self._workers)

    @property
    def idle(self) -> bool:
        """Whether a worker would take a batch up soon."""
        return any(worker.waiting < AHEAD for worker in self._workers)

    def submit(self, proofs: bytes, done: Done) -> None:
        min(self._workers, key=lambda worker: worker.waiting).submit(proofs, done)

    async def check(self, proofs: bytes) -> bytes | None:
        """The same for who can wait: a page of a link's is far larger than what a client sends at once."""
        async with self._beside:
            return await _answer(self.submit, proofs)

    def replace_hung(self) -> None:
        """End workers that have not answered for too long; what they were asked counts as not checked."""
        for worker in self._workers:
            worker.end_if_hung(now.monotonic() - HUNG_SECONDS)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class _Worker(asyncio.Protocol):
    def __init__(self) -> None:
        self._asked: deque[tuple[int, Done, float]] = deque()
        self._answered = bytearray()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False

    @property
    def working(self) -> bool:
        return self._transport is not None

    @property
    def waiting(self) -> int:
        return len(self._asked) if self._transport is not None else 1_000_000

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "anabranch.node.checker"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            # A Ctrl-C is for the node, which ends its workers itself. In a session of their own they would be scheduled
            # as a group of their own (sched_autogroup), as large as the node's, and being nice would mean nothing.
            process_group=0,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own do not inherit from it

    def submit(self, proofs: bytes, done: Done) -> None:
        if self._transport is None:
            done(None)
            return
        self._asked.append((len(proofs) // nostr.PROOF_BYTES, done, now.monotonic()))
        self._transport.write(LENGTH.pack(len(proofs)) + proofs)

    def data_received(self, data: bytes) -> None:
        self._answered += data
        while self._asked and len(self._answered) >= self._asked[0][0]:
            count, done, _ = self._asked.popleft()
            held = bytes(self._answered[:count])
            del self._answered[:count]
            done(held)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        unanswered, self._asked = self._asked, deque()
        self._answered.clear()
        for _, done, _ in unanswered:
            done(None)
        if not self._closing:
            log.warning("a signature checker stopped; starting another", extra={"unanswered": len(unanswered)})
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    def end_if_hung(self, since: float) -> None:
        if self._asked and self._asked[0][2] < since and self._process is not None:
            self._process.kill()

    async def _start_again(self) -> None:
        pause = 0.1
        while not self._closing:
            await asyncio.sleep(pause)
            try:
                await self.start()
                return
            except Exception as error:
                pause = min(pause * 2, 10.0)
                log.error("a signature checker cannot start; it is tried again", extra={"cause": str(error)})

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def _answer(submit: Callable[[bytes, Done], None], proofs: bytes) -> bytes | None:
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def done(held: bytes | None) -> None:
        if not answer.done():
            answer.set_result(held)

    submit(proofs, done)
    return await answer
