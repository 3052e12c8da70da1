"""A node that starts, or says in words why it does not, ends, and leaves the store to the next."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inside import running, settings

from anabranch.config import LinkSettings, Settings
from anabranch.node import logs, main, prover
from anabranch.node.prover import Prover
from anabranch.replicate import links
from anabranch.store.contract import StoreError
from anabranch.store.opening import AnyStore, open_store
from anabranch.store.sqlite_writer import SqliteWriter

AWAY = "cannot reach the server: too many connections"


async def refused(folder: Path, prepare: Callable[[AnyStore], Any], **changes: Any) -> int:
    """Start a node that cannot; its exit code, once all of it has ended and the store is free again."""
    store = open_store(folder)
    prepare(store)
    async with asyncio.timeout(10):
        asked = msgspec.structs.replace(settings(folder), **changes)
        code = await main._serve(asked, store, None, (), lambda: None, False, lambda: False)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reader", "writer"))]
    open_store(folder).close()
    return code


def fail(error: Exception, calls_before: int = 0) -> Callable[..., Any]:
    left = iter(range(calls_before))

    def failing(real: Callable[..., Any], *given: Any) -> Any:
        if next(left, None) is None:
            raise error
        return real(*given)

    return failing


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_node_opens_the_store_that_its_settings_name(monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    asked = []

    def away(*given: object) -> None:
        asked.append(given)
        raise StoreError("away")

    monkeypatch.setattr(logs, "set_up", lambda format, level: None)
    monkeypatch.setattr(main, "open_store", away)
    assert main.serve(Settings(data="there", store="postgresql://x", durability=durability), None) == 1
    assert asked == [(Path("there"), "postgresql://x", durability)]


@pytest.mark.parametrize("opened", [0, 1, 2])
async def test_a_reader_that_cannot_be_opened_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture, opened: int
) -> None:
    def prepare(store: AnyStore) -> None:
        real, failing = store.open_reader, fail(StoreError(AWAY), opened)
        store.open_reader = lambda: failing(real)

    assert await refused(tmp_path, prepare) == 1
    assert capsys.readouterr().err == f"anabranch: {AWAY}\n"


async def test_a_store_that_fails_when_all_else_is_there_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: object, configured: object) -> None:
        raise StoreError(AWAY)

    monkeypatch.setattr(main.Links, "start", away)
    assert await refused(tmp_path, lambda store: None) == 1
    assert capsys.readouterr().err == f"anabranch: {AWAY}\n"


async def test_a_checker_that_cannot_be_started_is_not_taken_for_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_process(self: Prover) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(Prover, "start", no_process)
    assert await refused(tmp_path, lambda store: None) == 1
    said = "cannot start a process that checks signatures: Resource temporarily unavailable"
    assert capsys.readouterr().err == f"anabranch: {said}\n"


async def test_a_lock_file_that_cannot_be_written_is_not_taken_for_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def prepare(store: AnyStore) -> None:
        real, failing = store.announce, fail(OSError(errno.EIO, "Input/output error"))
        store.announce = lambda url="": failing(real, url) if url else real(url)

    assert await refused(tmp_path, prepare) == 1
    assert capsys.readouterr().err == "anabranch: cannot write the lock file: Input/output error\n"


async def test_an_address_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        assert await refused(tmp_path, lambda store: None, port=port) == 1
    said = capsys.readouterr().err
    assert said == (
        f"anabranch: cannot listen on 127.0.0.1:{port}: Address already in use; another port goes with --port\n"
    )


async def test_the_greeting_leaves_the_writer_to_its_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.store.writer, "_all", fail(AssertionError("on the loop's thread")))
            main._greet(node, ())
        assert f"stream {node.log.stream[:8]}…, log at 0)" in capsys.readouterr().err


class Silent(prover._Worker):
    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], stdin=theirs.fileno(), stdout=theirs.fileno())


async def test_a_checker_that_never_answers_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prover, "_Worker", Silent)
    monkeypatch.setattr(prover, "START_SECONDS", 0.5)
    assert await refused(tmp_path, lambda store: None) == 1
    said = "cannot start a process that checks signatures: it does not answer within 0.5 s"
    assert capsys.readouterr().err == f"anabranch: {said}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_node_that_is_told_to_end_while_it_starts_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(prover, "_Worker", Silent)
    asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), number)
    assert await refused(tmp_path, lambda store: None) == 0
    assert capsys.readouterr().err.startswith("stopping …\nstopped")


async def test_more_links_than_there_may_be_end_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LINKS_MAX", 0)
    configured = [LinkSettings(peer="ws://127.0.0.1:9/")]
    assert await refused(tmp_path, lambda store: None, links=configured) == 2
    assert capsys.readouterr().err == "anabranch: there are 0 links already\n"


async def test_what_is_no_name_of_a_host_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert await refused(tmp_path, lambda store: None, host="a..b") == 1
    assert capsys.readouterr().err.startswith("anabranch: cannot listen on a..b: ")


async def test_what_fails_while_a_node_stops_keeps_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: main.Retention) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(main.Retention, "stop", broken)
    with pytest.raises(RuntimeError):
        async with running(tmp_path):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reader", "writer"))]
    open_store(tmp_path).close()


async def test_a_store_that_takes_long_to_be_made_ready_keeps_no_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer is busy, and so nobody else may use it."""

    def make_ready(writer: SqliteWriter) -> None:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            writer._value(
                "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 100000) SELECT sum(n) FROM n"
            )

    monkeypatch.setattr(SqliteWriter, "make_ready", make_ready)
    async with asyncio.timeout(20), running(tmp_path) as node:
        assert node.ready
