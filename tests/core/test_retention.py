"""Retention: heads always stay, the rest by policy, and the floor only rises."""

import pytest
from histories import MOMENTS
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.retention import DAY, DeletedDocument, Mode, Policy, Version, floor_after, forgettable, keep
from anabranch.core.snapshots import heads

NOW = 100 * DAY


def _versions(drawn):
    return [
        Version(position, f"{position * 7 % 31:02}", NOW - age * DAY, clock)
        for position, (age, clock) in enumerate(drawn, start=1)
    ]


versions = st.lists(
    st.tuples(st.integers(0, 10), st.dictionaries(st.sampled_from("ab"), st.integers(1, 9), min_size=1)),
    min_size=1,
    max_size=16,
).map(_versions)
policies = st.builds(
    Policy,
    mode=st.sampled_from(list(Mode)),
    recent_count=st.integers(1, 6),
    payload_days=st.one_of(st.none(), st.integers(0, 11)),
)
compacting = st.builds(
    Policy,
    mode=st.sampled_from([Mode.CURRENT_ONLY, Mode.RECENT_HISTORY]),
    recent_count=st.integers(1, 6),
    payload_days=st.sampled_from([0, 0, 3, 6, 11]),
)
horizon_lists = st.lists(st.integers(0, 17), max_size=2)


def _positions(of):
    return {version.position for version in of}


@given(versions, policies, horizon_lists)
def test_a_head_always_stays(of, policy, horizons):
    kept = keep(of, policy, NOW, horizons)
    assert _positions(heads(of)) <= kept <= _positions(of)


@given(versions, compacting)
def test_recent_history_is_filled_with_the_newest_up_to_a_total_that_counts_heads(of, policy):
    """The slow way: heads first, then one at a time the newest that is not yet there, while there is room."""
    kept = [version.position for version in heads(of)]
    if policy.mode is Mode.RECENT_HISTORY:
        waiting = [version for version in of if version.position not in kept]
        while waiting and len(kept) < policy.recent_count:
            newest = max(waiting, key=lambda version: (version.created_at, version.id))
            waiting.remove(newest)
            kept.append(newest.position)
    young = [version.position for version in of if version.created_at >= NOW - policy.payload_days * DAY]
    assert keep(of, policy, NOW) == {*kept, *young}


@given(versions, compacting)
def test_nothing_younger_than_the_cutoff_goes(of, policy):
    kept = keep(of, policy, NOW)
    assert all(v.created_at < NOW - policy.payload_days * DAY for v in of if v.position not in kept)


@given(versions, st.sampled_from([Policy(Mode.FULL, 1, 0), Policy(Mode.RECENT_HISTORY, 1, None), Policy()]))
def test_without_an_age_and_under_full_retention_everything_stays(of, policy):
    assert keep(of, policy, NOW) == _positions(of)
    assert not policy.compacts


@given(versions, st.integers(0, 17))
def test_what_was_a_head_at_any_moment_since_a_bootstrap_began_stays_until_it_is_sent(of, horizon):
    kept = keep(of, Policy(Mode.CURRENT_ONLY, payload_days=0), NOW + DAY, [horizon])
    for moment in range(horizon, len(of) + 1):
        assert _positions(heads([v for v in of if v.position <= moment])) <= kept
    before = [v for v in of if v.position <= horizon]
    was_no_head = _positions(before) - _positions(heads(before))
    assert not was_no_head & kept, "a bootstrap holds back more than it can be sending"


@given(versions, st.lists(st.tuples(compacting, horizon_lists), min_size=1, max_size=4), st.integers(0, 20))
def test_keeping_again_and_again_never_changes_the_heads(of, rounds, days):
    left = of
    for number, (policy, horizons) in enumerate(rounds):
        kept = keep(left, policy, NOW + number * days * DAY, horizons)
        left = [version for version in left if version.position in kept]
        assert heads(left) == heads(of)


@given(versions, compacting)
def test_keeping_twice_drops_no_more_than_once(of, policy):
    kept = keep(of, policy, NOW)
    assert keep([version for version in of if version.position in kept], policy, NOW) == kept


def test_the_default_total_is_four():
    of = [Version(n, f"{n}", n, {"a": n}) for n in range(1, 10)]
    assert keep(of, Policy(payload_days=1), NOW) == {6, 7, 8, 9}
    assert keep(of, Policy(Mode.CURRENT_ONLY, payload_days=1), NOW) == {9}


def test_a_wide_conflict_stays_whole_beyond_the_total():
    of = [Version(n, f"{n}", n, {f"device-{n}": 1}) for n in range(1, 8)]
    assert keep(of, Policy(payload_days=0, recent_count=2), NOW) == set(range(1, 8))


def test_no_days_of_grace_makes_everything_before_now_a_candidate():
    of = [Version(1, "1", NOW - 1, {"a": 1}), Version(2, "2", NOW, {"a": 2}), Version(3, "3", NOW, {"a": 3})]
    assert keep(of, Policy(Mode.CURRENT_ONLY, payload_days=0), NOW) == {2, 3}


# --- documents that go altogether ----------------------------------------------------------------------------------

deleted = st.lists(
    st.tuples(st.binary(min_size=1, max_size=2), st.sampled_from(MOMENTS), st.integers(1, 50)),
    max_size=10,
    unique_by=lambda one: one[0],
).map(lambda rows: [DeletedDocument(*row) for row in rows])


@given(deleted, st.integers(0, 12))
def test_the_oldest_deleted_documents_above_the_cap_go(documents, cap):
    going = forgettable(documents, Policy(deleted_documents=cap))
    staying = [one for one in documents if one not in going]
    assert len(staying) == min(cap, len(documents))
    assert all(gone.deleted_at <= stays.deleted_at for gone in going for stays in staying)


@given(deleted, st.randoms(use_true_random=False))
def test_which_documents_go_does_not_depend_on_the_order_they_are_read_in(documents, random):
    shuffled = list(documents)
    random.shuffle(shuffled)
    policy = Policy(deleted_documents=2)
    assert set(forgettable(documents, policy)) == set(forgettable(shuffled, policy))


@pytest.mark.parametrize("policy", [Policy(deleted_documents=None), Policy(Mode.FULL, deleted_documents=0)])
def test_no_document_goes_without_a_cap_or_under_full_retention(policy):
    assert forgettable([DeletedDocument(b"x", 1, 1)], policy) == []


@given(st.integers(1, 60), st.integers(0, 60), deleted)
def test_the_floor_rises_above_all_that_is_forgotten_and_never_sinks(floor, tip, documents):
    floor = min(floor, tip + 1)
    after = floor_after(floor, tip, documents)
    assert floor <= after <= tip + 1
    assert all(document.last_position < after for document in documents if document.last_position <= tip)
    if not documents:
        assert after == floor
