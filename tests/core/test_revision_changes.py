"""The changes feed of revisions: one recipient, strict types, and a rule for what is carried and what is told."""

import pytest
from histories import AUTHORS, OTHER_NOTE, event, operation, snapshots
from hypothesis import given
from hypothesis import strategies as st
from revision_histories import RECIPIENTS, REVISIONS, WRAP_KEYS, gift_wraps, revision, revision_queries, revisions
from revision_model import carries_revision

from anabranch.core import changes
from anabranch.core.changes import ChangesRequest, Mode, RevisionQuery, SnapshotQuery
from anabranch.core.filter import FILTER_ROOM
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Operation, Removal
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.snapshots import NOTE

P, R = RECIPIENTS[0], REVISIONS[0]
ONE_RECIPIENT = r"^revision CHANGES currently requires exactly one #p recipient$"


def parse(raw):
    return changes.parse(raw, values_max=3)


def test_every_field_is_read():
    raw = {
        "kinds": [GIFT_WRAP], "#p": [P], "#d": ["x", "y"], "#r": [R], "authors": [AUTHORS[1]], "since": 3,
        "until_seq": 9, "limit": 0, "live": True, "include_compacted": True,
    }  # fmt: skip
    query = RevisionQuery(P, frozenset({GIFT_WRAP}), frozenset({AUTHORS[1]}), frozenset({"x", "y"}), frozenset({R}))
    assert parse(raw) == ChangesRequest(Mode.TAIL, query, 3, 9, 0, True, True)


@pytest.mark.parametrize("more", [{}, {"mode": "tail"}])
def test_the_recipient_is_enough_and_there_is_no_mode(more):
    assert parse({"#p": [P], **more}) == ChangesRequest(Mode.TAIL, RevisionQuery(P))


def test_a_revision_feed_has_no_bootstrap_and_says_what_has():
    with pytest.raises(Invalid, match="NEG-OPEN"):
        parse({"#p": [P], "mode": "bootstrap"})


@pytest.mark.parametrize(
    "raw",
    [
        {"kinds": [GIFT_WRAP]},
        {"kinds": [GIFT_WRAP], "authors": [AUTHORS[0]]},
        {"#r": [R]},
        {"#p": []},
        {"#p": [P, P]},
        {"#p": RECIPIENTS},
        {"#p": P},
        {"#p": None},
        {"#p": [1]},
        {"#p": {P: 1}},
    ],
    ids=lambda raw: ascii(raw)[:40],
)
def test_exactly_one_recipient_is_asked_for(raw):
    with pytest.raises(Invalid, match=ONE_RECIPIENT):
        parse(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"kinds": [1]},
        {"kinds": [GIFT_WRAP, NOTE]},
        {"kinds": GIFT_WRAP},
        {"kinds": ["1059"]},
        {"kinds": [True]},
        {"authors": AUTHORS[0]},
        {"authors": ["x"]},
        {"authors": [AUTHORS[0].upper()]},
        {"#d": "x"},
        {"#d": [1]},
        {"#d": ["1", "2", "3", "4"]},
        {"#r": R},
        {"#r": [None]},
        {"#o": ["put"]},
        {"#c": ["notes"]},
        {"#t": ["x"]},
        {"ids": []},
        {"until": 5},
        {"since": -1},
        {"since": "1"},
        {"live": 1},
        {"limit": 1.0},
        {"mode": "live"},
    ],
    ids=lambda raw: ascii(raw)[:40],
)
def test_a_request_that_is_not_well_formed_is_refused(raw):
    with pytest.raises(Invalid):
        parse({"#p": [P], **raw})


def test_a_request_about_neither_is_one_for_snapshots_as_it_always_was():
    assert parse({"authors": [AUTHORS[0]]}).query == SnapshotQuery(AUTHORS[0])
    with pytest.raises(Invalid, match="exactly one author"):
        parse({})


def test_an_empty_condition_asks_for_nothing_and_not_for_everything():
    for key in ("kinds", "authors", "#d", "#r"):
        query = parse({"#p": [P], key: []}).query
        assert changes.impossible(query)
        assert not changes.matches(query, operation(revision(p=P)))
    assert not changes.impossible(parse({"#p": [P]}).query)


def test_the_size_of_a_query_counts_its_values():
    assert changes.size(parse({"#p": [P]}).query) == FILTER_ROOM
    assert changes.size(parse({"#p": [P], "#d": ["a", "b"], "#r": [R], "kinds": [GIFT_WRAP]}).query) == FILTER_ROOM + 4


# --- what is carried -----------------------------------------------------------------------------------------------


def removal_of(one: Operation) -> Removal:
    facts = one.revision
    return Removal(
        one.event.id,
        one.event.created_at,
        one.event.pubkey,
        "why",
        7,
        facts.recipient,
        facts.coordinate,
        facts.revision,
    )


@given(revision_queries, revisions())
def test_a_feed_carries_what_meets_every_condition_and_tells_of_its_removal(query, made):
    one = operation(made)
    assert changes.matches(query, one) == carries_revision(query, one)
    assert changes.matches(query, removal_of(one)) == carries_revision(query, one)


@given(revision_queries, st.one_of(snapshots, gift_wraps()))
def test_a_feed_of_revisions_carries_nothing_else(query, made):
    assert not changes.matches(query, operation(made))


@given(revisions())
def test_a_feed_of_snapshots_neither_carries_revisions_nor_tells_of_their_removal(made):
    for author in (made.pubkey, operation(made).revision.recipient):
        query = SnapshotQuery(author)
        assert not changes.matches(query, operation(made))
        assert not changes.matches(query, removal_of(operation(made)))


def test_the_removal_of_what_is_no_revision_is_told_to_nobody():
    plain = event(1)
    removal = Removal(plain.id, plain.created_at, plain.pubkey, "superseded")
    for query in (RevisionQuery(plain.pubkey), SnapshotQuery(plain.pubkey)):
        assert not changes.matches(query, removal)


@pytest.mark.parametrize(
    "raw, about",
    [
        ({}, False),
        ({"authors": [P]}, False),
        ({"kinds": [NOTE, OTHER_NOTE]}, False),
        ({"kinds": "1059"}, False),
        ({"#d": ["x"]}, False),
        ({"kinds": [GIFT_WRAP]}, True),
        ({"#p": None}, True),
        ({"#r": []}, True),
    ],
    ids=str,
)
def test_a_filter_is_about_revisions_when_it_names_a_recipient_a_revision_or_the_kind(raw, about):
    assert changes.for_revisions(raw) is about


def test_the_key_of_a_wrap_is_its_author():
    made = operation(revision(author=WRAP_KEYS[1]))
    assert changes.matches(RevisionQuery(P, authors=frozenset({WRAP_KEYS[1]})), made)
    assert not changes.matches(RevisionQuery(P, authors=frozenset({P})), made)
