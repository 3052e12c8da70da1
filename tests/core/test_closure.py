"""Closure: nothing is left out, nothing comes before what it needs, and what needs nothing stays where it is."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import closure
from anabranch.core.closure import Dependency, blocked, dependencies_first, sending_order
from anabranch.core.nostr import Event
from anabranch.core.revisions import GIFT_WRAP

graphs = st.lists(st.lists(st.integers(0, 11), max_size=3), max_size=12)


def ordered(graph: list[list[int]], needs: dict[int, list[int]]) -> list[int]:
    return dependencies_first(list(range(len(graph))), lambda item: item, lambda item: needs[item])


@given(graphs)
def test_nothing_comes_before_what_it_needs_whatever_the_order(graph):
    needs = {at: [one for one in names if one < at] for at, names in enumerate(graph)}
    backwards = dependencies_first(list(reversed(range(len(graph)))), lambda item: item, lambda item: needs[item])
    assert sorted(backwards) == list(range(len(graph)))
    assert all(backwards.index(one) < backwards.index(at) for at, names in needs.items() for one in names)


@given(graphs)
def test_what_is_in_order_stays_in_order(graph):
    needs = {at: [one for one in names if one < at] for at, names in enumerate(graph)}
    assert ordered(graph, needs) == list(range(len(graph)))


@given(graphs)
def test_names_that_go_round_in_circles_leave_nothing_out(graph):
    assert sorted(ordered(graph, dict(enumerate(graph)))) == list(range(len(graph)))


def closed(page: dict[str, list[Dependency]], here: set[str]) -> set[str]:
    """The largest part of a page of which all that is needed is here or in the part itself, the slow way."""
    part = set(page)
    while lacking := {id for id in part - here if any(need.id not in part | here for need in page[id])}:
        part -= lacking
    return part


@given(graphs, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_what_is_not_blocked_is_the_largest_part_of_a_page_that_is_closed(graph, here, left_out):
    page = {
        str(at): [Dependency("ancestry", str(one)) for one in names]
        for at, names in enumerate(graph)
        if at not in left_out
    }
    known = set(map(str, here))
    kept_back = blocked(page, known)
    part = closed(page, known)
    assert page.keys() - kept_back.keys() == part
    assert all(need in page[id] and need.id not in part | known for id, need in kept_back.items())


def test_what_needs_something_that_is_blocked_is_blocked_by_it():
    page = {"b": [Dependency("ancestry", "a")], "a": [Dependency("ancestry", "x")], "c": []}
    assert blocked(page, set()) == {"a": Dependency("ancestry", "x"), "b": Dependency("ancestry", "a")}
    assert blocked(page, {"x"}) == {}


def wrap(id: str, recipient: str, revision: str, *parents: str) -> Event:
    tags = [["p", recipient], ["d", "note"], ["r", revision], *(["prev", parent] for parent in parents)]
    return Event(id, "author", 1, GIFT_WRAP, tags, "", "")


def test_a_revision_is_sent_after_its_parents():
    child, parent = wrap("1", "alice", "b", "a"), wrap("2", "alice", "a")
    assert sending_order([child, parent]) == [parent, child]


def test_what_needs_another_is_sent_after_it_whatever_either_is(monkeypatch):
    note, parent, child = Event("0", "author", 1, 1, [], "", ""), wrap("2", "alice", "a"), wrap("1", "alice", "b", "a")
    needs = {"0": "1"}

    def dependencies(event):
        return (closure.Dependency("ancestry", needs[event.id]),) if event.id in needs else ()

    monkeypatch.setattr(closure, "dependencies", dependencies)
    assert sending_order([note, child, parent]) == [parent, child, note]


def test_one_revision_for_two_people_is_sent_to_both():
    for_alice, for_bob = wrap("1", "alice", "a"), wrap("2", "bob", "a")
    assert sending_order([for_alice, for_bob]) == [for_alice, for_bob]


def test_two_wraps_of_one_revision_are_both_sent():
    one, other = wrap("1", "alice", "a"), wrap("2", "alice", "a")
    assert sending_order([one, other]) == [one, other]


def test_somebody_elses_revision_of_the_same_name_is_no_parent():
    child, other = wrap("1", "alice", "b", "a"), wrap("2", "bob", "a")
    assert sending_order([child, other]) == [child, other]
