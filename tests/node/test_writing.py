"""The writer's thread alone: whatever a piece of work does, it is answered, and the next one is done."""

import asyncio
from pathlib import Path

import pytest

from anabranch.core import nostr
from anabranch.core.operation import KindPolicy, classify
from anabranch.node.writing import WriterThread
from anabranch.store.contract import Offer, Stored
from anabranch.store.sqlite import DATABASE, SqliteStore
from anabranch.store.sqlite_writer import WAL_PAGES, SqliteWriter


async def test_a_check_that_fails_does_not_end_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(events: object) -> list[bool]:
        raise MemoryError

    store = SqliteStore.open(tmp_path)
    writer = WriterThread(store.writer, asyncio.get_running_loop())
    event = nostr.Keys(bytes([1]) * 32).sign(1, [], "", 1_700_000_000)
    offers = [Offer(classify(event, nostr.serialise(event), KindPolicy()))]
    answers: asyncio.Queue = asyncio.Queue()
    async with asyncio.timeout(5):
        with monkeypatch.context() as patched:
            patched.setattr(nostr, "verify", fail)
            writer.prove_and_append(offers, lambda outcomes, removals: answers.put_nowait(outcomes))
            assert await answers.get() is None
        writer.prove_and_append(offers, lambda outcomes, removals: answers.put_nowait(outcomes))
        assert [type(outcome) for outcome in await answers.get()] == [Stored]
        await writer.stop()
    store.close()


async def test_a_store_that_cannot_be_made_ready_does_not_end_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: SqliteWriter) -> None:
        raise MemoryError

    monkeypatch.setattr(SqliteWriter, "make_ready", fail)
    store = SqliteStore.open(tmp_path)
    writer = WriterThread(store.writer, asyncio.get_running_loop())
    async with asyncio.timeout(5):
        assert (await writer.run(lambda writer: writer.log())).tip == 0
        await writer.stop()
    assert "could not be made ready" in caplog.text
    store.close()


async def test_a_writer_makes_its_store_ready_before_anything_else(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    writer = WriterThread(store.writer, asyncio.get_running_loop())
    laid_out = await writer.run(lambda writer: (tmp_path / f"{DATABASE}-wal").stat().st_size)
    assert laid_out > WAL_PAGES * store.writer._value("PRAGMA page_size")
    await writer.stop()
    store.close()
