"""Streams that run on: what comes is read, at the pace that was asked for, and how far behind they are is told."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logs import make_store, random_history
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    running: list[StreamingQuery] = []

    def begin(path: Path, **options: str) -> StreamingQuery:
        query = (
            spark.readStream.format("anabranch")
            .options(**options)
            .load(str(path))
            .select("position")
            .writeStream.format("memory")
            .queryName("seen")
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        running.append(query)
        return query

    yield begin
    for query in running:
        query.stop()


def until(holds: Callable[[], bool]) -> None:
    """Wait for something; the test's own time-out ends what never comes."""
    while not holds():
        time.sleep(0.05)


def test_a_stream_reads_what_comes_at_its_pace_and_says_how_far_behind_it_is(
    spark: SparkSession, start: Start, tmp_path: Path
):
    lines = [line for line in random_history(40, 90) if b'"kind":42061' in line][:24]
    make_store(tmp_path / "data", lines[:18])
    query = start(tmp_path / "data", maxRows="6")

    def seen() -> list[int]:
        return sorted(row["position"] for row in spark.table("seen").collect())

    until(lambda: len(seen()) == 18)
    make_store(tmp_path / "data", lines[18:])
    until(lambda: len(seen()) == 24)
    assert seen() == list(range(1, 25))
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert max(one["numInputRows"] for one in progress) <= 6

    def behind(one: dict) -> int:
        (source,) = one["sources"]
        (end,), (latest,) = (
            json.loads(source[name]).values() if isinstance(source[name], str) else source[name].values()
            for name in ("endOffset", "latestOffset")
        )
        return int(latest["position"]) - int(end["position"])

    assert behind(progress[0]) == 12
    assert behind(progress[-1]) == 0
