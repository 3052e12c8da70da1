"""Revisions that are only heard of: they stand between what is here, and can do nothing else."""

import pytest
from histories import operation
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import MTIME, RECIPIENTS, REVISIONS, revision
from stores import Opened, Stores

from anabranch.core import revisions
from anabranch.core.changes import RevisionQuery
from anabranch.core.operation import Family, document_key
from anabranch.core.retention import DAY, Policy, ReplayWindow
from anabranch.core.revisions import Ancestor, Name
from anabranch.core.token import Position
from anabranch.store import compaction, sql_told
from anabranch.store.compaction import Report

A, B, C, D, E, F = REVISIONS
P = RECIPIENTS[0]
DOCUMENT = document_key(Family.REVISION, P, 0, "A")


def heard(r: str, *parents: str, d: str = "A") -> Ancestor:
    return Ancestor(P, d, r, tuple(parents))


def heads_of(opened: Opened) -> list[str]:
    return opened.reader.current_revisions(RevisionQuery(P), 1_000, 0).ids.hex(sep=" ", bytes_per_sep=32).split()


def compact(opened: Opened) -> int:
    report, now = Report(), MTIME // 1000 + 10 * DAY
    for step in compaction.steps(opened.reader, Policy(payload_days=0), ReplayWindow(), now):
        compaction.carry_out(step, opened.writer, report)
    return report.compacted_revisions


@pytest.mark.parametrize("first", ["heard of", "stored"])
def test_what_stands_between_keeps_an_ancestor_from_being_a_head(opened: Opened, first: str):
    opened.append(revision(A))
    if first == "stored":
        opened.append(revision(C, [B]))
        assert heads_of(opened) == sorted([A, C])
    opened.writer.tell([heard(B, A)])
    if first == "heard of":
        assert heads_of(opened) == [A]  # nothing here descends from it: it says nothing
        opened.append(revision(C, [B]))
    assert heads_of(opened) == [C]


def test_a_chain_of_them_reaches_as_far_as_it_goes(opened: Opened):
    opened.append(revision(A), revision(F), revision(E, [D]))
    for told in (heard(B, A), heard(C, B), heard(D, C)):
        opened.writer.tell([told])
    assert heads_of(opened) == sorted([E, F])


def test_what_comes_itself_takes_the_place_of_what_was_said_of_it(opened: Opened):
    opened.append(revision(A), revision(D), revision(C, [B]))
    opened.writer.tell([heard(B, A, D)])  # a lie: it never named D
    assert heads_of(opened) == [C]
    opened.append(revision(B, [A]))
    assert heads_of(opened) == sorted([C, D])
    opened.writer.tell([heard(B, A, D)])
    assert heads_of(opened) == sorted([C, D])


def test_of_what_is_here_nothing_is_believed(opened: Opened):
    opened.append(revision(A), revision(D), revision(B, [A]), revision(C, [B]))
    opened.writer.tell([heard(B, A, D), heard(C, D)])
    assert heads_of(opened) == sorted([C, D])


def test_what_was_said_first_stands(opened: Opened):
    opened.append(revision(A), revision(D), revision(C, [B]))
    opened.writer.tell([heard(B, A)])
    opened.writer.tell([heard(B, A, D)])
    assert heads_of(opened) == sorted([C, D])


def test_of_what_is_here_nothing_is_believed_not_even_once_it_is_removed(opened: Opened):
    opened.append(revision(A), revision(B, [A]), revision(D))
    opened.writer.tell([heard(A, D)])
    assert opened.reader.told(DOCUMENT) == []
    opened.writer.remove([revision(A).id])
    opened.writer.tell([heard(A, D)])
    assert heads_of(opened) == sorted([B, D])


def test_no_payload_goes_because_of_hearsay(opened: Opened):
    opened.append(revision(A), revision(D, m=MTIME - 1), revision(E, [D]), revision(C, [B]))
    opened.writer.tell([heard(B, A)])
    assert compact(opened) == 1  # D, which a stored revision names
    opened.writer.compact([Position(1)])  # not by a plan of others either
    assert opened.reader.state(revision(A).id).name == "RETAINED"


def test_what_is_only_heard_of_is_known_under_no_id_and_in_no_feed(opened: Opened):
    opened.append(revision(C, [B]))
    before = opened.reader.changes(RevisionQuery(P), Position(0), None, 100, True, 0, 1 << 20)
    opened.writer.tell([heard(B, A)])
    assert opened.reader.changes(RevisionQuery(P), Position(0), None, 100, True, 0, 1 << 20) == before
    assert opened.append(revision(B, [A]))[0].position == 2


def test_what_is_compacted_or_heard_of_is_told_by_its_names(opened: Opened):
    opened.append(revision(A, m=MTIME - 2), revision(B, [A], m=MTIME - 1), revision(C, [B]), revision(A, d="B"))
    assert compact(opened) == 2
    opened.writer.tell([heard(E, D)])
    told = opened.reader.ancestors
    assert told(RevisionQuery(P, revisions=frozenset({A, B, C, D, E}))) == [heard(A), heard(B, A), heard(E, D)]
    assert told(RevisionQuery(P, revisions=frozenset({B}), coordinates=frozenset({"B"}))) == []
    assert told(RevisionQuery(RECIPIENTS[1], revisions=frozenset({A, B}))) == []
    assert told(RevisionQuery(P, revisions=frozenset({"short", B}))) == [heard(B, A), heard(A)]


@pytest.mark.parametrize(("names", "told"), [(1_000, [E, C, D, B, A]), (2, [E, C, D]), (3, [E, C, D, B]), (0, [E])])
def test_what_they_stood_on_is_told_too_and_not_without_end(opened: Opened, monkeypatch, names: int, told: list[str]):
    opened.writer.tell([heard(A), heard(B, A), heard(C, B), heard(D, B), heard(E, D, C), heard(B, F, d="B")])
    monkeypatch.setattr(sql_told, "NAMES_FOLLOWED", names)
    asked = RevisionQuery(P, revisions=frozenset({E}))
    assert [(one.coordinate, one.revision) for one in opened.reader.ancestors(asked)] == [("A", one) for one in told]


def test_missing_parents_are_those_that_are_here_in_no_form(opened: Opened):
    opened.append(revision(C, [A, B]), revision(D, [C]), revision(A))
    opened.writer.remove([revision(A).id])
    assert opened.reader.missing_parents(Position(0)) == (2, [Name(P, "A", B)])
    assert opened.reader.missing_parents(Position(2)) == (2, [])
    opened.writer.tell([heard(B, E)])
    also = [Name(P, "A", E), Name(P, "A", B), Name(P, "A", A)]
    assert opened.reader.missing_parents(Position(0), also) == (2, [Name(P, "A", E)])
    assert opened.reader.missing_parents(Position(0)) == (2, [Name(P, "A", E)])  # after a restart nobody remembers it


@st.composite
def lineages(draw: st.DrawFn) -> dict[str, list[str]]:
    """A graph without cycles: each revision stands on some before it."""
    return {one: [r for r in REVISIONS[:at] if draw(st.booleans())] for at, one in enumerate(REVISIONS)}


@settings(max_examples=60)
@given(data=st.data())
def test_heads_are_those_of_the_rule_whatever_is_stored_heard_of_and_removed_in_any_order(stores: Stores, data):
    graph = data.draw(lineages())
    told: dict[str, Ancestor] = {}
    stored: set[str] = set()
    removed: set[str] = set()

    def tell(opened: Opened, said: Ancestor) -> None:
        """What was told first stands; of what is here, in any form, nothing is believed."""
        opened.writer.tell([said])
        if said.revision not in stored | removed:
            told.setdefault(said.revision, said)

    with stores.open() as opened:
        for _ in range(data.draw(st.integers(1, 14))):
            one = data.draw(st.sampled_from(REVISIONS))
            wrapped = revision(one, graph[one])
            match data.draw(st.sampled_from(["store", "tell", "lie", "remove"])):
                case "store" if one not in removed:
                    opened.append(wrapped)
                    stored.add(one)
                case "remove" if one in stored:
                    opened.writer.remove([wrapped.id])
                    stored.discard(one)
                    removed.add(one)
                case "tell":
                    tell(opened, heard(one, *graph[one]))
                case "lie":
                    tell(opened, heard(one, *(r for r in REVISIONS if r != one and data.draw(st.booleans()))))
            facts = [operation(revision(r, graph[r])).revision for r in sorted(stored)]
            gone = [operation(revision(r, graph[r])).revision for r in sorted(removed)]
            assert heads_of(opened) == [h.revision for h in revisions.heads(facts, [*gone, *told.values()])]
            assert opened.reader.named(DOCUMENT) == revisions.named(facts, [*gone, *told.values()])
