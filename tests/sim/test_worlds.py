"""Worlds of many seeds: nothing that must hold is breached, every fault fires, and the same seed is the same world."""

import gc
import json
import os
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest

from anabranch.sim import Summary, run, simulate
from anabranch.sim.faults import Fault
from anabranch.sim.link_checks import CAUGHT_UP, CHECKPOINT
from anabranch.sim.world import World

SEEDS = 100
"""Those after them are in `test_more_worlds`: a file of tests runs beside another."""
FOUND = json.loads((Path(__file__).parent / "traces" / "found.json").read_text())


@pytest.fixture(scope="module")
def worlds() -> Summary:
    return simulate(range(SEEDS))


@pytest.mark.timeout(2_400)
def test_in_no_world_is_anything_breached(worlds: Summary):
    assert worlds.seeds == SEEDS
    assert [(one.seed, one.breaches) for one in worlds.failed] == []


@pytest.mark.timeout(2_400)
def test_every_fault_fires(worlds: Summary):
    assert worlds.never_fired == []
    assert set(worlds.faults) == set(Fault)


@pytest.mark.timeout(2_400)
def test_what_matters_happens(worlds: Summary):
    """A world in which nothing happens proves nothing."""
    seen = Counter(worlds.marks)
    for mark in (
        "merge",
        "delete",
        "twin",
        "conflict read",
        "deletion request",
        "duplicate",
        "pulled",
        "fed",
        "gap told",
        "compaction step",
        "link live: caught_up",
        "link repairing: gap",
        "link repairing: disorder",
        "link degraded_poll: exhausted",
        "digests of equal sets",
        "digests of different sets",
    ):
        assert seen[mark], f"never happened: {mark}"


@pytest.mark.timeout(2_400)
def test_what_a_link_says_is_equal_is_looked_at(worlds: Summary):
    """Not only is the check called: there are operations by then that must have come over."""
    assert worlds.marks[CAUGHT_UP] > 10 * SEEDS


@pytest.mark.timeout(2_400)
def test_what_a_checkpoint_answers_for_is_looked_at(worlds: Summary):
    assert worlds.marks[CHECKPOINT] > 100 * SEEDS


@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("found", FOUND, ids=[str(one["seed"]) for one in FOUND])
def test_what_was_found_once_stays_found(found: dict[str, object], worlds: Summary):
    seed, plain = int(str(found["seed"])), bool(found.get("plain"))
    lived = worlds.failed if seed < SEEDS and not plain else [run(seed, plain=plain)]
    assert [one.breaches for one in lived if one.seed == seed and one.breaches] == [], found["what"]


class Full(World):
    """In which every disk has refused something when all is healed."""

    async def _heal(self) -> None:
        for host in self.hosts:
            host.disk.full, host.disk.refused = True, 1
        await super()._heal()
        self.excused = [host.name for host in self.hosts if host.disk.full or host.disk.refused]


def test_once_all_is_healed_no_full_disk_excuses_what_a_node_logs():
    world = Full(1)
    world.run()
    assert world.excused == []


# --- the same seed, the same world -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 7, 24])
def test_the_same_seed_is_the_same_world(seed: int):
    assert run(seed).hash == run(seed).hash


def test_it_is_the_same_in_another_process_too():
    hashes = set()
    for hash_seed in ("1", "2"):
        script = "from anabranch.sim import run; print(run(3).hash, run(5).hash)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        hashes.add(answer.stdout)
    assert len(hashes) == 1


def test_another_seed_is_another_world():
    assert run(1).hash != run(2).hash


def test_of_a_world_that_is_over_nothing_stays():
    world = World(1)
    world.run()
    left = weakref.ref(world)
    del world
    gc.collect()
    assert left() is None


def test_a_trace_is_kept_only_where_it_is_wanted():
    assert run(1).trace == []
    kept = run(1, keep_trace=True)
    assert kept.trace
    assert kept.hash == run(1).hash
