"""The net catches: of bugs that are planted into production code, each is found within its number of seeds."""

import pytest
from planted import BUGS, Bug

from anabranch.sim import simulate


def test_there_are_enough_planted_bugs():
    assert len(BUGS) >= 20


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    bug.plant(monkeypatch)
    found = simulate(range(bug.within), to_the_end=False).failed
    assert found, f"{bug.name} was not found in {bug.within} seeds"
