"""Retention and audit as a script uses them: one JSON object, nothing else on the terminal, documented exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from logs import AUTHORS, START, snapshot
from pyspark.sql import SparkSession

from anabranch.cli.shell import Exit
from anabranch.core.nostr import serialise
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake

Command = Callable[..., Result]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.chdir(tmp_path)
    events = [snapshot(author, "A", {"laptop": n}, START + n) for author in AUTHORS for n in range(1, 6)]
    return [serialise(event) + b"\n" for event in events]


@pytest.mark.timeout(400)
def test_an_audit_exits_with_3_until_nothing_is_missing(lines: list[bytes], spark: SparkSession, command: Command):
    Path("a.jsonl").write_bytes(b"".join(lines[:-4]))
    Path("b.jsonl").write_bytes(b"".join(lines[1:]))
    ingest(Lake("a", spark, create=True), ["a.jsonl"])
    found = command("pipeline", "audit", "a", "b.jsonl", "--json", "--repair", "--out", str(Path("found").resolve()))
    answer = json.loads(found.stdout)
    assert found.exit_code == Exit.FOUND_WRONG and found.stderr.count("\n") == 1  # a dump is not written to
    assert answer["converged"] is False and answer["missing"] == {"a": 0, "b.jsonl": 1}
    assert answer["before_repair"]["missing"] == {"a": 4, "b.jsonl": 1}
    assert answer["repaired"]["a"] == {"lacked": 4, "accepted": 4, "refused": {}, "problem": None}
    assert Path("found/lacks-1.jsonl").read_bytes() == lines[0]
    assert list(Path("found/missing").glob("*.parquet"))
    Path("b.jsonl").write_bytes(b"".join(lines))
    same = command("pipeline", "audit", "a", "b.jsonl", "--json")
    assert same.exit_code == Exit.DONE and json.loads(same.stdout)["converged"] is True


def test_policies_are_compared_in_one_answer(lines: list[bytes], spark: SparkSession, command: Command):
    Path("a.jsonl").write_bytes(b"".join(lines))
    ingest(Lake("a", spark, create=True), ["a.jsonl"])
    policies = ["--policy", "current_only", "--policy", "nondominated_plus_recent_history:4"]
    planned = command("pipeline", "retention", "--lake", "a", *policies, "--at", "2024-01-01", "--json")
    answer = json.loads(planned.stdout)
    assert planned.exit_code == Exit.DONE and planned.stderr.count("\n") == 1
    totals = {name: found["total"] for name, found in answer["policies"].items()}
    assert {name: (total["keep"], total["drop"]) for name, total in totals.items()} == {
        "current_only": (3, 12),
        "nondominated_plus_recent_history:4": (12, 3),
    }
    whole = sum(len(line) - 1 for line in lines)
    assert all(total["keep_bytes"] + total["drop_bytes"] == whole for total in totals.values())
    assert answer["policies"]["current_only"]["reasons"] == {"superseded": 12}
    assert [share["drop"] for share in answer["policies"]["current_only"]["authors"]] == [4, 4, 4]
    assert answer["applied"] is None


def test_what_cannot_be_asked_for_is_told_before_spark_starts(
    lines: list[bytes], command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("anabranch.pipeline.session.session", None)
    Path("a.jsonl").write_bytes(b"".join(lines))
    for arguments, code, words in (
        (["audit", "a.jsonl"], Exit.USAGE, "name two or more different replicas"),
        (["audit", "a.jsonl", "a.jsonl"], Exit.USAGE, "name two or more different replicas"),
        (["audit", "a.jsonl", "nowhere"], Exit.FAILED, "nowhere is not there"),
        (["audit", "a.jsonl", "nowhere", "--out", "."], Exit.USAGE, "not empty"),
        (["retention", "--lake", "a", "--policy", "all"], Exit.USAGE, "'all' is no policy"),
        (["retention", "--lake", "nowhere"], Exit.FAILED, "no lake in"),
        (["retention", "--lake", "a", "--apply", "ws://127.0.0.1:1"], Exit.FAILED, "does not answer"),
    ):
        answer = command("pipeline", *arguments)
        assert answer.exit_code == code and words in answer.stderr and answer.stderr.count("\n") == 1, arguments
