"""Vector clocks: a strict partial order, its joins, and the one way to spell them."""

import pytest
from histories import clock_values
from hypothesis import given
from hypothesis import strategies as st
from model import slow_dominates

from anabranch.core import clock as clocks
from anabranch.core.clock import COUNTER_MAX, ENTRIES_MAX, Order

any_clock = st.one_of(st.just({}), clock_values)
any_device = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda text: text.strip())


@given(any_clock, any_clock)
def test_dominance_is_what_its_definition_says(a, b):
    assert clocks.dominates(a, b) == slow_dominates(a, b)


@given(any_clock)
def test_no_clock_dominates_itself(a):
    assert not clocks.dominates(a, a)


@given(any_clock, any_clock)
def test_two_clocks_never_dominate_each_other(a, b):
    assert not (clocks.dominates(a, b) and clocks.dominates(b, a))


@given(any_clock, any_clock, any_clock)
def test_dominance_is_transitive(a, b, c):
    if clocks.dominates(a, b) and clocks.dominates(b, c):
        assert clocks.dominates(a, c)


@given(any_clock, any_clock)
def test_compare_says_the_same_from_both_sides(a, b):
    mirrored = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    order = clocks.compare(a, b)
    assert clocks.compare(b, a) is mirrored.get(order, order)
    assert (order is Order.EQUAL) == (a == b)
    assert (order is Order.AFTER) == slow_dominates(a, b)


@given(any_clock, any_clock)
def test_a_dominating_clock_has_the_greater_total(a, b):
    if clocks.dominates(a, b):
        assert clocks.total(a) > clocks.total(b)


@given(any_clock, any_clock, any_clock)
def test_merge_is_commutative_associative_and_idempotent(a, b, c):
    assert clocks.merge([a, b]) == clocks.merge([b, a])
    assert clocks.merge([clocks.merge([a, b]), c]) == clocks.merge([a, clocks.merge([b, c])]) == clocks.merge([a, b, c])
    assert clocks.merge([a, a]) == clocks.merge([a]) == a


@given(any_clock, any_clock, any_clock)
def test_merge_is_the_least_clock_that_is_not_behind_any(a, b, bound):
    merged = clocks.merge([a, b])
    assert all(merged == one or clocks.dominates(merged, one) for one in (a, b))
    if all(bound == one or clocks.dominates(bound, one) for one in (a, b)):
        assert bound == merged or clocks.dominates(bound, merged)


def test_merge_of_nothing_is_the_empty_clock():
    assert clocks.merge([]) == {}


@given(any_clock, st.sampled_from(["laptop", "watch"]))
def test_the_next_write_dominates_what_it_had_seen(seen, device):
    before = dict(seen)
    after = clocks.advance(seen, device)
    assert clocks.dominates(after, seen)
    assert clocks.total(after) == clocks.total(seen) + 1
    assert seen == before


@given(any_clock, any_clock)
def test_a_write_after_merging_dominates_every_branch(a, b):
    resolved = clocks.advance(clocks.merge([a, b]), "laptop")
    assert clocks.dominates(resolved, a) and clocks.dominates(resolved, b)


@given(st.dictionaries(any_device, st.integers(1, COUNTER_MAX), min_size=1, max_size=ENTRIES_MAX))
def test_tags_and_parse_are_inverse(clock):
    assert clocks.parse(clocks.tags(clock)) == clock


@given(st.dictionaries(any_device, st.integers(1, COUNTER_MAX), min_size=1, max_size=4))
def test_the_order_of_devices_is_that_of_their_utf8_bytes(clock):
    spelled = [tag[1].encode() for tag in clocks.tags(clock)]
    assert spelled == sorted(spelled)


def test_other_tags_may_stand_between_the_entries():
    tags = [["d", "x"], ["vc", "a", "1"], ["vcx", "z", "0"], ["o", "put"], ["vc", "b", "2"], ["c"]]
    assert clocks.parse(tags) == {"a": 1, "b": 2}


def test_device_ids_are_case_sensitive_and_kept_as_written():
    assert clocks.parse([["vc", "A", "1"], ["vc", "a", "2"]]) == {"A": 1, "a": 2}
    assert clocks.parse([["vc", " a ", "2"]]) == {" a ": 2}


def test_as_many_entries_as_allowed_are_taken():
    tags = [["vc", f"device-{n:02}", str(COUNTER_MAX)] for n in range(ENTRIES_MAX)]
    assert len(clocks.parse(tags)) == ENTRIES_MAX == 32


MALFORMED = {
    "no entry": [],
    "no entry but other tags": [["d", "x"], ["o", "put"]],
    "33 entries": [["vc", f"device-{n:02}", "1"] for n in range(33)],
    "name only": [["vc"]],
    "no counter": [["vc", "a"]],
    "a fourth element": [["vc", "a", "1", ""]],
    "a malformed entry after a good one": [["vc", "a", "1"], ["vc", "b"]],
    "empty device": [["vc", "", "1"]],
    "blank device": [["vc", " \t\n", "1"]],
    "device of no-break spaces": [["vc", "\u00a0\u2003", "1"]],
    "the same device twice": [["vc", "a", "1"], ["vc", "a", "2"]],
    "the same entry twice": [["vc", "a", "1"], ["vc", "a", "1"]],
    "descending": [["vc", "b", "1"], ["vc", "a", "1"]],
    "descending at the end": [["vc", "a", "1"], ["vc", "c", "1"], ["vc", "b", "1"]],
    "twice, apart": [["vc", "a", "1"], ["vc", "b", "1"], ["vc", "a", "1"]],
    "lower case before upper case": [["vc", "a", "1"], ["vc", "B", "1"]],
}
COUNTERS = [
    "", "0", "00", "01", "-1", "+1", "1.0", "1e3", "1_000", "0x1", " 1", "1 ", "1\n", "\n1", "one", "NaN", "null",
    "٣", "１", "²", "1\0", str(COUNTER_MAX + 1), "9" * 17, "1" + "0" * 400,
]  # fmt: skip


@pytest.mark.parametrize("tags", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_clock_is_refused(tags):
    assert clocks.parse(tags) is None


@pytest.mark.parametrize("counter", COUNTERS, ids=ascii)
def test_a_counter_that_is_not_a_plain_positive_decimal_is_refused(counter):
    assert clocks.parse([["vc", "a", counter]]) is None


@pytest.mark.parametrize("counter", [1, 9, 10, COUNTER_MAX - 1, COUNTER_MAX])
def test_counters_up_to_what_every_json_peer_can_hold_are_taken(counter):
    assert clocks.parse([["vc", "a", str(counter)]]) == {"a": counter}
