"""The write-ahead log of a SQLite store: laid out where there is room, and never at the cost of what is stored."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from histories import event, operation

from anabranch.store.contract import Offer, Stored
from anabranch.store.sqlite import DATABASE, SqliteStore
from anabranch.store.sqlite_writer import ROOM, WAL_PAGES


def append(store: SqliteStore, *events) -> list:
    return store.writer.append([Offer(operation(e)) for e in events], 0)


def facts(store: SqliteStore) -> list:
    with store.reader() as reader:
        return reader.facts()


def notes(count: int) -> list:
    return [event(1, content=f"{n}") for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


def log_bytes(store: SqliteStore) -> int:
    return store.path.with_name(f"{DATABASE}-wal").stat().st_size


def test_a_store_that_was_made_ready_commits_without_making_its_log_longer(folder: Path):
    store = SqliteStore.open(folder)
    append(store, *notes(3))
    before, log = facts(store), store.log()
    store.writer.make_ready()
    laid_out = log_bytes(store)
    for n in range(20):
        append(store, event(1, content=f"later {n}"))
    assert log_bytes(store) == laid_out
    assert facts(store)[:3] == before
    assert (store.log().epoch, store.log().tip) == (log.epoch, log.tip + 20)
    with store.reader() as reader:
        assert reader.damage() == []
    store.close()
    assert len(facts(SqliteStore.open(folder))) == 23


def test_a_store_that_dies_when_it_was_made_ready_has_all_it_had(folder: Path):
    store = SqliteStore.open(folder)
    append(store, *notes(3))
    store.writer.make_ready()
    append(store, event(1, content="later"))
    crashed = folder.with_name("crashed")
    shutil.copytree(folder, crashed)
    found = SqliteStore.open(crashed)
    assert facts(found) == facts(store)
    with found.reader() as reader:
        assert reader.damage() == []
    found.close()
    store.close()


def test_a_store_that_has_no_room_to_be_made_ready_takes_none_and_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    store = SqliteStore.open(folder)
    append(store, *notes(3))
    connection = store.writer._db
    most = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count") + 1_000)
    store.writer.make_ready()
    assert "was not laid out" in caplog.text
    assert log_bytes(store) == 0
    connection.pragma("max_page_count", most)
    assert append(store, event(1, content="later")) == [Stored(4)]
    store.close()


def test_the_room_that_a_log_takes_is_told_apart_from_that_of_the_database(folder: Path):
    store = SqliteStore.open(folder)
    append(store, *notes(3))
    store.writer.make_ready()
    with store.reader() as reader:
        told = reader.statistics()
    assert told.wal_bytes == log_bytes(store) > 16_000_000
    assert told.file_bytes == store.path.stat().st_size + told.wal_bytes
    store.close()
    with SqliteStore.inspect(folder).reader() as reader:
        assert reader.statistics().wal_bytes == 0


@pytest.mark.parametrize(("part", "pages"), [(1, WAL_PAGES), (0.5, WAL_PAGES // 2), (0, 100)])
def test_a_log_is_laid_out_only_where_there_is_ample_room_and_kept_short_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: float, pages: int
):
    """Where the disk is small, what the log took would be missing for what is to be stored."""
    caplog.set_level(logging.INFO)
    store = SqliteStore.open(folder)
    append(store, *notes(3))
    page = store.writer._db.pragma("page_size")
    free, little = int(part * ROOM * (WAL_PAGES + 100) * page), part < 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free if path == folder else 0))
    before = log_bytes(store)
    store.writer.make_ready()
    assert (log_bytes(store) == before) is little
    assert ("was not laid out" in caplog.text) is little
    assert store.writer._db.pragma("wal_autocheckpoint") == pages
    store.close()
