"""Queries: whatever index leads, the answer is what asking every event would give."""

import threading

import msgspec
import pytest
from histories import (
    AUTHORS,
    COLLECTIONS,
    COORDINATES,
    KINDS,
    MOMENTS,
    OTHER_NOTE,
    event,
    filters,
    groupings,
    histories,
    operation,
    snapshot,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Model
from stores import NOW, Opened, Stores

from anabranch.config import FILTER_VALUES_MAX
from anabranch.core import nostr
from anabranch.core.changes import LogQuery, RevisionQuery, SnapshotQuery
from anabranch.core.filter import Filter, parse
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Action, State, classify
from anabranch.core.snapshots import NOTE
from anabranch.store.contract import Duplicate, Offer, Stored

queries = st.builds(
    SnapshotQuery,
    st.sampled_from(AUTHORS),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from([NOTE, OTHER_NOTE]))),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from(COORDINATES), max_size=3)),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from(list(Action)))),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from(COLLECTIONS))),
)
times = st.sampled_from([0, MOMENTS[0], NOW, MOMENTS[-1]])


def compact_some(opened: Opened, model: Model, data) -> None:
    """Drop the payloads of a random few snapshots that are no heads."""
    dominated = [r for r in model.records if r.operation.clock and r.state is State.RETAINED and not model.is_head(r)]
    going = [record for record in dominated if data.draw(st.booleans())]
    count, freed = opened.writer.compact([record.position for record in going])
    assert (count, freed) == (len(going), sum(len(record.operation.raw) for record in going))
    for record in going:
        record.state = State.COMPACTED


def filled(opened: Opened, data) -> tuple[Model, list]:
    history = data.draw(histories())
    model = Model()
    for group in data.draw(groupings(history)):
        opened.append(*group)
        model.append(map(operation, group))
    compact_some(opened, model, data)
    return model, history


@settings(max_examples=150)
@given(data=st.data())
def test_a_query_gives_what_asking_every_event_would(stores: Stores, data):
    """REQ and COUNT against `filter.matches`, for one filter and for several, with limits and at several times."""
    with stores.open() as opened:
        model, history = filled(opened, data)
        for _ in range(4):
            asked = data.draw(st.lists(filters(history), min_size=1, max_size=3))
            limit_max, now = data.draw(st.sampled_from([1, 3, 500])), data.draw(times)
            selection = opened.reader.select(asked, limit_max, now)
            assert opened.ids(selection.positions) == model.select(asked, limit_max, now)
            assert selection.tip == model.tip
            assert opened.reader.count(asked, now) == model.count(asked, now)


@settings(max_examples=100)
@given(data=st.data())
def test_pages_of_the_feed_laid_end_to_end_are_the_whole_feed(stores: Stores, data):
    """Every query, page size, `until`, with and without compacted entries: nothing twice, nothing missed."""
    with stores.open() as opened:
        model, _ = filled(opened, data)
        for _ in range(3):
            query = data.draw(st.one_of(st.none(), queries))
            start, until = data.draw(st.integers(0, 5)), data.draw(st.one_of(st.none(), st.integers(0, model.tip + 3)))
            size, compacted, now = data.draw(st.integers(1, 5)), data.draw(st.booleans()), data.draw(times)
            end = max(start, model.tip if until is None else min(until, model.tip))
            found, since = [], start
            while True:
                page = opened.reader.changes(query, since, until, size, compacted, now)
                assert len(page.entries) <= size
                assert page.log == opened.reader.log()
                here = [(e.position, e.id, e.state) for e in page.entries]
                assert here == model.changes(query, since, page.complete_to, compacted, now)
                assert all((e.raw is not None) == (e.state is State.RETAINED) for e in page.entries)
                found += here
                assert since < page.complete_to <= end or page.complete_to == since == end
                if page.complete_to == end:
                    break
                since = page.complete_to
            assert found == model.changes(query, start, until, compacted, now)


@settings(max_examples=100)
@given(data=st.data())
def test_a_bootstrap_is_the_heads_then_the_filters_then_the_limit(stores: Stores, data):
    with stores.open() as opened:
        model, _ = filled(opened, data)
        for _ in range(4):
            query, now = data.draw(queries), data.draw(times)
            limit = data.draw(st.one_of(st.none(), st.integers(0, 5)))
            selection = opened.reader.bootstrap(query, limit, now)
            assert opened.ids(selection.positions) == model.bootstrap(query, limit, now)
            assert selection.tip == model.tip
            assert len(opened.reader.payloads(selection.positions)) == len(selection.positions)


def test_a_page_is_complete_up_to_its_last_entry_or_to_the_end(opened: Opened):
    mine = [snapshot(f"{n}") for n in range(3)]
    opened.append(mine[0], event(1), mine[1], mine[2], event(1, content="last"))
    query = SnapshotQuery(AUTHORS[0])

    def complete_to(since, until, limit):
        return opened.reader.changes(query, since, until, limit).complete_to

    assert complete_to(0, None, 1) == 1
    assert complete_to(1, None, 1) == 3
    assert complete_to(0, None, 3) == 4  # cut at the limit: what follows has not been looked at
    assert complete_to(0, None, 4) == 5
    assert complete_to(4, None, 4) == 5
    assert complete_to(5, None, 4) == 5
    assert complete_to(0, 2, 9) == 2
    assert complete_to(3, 2, 9) == 3
    assert complete_to(0, 99, 9) == 5
    assert opened.reader.changes(SnapshotQuery(AUTHORS[1]), 0, None, 9).complete_to == 5


def test_a_page_of_no_entries_promises_nothing(opened: Opened):
    opened.append(snapshot())
    page = opened.reader.changes(SnapshotQuery(AUTHORS[0]), 0, None, 0)
    assert (page.entries, page.complete_to) == ([], 0)


def test_payloads_come_in_the_order_asked_for_and_only_those_still_there(opened: Opened):
    events = [snapshot(clock={"a": n}) for n in range(1, 5)]
    opened.append(*events)
    opened.writer.compact([2])
    found = opened.reader.payloads([4, 2, 1, 99, 3])
    assert [position for position, _ in found] == [4, 1, 3]
    assert [raw for _, raw in found] == [operation(events[n]).raw for n in (3, 0, 2)]
    assert opened.reader.payloads([]) == []


def test_payloads_are_the_signed_bytes_as_they_came(opened: Opened):
    raw = b'{ "kind":1, "id" : "..."  , "content":"\\u0000\xc3\xa9"}'
    opened.writer.append([Offer(classify(event(1), raw, KINDS))], 0)
    assert opened.reader.payloads([1]) == [(1, raw)]


def test_many_payloads_are_found_at_once(opened: Opened):
    opened.append(*(event(1, content=str(n)) for n in range(1_200)))
    assert [position for position, _ in opened.reader.payloads(range(1_200, 0, -1))] == list(range(1_200, 0, -1))


def test_retained_compacted_removed_and_unknown_are_different_answers(opened: Opened):
    old, new, gone = snapshot(clock={"a": 1}), snapshot(clock={"a": 2}), event(1)
    opened.append(old, new, gone)
    opened.writer.compact([1])
    opened.writer.remove([gone.id])
    unknown = "ff" * 32
    assert [opened.reader.state(id) for id in (new.id, old.id, gone.id, unknown)] == [
        State.RETAINED,
        State.COMPACTED,
        State.REMOVED,
        None,
    ]
    assert opened.reader.compacted([Filter(ids=frozenset({new.id, old.id, gone.id, unknown}))]) == [old.id]
    assert opened.append(new, old, gone) == [Duplicate(s) for s in (State.RETAINED, State.COMPACTED, State.REMOVED)]
    assert opened.reader.state(old.id) is State.COMPACTED, "published again, it stays compacted"


def test_the_compacted_of_many_ids_come_sorted_and_once(opened: Opened):
    events = [snapshot(clock={"a": n}) for n in range(1, 701)]
    opened.append(*events)
    assert opened.writer.compact(list(range(1, 701)))[0] == 699
    wanted = {e.id for e in events} | {f"{n:064x}" for n in range(600)}
    assert opened.reader.compacted([Filter(ids=frozenset(wanted))]) == sorted(e.id for e in events[:-1])


def test_a_limit_keeps_the_newest_and_of_one_second_the_lowest_ids(opened: Opened):
    events = [event(1, [["t", "x"]], str(n), created_at=5) for n in range(6)] + [event(1, created_at=1)]
    opened.append(*events)
    lowest = sorted(e.id for e in events[:-1])
    for filter in (
        Filter(limit=3),
        Filter(limit=3, kinds=frozenset({1})),
        Filter(limit=3, tags=(("t", frozenset("x")),)),
    ):
        assert opened.ids(opened.reader.select([filter], 100, 0).positions) == lowest[:3]


@pytest.mark.parametrize(
    "filter",
    [
        Filter(kinds=frozenset({1, 7, 9})),
        Filter(authors=frozenset(AUTHORS)),
        Filter(tags=(("t", frozenset("xyz")),)),
        Filter(tags=(("t", frozenset("xyz")),), kinds=frozenset({1, 7}), authors=frozenset(AUTHORS[:2])),
    ],
    ids=["kinds", "authors", "tags", "all"],
)
def test_a_limit_over_many_keys_is_that_of_the_whole(opened: Opened, filter: Filter):
    """Where several keys of an index are walked, what is newest is decided over all of them, ties included."""
    events = [
        event(kind, [["t", word]], content=str(n), created_at=10 + n, author=author)
        for kind in (1, 7, 9)
        for word in "xyz"
        for author in AUTHORS
        for n in (0, 1)
    ]
    model = Model()
    model.append(map(operation, events))
    opened.append(*events)
    for limit in range(len(events) + 2):
        asked = [msgspec.structs.replace(filter, limit=limit)]
        assert opened.ids(opened.reader.select(asked, 500, 0).positions) == model.select(asked, 500, 0)


def test_sync_kinds_come_first_and_ascending_then_the_others_newest_first(opened: Opened):
    notes = [snapshot(f"{n}", created_at=n) for n in (3, 1, 2)]
    plain = [event(1, created_at=n) for n in (3, 1, 2)]
    opened.append(*plain, *notes)
    found = opened.ids(opened.reader.select([Filter()], 100, 0).positions)
    assert found == [notes[1].id, notes[2].id, notes[0].id, plain[0].id, plain[2].id, plain[1].id]


def test_no_filters_ask_for_nothing(opened: Opened):
    opened.append(event(1))
    assert len(opened.reader.select([], 10, 0).positions) == 0
    assert opened.reader.count([], 0) == 0


def test_values_of_any_length_are_told_apart(opened: Opened):
    words = ["w" * n for n in (1, 63, 64, 65, 66, 500)] + ["é" * 32, "é" * 33, "", "\0", "\ufeff"]
    events = [event(1, [["t", word]]) for word in words]
    opened.append(*events)
    for word, made in zip(words, events, strict=True):
        selection = opened.reader.select([Filter(tags=(("t", frozenset({word})),))], 10, 0)
        assert opened.ids(selection.positions) == [made.id]


@pytest.mark.parametrize("lists, values", [(1, 2_000), (26, 76), (26, 2_000)])
def test_a_filter_that_was_taken_gets_an_answer(opened: Opened, lists: int, values: int):
    """26 short lists of 2000 values fit into one message: refused when parsed, or answered, but no failure."""
    letters = "abcdefghijklmnopqrstuvwxyz"[:lists]
    wanted = event(1, [[letter, "7"] for letter in letters])
    opened.append(wanted, event(1))
    try:
        filter = parse({f"#{letter}": [str(n) for n in range(values)] for letter in letters}, 2_000)
    except Invalid:
        assert lists * values > 2_000
        return
    assert opened.ids(opened.reader.select([filter], 10, 0).positions) == [wanted.id]
    assert opened.reader.count([filter], 0) == 1


def test_many_large_filters_are_counted_together(opened: Opened):
    opened.append(event(1), event(1, author=AUTHORS[1]))
    wanted = frozenset(f"{n:064x}" for n in range(1_999)) | {AUTHORS[0]}
    asked = [Filter(authors=wanted, since=n) for n in range(20)]
    assert opened.reader.count(asked, 0) == 1
    assert len(opened.reader.select(asked, 10, 0).positions) == 1


def test_a_filter_with_as_many_values_as_a_setting_may_allow_is_answered(opened: Opened):
    """In every shape: a statement binds only so many values."""
    made = snapshot("7", {"a": 1})
    opened.append(made)
    words = frozenset(str(n) for n in range(FILTER_VALUES_MAX))
    keys = frozenset(f"{n:064x}" for n in range(FILTER_VALUES_MAX - 1)) | {AUTHORS[0]}
    for filter in (Filter(authors=keys), Filter(tags=(("d", words),), authors=frozenset({AUTHORS[0]}))):
        assert opened.reader.count([filter], 0) == 1
        assert opened.ids(opened.reader.select([filter], 10, 0).positions) == [made.id]
        assert [e.id for e in opened.reader.changes(LogQuery(filter), 0, None, 9).entries] == [made.id]
    assert opened.reader.count([Filter(ids=keys)], 0) == 0
    kinds = frozenset(range(40_000, 40_000 + FILTER_VALUES_MAX))
    query = SnapshotQuery(AUTHORS[0], kinds, words, frozenset(Action), None)
    assert [e.id for e in opened.reader.changes(query, 0, None, 9).entries] == [made.id]
    assert len(opened.reader.bootstrap(msgspec.structs.replace(query, collections=words), None, 0).positions) == 0
    revisions = RevisionQuery("p", None, keys, words, keys)
    assert opened.reader.changes(revisions, 0, None, 9).entries == []
    assert len(opened.reader.current_revisions(revisions, 9, 0).timestamps) == 0


def test_a_reader_sees_whole_groups_only_and_each_call_one_moment(opened: Opened):
    opened.append(snapshot("1"))
    query = SnapshotQuery(AUTHORS[0])
    selection = opened.reader.bootstrap(query, None, 0)
    opened.append(snapshot("2"), snapshot("3"))
    assert (list(selection.positions), selection.tip) == ([1], 1)
    later = opened.reader.bootstrap(query, None, 0)
    assert (sorted(later.positions), later.tip) == ([1, 2, 3], 3)


def test_ids_that_begin_alike_are_told_apart(opened: Opened):
    """An index may hold only the beginning of an id; the answer goes by the whole of it."""
    first, second, third = (
        msgspec.structs.replace(snapshot(clock={"a": n}), id="5eed" * 4 + f"{n:048x}") for n in (1, 2, 3)
    )
    assert opened.append(first, second) == [Stored(1), Stored(2)]
    assert opened.append(third, second, first) == [Stored(3), *[Duplicate(State.RETAINED)] * 2]
    for wanted in (first, second, third):
        asked = Filter(ids=frozenset({wanted.id}))
        assert opened.ids(opened.reader.select([asked], 9, 0).positions) == [wanted.id]
        assert opened.reader.count([asked], 0) == 1
    assert opened.writer.compact([1]) == (1, opened.facts()[0].size)
    assert opened.reader.compacted([Filter(ids=frozenset({first.id, second.id}))]) == [first.id]
    assert opened.writer.remove([second.id]) == 1
    assert [opened.reader.state(e.id) for e in (first, second, third)] == [
        State.COMPACTED,
        State.REMOVED,
        State.RETAINED,
    ]
    assert opened.reader.state("5eed" * 4 + "00" * 24) is None
    opened.append(event(nostr.DELETION, [["e", third.id]]))
    assert opened.reader.state(third.id) is State.REMOVED
    assert opened.reader.damage() == []


def test_a_reader_beside_the_writer_never_sees_half_a_group(opened: Opened):
    """Every group writes all five documents anew; every bootstrap finds the five of one group, and its tip."""
    rounds, stop, torn = 200, threading.Event(), []
    query = SnapshotQuery(AUTHORS[0])

    def look() -> None:
        reader = opened.store.open_reader()
        try:
            while not stop.is_set():
                selection = reader.bootstrap(query, None, 0)
                versions = {(position - 1) // 5 for position in selection.positions}
                if selection.tip and (len(selection.positions), versions) != (5, {selection.tip // 5 - 1}):
                    torn.append(selection)
                page = reader.changes(query, 0, None, 10_000)
                if page.complete_to != page.log.tip or len(page.entries) != page.log.tip:
                    torn.append(page)
        finally:
            reader.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for version in range(1, rounds + 1):
            opened.append(*(snapshot(f"doc-{n}", {"a": version}) for n in range(5)))
    finally:
        stop.set()
        thread.join()
    assert not torn
    assert opened.reader.log().tip == 5 * rounds
