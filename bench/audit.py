"""Audit: two replicas of a history that differ by a thousand operations. All of them are found, and only them.

Both replicas are lakes, ingested before anything is measured; what is measured is the audit, warm: digests, the
comparison, whose heads differ, logs and forged lines. Beside it stands what a person would do for the first question
alone, who lacks what: an anti-join of the ids by DuckDB, both ways, on the same Parquet files; and `sort` and `comm`
over the ids in the two dumps.
"""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from anabranch.core.nostr import Limits, parse
from anabranch.pipeline.generate import Plan, generate
from anabranch.pipeline.jobs.audit import Audit, audit
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Kind, Replica
from anabranch.pipeline.session import session
from bench.load import LoadError
from bench.peers import say, store
from bench.pipeline import OPERATIONS_A_DOCUMENT, Engine, _history, _timed
from bench.report import Report, Setting

DIFFERENCES = 1_000
ENGINES = [Engine("anabranch"), Engine("duckdb"), Engine("comm")]

Ids = tuple[set[str], set[str]]
"""What each of the two lacks."""


def run(setting: Setting) -> Report:
    operations = setting.operations or setting.sized(1_000_000, 20_000)
    plan = Plan(operations, max(1, operations // OPERATIONS_A_DOCUMENT), seed=1)
    report = Report("audit", dataclasses.replace(setting, relays=ENGINES))
    cores = len(os.sched_getaffinity(0))
    with store() as folder:
        started = time.perf_counter()
        spark = session(f"local[{cores},4]", {"spark.driver.memory": "2g"})
        spark.range(1).count()
        start_seconds = time.perf_counter() - started
        try:
            expected = _dumps(_history(plan), folder)
            _warm(spark, folder)
            say("  ingesting both")
            ingest_seconds, replicas = _timed(lambda: [_replica(spark, folder, name) for name in "ab"])
            report.settings = {
                "operations": operations,
                "differences": DIFFERENCES,
                "cores": cores,
                "session_start_seconds": round(start_seconds, 2),
                "ingest_seconds": round(ingest_seconds, 1),
            }
            for number in range(setting.rounds):
                say(f"audit: round {number + 1} of {setting.rounds}")
                _round(report, replicas, folder, expected, cores)
        finally:
            spark.stop()
    ours = report.medians("anabranch")
    report.promise("differences found that are none, or not found", ours["wrong"], at_most=0)
    report.compare("seconds", "duckdb")
    report.compare("seconds", "comm")
    return report


def _dumps(history: tuple[Path, Path], folder: Path) -> Ids:
    """Write both dumps; what each of them lacks."""
    count = sum(1 for _ in _lines(history))
    left_out = random.Random(1).sample(range(count), DIFFERENCES)
    lacks = set(left_out[::2]), set(left_out[1::2])
    found: Ids = set(), set()
    with (folder / "a.jsonl").open("wb") as a, (folder / "b.jsonl").open("wb") as b:
        for number, line in enumerate(_lines(history)):
            for at, file in enumerate((a, b)):
                if number in lacks[at]:
                    found[at].add(parse(line.rstrip(), Limits())[0].id)
                else:
                    file.write(line)
    return found


def _lines(files: tuple[Path, Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from file


def _replica(spark: SparkSession, folder: Path, name: str) -> Replica:
    lake = Lake(folder / name, spark, create=True)
    ingest(lake, [str(folder / f"{name}.jsonl")])
    return Replica(name, Kind.LAKE, lake)


def _warm(spark: SparkSession, folder: Path) -> None:
    """The same on a little, so that what is measured is the work and not the compiler."""
    generate(Plan(20_000, 2_000, 99), folder / "warm-a.jsonl")
    lines = (folder / "warm-a.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "warm-b.jsonl").write_bytes(b"".join(lines[100:]))
    warm = [_replica(spark, folder, f"warm-{name}") for name in "ab"]
    for _ in range(2):
        audit(warm, 0)


def _round(report: Report, replicas: list[Replica], folder: Path, expected: Ids, cores: int) -> None:
    seconds, found = _timed(lambda: audit(replicas, 0))
    wrong = sum(len(one ^ other) for one, other in zip(_missing(found), expected, strict=True))
    report.add(
        "anabranch",
        {
            "seconds": seconds,
            "found": sum(found.findings.missing.values()),
            "wrong": wrong,
            "heads": found.findings.heads,
            "scopes_differing": found.findings.scopes_differing,
        },
    )
    for name, (taken, lacking) in {
        "duckdb": _timed(lambda: _duckdb(replicas, cores)),
        "comm": _timed(lambda: _comm(folder)),
    }.items():
        if lacking != expected:
            raise LoadError(f"{name} finds other differences")
        report.add(name, {"seconds": taken})


def _missing(found: Audit) -> Ids:
    rows = found.missing.select("replica", "id").collect()
    lacking: Ids = set(), set()
    for row in rows:
        lacking[row["replica"]].add(row["id"])
    return lacking


def _duckdb(replicas: list[Replica], threads: int) -> Ids:
    a, b = (replica.lake.table("operations").files() for replica in replicas)
    sql = "SELECT id FROM read_parquet($there) ANTI JOIN (SELECT id FROM read_parquet($here)) USING (id)"
    with duckdb.connect() as database:
        database.execute(f"SET threads = {threads}")
        one, other = (
            {row[0] for row in database.execute(sql, {"here": here, "there": there}).fetchall()}
            for here, there in ((a, b), (b, a))
        )
    return one, other


def _comm(folder: Path) -> Ids:
    script = """
    for x in a b; do grep -oE '^[{]"id":"[0-9a-f]{64}"' $x.jsonl | cut -c8-71 | sort -S 512M --parallel=2 > $x.ids; done
    comm -13 a.ids b.ids > lacks-a; comm -23 a.ids b.ids > lacks-b
    """
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, env={**os.environ, "LC_ALL": "C"})
    one, other = (set((folder / f"lacks-{name}").read_text().split()) for name in "ab")
    return one, other
