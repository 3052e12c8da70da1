"""`python -m bench [NAME ...]`: run benchmarks; one JSON object a line on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import importlib
import sys

from bench.events import NOTE, SNAPSHOT
from bench.peers import known, raise_file_limit, say
from bench.report import Setting

BENCHMARKS = (
    "ingest",
    "query",
    "fanout",
    "latency",
    "bootstrap",
    "idle",
    "replay",
    "client",
    "reconcile",
    "kept",
    "pipeline",
    "audit",
    "links",
    "simulator",
)

LONG = ("pipeline_10m",)
"""Those that take most of an hour: only when they are named."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHMARKS)} (all); {', '.join(LONG)}"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians need at least 3 (3)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=URL", help="a relay that is already running"
    )
    parser.add_argument("--only", metavar="NAME,NAME", help="measure only these relays")
    parser.add_argument("--quick", action="store_true", help="small loads: does it work? Not for figures")
    parser.add_argument("--kind", type=int, choices=(NOTE, SNAPSHOT), default=NOTE, help="what ingest publishes (1)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a promise is not met")
    parser.add_argument("--operations", type=int, help="length of the replayed log (200000)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in BENCHMARKS + LONG]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS + LONG)}")
    if wrong := [peer for peer in arguments.peer if "=ws://" not in peer]:
        parser.error(f"--peer takes NAME=ws://HOST:PORT, not {', '.join(wrong)}")
    relays = known(arguments.peer)
    if arguments.only:
        relays = [relay for relay in relays if relay.name in arguments.only.split(",")]
    setting = Setting(relays, arguments.rounds, arguments.quick, arguments.kind, arguments.operations)
    raise_file_limit()
    met = True
    for name in arguments.names or BENCHMARKS:
        say(f"{name}:")
        report = importlib.import_module(f"bench.{name}").run(setting)
        print(report.as_json(), flush=True)
        met = met and all(ratio["met"] is not False for ratio in report.ratios)
    return 1 if arguments.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
