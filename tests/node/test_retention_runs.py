"""Retention alone: changes that come at once, and compaction beside a node that serves and one that stops."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.core.retention import Mode, Policy, ReplayWindow
from anabranch.core.token import Position
from anabranch.node.hub import Hub
from anabranch.node.metrics import Metrics
from anabranch.node.readers import Readers
from anabranch.node.retention import Retention
from anabranch.node.writing import WriterThread
from anabranch.store.compaction import Report
from anabranch.store.sqlite import SqliteStore
from anabranch.store.sqlite_reader import SqliteReader

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
async def retention(tmp_path: Path) -> AsyncIterator[Retention]:
    store = SqliteStore.open(tmp_path)
    readers = Readers(store, 1, 20)
    writer = WriterThread(store.writer, asyncio.get_running_loop())
    policy = Policy(Mode.CURRENT_ONLY, payload_days=0)
    hub = Hub(Position(0), 1_000)
    yield Retention(store, store.log().floor, readers, writer, hub, Metrics(), policy, 300, ReplayWindow())
    await writer.stop()
    readers.close()
    store.close()


async def test_changes_that_come_at_once_are_all_in_force(retention: Retention) -> None:
    await asyncio.gather(retention.change(payload_retention_days=30), retention.change(compaction_interval_seconds=60))
    shown = retention.describe()
    assert (shown["payload_retention_days"], shown["compaction_interval_seconds"]) == (30, 60)
    await retention.start()  # as stored
    assert retention.describe() == shown


class Slow:
    """Opens and closes readers as if their server were far away, and counts those that are open."""

    def __init__(self, retention: Retention, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[SqliteReader] = []
        self.closed: list[SqliteReader] = []
        store = retention._store
        opening, closing = store.open_reader, SqliteReader.close

        def open_reader() -> SqliteReader:
            time.sleep(0.5)
            self.opened.append(opening())
            return self.opened[-1]

        def close(reader: SqliteReader) -> None:
            time.sleep(0.5)
            closing(reader)
            self.closed.append(reader)

        monkeypatch.setattr(store, "open_reader", open_reader)
        monkeypatch.setattr(SqliteReader, "close", close)


async def test_the_node_goes_on_while_compaction_waits_for_its_reader(
    retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, worst = Slow(retention, monkeypatch), 0.0
    running = asyncio.create_task(retention.run())
    while not running.done():
        began = time.monotonic()
        await asyncio.sleep(0.01)
        worst = max(worst, time.monotonic() - began)
    assert slow.opened == slow.closed and len(slow.opened) == 1
    assert worst < 0.4
    monkeypatch.undo()


@pytest.mark.parametrize("after", [0.0, 0.2, 0.6])
async def test_a_run_that_is_cut_short_leaves_no_reader_open(
    retention: Retention, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    slow = Slow(retention, monkeypatch)
    monkeypatch.setattr(SqliteReader, "candidates", lambda self, after, cutoff, limit: time.sleep(1) or [])
    running = asyncio.create_task(retention._run(Report()))
    await asyncio.sleep(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slow.opened == slow.closed
    monkeypatch.undo()


async def stop_in_mid_run(retention: Retention) -> None:
    running = asyncio.create_task(retention.run())
    await asyncio.sleep(0.2)
    assert not running.done()
    async with asyncio.timeout(2):
        await retention.stop()
        await running


async def test_a_node_that_stops_waits_for_no_whole_scan(retention: Retention, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page after page of documents of which nothing goes."""
    monkeypatch.setattr(SqliteReader, "candidates", lambda self, after, cutoff, limit: [after + b"x"])
    monkeypatch.setattr(SqliteReader, "versions", lambda self, document: [])
    await stop_in_mid_run(retention)


async def test_a_node_that_stops_waits_for_no_long_query(retention: Retention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteReader, "candidates", lambda self, after, cutoff, limit: self._value(ENDLESS))
    await stop_in_mid_run(retention)
