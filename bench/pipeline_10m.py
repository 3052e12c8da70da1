"""Ten times as much: ingest and heads of ten million operations against one million, in time and in memory.

The histories are dumps of a million operations each, generated with seeds of their own and read in batches of a
million. What grows with the lake must not be felt: ten times as much takes at most twelve times as long, and this
process, Java and the Python workers together are at most a fifth larger at their largest. The start of Spark is told
apart.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
from pathlib import Path

from anabranch.pipeline.generate import Plan, generate
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.session import session
from bench.peers import say, store
from bench.pipeline import OPERATIONS_A_DOCUMENT, Engine, _timed, warm
from bench.report import Report, Round, Setting

TIMES = 10
TIME_RATIO_MAX = 12
MEMORY_RATIO_MAX = 1.2
SAMPLE_SECONDS = 0.5
ENGINES = [Engine("anabranch"), Engine("a tenth")]


def run(setting: Setting) -> Report:
    operations = (setting.operations or setting.sized(10_000_000, 100_000)) // TIMES
    report = Report("pipeline_10m", dataclasses.replace(setting, relays=ENGINES))
    dumps = [_dump(Plan(operations, max(1, operations // OPERATIONS_A_DOCUMENT), seed)) for seed in range(1, TIMES + 1)]
    cores = len(os.sched_getaffinity(0))
    with store() as folder:
        seconds, spark = _timed(lambda: session(f"local[{cores},4]", {"spark.driver.memory": "2g"}))
        report.settings = {
            "operations": operations * TIMES,
            "cores": cores,
            "session_start_seconds": round(seconds, 2),
        }
        try:
            warm(spark, folder)
            for number in range(setting.rounds):
                say(f"pipeline_10m: round {number + 1} of {setting.rounds}")
                for name, sources in (("a tenth", dumps[:1]), ("anabranch", dumps)):
                    shutil.rmtree(folder / "lake", ignore_errors=True)
                    lake = Lake(folder / "lake", spark, create=True)
                    report.add(name, _measured(lake, [str(source) for source in sources], operations))
        finally:
            spark.stop()
    report.compare("seconds", "a tenth", at_most=TIME_RATIO_MAX)
    report.compare("memory_mib_max", "a tenth", at_most=MEMORY_RATIO_MAX)
    return report


def _dump(plan: Plan) -> Path:
    folder = Path(tempfile.gettempdir()) / f"anabranch-bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"pipeline-{plan.operations}-{plan.documents}-{plan.seed}-whole.jsonl"
    if not file.exists():
        say(f"  generating {plan.operations:,} operations (seed {plan.seed})")
        unfinished = file.with_suffix(".unfinished")
        generate(plan, unfinished)
        unfinished.rename(file)
    return file


def _measured(lake: Lake, sources: list[str], batch_rows: int) -> Round:
    with _Memory() as memory:
        ingest_seconds, done = _timed(lambda: ingest(lake, sources, batch_rows=batch_rows))
        heads_seconds, _ = _timed(lambda: heads.update(lake, full=True))
    return {
        "seconds": ingest_seconds + heads_seconds,
        "ingest_seconds": ingest_seconds,
        "ingest_per_second": done.operations / ingest_seconds,
        "heads_seconds": heads_seconds,
        "files": len(lake.table("operations").files()),
        "memory_mib_max": memory.bytes_max / 2**20,
        "memory_mib_max_java": memory.java_max / 2**20,
    }


class _Memory:
    """The most memory that this process and its descendants have had at once, while it was looked at."""

    def __enter__(self) -> _Memory:
        self.bytes_max = self.java_max = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            java, others = _resident(os.getpid())
            self.bytes_max, self.java_max = max(self.bytes_max, java + others), max(self.java_max, java)
            if self._over.wait(SAMPLE_SECONDS):
                return


def _resident(root: int) -> tuple[int, int]:
    """Bytes of Java and of all others among a process and its descendants; what they share counts once (PSS)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    family, more = {root}, {root}
    while more:
        more = {process for process, parent in parents.items() if parent in more} - family
        family |= more
    java = others = 0
    for process in family:
        try:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        size = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        java, others = (java + size, others) if name == "java" else (java, others + size)
    return java, others
