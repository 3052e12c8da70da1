"""The commands as a script uses them: one JSON object, nothing else on the terminal, documented exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from anabranch.cli.shell import Exit
from anabranch.cli.units import Master
from anabranch.pipeline import Lake

QUICK = ["--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
QUICK += ["--conf", "spark.sql.shuffle.partitions=2"]


def anabranch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def test_from_nothing_to_heads_in_three_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = anabranch(
        "generate", "--operations", "600", "--documents", "60", "--seed", "5", "--out", "x.jsonl", "--json"
    )
    assert made.stderr == ""
    assert json.loads(made.stdout)["operations"] == 600
    with Path("x.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    ingested = anabranch("pipeline", "ingest", "--from", "x.jsonl", "--lake", "lake", "--json", *QUICK)
    answer = json.loads(ingested.stdout)
    assert (answer["operations"], answer["rejected"]) == (600, 1)
    assert answer["seconds"] > 0
    assert ingested.stderr.count("\n") == 1 and "601 lines in" in ingested.stderr
    found = anabranch("pipeline", "heads", "--lake", "lake", "--json", *QUICK)
    answer = json.loads(found.stdout)
    assert answer["documents"] == 60 and answer["heads"] >= 60 and answer["conflicts"] > 0 and answer["tombstones"] > 0
    assert found.stderr.count("\n") == 1


def test_what_cannot_be_done_is_one_line_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Result]
):
    monkeypatch.chdir(tmp_path)
    nowhere = command("pipeline", "ingest", "--from", "nowhere", "--lake", "lake")
    assert (nowhere.exit_code, nowhere.stderr) == (Exit.FAILED, "anabranch: nowhere is not there\n")
    no_lake = command("pipeline", "heads", "--lake", "lake")
    assert no_lake.exit_code == Exit.FAILED and "no lake in" in no_lake.stderr
    Path("x.jsonl").write_bytes(b"")
    Lake("lake", create=True)
    with Lake("lake").lock():
        busy = command("pipeline", "ingest", "--from", "x.jsonl", "--lake", "lake", "--json")
    assert busy.exit_code == Exit.IN_USE
    assert "in use by another run" in json.loads(busy.stdout)["error"]
    few = command("generate", "--operations", "2", "--documents", "3", "--out", "y.jsonl")
    assert few.exit_code == Exit.USAGE
    nowhere = command("generate", "--operations", "3", "--documents", "2", "--out", "none/y.jsonl")
    assert (nowhere.exit_code, nowhere.stderr) == (Exit.USAGE, "anabranch: none is no folder; make it first\n")
    elsewhere = command("pipeline", "heads", "--lake", "lake", "--master", "foo")
    assert elsewhere.exit_code == Exit.USAGE and "'foo' is no place for Spark" in elsewhere.stderr


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077", "yarn", "k8s://a"]
)
def test_every_place_that_spark_knows_is_taken(master: str):
    assert Master().convert(master, None, None) == master
