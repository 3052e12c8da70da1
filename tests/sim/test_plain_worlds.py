"""Worlds with a relay that has no log: what comes to it, whenever it is dated, comes to all, and what is ours to it."""

import pytest

from anabranch.sim import Summary, run, simulate
from anabranch.sim.link_checks import CAUGHT_UP, CHECKPOINT, PLAIN_CHECKPOINT
from anabranch.sim.plain import MANNERS

SEEDS = 40
THOUSAND = range(SEEDS, 1_000)


@pytest.fixture(scope="module")
def worlds() -> Summary:
    return simulate(range(SEEDS), plain=True)


@pytest.mark.timeout(1_200)
def test_in_no_world_with_a_plain_relay_is_anything_breached(worlds: Summary):
    assert [(one.seed, one.breaches) for one in worlds.failed] == []


@pytest.mark.timeout(1_200)
def test_links_with_it_meet_what_they_are_there_for(worlds: Summary):
    for mark in ("pulled", CAUGHT_UP, "link live: caught_up", "link repairing: gap", "link degraded_poll: exhausted"):
        assert worlds.marks[mark], f"never happened: {mark}"


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mark", [CHECKPOINT, PLAIN_CHECKPOINT])
def test_what_a_checkpoint_answers_for_is_looked_at_also_where_it_is_a_time(worlds: Summary, mark: str):
    assert worlds.marks[mark] > 100 * SEEDS


def test_a_plain_world_is_the_same_every_time_and_none_of_the_others():
    assert run(2, plain=True).hash == run(2, plain=True).hash != run(2).hash


@pytest.mark.timeout(1_200)
def test_relays_differ_in_what_they_do_not_know_and_in_how_they_say_so(worlds: Summary):
    for manner in MANNERS:
        for unknown in ("CHANGES", "NEG-OPEN and CHANGES"):
            assert worlds.marks[f"relay {manner} {unknown}"], f"never met: one that {manner} {unknown}"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(THOUSAND.start, THOUSAND.stop, 240))
def test_in_a_thousand_worlds_with_a_plain_relay_nothing_is_breached(first: int):
    summary = simulate(range(first, first + 240), plain=True)
    assert [(one.seed, one.breaches) for one in summary.failed] == []
