"""Heads: what no other version dominates, however the versions came."""

from collections.abc import Mapping

import msgspec
import pytest
from histories import clock_values, event, snapshot
from hypothesis import given
from hypothesis import strategies as st
from model import slow_dominates

from anabranch.core import snapshots
from anabranch.core.nostr import Invalid
from anabranch.core.snapshots import NOTE, advance, heads


class V(msgspec.Struct, frozen=True):
    id: str
    clock: Mapping[str, int]


def _versions(clocks: list[dict[str, int]]) -> list[V]:
    return [V(f"{number:02}", clock) for number, clock in enumerate(clocks)]


versions = st.lists(clock_values, max_size=12).map(_versions)


def slow_heads(of: list[V]) -> list[V]:
    found = {one.id: one for one in of if not any(slow_dominates(other.clock, one.clock) for other in of)}
    return [found[id] for id in sorted(found)]


@given(versions)
def test_heads_are_what_comparing_every_pair_finds(of):
    assert heads(of) == slow_heads(of)


@given(versions, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(of, random):
    shuffled = list(of)
    random.shuffle(shuffled)
    assert heads(shuffled) == heads(of)


@given(versions, st.data())
def test_heads_of_a_whole_are_the_heads_of_the_heads_of_its_parts(of, data):
    """Parts may overlap: this is what lets heads be kept on write and reduced in parallel."""
    a = [one for one in of if data.draw(st.booleans())]
    b = [one for one in of if one not in a or data.draw(st.booleans())]
    assert heads(heads(a) + heads(b)) == heads(a + b) == heads(of)


@given(versions)
def test_heads_of_heads_are_the_same_heads(of):
    assert heads(heads(of)) == heads(of)


@given(versions)
def test_where_there_is_a_version_there_is_a_head(of):
    assert bool(heads(of)) == bool(of)
    assert all(any(head == one or slow_dominates(head.clock, one.clock) for head in heads(of)) for one in of)


@given(versions)
def test_a_version_that_came_twice_counts_once(of):
    assert heads(of + of) == heads(of)


@given(versions, clock_values, st.booleans())
def test_advancing_heads_by_a_version_gives_the_heads_with_it(of, clock, known):
    """For every set of heads and every version, one that is among them included."""
    current = heads(of)
    version = current[0] if known and current else V("new", clock)
    after = advance(current, version)
    assert sorted(after, key=lambda one: one.id) == heads([*current, version])
    assert len(after) == len({one.id for one in after})


@given(versions)
def test_advancing_from_nothing_one_by_one_gives_the_heads_of_all(of):
    current: list[V] = []
    for version in of:
        before = list(current)
        current = advance(current, version)
        assert (current[-1:] == [version]) == (version in current), "a new head stands last"
        assert [one for one in before if one in current] == [one for one in current if one != version]
    assert sorted(current, key=lambda one: one.id) == heads(of)


def test_two_versions_with_equal_clocks_are_both_heads():
    first, second = V("1", {"a": 1}), V("2", {"a": 1})
    assert heads([second, first]) == [first, second]


def test_a_later_write_takes_the_place_of_every_branch_it_had_seen():
    left, right = V("1", {"a": 2}), V("2", {"a": 1, "b": 1})
    assert heads([left, right]) == [left, right]
    assert heads([left, right, V("3", {"a": 3, "b": 1})]) == [V("3", {"a": 3, "b": 1})]


# --- the metadata ------------------------------------------------------------------------------------------------

GOOD = [["d", "doc"], ["o", "put"], ["vc", "a", "1"]]


def _note(*tags: list[str]):
    return event(NOTE, tags)


def test_the_facts_of_a_snapshot_are_read_from_its_tags():
    facts = snapshots.validate(snapshot("doc", {"a": 1, "b": 2}, deletes=True, collection="notes"))
    assert (facts.coordinate, facts.deletes, facts.collection) == ("doc", True, "notes")
    assert facts.clock == {"a": 1, "b": 2}
    plain = snapshots.validate(_note(*GOOD))
    assert (plain.deletes, plain.collection) == (False, None)


def test_the_order_of_tags_and_other_tags_do_not_matter():
    tags = [["x"], ["vc", "a", "1"], ["o", "put", "more"], ["title", "t"], ["d", "doc", "more"]]
    assert snapshots.validate(_note(*tags)).coordinate == "doc"


BAD = {
    "no tags": [],
    "no d": GOOD[1:],
    "no o": [GOOD[0], GOOD[2]],
    "no vc": GOOD[:2],
    "empty d": [["d", ""], *GOOD[1:]],
    "d without a value": [["d"], *GOOD[1:]],
    "two d": [["d", "other"], *GOOD],
    "two d, one without a value": [*GOOD, ["d"]],
    "the same d twice": [GOOD[0], *GOOD],
    "o without a value": [GOOD[0], ["o"], GOOD[2]],
    "unknown o": [GOOD[0], ["o", "patch"], GOOD[2]],
    "o in upper case": [GOOD[0], ["o", "PUT"], GOOD[2]],
    "empty o": [GOOD[0], ["o", ""], GOOD[2]],
    "two o": [*GOOD, ["o", "del"]],
    "c without a value": [*GOOD, ["c"]],
    "empty c": [*GOOD, ["c", ""]],
    "two c": [*GOOD, ["c", "x"], ["c", "y"]],
    "malformed vc": [*GOOD[:2], ["vc", "a", "0"]],
}


@pytest.mark.parametrize("tags", BAD.values(), ids=BAD)
def test_a_snapshot_with_uncertain_metadata_is_refused(tags):
    with pytest.raises(Invalid, match=r"^missing or malformed snapshot metadata$"):
        snapshots.validate(_note(*tags))


def test_the_sync_range_is_forty_to_fifty_thousand():
    assert [kind for kind in (39_999, 40_000, 42_061, 49_999, 50_000) if snapshots.in_range(kind)] == [
        40_000,
        42_061,
        49_999,
    ]
