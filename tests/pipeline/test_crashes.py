"""A run may be killed at any point: nothing is lost, nothing is there twice, and the next run goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from logs import bad_lines, lake_heads, make_store, random_history, served_heads
from pyspark.sql import SparkSession

from anabranch.pipeline.delta import Table
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.store.sqlite import SqliteStore

RUN = """
import sys
from anabranch.pipeline.session import session
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.jobs import heads, ingest
spark = session("local[2]", {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "700m",
                             "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
print("ready", flush=True)
ingest.ALONE_BELOW = int(sys.argv[3])
lake = Lake(sys.argv[1], spark, create=True)
ingest.ingest(lake, [sys.argv[2]], batch_rows=60, wait=30)
heads.update(lake, wait=30)
print("done", flush=True)
"""


def check(lake: Lake, source: Path, folder: Path) -> None:
    """The lake is what it is after one run that nobody disturbed."""
    lines = source.read_bytes().splitlines()
    report = make_store(folder, lines)
    operations = Counter(row["id"] for row in lake.operations().select("id").collect())
    sightings = Counter(row["position"] for row in lake.sightings().select("position").collect())
    rejected = Counter(row["position"] for row in lake.rejected().select("position").collect())
    for rows in (operations, sightings, rejected):
        assert set(rows.values()) <= {1}
    assert len(rejected) == report.rejected
    assert set(sightings) | set(rejected) == set(range(1, len(lines) + 1))
    with SqliteStore.inspect(folder).reader() as reader:
        assert {facts.id for facts in reader.facts(limit=100_000)} <= set(operations)
        assert lake_heads(lake) == served_heads(reader)
    listed = {name: [Path(file) for file in lake.table(name).files()] for name in ("operations", "heads")}
    assert all(file.exists() for files in listed.values() for file in files)


COMMITS = 5
"""Of a batch: the ledger, facts, rejected, operations, sightings. In this order each is the first to be missing."""


class Crash(BaseException):
    """As sudden as SIGKILL, for everything that the next run can see."""


def test_a_run_that_ends_at_any_commit_is_taken_up(new_lake: Callable[[], Lake], tmp_path: Path):
    """Before every commit of a batch in turn, until a run comes through: each begins where the last one ended."""
    lines = [*random_history(70, 40), *bad_lines().values()]
    source = tmp_path / "x.jsonl"
    source.write_bytes(b"\n".join(lines) + b"\n")
    lake = new_lake()
    points = 0
    while True:
        calls = 0

        def crashing(original: Callable[..., object], at: int) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                nonlocal calls
                calls += 1
                if calls == at:
                    raise Crash
                return original(*arguments, **named)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("append", "take"):
                patch.setattr(Table, name, crashing(getattr(Table, name), 1 + points % COMMITS))
            try:
                ingest(lake, [str(source)], batch_rows=40)
                heads.update(lake)
                break
            except Crash:
                points += 1
    assert points >= 5
    check(lake, source, tmp_path / "data")


def commits(lake: Path) -> int:
    """How many there are in all tables: a run that was given something to do makes ten or more."""
    return len(list(lake.glob("*/_delta_log/*.json")))


def killed_at_random(spark: SparkSession, folder: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    lines = random_history(seed, 60 * times)
    rng.shuffle(lines)
    for at, bad in enumerate(bad_lines().values()):
        lines.insert(10 * at, bad)
    source, lake = folder / "x.jsonl", folder / "lake"
    written, finished = 0, 0
    for number in range(times):
        more = len(lines) * (number + 1) // times
        with source.open("ab") as file:  # there is always something to do
            file.writelines(line + b"\n" for line in lines[written:more])
        written = more
        alone_below = rng.choice((0, 1_000))  # by tasks, or in the driver itself
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, str(lake), str(source), str(alone_below)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        so_many = commits(lake) + rng.randint(0, 9)
        while run.poll() is None and commits(lake) < so_many:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.3))
        # The driver alone, as an operator kills it, or all of it, as a machine that goes down.
        if rng.random() < 0.5:
            os.kill(run.pid, signal.SIGKILL)
        else:
            os.killpg(run.pid, signal.SIGKILL)
        finished += run.stdout.read() == b"done\n"
        run.wait()
    whole = Lake(lake, spark, create=True)
    ingest(whole, [str(source)], wait=30)
    heads.update(whole, wait=30)
    check(whole, source, folder / "data")
    assert finished < times


def test_a_driver_that_is_killed_loses_nothing(spark: SparkSession, tmp_path: Path):
    killed_at_random(spark, tmp_path, times=3, seed=80)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_driver_that_is_killed_twenty_times_loses_nothing(spark: SparkSession, tmp_path: Path):
    killed_at_random(spark, tmp_path, times=20, seed=81)
