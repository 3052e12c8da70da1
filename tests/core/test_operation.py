"""Operations: one place where a kind becomes a family."""

import pytest
from histories import AUTHORS, event, snapshot
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.nostr import Invalid
from anabranch.core.operation import Action, Family, KindPolicy, Standing, State, Unsupported, classify, document_key
from anabranch.core.snapshots import NOTE


def _classify(of, **policy):
    return classify(of, b"raw", KindPolicy(**policy))


def test_a_snapshot_is_a_version_of_its_authors_document():
    put = _classify(snapshot("A", {"x": 1}, collection="notes", expires_at=5))
    assert (put.family, put.action, put.coordinate, put.collection) == (Family.SNAPSHOT, Action.PUT, "A", "notes")
    assert (put.clock, put.expires_at, put.raw) == ({"x": 1}, 5, b"raw")
    assert _classify(snapshot(deletes=True)).action is Action.DELETE


def test_the_collection_and_the_kind_are_no_part_of_a_documents_identity():
    policy = {"snapshot": frozenset({NOTE, 42_062})}
    same = [
        _classify(snapshot("A"), **policy),
        _classify(snapshot("A", collection="c"), **policy),
        _classify(snapshot("A", {"z": 9}, deletes=True, kind=42_062), **policy),
    ]
    assert len({one.document for one in same}) == 1
    assert _classify(snapshot("A", author=AUTHORS[1])).document != same[0].document
    assert _classify(snapshot("a")).document != same[0].document


@pytest.mark.parametrize("kind", [0, 3, 10_000, 19_999])
def test_a_replaceable_event_has_one_document_for_its_kind(kind):
    first, other = _classify(event(kind)), _classify(event(kind, [["d", "ignored"]], "x"))
    assert first.document == other.document != _classify(event(10_002)).document
    assert first.document != _classify(event(kind, author=AUTHORS[1])).document


@pytest.mark.parametrize("kind", [30_000, 39_999])
def test_an_addressable_event_has_a_document_for_each_d(kind):
    named, other = _classify(event(kind, [["d", "x"]])), _classify(event(kind, [["d", "y"]]))
    bare = {_classify(event(kind, tags)).document for tags in ([], [["d"]], [["d", ""]])}
    assert len({named.document, other.document, *bare}) == 3
    assert _classify(event(kind, [["d", "x"], ["d", "y"]])).document == named.document


@pytest.mark.parametrize("kind", [1, 2, 4, 5, 7, 9_999, 20_000, 29_999, 50_000, 65_535])
def test_every_other_event_is_a_version_of_nothing(kind):
    found = _classify(event(kind, [["d", "x"]]))
    assert found.document is None
    assert found.ephemeral == (20_000 <= kind < 30_000)


def test_reserved_kinds_of_the_sync_range_are_refused_unless_configured():
    reserved = event(40_001, [["d", "A"], ["o", "put"], ["vc", "x", "1"]])
    with pytest.raises(Unsupported, match=r"^non-snapshot event kind requires explicit classification$"):
        _classify(reserved)
    assert _classify(reserved, snapshot=frozenset({40_001})).family is Family.SNAPSHOT
    assert _classify(reserved, companion=frozenset({40_001})).standing is Standing.COMPANION


@pytest.mark.parametrize("standing", ["companion", "pass_through"])
def test_a_kind_of_the_sync_range_carries_the_sync_tags_whatever_it_is_stored_as(standing):
    with pytest.raises(Invalid):
        _classify(event(40_001, [["d", "A"]]), **{standing: frozenset({40_001})})


def test_a_sync_only_node_takes_only_what_it_was_told_of():
    policy = {"sync_only": True, "companion": frozenset({1}), "pass_through": frozenset({7})}
    assert _classify(event(1), **policy).standing is Standing.COMPANION
    assert _classify(event(7), **policy).standing is Standing.PASS_THROUGH
    assert _classify(snapshot(), **policy).family is Family.SNAPSHOT
    with pytest.raises(Unsupported):
        _classify(event(2), **policy)


def test_a_snapshot_with_malformed_metadata_is_invalid_and_not_taken_as_plain():
    with pytest.raises(Invalid):
        _classify(event(NOTE))


names = st.tuples(st.sampled_from(list(Family)), st.sampled_from(AUTHORS), st.integers(0, 70_000), st.text(max_size=4))


@given(names, names)
def test_documents_have_the_same_key_only_when_they_are_the_same(a, b):
    assert (document_key(*a) == document_key(*b)) == (a == b)
    assert len(document_key(*a)) == 16


def test_the_stored_numbers_never_change():
    assert [int(one) for one in (Family.PLAIN, Family.SNAPSHOT)] == [0, 1]
    assert [int(one) for one in (State.RETAINED, State.COMPACTED, State.REMOVED)] == [0, 1, 2]
    assert [int(one) for one in (Action.PUT, Action.DELETE)] == [0, 1]
