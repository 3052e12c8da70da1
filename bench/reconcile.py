"""Reconcile: two sets of a million items that differ by a thousand, ours and nostr-tools' negentropy, by CPU time.

Each side builds its set from rows in order and then takes part in the whole session, without a frame limit. Both get
the same sets and the same messages: nostr-tools is given those of our session, and must say the same, byte for byte,
wherever it plays the part (it does not answer lists of ids). No network and no store: this is the computation alone.
Then the same difference in a tenth of the items: building grows with the set, the rounds with its logarithm (a round
trip more for every 256 times).
"""

from __future__ import annotations

import dataclasses
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from anabranch.core.negentropy import Items, Reconciler
from bench.load import LoadError
from bench.peers import PROJECT, Relay, Unavailable, store
from bench.report import Report, Round, Setting, interleave

sys.path.append(str(PROJECT / "tests" / "interop"))
import node_peers  # the tests install the same packages

T = TypeVar("T")

DIFFERENT = 1_000  # half of them on either side
YEARS_SECONDS = 3 * 365 * 86_400
END = 1_790_000_000
SEED = 77
HEAP_MIB = 8192  # nostr-tools holds 2 million items as objects
SHARE_MAX = 0.1
GROWTH = 10
BUILD_GROWTH_MAX, ROUNDS_GROWTH_MAX = 2 * GROWTH, 4  # for ten times the items


class NostrTools(Relay):
    """nostr-tools from npm, in Node.js. No relay, but it stands in the report as one."""

    name = "nostr-tools"
    package = node_peers.PEERS / "node_modules" / "nostr-tools"

    def version(self) -> str:
        try:
            self.node = node_peers.installed()
        except node_peers.Missing as reason:
            raise Unavailable(str(reason)) from None
        return json.loads((self.package / "package.json").read_text())["version"]

    def measure(self, files: list[Path]) -> dict[str, float]:
        script = node_peers.script("negentropy_peer.mjs")
        command = [*self.node, f"--max-old-space-size={HEAP_MIB}", script, self.package / "lib/esm/nip77.js", "measure"]
        done = subprocess.run(
            [str(part) for part in (*command, *files)], capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise LoadError(f"nostr-tools failed: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """One side's items, in order, as a store would give them."""

    times: np.ndarray
    ids: bytes

    def save(self, file: Path) -> None:
        """As negentropy_peer.mjs reads them: rows of a timestamp and an id."""
        rows = np.empty(len(self.times), [("time", "<u8"), ("id", "V32")])
        rows["time"], rows["id"] = self.times, np.frombuffer(self.ids, "V32")
        rows.tofile(file)


def run(setting: Setting) -> Report:
    peer = NostrTools()
    setting = dataclasses.replace(setting, relays=[*setting.relays, peer])
    report = Report("reconcile", setting)
    size = setting.sized(1_000_000, 20_000)
    different = min(DIFFERENT, size // GROWTH // 100)
    report.settings = {"items": size, "different": different, "smaller": size // GROWTH}
    sides, smaller = two_sides(size, different), two_sides(size // GROWTH, different)
    relays = report.available({"anabranch", "nostr-tools"})
    with store() as folder:
        files = [folder / "left", folder / "right", folder / "messages.json"]
        for rows, file in zip(sides, files, strict=False):
            rows.save(file)
        files[2].write_text(json.dumps([message.hex() for message in session(*sides).messages]))

        def measure(relay: Relay, number: int) -> Round:
            if relay is peer:
                return _theirs(peer, files, different)
            return {**_ours(*sides, different), **_smaller(*smaller, different)}

        interleave(report, relays, measure)
    report.compare("cpu_seconds", "nostr-tools", at_most=SHARE_MAX)
    _promise_growth(report)
    return report


def two_sides(size: int, different: int) -> tuple[Rows, Rows]:
    """Sets of `size` items each but for what the other alone has: random ids, at random seconds of a few years."""
    random = np.random.default_rng(SEED)
    total = size + different // 2
    times = np.sort(random.integers(END - YEARS_SECONDS, END, total)).astype(np.uint64)
    everything = Items.build(times, random.bytes(32 * total))  # puts equal timestamps in the order of their ids
    ids = np.frombuffer(b"".join(everything.ids()), "V32")
    lacking = random.choice(total, different, replace=False)
    left, right = (np.delete(np.arange(total), lacking[half::2]) for half in (0, 1))
    return Rows(times[left], ids[left].tobytes()), Rows(times[right], ids[right].tobytes())


@dataclasses.dataclass(slots=True)
class Session:
    """A session of ours with ourselves, and what it cost."""

    messages: list[bytes]
    found: int
    build_seconds: float
    rounds_seconds: float


def session(left: Rows, right: Rows) -> Session:
    build_seconds, (one, other) = _cpu(lambda: [Items.build(side.times, side.ids) for side in (left, right)])
    initiator, responder = Reconciler(one), Reconciler(other)
    messages: list[bytes] = []

    def talk() -> int:
        found, message = 0, initiator.initiate()
        while message is not None:
            answer = responder.respond(message)
            step = initiator.reconcile(answer)
            messages.extend((message, answer))
            found += len(step.have) + len(step.need)
            message = step.message
        return found

    rounds_seconds, found = _cpu(talk)
    return Session(messages, found, build_seconds, rounds_seconds)


def _ours(left: Rows, right: Rows, different: int) -> Round:
    done = session(left, right)
    if done.found != different:
        raise LoadError(f"{done.found} differences were found instead of {different}")
    return {
        "cpu_seconds": done.build_seconds + done.rounds_seconds,
        "build_cpu_seconds": done.build_seconds,
        "rounds_cpu_seconds": done.rounds_seconds,
        "bytes_up": sum(map(len, done.messages[::2])),
        "bytes_down": sum(map(len, done.messages[1::2])),
        "round_trips": len(done.messages) // 2,
    }


def _smaller(left: Rows, right: Rows, different: int) -> Round:
    return {
        f"smaller_{key}": value
        for key, value in _ours(left, right, different).items()
        if key in ("build_cpu_seconds", "rounds_cpu_seconds", "round_trips")
    }


def _theirs(peer: NostrTools, files: list[Path], different: int) -> Round:
    told = peer.measure(files)
    turns = len(json.loads(files[2].read_text()))
    if told["have"] + told["need"] != different or told["equal"] < turns:
        raise LoadError(f"nostr-tools found another difference, or says something else: {told}")
    build, rounds = told["build_cpu_seconds"], told["rounds_cpu_seconds"]
    return {"cpu_seconds": build + rounds, "build_cpu_seconds": build, "rounds_cpu_seconds": rounds}


def _promise_growth(report: Report) -> None:
    median = report.medians("anabranch")
    for figure, bound in (("build_cpu_seconds", BUILD_GROWTH_MAX), ("rounds_cpu_seconds", ROUNDS_GROWTH_MAX)):
        large, small = median.get(figure), median.get(f"smaller_{figure}")
        report.promise(f"{figure} with {GROWTH} x the items", large / small if large and small else None, at_most=bound)


def _cpu(work: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    before = time.process_time()
    result = work()
    return time.process_time() - before, result
