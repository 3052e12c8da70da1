"""`anabranch sim`: what it prints, and how it ends."""

import json

import pytest
from click.testing import CliRunner

from anabranch import sim
from anabranch.cli import main
from anabranch.cli.shell import Exit
from anabranch.sim import Outcome, Summary
from anabranch.sim.faults import Fault


def test_worlds_are_added_up():
    answer = CliRunner().invoke(main, ["sim", "--seeds", "2", "--first-seed", "5", "--json"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert {"seeds", "operations", "seconds", "divergences", "faults", "marks"} <= set(said)
    assert said["seeds"] == 2
    assert said["divergences"] == 0
    assert said["operations"] > 0
    assert set(said["faults"]) == set(Fault)


def test_one_world_tells_its_hash_and_its_trace():
    answer = CliRunner().invoke(main, ["sim", "--seed", "5", "--trace", "--json"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert said["hash"] == sim.run(5).hash
    assert any("commits" in line for line in said["trace"])


def test_a_trace_is_of_one_world():
    answer = CliRunner().invoke(main, ["sim", "--trace"])
    assert answer.exit_code == Exit.USAGE
    assert "--seed" in answer.stderr


@pytest.mark.parametrize("kind", [[], ["--plain"]])
def test_a_breach_is_told_and_ends_in_an_exit_code(kind: list[str], monkeypatch: pytest.MonkeyPatch):
    breached = Outcome(7, 10, ["1.000 node-0 has lost something"], dict.fromkeys(map(str, Fault), 0), {}, "00", 1.0)
    summary = Summary(1, 10, 1.0, 1, breached.faults, {}, [breached])
    monkeypatch.setattr(sim, "simulate", lambda seeds, told, plain: summary)
    answer = CliRunner().invoke(main, ["sim", "--seeds", "1", *kind])
    assert answer.exit_code == Exit.FOUND_WRONG
    assert "node-0 has lost something" in answer.stdout
    assert " ".join(["anabranch sim --seed 7", *kind, "--trace"]) in answer.stdout
