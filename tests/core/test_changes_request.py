"""The changes feed's filter: one author, strict types, and a rule for what is carried."""

import pytest
from histories import AUTHORS, COLLECTIONS, COORDINATES, OTHER_NOTE, event, operation, snapshots
from hypothesis import given
from hypothesis import strategies as st
from model import carries

from anabranch.core import changes
from anabranch.core.changes import ChangesRequest, Mode, SnapshotQuery
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Action
from anabranch.core.snapshots import NOTE
from anabranch.core.token import Log, ProgressToken, gap, token_gap

A = AUTHORS[0]


def parse(raw):
    return changes.parse(raw, values_max=3)


def test_every_field_is_read():
    raw = {
        "mode": "tail", "authors": [A], "kinds": [NOTE], "#d": ["x"], "#o": ["del"], "#c": ["c"], "since": 3,
        "until_seq": 9, "limit": 0, "live": True, "include_compacted": True,
    }  # fmt: skip
    query = SnapshotQuery(A, frozenset({NOTE}), frozenset({"x"}), frozenset({Action.DELETE}), frozenset({"c"}))
    assert parse(raw) == ChangesRequest(Mode.TAIL, query, 3, 9, 0, True, True)


def test_a_missing_mode_is_tail_from_the_start():
    assert parse({"authors": [A]}) == ChangesRequest(Mode.TAIL, SnapshotQuery(A))


@pytest.mark.parametrize("raw", [{}, {"authors": []}, {"authors": [A, A]}, {"authors": A}, {"authors": None}])
@pytest.mark.parametrize("mode", ["tail", "bootstrap"])
def test_exactly_one_author_is_asked_for_in_both_modes(raw, mode):
    with pytest.raises(Invalid, match=r"^snapshot CHANGES currently requires exactly one author$"):
        parse({**raw, "mode": mode})


WRONG = [
    {"authors": [1]}, {"authors": [A.upper()]}, {"authors": [A[:-1]]}, {"mode": "live"}, {"mode": None}, {"mode": []},
    {"mode": {}}, {"mode": 1}, {"since": -1}, {"since": "1"}, {"since": True}, {"since": 1.0}, {"since": None},
    {"since": 2**53}, {"until_seq": -1}, {"until_seq": []}, {"limit": -1}, {"limit": "x"},
    {"live": 1}, {"live": "true"},
    {"live": None}, {"include_compacted": 0}, {"kinds": [1]}, {"kinds": [50_000]}, {"kinds": NOTE},
    {"kinds": ["42061"]},
    {"#d": "x"}, {"#d": [1]}, {"#o": "put"}, {"#o": [0]}, {"#c": {}}, {"#d": ["1", "2", "3", "4"]}, {"#t": ["x"]},
    {"until": 5}, {"ids": []}, {"": 1},
]  # fmt: skip


@pytest.mark.parametrize("raw", WRONG, ids=lambda raw: ascii(raw)[:40])
def test_a_request_that_is_not_well_formed_is_refused(raw):
    with pytest.raises(Invalid):
        parse({"authors": [A], **raw})


def test_an_unknown_action_asks_for_nothing_and_not_for_everything():
    assert parse({"authors": [A], "#o": ["patch"]}).query.actions == frozenset()


queries = st.builds(
    SnapshotQuery,
    st.sampled_from(AUTHORS[:2]),
    st.one_of(st.none(), st.frozensets(st.sampled_from([NOTE, OTHER_NOTE]))),
    st.one_of(st.none(), st.frozensets(st.sampled_from(COORDINATES), max_size=2)),
    st.one_of(st.none(), st.frozensets(st.sampled_from(list(Action)))),
    st.one_of(st.none(), st.frozensets(st.sampled_from(COLLECTIONS))),
)


@given(queries, snapshots)
def test_a_feed_carries_what_meets_every_condition(query, snapshot):
    assert changes.matches(query, operation(snapshot)) == carries(query, operation(snapshot))


def test_a_feed_carries_snapshots_only():
    assert not changes.matches(SnapshotQuery(A), operation(event(30_023, [["d", "A"]])))


def test_the_words_of_a_gap_tell_the_client_where_to_begin():
    log = Log("s", "e", 5, 9)
    assert changes.gap_text(gap(log, 0), log) == "checkpoint too old: min_seq is 5"
    assert changes.gap_text(gap(log, 10), log) == "checkpoint too new: max_seq is 9"
    other_epoch, other_stream = ProgressToken("s", "f", 6), ProgressToken("t", "e", 6)
    assert changes.gap_text(token_gap(log, other_epoch), log) == "checkpoint of another epoch: epoch is e"
    assert changes.gap_text(token_gap(log, other_stream), log) == "checkpoint of another stream: stream_id is s"


TOKEN = {"streamId": "s", "epoch": "e", "position": "12", "messageCid": ""}


@pytest.mark.parametrize(
    "mode", [{"mode": "log"}, {"authors": [A]}, {"#p": [A]}], ids=["log", "snapshots", "revisions"]
)
def test_a_token_stands_in_the_place_of_since(mode):
    request = parse({**mode, "token": TOKEN})
    assert (request.since, request.token) == (12, ProgressToken("s", "e", 12))


@pytest.mark.parametrize(
    ("token", "rest"),
    [
        (TOKEN, {"since": 12}),
        (TOKEN, {"mode": "bootstrap"}),
        ("12", {}),
        ({**TOKEN, "position": 12}, {}),
        ({**TOKEN, "position": "-1"}, {}),
        ({**TOKEN, "position": "9" * 20}, {}),
        ({"position": "12"}, {}),
    ],
)
def test_a_token_that_is_none_or_where_none_belongs_is_refused(token, rest):
    with pytest.raises(Invalid):
        parse({"authors": [A], "token": token, **rest})
