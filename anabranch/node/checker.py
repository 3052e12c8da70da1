"""A process that checks signatures: batches of proofs come in on its stdin, and go out as one byte each.

It imports as little as it can, so that it is there quickly, and ends when the node does.
"""

from __future__ import annotations

import os
import signal
import struct

from anabranch.core import nostr

LENGTH = struct.Struct("!I")
"""The bytes of a batch, before it."""

NICE = 10
"""The node itself goes first: while it waits for a core, nobody is answered and no checker gets more to do."""


def work() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which may be sent to all processes of a service: the node drains
    os.nice(NICE)
    with os.fdopen(0, "rb", buffering=1 << 20) as asked, os.fdopen(1, "wb", buffering=0) as answers:
        while len(head := asked.read(LENGTH.size)) == LENGTH.size:
            answers.write(nostr.verify_proofs(asked.read(LENGTH.unpack(head)[0])))


if __name__ == "__main__":
    try:
        work()
    except (BrokenPipeError, ConnectionResetError):
        pass
