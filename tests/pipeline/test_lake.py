"""What a lake answers in a notebook: the same as its tables, in a word, and nothing on the terminal."""

import subprocess
import sys
from pathlib import Path

import pytest
from logs import AUTHORS, START, WRAPS, make_store, revision, snapshot
from pyspark.sql import SparkSession

from anabranch.core.nostr import serialise
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake, NoLake

PLAIN = """
import sys
from anabranch.pipeline import Lake
lake = Lake(sys.argv[1])
print(lake.heads().count(), lake.conflicts().count(), lake.tombstones().count())
"""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A note in conflict, one that was deleted, a revision with a history; in a folder with an awkward name."""
    folder = tmp_path_factory.mktemp("a lake, 50% <full>")
    events = [
        snapshot(AUTHORS[0], "conflict", {"laptop": 1}, START),
        snapshot(AUTHORS[0], "conflict", {"laptop": 2}, START + 1),
        snapshot(AUTHORS[0], "conflict", {"laptop": 1, "phone": 1}, START + 2),
        snapshot(AUTHORS[0], "deleted", {"laptop": 1}, START + 3),
        snapshot(AUTHORS[0], "deleted", {"laptop": 2}, START + 4, deletes=True),
        revision(WRAPS[0], AUTHORS[1], "r", "a" * 64, at=START + 5),
        revision(WRAPS[1], AUTHORS[1], "r", "b" * 64, ["a" * 64], at=START + 6),
    ]
    make_store(folder / "data", [serialise(event) for event in events])
    made = Lake(folder / "lake", spark, create=True)
    ingest(made, [str(folder / "data")])
    heads.update(made)
    return made


def test_conflicts_are_the_heads_of_documents_with_several(lake: Lake):
    assert {(row["coordinate"], row["clock_sum"]) for row in lake.conflicts().collect()} == {("conflict", 2)}
    assert lake.conflicts().count() == 2


def test_tombstones_are_documents_whose_every_head_deletes(lake: Lake):
    assert [row["coordinate"] for row in lake.tombstones().collect()] == ["deleted"]


def test_a_history_is_all_versions_of_a_document_by_its_key_or_its_name(lake: Lake):
    by_name = lake.history("conflict").collect()
    assert [(row["created_at"], row["head"]) for row in by_name] == [
        (START, False),
        (START + 1, True),
        (START + 2, True),
    ]
    assert {row["state"] for row in by_name} == {"retained"}
    assert lake.history(by_name[0]["document"]).collect() == by_name
    assert [row["revision"][0] for row in lake.history("r").collect()] == ["a", "b"]
    assert lake.history("nothing").collect() == []


def test_a_lake_that_is_not_there_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(NoLake, match="anabranch pipeline ingest"):
        Lake(tmp_path / "nowhere")


def test_a_plain_python_session_needs_no_set_up_and_sees_nothing_on_the_terminal(lake: Lake):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PLAIN, lake.path],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("4 2 1\n", "", 0)
