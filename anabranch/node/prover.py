"""Signature checks in processes of their own, in batches.

A check costs some fifty microseconds of pure computation: in the node's own process it would hold up everything else.
A batch goes to a worker as bare proofs (id, key, signature) over a socket and comes back as one byte each. A worker
that dies is replaced; what it had not answered counts as not checked, which is never a yes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from anabranch.core import nostr
from anabranch.node import now
from anabranch.node.checker import LENGTH

log = logging.getLogger(__name__)

START_SECONDS = 20.0  # on a machine that is just starting everything else, too
HUNG_SECONDS = 8.0
COLD = 1_000  # batches that stand before one that is just starting, and may never answer
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 10.0
AHEAD = 4  # batches that a worker is given before it has answered: it does not run dry while the node is busy
BESIDE = 2  # of them, for each worker, from those who can wait: nobody who publishes stands behind more

Done = Callable[[bytes | None], None]


class Checkers(Protocol):
    """What a node asks to check signatures: processes, or what stands in for them in a simulated world."""

    @property
    def working(self) -> bool: ...
    @property
    def idle(self) -> bool: ...
    async def start(self) -> None: ...
    def submit(self, proofs: bytes, done: Done) -> None: ...
    async def check(self, proofs: bytes) -> bytes | None: ...
    async def check_beside(self, proofs: bytes) -> bytes | None: ...
    def replace_hung(self) -> None: ...
    def close(self) -> None: ...


class Prover:
    """Takes batches of proofs, and calls back with one byte each, or None when they could not be checked."""

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._beside = asyncio.Semaphore(BESIDE * workers)

    async def start(self) -> None:
        """Start the workers and wait until each has answered once: from then on they are as fast as they get. Raises
        `OSError`."""
        for worker in self._workers:
            await worker.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.gather(*(worker.warmed_up() for worker in self._workers))
        except TimeoutError:
            raise OSError(f"it does not answer within {START_SECONDS:g} s") from None

    @property
    def working(self) -> bool:
        return any(worker.working for worker in self._workers)

    @property
    def idle(self) -> bool:
        """Whether a worker would take a batch up soon; where all are just starting, one of these."""
        soonest = min(worker.waiting for worker in self._workers)
        return soonest < AHEAD or COLD <= soonest < COLD + AHEAD

    def submit(self, proofs: bytes, done: Done) -> None:
        min(self._workers, key=lambda worker: worker.waiting).submit(proofs, done)

    async def check(self, proofs: bytes) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.submit(proofs, lambda held: None if answer.done() else answer.set_result(held))
        return await answer

    async def check_beside(self, proofs: bytes) -> bytes | None:
        """The same for who can wait: a page of a link's is far larger than what a client sends at once."""
        async with self._beside:
            return await self.check(proofs)

    def replace_hung(self) -> None:
        """End workers that have not answered for too long; what they were asked counts as not checked."""
        for worker in self._workers:
            worker.end_if_hung()

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
        self._warm = asyncio.Event()  # it has answered since it was started
        self._pause = PAUSE_SECONDS  # before it is started again

    @property
    def working(self) -> bool:
        return self._warm.is_set()

    @property
    def waiting(self) -> int:
        if self._transport is None:
            return 1_000_000
        return len(self._asked) + (0 if self._warm.is_set() else COLD)

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self.submit(bytes(nostr.PROOF_BYTES), lambda _: None)

    async def warmed_up(self) -> None:
        await self._warm.wait()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # It finds what the node found, and looks for nothing in the folder where the node was started.
            [sys.executable, "-P", "-m", "anabranch.node.checker"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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
        self._pause = PAUSE_SECONDS
        self._warm.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._warm.clear()
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

    def end_if_hung(self) -> None:
        patience = HUNG_SECONDS if self._warm.is_set() else START_SECONDS
        if self._asked and self._asked[0][2] < now.monotonic() - patience and self._process is not None:
            self._process.kill()

    async def _start_again(self) -> None:
        while not self._closing:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)  # until it answers: it may start, and die at once
            try:
                await self.start()
                return
            except Exception as error:
                log.error("a signature checker cannot start; it is tried again", extra={"cause": str(error)})

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
