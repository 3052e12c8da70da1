"""A disk that is full: one clear sentence, a lake that is as it was, and a next run that completes it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from logs import random_history
from pyspark.sql import SparkSession

from anabranch.cli.shell import Exit
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake

LIMITED = """
import resource, sys
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake, LakeFull
from anabranch.pipeline.session import session
lake = Lake(sys.argv[1], session("local[1]", {"spark.driver.memory": "700m"}), create=True)
ingest(lake, [sys.argv[2]], batch_rows=100)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, most))
try:
    ingest(lake, [sys.argv[3]])
except LakeFull as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""


def dump(folder: Path, name: str, lines: list[bytes]) -> str:
    (folder / name).write_bytes(b"\n".join(lines) + b"\n")
    return str(folder / name)


def complete(lake: Lake, *sources: str) -> None:
    """Another run has brought all of the sources into the lake."""
    lines = {line for source in sources for line in Path(source).read_bytes().splitlines()}
    assert {row["raw"].encode() for row in lake.operations().select("raw").collect()} == lines
    assert lake.table("operations").count() == len(lines)


def plain(seed: int, size: int) -> list[bytes]:
    """Lines that are all different operations."""
    return list(dict.fromkeys(line for line in random_history(seed, size) if b'"kind":1059' not in line))


def test_files_that_may_not_grow_leave_the_lake_as_it_was(spark: SparkSession, tmp_path: Path):
    before, more = dump(tmp_path, "a.jsonl", plain(31, 60)), dump(tmp_path, "b.jsonl", plain(32, 600))
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "lake"), before, more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "no room left" in run.stdout and "run it again" in run.stdout
    lake = Lake(tmp_path / "lake", spark)
    complete(lake, before)
    ingest(lake, [more])
    complete(lake, before, more)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may make a disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a file may still be open


def test_a_full_disk_is_told_in_one_line_and_the_next_run_completes(
    spark: SparkSession, small_disk: Path, tmp_path: Path, command: Callable[..., Result]
):
    lake = str(small_disk / "lake")
    source = dump(tmp_path, "x.jsonl", plain(33, 5_000))
    run = command("pipeline", "ingest", "--from", source, "--lake", lake)
    assert run.exit_code == Exit.FAILED
    assert run.stderr.count("\n") == 1 and "no room left" in run.stderr
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    again = Lake(lake, spark)
    assert again.operations().count() == 0
    ingest(again, [source])
    complete(again, source)
