"""Simulator: worlds of the first seeds, as `anabranch sim` lives them, by the CPU time of its one thread.

An operation is one that a node has decided on: stored, known already, or refused. It counts once on every node that it
came to; messages, comparisons and reads do not count. Everything is in the time: people, links, faults, restarts and
checks. A breach ends the measurement.
"""

from __future__ import annotations

import time

from anabranch.sim import simulate
from bench.load import LoadError
from bench.report import Report, Setting

TARGET = 5_000  # operations/s
WARM = range(1_000, 1_002)


def run(setting: Setting) -> Report:
    report = Report("simulator", setting)
    seeds = setting.sized(40, 4)
    report.settings = {"seeds": seeds}
    simulate(WARM)
    for _ in range(setting.rounds):
        started = time.process_time()
        summary = simulate(range(seeds))
        seconds = time.process_time() - started
        if summary.divergences:
            raise LoadError(f"something was breached with seed {summary.failed[0].seed}")
        report.add(
            "anabranch",
            {
                "operations_per_second": summary.operations / seconds,
                "operations": summary.operations,
                "faults": sum(summary.faults.values()),
                "cpu_seconds": seconds,
            },
        )
    report.promise("operations_per_second", report.median("anabranch", "operations_per_second"), at_least=TARGET)
    return report
