"""Revisions in a store: heads in every order of arrival, feeds with removals in their places, sets to reconcile."""

import pytest
from histories import AUTHORS, event, filters, groupings, operation, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import (
    DOCUMENTS,
    MTIME,
    MTIMES,
    RECIPIENTS,
    REVISIONS,
    WRAP_KEYS,
    revision,
    revision_histories,
    revision_queries,
    revisions,
    times,
    vanishing,
)
from revision_model import DELETED, VANISHED, RevisionModel, by_name, recipient_of
from stores import NOW, Opened, Stores

from anabranch.core import changes, nostr
from anabranch.core.changes import RevisionQuery, SnapshotQuery
from anabranch.core.filter import Filter
from anabranch.core.operation import Family, State
from anabranch.core.revisions import GIFT_WRAP
from anabranch.store.contract import Duplicate, ItemRows, Refused, Stored, TooMany

A, B, C, D = REVISIONS[:4]
P = RECIPIENTS[0]
MINE = RevisionQuery(P)


def pairs(rows: ItemRows) -> list[tuple[int, str]]:
    ids = [rows.ids[at : at + 32].hex() for at in range(0, len(rows.ids), 32)]
    return list(zip(rows.timestamps, ids, strict=True))


def heads_of(opened: Opened, query: RevisionQuery = MINE, now: int = 0) -> list[str]:
    return [id for _, id in pairs(opened.reader.current_revisions(query, 1_000, now))]


def removing(opened: Opened, model: RevisionModel, data) -> None:
    """Whatever takes payloads away, in any order: the operator, time, compaction."""
    for _ in range(data.draw(st.integers(0, 3))):
        match data.draw(st.sampled_from(["remove", "expire", "compact"])):
            case "remove":
                ids = [r.id for r in model.records if data.draw(st.sampled_from([False, False, True]))]
                assert opened.writer.remove([*ids, "99" * 32]) == model.remove(ids)
            case "expire":
                now = data.draw(times)
                assert opened.writer.expire(now, 1_000) == model.expire(now)
            case _:
                cutoff = data.draw(st.sampled_from(MTIMES))
                rows = opened.reader.old_revisions(0, cutoff, 1_000)
                assert [row[2] for row in rows] == sorted(row[2] for row in rows)
                count, freed = opened.writer.compact([position for position, _, _ in rows])
                gone = model.compact_revisions(cutoff)
                assert {row[0] for row in rows} == {record.position for record in gone}
                assert (count, freed) == (len(gone), sum(len(record.operation.raw) for record in gone))


def filled(opened: Opened, data) -> tuple[RevisionModel, list]:
    """A store with a random history, held equal to the model all the way."""
    history = data.draw(revision_histories())
    model = RevisionModel()
    for group in data.draw(groupings(history)):
        assert opened.append(*group) == model.append(map(operation, group))
        told = [removal for removal in opened.writer.take_removals() if removal.position is not None]
        new = model.told[len(model.told) - len(told) :]
        assert [(t.position, t.id, t.reason) for t in told] == [(t.position, t.record.id, t.reason) for t in new]
        if data.draw(st.sampled_from([False, False, True])):
            removing(opened, model, data)
            opened.writer.take_removals()
    removing(opened, model, data)
    return model, history


# --- heads ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_heads_do_not_depend_on_the_order_or_the_grouping_of_arrival(stores: Stores, data):
    """The same set of revisions, one outer event each, however it comes: the heads of the graph."""
    found = data.draw(st.lists(revisions(), max_size=14))
    distinct = list({(operation(e).document, operation(e).revision.revision): e for e in found}.values())
    model = RevisionModel()
    model.append(map(operation, distinct))
    shuffled = data.draw(st.permutations(distinct + data.draw(st.lists(st.sampled_from(distinct or [revision()])))))
    shuffled = [e for e in shuffled if e in distinct]
    with stores.open(*data.draw(groupings(shuffled))) as opened:
        assert opened.heads() == model.heads()
        for recipient in RECIPIENTS:
            query = RevisionQuery(recipient)
            rows = opened.reader.current_revisions(query, 100, 0)
            assert pairs(rows) == model.current_revisions(query, 0)


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_happens_the_store_answers_as_the_model_does(stores: Stores, data):
    """Outcomes, facts, heads, sets, pages, fetches: one random history, and every question asked of it."""
    with stores.open() as opened:
        model, history = filled(opened, data)
        assert opened.heads() == model.heads()
        assert opened.reader.log().tip == model.tip
        assert {(f.position, f.id, f.state) for f in opened.facts()} == {
            (r.position, r.id, r.state) for r in model.records
        }
        removals_are_told_in_their_places(opened, model)
        assert opened.reader.oldest_mtime() == model.oldest_mtime()
        current_revisions_are_the_heads(opened, model, data)
        pages_laid_end_to_end_are_the_whole_feed(opened, model, data)
        sets_are_what_a_query_gets(opened, model, history, data)
        the_compacted_are_told(opened, model, data)
        assert opened.reader.damage() == []
        opened.reopen()
        assert opened.heads() == model.heads()
        assert opened.writer.take_removals() == []


def removals_are_told_in_their_places(opened: Opened, model: RevisionModel) -> None:
    removals = opened.reader.removals(0, model.tip, 1_000)
    assert [(one.position, one.target, one.id, one.reason, one.recipient) for one in removals] == [
        (told.position, told.record.position, told.record.id, told.reason, recipient_of(told.record))
        for told in model.told
    ]
    assert opened.reader.removals(0, model.tip, 1) == removals[:1]


def current_revisions_are_the_heads(opened: Opened, model: RevisionModel, data) -> None:
    for _ in range(3):
        query, now = data.draw(revision_queries), data.draw(times)
        rows = opened.reader.current_revisions(query, 100, now)
        assert (pairs(rows), rows.tip) == (model.current_revisions(query, now), model.tip)


def pages_laid_end_to_end_are_the_whole_feed(opened: Opened, model: RevisionModel, data) -> None:
    """Every query, page size, `until`, with and without compacted entries; removals in their places."""
    for _ in range(2):
        query = data.draw(st.one_of(revision_queries, st.builds(SnapshotQuery, st.sampled_from(AUTHORS))))
        start, until = data.draw(st.integers(0, 5)), data.draw(st.one_of(st.none(), st.integers(0, model.tip + 3)))
        size, compacted, now = data.draw(st.integers(1, 5)), data.draw(st.booleans()), data.draw(times)
        bytes_max = data.draw(st.sampled_from([None, None, 1, 600]))
        end = max(start, model.tip if until is None else min(until, model.tip))
        found, since = [], start
        while True:
            page = opened.reader.changes(query, since, until, size, compacted, now, bytes_max)
            assert len(page.entries) <= size
            here = [(e.position, e.id, e.state, e.reason) for e in page.entries]
            assert here == model.feed(query, since, page.complete_to, compacted, now)
            assert all((e.raw is not None) == (e.state is State.RETAINED) for e in page.entries)
            assert isinstance(query, SnapshotQuery) or all(e.revision is not None for e in page.entries)
            found += here
            assert since < page.complete_to <= end or page.complete_to == since == end
            if page.complete_to == end:
                break
            since = page.complete_to
        assert found == model.feed(query, start, until, compacted, now)


def sets_are_what_a_query_gets(opened: Opened, model: RevisionModel, history: list, data) -> None:
    for _ in range(2):
        asked, now = data.draw(filters(history)), data.draw(times)
        expected = model.items(asked, now)
        rows = opened.reader.items(asked, 500, now)
        assert sorted(pairs(rows)) == expected and rows.tip == model.tip
        selected = opened.ids(opened.reader.select([asked], 500, now).positions)
        assert selected == model.select([asked], 500, now)
        assert sorted(id for _, id in expected) == sorted(selected)
        assert len(opened.reader.items(asked, len(expected), now).timestamps) == len(expected)
        if expected:
            with pytest.raises(TooMany):
                opened.reader.items(asked, len(expected) - 1, now)


def the_compacted_are_told(opened: Opened, model: RevisionModel, data) -> None:
    opened.writer.compact([row[0] for row in opened.reader.old_revisions(0, 2**53, 1_000)])
    model.compact_revisions(2**53)
    wanted = data.draw(st.frozensets(st.sampled_from([*REVISIONS, "00" * 32, "no revision"])))
    for recipients in (frozenset(RECIPIENTS[:1]), frozenset(RECIPIENTS[1:]), frozenset()):
        found = opened.reader.compacted_revisions([by_name(wanted, recipients)])
        assert found == model.compacted_revisions(wanted, recipients)


@settings(max_examples=30)
@given(data=st.data())
def test_groups_are_decided_as_if_operations_had_come_one_by_one(stores: Stores, data):
    history = data.draw(revision_histories(max_size=14))
    with stores.open() as group, stores.open() as singles:
        assert group.append(*history) == [singles.append(e)[0] for e in history]
        assert group.facts() == singles.facts()
        for recipient in RECIPIENTS:
            query = RevisionQuery(recipient)
            assert group.reader.current_revisions(query, 100, 0) == singles.reader.current_revisions(query, 100, 0)
            assert (
                group.reader.changes(query, 0, None, 100).entries == singles.reader.changes(query, 0, None, 100).entries
            )
        told = [removal for removal in group.writer.take_removals() if removal.position is not None]
        assert told == [removal for removal in singles.writer.take_removals() if removal.position is not None]


def test_a_parent_that_comes_after_its_child_is_no_head_in_whatever_groups(stores: Stores):
    """The reference makes it a false head."""
    child, parent, root = revision(C, [B]), revision(B, [A]), revision(A)
    for groups in (
        [[child], [root], [parent]],
        [[child, root, parent]],
        [[child, root], [parent]],
        [[root, parent, child]],
    ):
        with stores.open(*groups) as opened:
            assert heads_of(opened) == [C]
            assert opened.heads() == {child.id}
            assert [(f.id, f.revision.parents) for f in opened.facts() if f.head] == [(child.id, (B,))]


def test_a_fork_is_a_conflict_a_merge_ends_it_and_a_tombstone_is_a_head_like_any_other(opened: Opened):
    opened.append(revision(A), revision(B, [A], m=MTIME + 1), revision(C, [A], m=MTIME))
    assert heads_of(opened) == [C, B]
    assert opened.reader.statistics().conflicts == 1
    opened.append(revision(D, [B, C], deletes=True))
    assert heads_of(opened) == [D]
    statistics = opened.reader.statistics()
    assert (statistics.documents, statistics.conflicts, statistics.tombstones) == (1, 0, 1)


def test_a_revision_published_again_is_a_duplicate_whatever_wraps_it(opened: Opened):
    first, again = revision(A), revision(A, author=WRAP_KEYS[1], created_at=1_009, content="wrapped anew")
    assert opened.append(first, again) == [Stored(1), Duplicate(State.RETAINED)]
    assert opened.append(again, first) == [Duplicate(State.RETAINED)] * 2
    assert opened.append(revision(A, d="B"), revision(A, p=RECIPIENTS[1])) == [Stored(2), Stored(3)]
    assert opened.reader.state(again.id) is None
    assert opened.facts()[0].id == first.id


def test_the_parents_that_came_first_are_those_of_the_revision(opened: Opened):
    """A second wrap of the same revision that names other parents changes nothing."""
    opened.append(revision(A), revision(B), revision(C, [A]))
    opened.append(revision(C, [B], author=WRAP_KEYS[1]))
    assert heads_of(opened) == [B, C]


def test_the_same_revision_of_two_documents_is_superseded_in_one_only(opened: Opened):
    opened.append(revision(A, d="A"), revision(A, d="B"), revision(B, [A], d="A"))
    assert heads_of(opened, RevisionQuery(P, coordinates=frozenset("A"))) == [B]
    assert heads_of(opened, RevisionQuery(P, coordinates=frozenset("B"))) == [A]


def test_the_facts_are_those_of_the_revision(opened: Opened):
    made = revision(B, [A, C], "\0x", m=2**53 - 1, deletes=True, author=WRAP_KEYS[1], type="hint")
    opened.append(event(1), made, received_at=5)
    fact = opened.fact(made)
    assert (fact.position, fact.family, fact.head, fact.state) == (2, Family.REVISION, True, State.RETAINED)
    assert (fact.revision.recipient, fact.revision.coordinate, fact.revision.revision) == (P, "\0x", B)
    assert (fact.revision.parents, fact.revision.mtime, fact.revision.deletes) == ((A, C), 2**53 - 1, True)
    assert (fact.raw, fact.author, fact.clock) == (operation(made).raw, WRAP_KEYS[1], None)


def test_a_document_takes_a_thousand_concurrent_revisions_then_only_merges(opened: Opened):
    many = [revision(f"{n:064x}") for n in range(1_000)]
    assert opened.append(*many) == [Stored(n) for n in range(1, 1_001)]
    (crowded,) = opened.append(revision("ff" * 32))
    assert isinstance(crowded, Refused) and crowded.code == "restricted"
    assert opened.append(revision("ff" * 32, [f"{n:064x}" for n in range(1_000)])) == [Stored(1_001)]
    assert heads_of(opened) == ["ff" * 32]


@pytest.mark.parametrize("how", ["deleted", "vanished"])
def test_a_document_is_not_crowded_by_what_was_removed(opened: Opened, how: str):
    """Anybody may have wrapped a thousand for somebody else; who removes them can write again."""
    many = [revision(f"{n:064x}") for n in range(1_000)]
    opened.append(*many)
    opened.append(deletion(*(one.id for one in many), author=P) if how == "deleted" else vanishing(P, 1_000))
    assert heads_of(opened) == []
    (outcome,) = opened.append(revision("ff" * 32, created_at=1_001))
    assert isinstance(outcome, Stored), outcome


def test_a_late_parent_is_taken_however_crowded_the_document_is(opened: Opened):
    opened.append(*(revision(f"{n:064x}", [A]) for n in range(1_000)))
    assert opened.append(revision(A)) == [Stored(1_001)]
    assert len(heads_of(opened)) == 1_000 and A not in heads_of(opened)


# --- the feed ------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(data=st.data())
def test_the_feed_carries_what_the_rule_for_live_delivery_carries(stores: Stores, data):
    """`changes.matches` and the store's pages, for operations and for removals as they are told."""
    with stores.open() as opened:
        live: list[tuple[int, object]] = []
        history = data.draw(revision_histories())
        for group in data.draw(groupings(history)):
            for made, outcome in zip(group, opened.append(*group), strict=True):
                if isinstance(outcome, Stored):
                    live.append((outcome.position, operation(made)))
            live += [(removal.position, removal) for removal in opened.writer.take_removals() if removal.position]
        opened.writer.expire(NOW, 100)
        live += [(removal.position, removal) for removal in opened.writer.take_removals() if removal.position]
        query = data.draw(revision_queries)
        carried = {position for position, change in live if changes.matches(query, change)}
        entries = opened.reader.changes(query, 0, None, 1_000).entries
        assert {entry.position for entry in entries} <= carried
        gone = carried - {entry.position for entry in entries}
        assert gone <= {f.position for f in opened.facts() if f.state is State.REMOVED}


def test_a_removal_stands_in_the_log_where_it_happened(opened: Opened):
    one, two = revision(A), revision(B, d="B")
    opened.append(one, two, event(1))
    opened.writer.remove([one.id])
    opened.append(revision(C, d="C"))
    entries = opened.reader.changes(MINE, 0, None, 10).entries
    assert [(e.position, e.id, e.reason) for e in entries[:2]] == [
        (2, two.id, None),
        (4, one.id, "removed by the relay's operator"),
    ]
    assert (entries[2].position, entries[2].state, entries[1].revision) == (5, State.RETAINED, A)
    assert opened.reader.removals(0, 3, 9) == []
    assert [one.position for one in opened.reader.removals(0, 4, 9)] == [4]
    assert [one.position for one in opened.reader.removals(3, 9, 9)] == [4]
    assert opened.reader.changes(RevisionQuery(RECIPIENTS[1]), 0, None, 10).entries == []
    by_document = RevisionQuery(P, coordinates=frozenset("A"))
    assert [(e.position, e.reason is None) for e in opened.reader.changes(by_document, 0, None, 10).entries] == [
        (4, False)
    ]


def test_what_was_removed_with_its_position_is_told_once(opened: Opened):
    one = revision(A)
    opened.append(one, event(1, content="x"))
    opened.writer.remove([one.id])
    (removal,) = opened.writer.take_removals()
    assert (removal.id, removal.position, removal.recipient, removal.coordinate, removal.revision) == (
        one.id, 3, P, "A", A,
    )  # fmt: skip
    assert (removal.created_at, removal.author) == (one.created_at, one.pubkey)
    assert opened.writer.take_removals() == []
    assert opened.writer.remove([one.id]) == 0
    assert opened.writer.take_removals() == [] and opened.reader.log().tip == 3


# --- who may remove ------------------------------------------------------------------------------------------------


def deletion(*ids: str, author: str) -> nostr.Event:
    return event(nostr.DELETION, [["e", id] for id in ids], author=author)


@pytest.mark.parametrize("who", [P, WRAP_KEYS[0]], ids=["recipient", "wrap key"])
def test_a_revision_is_deleted_by_whom_it_is_for_and_by_the_key_that_wrapped_it(opened: Opened, who: str):
    made = revision(A)
    opened.append(made, revision(B, [A], d="other"))
    assert opened.append(deletion(made.id, author=who)) == [Stored(3)]
    assert opened.reader.log().tip == 4
    assert opened.reader.state(made.id) is State.REMOVED
    assert [(e.position, e.reason) for e in opened.reader.changes(MINE, 2, None, 9).entries] == [(4, DELETED)]
    assert opened.append(made) == [Refused("blocked", DELETED)]


@pytest.mark.parametrize("who", [RECIPIENTS[1], WRAP_KEYS[1]])
def test_a_revision_is_not_deleted_by_anybody_else(opened: Opened, who: str):
    made = revision(A)
    opened.append(made)
    opened.append(deletion(made.id, author=who))
    assert opened.reader.state(made.id) is State.RETAINED and heads_of(opened) == [A]


def test_a_deletion_that_comes_first_holds_for_its_owners_only(opened: Opened):
    made, other = revision(A), revision(B)
    opened.append(deletion(made.id, author=P), deletion(other.id, author=RECIPIENTS[1]))
    assert opened.append(made, other) == [Refused("blocked", DELETED), Stored(3)]
    assert heads_of(opened) == [B]


def test_the_recipient_of_an_ordinary_gift_wrap_does_not_delete_it_by_its_id(opened: Opened):
    wrap = event(GIFT_WRAP, [["p", P]], author=WRAP_KEYS[0])
    opened.append(wrap)
    opened.append(deletion(wrap.id, author=P))
    assert opened.reader.state(wrap.id) is State.RETAINED


def test_what_only_a_removed_revision_had_superseded_is_a_head_again(opened: Opened):
    """Anybody can name another's head as a parent: taking the stranger's revision away must undo all that it did."""
    old, head = revision(A), revision(B, [A])
    opened.append(old, head)
    opened.writer.remove([head.id])
    assert heads_of(opened) == [A]
    assert opened.append(revision(C, [A])) == [Stored(4)]
    assert heads_of(opened) == [C]
    opened.append(revision(D, [B, C]))
    assert heads_of(opened) == [D]


def test_what_others_name_too_stays_superseded_when_one_of_them_is_removed(opened: Opened):
    old, one, other = revision(A), revision(B, [A]), revision(C, [A])
    opened.append(old, one, other)
    opened.writer.remove([one.id])
    assert heads_of(opened) == [C]
    opened.writer.remove([other.id])
    assert heads_of(opened) == [A]


def test_revisions_that_only_name_each_other_are_gone_without_a_trace(opened: Opened):
    """Names are the writers' own: anybody can make two revisions that each claim to stand on the other."""
    first, second, head = revision(A, [B]), revision(B, [A]), revision(C, [A])
    document = operation(first).document
    opened.append(first, second, head)
    opened.writer.remove([first.id, second.id])
    assert opened.reader.named(document) == {A, B}, "what is there still stands on them"
    opened.writer.remove([head.id])
    assert opened.reader.named(document) == set()
    again, other = revision(A, author=WRAP_KEYS[1]), revision(D)
    opened.append(again, other)
    assert heads_of(opened) == [A, D]
    opened.writer.remove([again.id, other.id])
    assert opened.reader.damage() == []


def test_a_removed_revision_may_come_again_in_another_wrap(opened: Opened):
    """Whoever squats on a revision id with junk keeps the true one away only until the junk is removed."""
    junk = revision(A)
    opened.append(junk)
    opened.writer.remove([junk.id])
    again = revision(A, created_at=junk.created_at + 1)
    assert opened.append(again) == [Stored(3)]
    assert heads_of(opened) == [A]
    assert opened.append(junk) == [Duplicate(State.REMOVED)]


def test_five_hundred_revisions_and_their_deletions_in_one_group(opened: Opened):
    made = [revision(f"{n:064x}", d=f"{n}") for n in range(500)]
    gone = [deletion(one.id, author=P if n % 2 else one.pubkey) for n, one in enumerate(made)]
    model = RevisionModel()
    assert opened.append(*made, *gone) == model.append(map(operation, [*made, *gone]))
    entries = opened.reader.changes(MINE, 0, None, 2_000).entries
    assert [(e.position, e.id, e.state, e.reason) for e in entries] == model.feed(MINE, 0, None, False, 0)
    assert heads_of(opened) == [] and opened.reader.log().tip == 1_500
    assert opened.reader.damage() == []


def test_one_deletion_of_five_hundred_tells_of_each(opened: Opened):
    made = [revision(f"{n:064x}", d=f"{n}") for n in range(500)]
    opened.append(*made)
    opened.append(deletion(*(one.id for one in made), author=P))
    told = opened.writer.take_removals()
    assert [removal.position for removal in told] == list(range(502, 1_002))
    assert {removal.id for removal in told} == {one.id for one in made}


# --- vanishing (NIP-62) --------------------------------------------------------------------------------------------


def test_who_vanishes_takes_along_what_they_wrote_and_what_was_wrapped_for_them(opened: Opened):
    theirs = [revision(A), event(1, author=P), snapshot(author=P), event(GIFT_WRAP, [["p", P]], author=WRAP_KEYS[1])]
    others = [revision(A, p=RECIPIENTS[1]), event(1, [["p", P]], author=RECIPIENTS[1]), vanishing(P, 999)]
    later = [revision(B, created_at=1_001), event(1, created_at=1_001, author=P)]
    opened.append(*theirs, *others[:2], *later)
    request = vanishing(P, 1_000)
    assert opened.append(request) == [Stored(9)]
    assert [opened.reader.state(e.id) for e in theirs] == [State.REMOVED] * 4
    assert [opened.reader.state(e.id) for e in (*others[:2], *later, request)] == [State.RETAINED] * 5
    assert [(e.position, e.reason) for e in opened.reader.changes(MINE, 7, None, 9).entries] == [(10, "vanished")]
    assert opened.reader.vanishing() is None, "nothing is left to do"
    assert opened.reader.vanished() == {P: (1_000, True)}
    assert opened.reader.damage() == []


def test_what_vanished_does_not_come_back_and_what_is_newer_may_come(opened: Opened):
    opened.append(vanishing(P, 1_000))
    blocked = Refused("blocked", VANISHED)
    late = [revision(A), event(1, author=P), event(GIFT_WRAP, [["p", P]], author=WRAP_KEYS[1])]
    assert opened.append(*late) == [blocked] * 3
    opened.reopen()
    assert opened.append(*late) == [blocked] * 3
    assert opened.append(revision(A, created_at=1_001), event(1, [["p", P]], author=RECIPIENTS[1])) == [
        Stored(2), Stored(3),
    ]  # fmt: skip
    assert opened.append(vanishing(P, 900)) == [Stored(4)], "an older request moves nothing back"
    assert opened.append(late[0]) == [blocked] or opened.append(late[0]) == [Duplicate(State.RETAINED)]
    assert opened.append(late[1]) == [blocked]


def test_a_request_to_vanish_is_not_taken_back_by_a_deletion(opened: Opened):
    request = vanishing(P, 1_000)
    opened.append(request, deletion(request.id, author=P))
    assert opened.reader.state(request.id) is State.RETAINED
    assert opened.append(event(1, author=P)) == [Refused("blocked", VANISHED)]


def test_many_vanish_in_steps_and_each_step_tells_what_went(opened: Opened):
    made = [revision(f"{n:064x}", d=f"{n % 50}", created_at=1_000) for n in range(2_600)]
    for at in range(0, len(made), 500):
        opened.append(*made[at : at + 500])
    opened.append(vanishing(P, 1_000))
    left = [one for one in made if opened.reader.state(one.id) is State.RETAINED]
    assert len(left) == 600 <= opened.reader.vanishing() <= 600 * 2 + 2
    assert len(opened.writer.take_removals()) == 2_000
    counts = []
    while count := opened.writer.vanish(256):
        counts.append(count)
        assert len(opened.writer.take_removals()) == count
    assert counts == [256, 256, 88]
    assert opened.reader.vanishing() is None and heads_of(opened) == []
    assert [e.position for e in opened.reader.changes(MINE, 0, None, 5_000).entries] == list(range(2_602, 5_202))
    assert opened.reader.damage() == []


# --- what a fetch and a reconciliation get -------------------------------------------------------------------------


def test_a_revision_that_is_compacted_for_two_recipients_is_told_once(opened: Opened):
    for p in RECIPIENTS:
        opened.append(revision(A, p=p), revision(B, [A], p=p), revision(A, d="B", p=p), revision(C, [A], d="B", p=p))
    opened.writer.compact(range(1, 20))
    for recipients in (None, RECIPIENTS, RECIPIENTS[:1]):
        assert opened.reader.compacted_revisions([by_name([C, B, A, "x"], recipients)]) == [A]


def test_a_set_comes_by_ascending_time_and_then_by_ascending_id(opened: Opened):
    """So that it need not be sorted again: a million items in order are a set in a twelfth of the time."""
    opened.append(*(event(1, content=str(n), created_at=5 + n % 2) for n in range(40)))
    for asked in (Filter(), Filter(kinds=frozenset({1})), Filter(kinds=frozenset({1, 7}))):
        rows = pairs(opened.reader.items(asked, 100, 0))
        assert rows == sorted(rows)


def test_a_set_of_heads_larger_than_asked_for_is_too_many(opened: Opened):
    opened.append(*(revision(f"{n:064x}", d=f"{n}") for n in range(5)))
    assert len(opened.reader.current_revisions(MINE, 5, 0).timestamps) == 5
    with pytest.raises(TooMany):
        opened.reader.current_revisions(MINE, 4, 0)
    with pytest.raises(TooMany):
        opened.reader.items(Filter(), 4, 0)


def test_a_name_that_no_revision_can_have_matches_nothing(opened: Opened):
    opened.append(revision(A))
    query = RevisionQuery(P, revisions=frozenset({"no revision", A.upper()}))
    assert opened.reader.changes(query, 0, None, 9).entries == []
    assert heads_of(opened, query) == []
    assert heads_of(opened, RevisionQuery(P, revisions=frozenset({"no revision", A}))) == [A]


def test_a_head_that_has_expired_is_in_no_set_even_before_it_is_removed(opened: Opened):
    opened.append(revision(A), revision(B, [A], expires_at=NOW))
    assert heads_of(opened, now=NOW - 1) == [B]
    assert heads_of(opened, now=NOW) == [], "and what it has superseded does not come back"


def test_revisions_come_ascending_with_other_sync_kinds_and_gift_wraps_as_ordinary_events(opened: Opened):
    made = [revision(r, created_at=at, d=DOCUMENTS[at % 2]) for r, at in ((A, 3), (B, 1))]
    note, wraps = snapshot(created_at=2), [event(GIFT_WRAP, [["p", P]], created_at=at) for at in (1, 4)]
    opened.append(*wraps, *made, note)
    found = opened.ids(opened.reader.select([Filter()], 10, 0).positions)
    assert found == [made[1].id, note.id, made[0].id, wraps[1].id, wraps[0].id]
