"""The small pieces of SQL: keys that do not collide, inserts that lose nothing, transactions that end."""

from contextlib import closing
from pathlib import Path

import apsw
import pytest
from histories import WORDS, event
from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.contract import StoreError
from anabranch.store.sql import chunks, evened, insert, tag_key, tag_keys, transaction
from anabranch.store.sqlite import SqliteStore

tags = st.tuples(st.sampled_from("abAB"), st.one_of(st.sampled_from(WORDS), st.text(max_size=70)))


@given(tags, tags)
def test_two_tags_have_the_same_key_only_when_they_are_the_same(a, b):
    assert (tag_key(*a) == tag_key(*b)) == (a == b)
    assert len(tag_key(*a)) <= 65


def test_a_long_value_cannot_be_forged_by_a_short_one():
    long = tag_key("t", "w" * 65)
    assert long[1:2] == b"\xff"
    with pytest.raises(UnicodeDecodeError):
        long[1:].decode()


def test_only_single_letter_tags_with_a_value_are_found():
    made = event(1, [["t", "x"], ["t", "x"], ["t"], ["tt", "x"], ["1", "x"], ["é", "x"], ["", "x"], ["T", ""]])
    assert tag_keys(made) == [b"tx", b"T"]


@given(st.integers(0, 300), st.integers(1, 3))
def test_every_row_is_inserted_once(rows, columns):
    db = apsw.Connection(":memory:")
    db.execute(f"CREATE TABLE x ({','.join(f'c{n}' for n in range(columns))})")
    values = list(range(rows * columns))
    insert(db, "x", columns, values)
    assert [value for row in db.execute("SELECT * FROM x ORDER BY c0") for value in row] == values


@given(st.lists(st.integers(), max_size=20), st.integers(1, 7))
def test_chunks_laid_end_to_end_are_the_whole(values, size):
    parts = list(chunks(values, size))
    assert [value for part in parts for value in part] == values
    assert all(0 < len(part) <= size for part in parts)


@given(st.lists(st.integers(), max_size=40), st.sampled_from((1, 6, 8, 16)))
def test_evened_chunks_ask_for_the_same_in_few_lengths(values, size):
    parts = list(evened(values, size))
    assert [set(part) for part in parts] == [set(part) for part in chunks(values, size)]
    assert {len(part) for part in parts} <= {1, 2, 4, 8, 16, size}
    assert all(len(part) <= size for part in parts)


def test_a_transaction_is_whole_or_nothing():
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE x (c UNIQUE)")
    with transaction(db):
        db.execute("INSERT INTO x VALUES (1)")
    for error in (KeyboardInterrupt, ZeroDivisionError):
        with pytest.raises(error), transaction(db):
            db.execute("INSERT INTO x VALUES (2)")
            raise error
    with pytest.raises(StoreError), transaction(db):
        db.execute("INSERT INTO x VALUES (3)")
        db.execute("INSERT INTO x VALUES (1)")
    assert not db.in_transaction
    assert db.execute("SELECT c FROM x").fetchall() == [(1,)]


def test_a_commit_that_fails_is_rolled_back():
    db = apsw.Connection(":memory:")
    db.execute("PRAGMA foreign_keys = 1; CREATE TABLE a (id PRIMARY KEY)")
    db.execute("CREATE TABLE b (a REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(StoreError), transaction(db):
        db.execute("INSERT INTO b VALUES (1)")
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM b").fetchall() == [(0,)]


def test_what_the_writer_cannot_read_is_said_in_the_words_of_the_contract(tmp_path: Path):
    with closing(SqliteStore.open(tmp_path)) as store:
        store.writer._db.execute("ALTER TABLE log RENAME TO gone")
        with pytest.raises(StoreError):
            store.writer.log()
        store.writer._db.execute("ALTER TABLE gone RENAME TO log")
