"""The two tables of ids: an id is found whether it is fresh or settled, and gone from both when it is forgotten."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from histories import event, groupings, histories, operation, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Model
from stores import Opened, SqliteBackend, Stores

from anabranch.core.filter import Filter
from anabranch.core.operation import State
from anabranch.store import sql_writer
from anabranch.store.contract import Duplicate, Stored, StoreError

FRESH_MAX = 8


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setattr(sql_writer, "FRESH_MAX", FRESH_MAX)
    return Stores(SqliteBackend(tmp_path))


@pytest.fixture
def opened(stores: Stores) -> Iterator[Opened]:
    with stores.open() as one:
        yield one


def count(opened: Opened, table: str) -> int:
    return opened.writer._value(f"SELECT count(*) FROM {table}")


def test_an_id_is_in_one_of_the_two_tables_and_the_small_one_stays_small(opened: Opened):
    for n in range(50):
        opened.append(*(event(1, content=f"{n}-{m}") for m in range(n % 4)))
        assert count(opened, "fresh_ids") < FRESH_MAX
        assert count(opened, "fresh_ids") + count(opened, "settled_ids") == opened.reader.log().tip
    assert count(opened, "settled_ids") > 0
    assert opened.reader.damage() == []


def test_fresh_and_settled_ids_are_found_alike(opened: Opened):
    versions = [snapshot(clock={"a": n}) for n in range(1, 14)]
    for version in versions:
        opened.append(version)
    assert count(opened, "fresh_ids") and count(opened, "settled_ids")
    assert opened.append(*versions) == [Duplicate(State.RETAINED)] * len(versions)
    assert [opened.append(version) for version in versions] == [[Duplicate(State.RETAINED)]] * len(versions)
    ids = frozenset(version.id for version in versions)
    assert set(opened.ids(opened.reader.select([Filter(ids=ids)], 100, 0).positions)) == ids
    assert opened.reader.count([Filter(ids=ids)], 0) == len(versions)
    for version in versions:
        alone = [Filter(ids=frozenset({version.id}))]
        assert opened.ids(opened.reader.select(alone, 9, 0).positions) == [version.id]
        assert opened.reader.state(version.id) is State.RETAINED
    opened.writer.compact([1, 2, 11, 12])
    assert opened.reader.compacted([Filter(ids=frozenset(ids))]) == sorted(versions[n - 1].id for n in (1, 2, 11, 12))
    assert opened.writer.remove([versions[3].id, versions[12].id]) == 2
    expected = [State.COMPACTED, State.COMPACTED, State.RETAINED, State.REMOVED, *[State.RETAINED] * 6]
    expected += [State.COMPACTED, State.COMPACTED, State.REMOVED]
    assert [opened.reader.state(version.id) for version in versions] == expected
    assert opened.append(*versions) == [Duplicate(state) for state in expected]
    assert opened.reader.state("ff" * 32) is None
    assert opened.reader.damage() == []


def test_a_duplicate_is_found_across_the_moment_its_id_settles(opened: Opened):
    events = [event(1, content=str(n)) for n in range(3 * FRESH_MAX)]
    for n, one in enumerate(events):
        assert opened.append(one, one, events[0]) == [
            Stored(n + 1),
            Duplicate(State.RETAINED),
            Duplicate(State.RETAINED),
        ]
    assert opened.reader.log().tip == len(events)


def test_ids_that_begin_alike_are_told_apart_in_both_tables(opened: Opened):
    alike = [msgspec.structs.replace(event(1, content=str(n)), id="5eed" * 4 + f"{n:048x}") for n in range(12)]
    for n, one in enumerate(alike):
        assert opened.append(one) == [Stored(n + 1)]
    assert opened.append(*alike) == [Duplicate(State.RETAINED)] * 12
    for one in alike:
        assert opened.ids(opened.reader.select([Filter(ids=frozenset({one.id}))], 9, 0).positions) == [one.id]


def test_what_is_forgotten_is_gone_from_both_tables(opened: Opened):
    gone = [snapshot(f"doc-{n}", deletes=True) for n in range(12)]
    for one in gone:
        opened.append(one)
    kept = event(1)
    opened.append(kept)
    assert count(opened, "fresh_ids") and count(opened, "settled_ids")
    opened.writer.raise_floor(13)
    assert opened.writer.forget([operation(one).document for one in gone]) == 12
    assert count(opened, "fresh_ids") + count(opened, "settled_ids") == 1
    assert [opened.reader.state(one.id) for one in (*gone, kept)] == [None] * 12 + [State.RETAINED]
    assert opened.append(gone[0], gone[-1]) == [Stored(14), Stored(15)]
    assert opened.reader.damage() == []


def test_a_restart_keeps_both_tables(opened: Opened):
    events = [event(1, content=str(n)) for n in range(12)]
    for one in events:
        opened.append(one)
    opened.reopen()
    assert opened.append(*events) == [Duplicate(State.RETAINED)] * 12
    opened.append(*(event(1, content=f"more {n}") for n in range(FRESH_MAX)))
    assert count(opened, "fresh_ids") < FRESH_MAX
    assert opened.append(*events) == [Duplicate(State.RETAINED)] * 12


def test_a_group_that_could_not_be_stored_leaves_the_tables_as_they_were(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
):
    first = [event(1, content=str(n)) for n in range(FRESH_MAX - 1)]
    opened.append(*first)
    more = [event(1, content=f"more {n}") for n in range(2)]
    opened.writer._db.execute(
        "CREATE TEMP TRIGGER no BEFORE INSERT ON settled_ids BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(StoreError):
        opened.append(*more)
    assert [opened.reader.state(one.id) for one in more] == [None, None]
    opened.writer._db.execute("DROP TRIGGER no")
    assert opened.append(*more) == [Stored(FRESH_MAX), Stored(FRESH_MAX + 1)]
    assert opened.append(*first, *more) == [Duplicate(State.RETAINED)] * (FRESH_MAX + 1)
    assert (count(opened, "fresh_ids"), count(opened, "settled_ids")) == (0, FRESH_MAX + 1)


@settings(max_examples=40)
@given(data=st.data())
def test_outcomes_do_not_depend_on_when_ids_settle(stores: Stores, monkeypatch: pytest.MonkeyPatch, data):
    monkeypatch.setattr(sql_writer, "FRESH_MAX", data.draw(st.integers(1, 6)))
    model = Model()
    with stores.open() as opened:
        for group in data.draw(groupings(data.draw(histories()))):
            assert opened.append(*group) == model.append(map(operation, group))
        for record in model.records:
            assert opened.reader.state(record.id) is record.state
        assert opened.heads() == model.heads()
        assert opened.reader.damage() == []
