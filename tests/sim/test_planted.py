"""The net catches: of bugs that are planted into production code, each is found.

Where the worlds have changed, another seed may be the one that finds a bug; the slow test shows which.
"""

import pytest
from planted import BUGS, Bug

from anabranch.sim import run, simulate


def test_there_are_enough_planted_bugs():
    assert len(BUGS) >= 20


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    bug.plant(monkeypatch)
    assert run(bug.seed, to_the_end=False, plain=bug.plain).breaches, (
        f"seed {bug.seed} does not find {bug.name} any more"
    )


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found_within_its_number_of_seeds(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    bug.plant(monkeypatch)
    found = simulate(range(bug.within), to_the_end=False, plain=bug.plain).failed
    assert found, f"{bug.name} was not found in {bug.within} seeds"
    assert found[0].seed == bug.seed, f"{bug.name} is found by seed {found[0].seed} now: say so in planted.py"
