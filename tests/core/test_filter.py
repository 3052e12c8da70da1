"""Filters: taken only when they mean what they say, and matched by the letter of NIP-01."""

import pytest
from histories import WORDS, event, filters, plain_events, snapshots
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import filter as rule
from anabranch.core.filter import Filter
from anabranch.core.nostr import Invalid

HEX = "ab" * 32


def parse(raw):
    return rule.parse(raw, values_max=3)


def test_every_field_is_read():
    raw = {
        "ids": [HEX], "authors": [HEX, HEX], "kinds": [1, 0], "since": 0, "until": 5, "limit": 2, "#p": ["x"], "#E": [],
    }  # fmt: skip
    parsed = rule.parse(raw, values_max=6)
    assert parsed == Filter(
        frozenset({HEX}),
        frozenset({HEX}),
        frozenset({0, 1}),
        0,
        5,
        2,
        (("E", frozenset()), ("p", frozenset({"x"}))),
    )


def test_an_empty_filter_has_no_condition():
    assert parse({}) == Filter()
    assert rule.matches(Filter(), event(1))


WRONG = [
    None, [], "x", 1, True,
    {"ids": HEX}, {"ids": None}, {"ids": [1]}, {"ids": [None]}, {"ids": {HEX: 1}}, {"ids": [HEX.upper()]},
    {"ids": [HEX[:-1]]}, {"ids": [HEX[:8]]}, {"ids": [""]}, {"ids": ["zz" * 32]}, {"ids": ["é" * 64]},
    {"authors": [HEX[:-2]]}, {"authors": [HEX.upper()]}, {"authors": "x"}, {"authors": [[HEX]]},
    {"kinds": 1}, {"kinds": ["1"]}, {"kinds": [True]}, {"kinds": [1.0]}, {"kinds": [-1]}, {"kinds": [65_536]},
    {"kinds": [None]}, {"kinds": {"0": 1}},
    {"since": "1"}, {"since": 1.5}, {"since": True}, {"since": -1}, {"since": None}, {"since": 2**53}, {"since": []},
    {"until": "now"}, {"until": False}, {"until": 2**64}, {"limit": -1}, {"limit": "5"}, {"limit": True},
    {"limit": 1.0},
    {"limit": None}, {"#t": "x"}, {"#t": [1]}, {"#t": None}, {"#t": [["x"]]}, {"#t": {"x": 1}},
    {"search": "x"}, {"#": ["x"]}, {"#tt": ["x"]}, {"#1": ["x"]}, {"#é": ["x"]}, {"t": ["x"]}, {"": 1}, {"Kinds": [1]},
    {"#t\n": ["x"]}, {"kinds": [1, 2, 3, 4]}, {"#t": ["1", "2", "3", "4"]}, {"#t": ["same"] * 4},
    {"ids": [f"{n:064x}" for n in range(4)]},
]  # fmt: skip


@pytest.mark.parametrize("raw", WRONG, ids=lambda raw: ascii(raw)[:40])
def test_a_filter_that_is_not_well_formed_is_refused(raw):
    with pytest.raises(Invalid):
        parse(raw)


def test_a_refusal_does_not_repeat_all_that_was_sent():
    with pytest.raises(Invalid) as refusal:
        parse({"x" * 100_000: 1})
    assert len(str(refusal.value)) < 200


def slow_matches(filter: Filter, e) -> bool:
    lists = [(filter.ids, e.id), (filter.authors, e.pubkey), (filter.kinds, e.kind)]
    wanted = all(values is None or value in values for values, value in lists)
    wanted &= filter.since is None or filter.since <= e.created_at
    wanted &= filter.until is None or e.created_at <= filter.until
    for name, values in filter.tags:
        wanted &= any(tag[0] == name and tag[1] in values for tag in e.tags if len(tag) > 1)
    return bool(wanted)


@given(st.data())
def test_an_event_matches_when_it_meets_every_condition(data):
    e = data.draw(st.one_of(plain_events(), snapshots))
    filter = data.draw(filters([e]))
    assert rule.matches(filter, e) == slow_matches(filter, e)
    assert rule.matches(filter.live(), e) == slow_matches(filter, e)
    assert filter.live().limit is None


def test_an_empty_list_matches_nothing():
    for field in ("ids", "authors", "kinds"):
        assert not rule.matches(Filter(**{field: frozenset()}), event(1))
    assert not rule.matches(Filter(tags=(("t", frozenset()),)), event(1, [["t", "x"]]))


def test_only_the_first_value_of_a_tag_counts_and_case_matters():
    e = event(1, [["t", "x", "y"], ["title", "z"]])
    for name, value, found in [("t", "x", True), ("t", "y", False), ("t", "X", False), ("T", "x", False)]:
        assert rule.matches(parse({f"#{name}": [value]}), e) is found


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_any_text_can_be_asked_for(word):
    assert rule.matches(parse({"#t": [word]}), event(1, [["t", word]]))
