"""The net catches: of bugs that are planted into production code, each is found by a promise that it breaks, in a
world that breaks none without it.

The seed that is known to find a bug goes first. Where the worlds have changed it may be another one by now, so that
the promise is about the bug's number of seeds; `planted.py` should then name the new one, to keep this short.
"""

import re
import warnings

import pytest
from planted import BUGS, Bug, heads_that_are_not_demoted

from anabranch.sim import run
from anabranch.sim.world import Outcome

OF_THE_CODE = re.compile(
    r"\w+(Error|Exception)\b|\blogs: |\bstumbled\b|nobody had thought of|cannot start|no end in sight"
)
"""A breach that speaks so tells of code that failed, as a plant with a slip in it does too."""


def test_there_are_enough_planted_bugs():
    assert len(BUGS) >= 20


def find(bug: Bug) -> Outcome | None:
    """The first world that is breached with a bug; without it the same one is sound."""
    assert bug.seed < bug.within
    seeds = (bug.seed, *(seed for seed in range(bug.within) if seed != bug.seed))
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        worlds = (run(seed, to_the_end=False, plain=bug.plain) for seed in seeds)
        found = next((world for world in worlds if world.breaches), None)
    if found is not None:
        sound = run(found.seed, to_the_end=False, plain=bug.plain)
        assert not sound.breaches, f"seed {found.seed} fails without {bug.name} too: {sound.breaches[0]}"
    return found


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found_within_its_number_of_seeds(bug: Bug):
    found = find(bug)
    assert found is not None, f"{bug.name} was not found in {bug.within} seeds"
    first = found.breaches[0]
    assert bool(OF_THE_CODE.search(first)) == bug.breaks_the_code, f"{bug.name} is found by this: {first}"
    if found.seed != bug.seed:
        warnings.warn(f"{bug.name} is found by seed {found.seed} now: say so in planted.py", stacklevel=1)


NOTHING = Bug("nothing", lambda patch: None, seed=0, within=3)


def test_a_plant_that_does_nothing_is_not_found():
    assert find(NOTHING) is None


def test_in_worlds_that_are_broken_anyway_nothing_is_found(monkeypatch: pytest.MonkeyPatch):
    heads_that_are_not_demoted(monkeypatch)
    with pytest.raises(AssertionError, match="seed 0 fails without nothing too"):
        find(NOTHING)


@pytest.mark.parametrize(
    "breach",
    [
        "0.426 node-1 logs: a link stumbled: TypeError(\"believe() got an unexpected keyword argument 'pushes'\")",
        "2.751 node-1 logs: a group could not be stored: None",
        "3.000 node-0: something failed that nobody had thought of: Exception in callback: KeyError(1)",
        "20.768 node-2 cannot start: CorruptError('database disk image is malformed')",
    ],
)
def test_code_that_fails_is_told_from_a_promise_that_is_broken(breach: str):
    assert OF_THE_CODE.search(breach)
    assert not OF_THE_CODE.search("0.824 node-0: pull-node-1 stands at 2 and has not 4c83ef7f of 1")
