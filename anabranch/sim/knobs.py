"""Sizes that production code works with, turned down in some worlds, so that what rarely happens happens.

A page of a few entries is cut all the time, a hub that remembers little sends its subscribers back to the log, a step
of compaction is one document, a difference is closed a few operations at a time. None of it may change what is
promised.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from anabranch.node import hub, replay
from anabranch.replicate import room
from anabranch.store import compaction

KNOBS: list[tuple[ModuleType, str, tuple[int, ...]]] = [
    (replay, "HANDFUL", (2, 5, 20)),
    (replay, "HANDFUL_BYTES", (1_000, 4_000)),
    (hub, "RECENT_OPERATIONS", (1, 4, 30)),
    (compaction, "DOCUMENTS_A_STEP", (1, 3)),
    (compaction, "OPERATIONS_A_STEP", (1, 5)),
    (room, "PORTION", (2, 10)),
]


@contextmanager
def turned(random: random.Random) -> Iterator[None]:
    """Half of the worlds leave all of them alone."""
    before = [(module, name, getattr(module, name)) for module, name, _ in KNOBS]
    if random.random() < 0.5:
        for module, name, values in KNOBS:
            if random.random() < 0.5:
                setattr(module, name, random.choice(values))
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
