"""Scopes: one meaning, one spelling, one id."""

import pytest
from histories import AUTHORS, COLLECTIONS, COORDINATES, operation, plain_events, snapshots
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import filter as filters
from anabranch.core.nostr import Invalid
from anabranch.core.scope import EVERYTHING, Scope

some_scopes = st.fixed_dictionaries(
    {},
    optional={
        "authors": st.lists(st.sampled_from(AUTHORS), min_size=1),
        "kinds": st.lists(st.sampled_from([1, 7, 42_061]), min_size=1),
        "documents": st.lists(st.sampled_from(COORDINATES), min_size=1),
        "collections": st.lists(st.sampled_from(COLLECTIONS), min_size=1),
        "recipients": st.lists(st.sampled_from(AUTHORS), min_size=1),
    },
)


@given(some_scopes, st.randoms(use_true_random=False))
def test_the_same_scope_has_the_same_id_however_it_is_written(raw, random):
    shuffled = {name: random.sample(values * 2, len(values) * 2) for name, values in reversed(raw.items())}
    one, other = Scope.parse(raw), Scope.parse(shuffled)
    assert one == other
    assert one.id == other.id
    assert Scope.parse(one.conditions()) == one


@given(some_scopes, some_scopes)
def test_different_scopes_have_different_ids(one, other):
    assert (Scope.parse(one) == Scope.parse(other)) == (Scope.parse(one).id == Scope.parse(other).id)


@given(some_scopes, st.one_of(snapshots, plain_events()))
def test_a_scope_matches_what_its_filter_matches(raw, event):
    scope = Scope.parse(raw)
    assert scope.matches(operation(event)) == filters.matches(filters.parse(scope.filter(), 1_000), event)


def test_everything_is_the_scope_without_conditions():
    assert Scope.parse({}) == EVERYTHING
    assert EVERYTHING.filter() == {}
    assert EVERYTHING.canonical() == "{}"
    assert str(EVERYTHING) == "everything"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([], "a scope is an object"),
        ({"author": ["x"]}, "unknown scope field 'author'; known are authors"),
        ({"authors": []}, "authors names nothing"),
        ({"authors": ["x"]}, "authors must be lower-case hex"),
        ({"kinds": ["1"]}, "kinds must be an integer"),
    ],
)
def test_a_scope_that_is_none_is_refused_in_words(raw, said):
    with pytest.raises(Invalid, match=said):
        Scope.parse(raw)
