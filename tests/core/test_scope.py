"""Scopes: one meaning, one spelling, one id."""

import msgspec
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


@given(some_scopes, st.one_of(snapshots, plain_events()))
def test_what_deletes_what_a_scope_carries_belongs_to_it_unless_it_is_by_tags(raw, event):
    scope = Scope.parse(raw)
    by_tags = bool({"documents", "collections", "recipients"} & raw.keys())
    for kind in (5, 62):
        request = msgspec.structs.replace(event, kind=kind, tags=[["e", event.id], ["relay", "ALL_RELAYS"]])
        assert scope.matches(operation(request)) or by_tags or not scope.matches(operation(event))


@given(some_scopes, st.one_of(snapshots, plain_events()))
def test_a_scope_carries_what_it_names_and_nothing_beside_it_but_requests(raw, event):
    scope = Scope.parse(raw)
    named = filters.matches(filters.parse(scope.named(), 1_000), event)
    assert scope.matches(operation(event)) == named
    assert set(scope.filter().get("kinds", ())) - set(raw.get("kinds", ())) <= {5, 62}


def test_the_requests_that_a_scope_carries_change_neither_its_spelling_nor_its_id():
    scope = Scope.parse({"kinds": [7, 1]})
    assert scope.filter() == {"kinds": [1, 5, 7, 62]}
    assert (scope.canonical(), str(scope)) == ('{"kinds":[1,7]}', "kinds 1 7")
    assert scope.id == "a1f53cca7ed7c4a59db75c9cf898db0d88563e3b0dab3e6aeb95bd0a89fdd534"
    assert Scope.parse({"kinds": [1], "documents": ["A"]}).filter() == {"kinds": [1], "#d": ["A"]}


def test_a_scope_may_name_as_much_as_it_may_and_carries_the_requests_too():
    scope = Scope.parse({"kinds": list(range(1_000, 2_000))})
    assert scope.parsed().kinds == {5, 62, *range(1_000, 2_000)}


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
