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
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import cast

from anabranch.core import nostr

log = logging.getLogger(__name__)

Done = Callable[[bytes | None], None]
_LENGTH = struct.Struct("!I")


class Prover:
    """Takes batches of proofs, and calls back with one byte each, or None when they could not be checked."""

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()

    @property
    def idle(self) -> bool:
        """Whether a worker would take a batch up soon."""
        return any(worker.waiting < 2 for worker in self._workers)

    def submit(self, proofs: bytes, done: Done) -> None:
        min(self._workers, key=lambda worker: worker.waiting).submit(proofs, done)

    async def check(self, proofs: bytes) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.submit(proofs, lambda held: answer.done() or answer.set_result(held))
        return await answer

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid]


class _Worker(asyncio.Protocol):
    def __init__(self) -> None:
        self._asked: deque[tuple[int, Done]] = deque()
        self._answered = bytearray()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False

    @property
    def waiting(self) -> int:
        return len(self._asked) if self._transport is not None else 1_000_000

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: ASYNC220 - forks in a millisecond, once
            [sys.executable, "-m", "anabranch.node.prover"],
            stdin=theirs,
            stdout=theirs,
            start_new_session=True,  # a Ctrl-C is for the node, which ends its workers itself
        )
        theirs.close()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own do not inherit from it

    def submit(self, proofs: bytes, done: Done) -> None:
        if self._transport is None:
            done(None)
            return
        self._asked.append((len(proofs) // nostr.PROOF_BYTES, done))
        self._transport.write(_LENGTH.pack(len(proofs)) + proofs)

    def data_received(self, data: bytes) -> None:
        self._answered += data
        while self._asked and len(self._answered) >= self._asked[0][0]:
            count, done = self._asked.popleft()
            held = bytes(self._answered[:count])
            del self._answered[:count]
            done(held)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        unanswered, self._asked = self._asked, deque()
        self._answered.clear()
        for _, done in unanswered:
            done(None)
        if not self._closing:
            log.warning("a signature checker stopped; starting another", extra={"unanswered": len(unanswered)})
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        await asyncio.sleep(0.1)
        if not self._closing:
            await self.start()

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def work() -> None:
    """A worker's life: read a batch, check it, answer; end when the node is gone."""
    os.nice(5)  # the node itself goes first: while it waits for a core, nobody is answered
    with os.fdopen(0, "rb", buffering=1 << 20) as asked, os.fdopen(1, "wb", buffering=0) as answers:
        while len(head := asked.read(_LENGTH.size)) == _LENGTH.size:
            proofs = asked.read(_LENGTH.unpack(head)[0])
            answers.write(nostr.verify_proofs(proofs))


if __name__ == "__main__":
    try:
        work()
    except (BrokenPipeError, ConnectionResetError):
        pass
