"""What a benchmark says: every round, the medians, and each promise as a ratio with its target.

A ratio is ours divided by the peer's. A promise that could not be judged (the peer is not here, a round failed) has
`met` null, never true.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.events import NOTE
from bench.load import LoadError
from bench.peers import Relay, Unavailable, say

Round = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What the command line asked for."""

    relays: list[Relay]
    rounds: int = 3
    quick: bool = False
    kind: int = NOTE
    operations: int | None = None

    def sized(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(slots=True)
class Report:
    """One benchmark's result, while it grows."""

    benchmark: str
    setting: Setting
    settings: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    ratios: list[dict[str, object]] = field(default_factory=list)
    _ticks: tuple[int, int] = field(default_factory=lambda: _stolen_and_wanted())

    def available(self, names: set[str] | None = None) -> list[Relay]:
        """The relays that can be measured here; the others are noted with their reason."""
        found = []
        for relay in self.setting.relays:
            if names is not None and relay.name not in names:
                continue
            try:
                self.versions[relay.name] = relay.version()
                found.append(relay)
            except Unavailable as reason:
                self.skip(relay.name, reason)
        return found

    def skip(self, name: str, reason: Exception | str) -> None:
        say(f"  {name}: {reason}")
        self.skipped[name] = str(reason)

    def add(self, name: str, measured: Round) -> None:
        shown = "  ".join(f"{key} {_short(value)}" for key, value in measured.items())
        say(f"  {name:12} {shown}")
        self.rounds.setdefault(name, []).append(measured)

    def medians(self, name: str) -> Round:
        rounds = self.rounds.get(name, [])
        keys = dict.fromkeys(key for each in rounds for key in each)
        return {key: _median([each.get(key) for each in rounds]) for key in keys}

    def median(self, name: str, key: str) -> float | None:
        return self.medians(name).get(key)

    def compare(
        self, figure: str, against: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Promise: the median of a figure, ours over the peer's; `against` is PEER, or PEER:FIGURE for another one."""
        peer, _, other = against.partition(":")
        ours, theirs = self.median("anabranch", figure), self.median(peer, other or figure)
        ratio = ours / theirs if ours is not None and theirs else None
        self.promise(figure, ratio, at_least=at_least, at_most=at_most, against=against)

    def compare_others(self, figure: str) -> None:
        """The same figure against relays of the command line: shown, not promised."""
        for name in self.rounds:
            if name not in ("anabranch", "rust", "nostr-relay"):
                self.compare(figure, name)

    def promise(
        self,
        figure: str,
        ratio: float | None,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        against: str | None = None,
    ) -> None:
        bound = at_least if at_least is not None else at_most
        met = None
        if ratio is not None and bound is not None:
            met = ratio >= bound if at_least is not None else ratio <= bound
        target = None if bound is None else f"{'>=' if at_least is not None else '<='} {bound:g}"
        entry: dict[str, object] = {"figure": figure}
        if against is not None:
            entry["against"] = against
        self.ratios.append({**entry, "ratio": _rounded(ratio), "target": target, "met": met})
        verdict = {True: "met", False: "NOT met", None: "not judged"}[met]
        say(f"  = {figure}{f' against {against}' if against else ''}: {_short(ratio)} (target {target}): {verdict}")

    def stolen(self) -> float | None:
        """The share of the CPU time wanted here that the host gave to others, since the report was begun."""
        stolen, wanted = (now - then for now, then in zip(_stolen_and_wanted(), self._ticks, strict=True))
        return round(stolen / wanted, 3) if wanted else None

    def as_json(self) -> str:
        names = [relay.name for relay in self.setting.relays if relay.name in self.rounds]
        document = {
            "benchmark": self.benchmark,
            "machine": machine() | {"stolen": self.stolen()},
            "command": " ".join(["python -m bench", *sys.argv[1:]]),
            "settings": {"rounds": self.setting.rounds, "quick": self.setting.quick, **self.settings},
            "relays": {
                name: {
                    "version": self.versions.get(name),
                    "medians": _rounded(self.medians(name)),
                    "rounds": _rounded(self.rounds[name]),
                }
                for name in names
            },
            "skipped": self.skipped,
            "ratios": self.ratios,
        }
        return json.dumps(document, ensure_ascii=False)


def interleave(report: Report, relays: list[Relay], measure) -> None:
    """Every relay once a round, in an order that turns, so that a drift of the machine falls on all alike.

    `measure(relay, round)` returns what it measured; a relay that fails is left out of the rounds that follow.
    """
    remaining = list(relays)
    for number in range(report.setting.rounds):
        say(f"{report.benchmark}: round {number + 1} of {report.setting.rounds}")
        turn = number % max(len(remaining), 1)
        for relay in remaining[turn:] + remaining[:turn]:
            try:
                report.add(relay.name, measure(relay, number))
            except (LoadError, Unavailable) as error:
                report.skip(relay.name, error)
                report.rounds.pop(relay.name, None)
                remaining.remove(relay)


def machine() -> dict[str, object]:
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _stolen_and_wanted() -> tuple[int, int]:
    """In ticks of all cores: what the host took away, and with it what was worked."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return steal, user + nice + system + irq + softirq + steal


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _median(values: list[float | int | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return round(value, 4 if abs(value) < 100 else 1)
    return value


def _short(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
