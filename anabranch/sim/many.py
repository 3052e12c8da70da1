"""Many seeds, one after the other, added up."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from anabranch.node import now
from anabranch.sim.faults import Fault
from anabranch.sim.plain import PlainWorld
from anabranch.sim.world import Outcome, World


class Summary(msgspec.Struct):
    """`divergences` counts the seeds in which something was breached; `failed` has them."""

    seeds: int = 0
    operations: int = 0
    """Decided by a node: stored, known already, or refused; each once on every node that it came to."""
    seconds: float = 0.0
    divergences: int = 0
    faults: dict[str, int] = {}
    marks: dict[str, int] = {}
    failed: list[Outcome] = []

    @property
    def never_fired(self) -> list[str]:
        return [fault for fault in Fault if not self.faults.get(fault)]


def run(seed: int, keep_trace: bool = False, to_the_end: bool = True, plain: bool = False) -> Outcome:
    """Live the world of a seed; of those with a `plain` relay in them if it is asked for."""
    return (PlainWorld if plain else World)(seed, keep_trace, to_the_end).run()


def simulate(
    seeds: Iterable[int],
    told: Callable[[Outcome], None] = lambda outcome: None,
    to_the_end: bool = True,
    plain: bool = False,
) -> Summary:
    """Run every seed, and tell of each when it is done. Unless all go `to_the_end`, the first breach ends it."""
    summary = Summary()
    faults: Counter[str] = Counter(dict.fromkeys(map(str, Fault), 0))
    marks: Counter[str] = Counter()
    started = now.monotonic()
    collecting = gc.isenabled()
    gc.disable()  # worlds are thrown away whole; looking for cycles within one costs a tenth of the time
    gc.freeze()  # nor is what was there before worth a look
    try:
        for seed in seeds:
            outcome = run(seed, to_the_end=to_the_end, plain=plain)
            summary.seeds += 1
            summary.operations += outcome.operations
            faults.update(outcome.faults)
            marks.update(outcome.marks)
            if outcome.breaches:
                summary.divergences += 1
                summary.failed.append(outcome)
            told(outcome)
            if outcome.breaches and not to_the_end:
                break
            gc.collect()  # the next world finds its memory still warm
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    summary.seconds = now.monotonic() - started
    summary.faults, summary.marks = dict(faults), dict(sorted(marks.items()))
    return summary
