"""HTTP with people who take their time: a request has the time it is given, and who does not read is let go quietly."""

import asyncio
import logging
from pathlib import Path

import pytest
from inside import running

from anabranch.node import main
from anabranch.node.http import Answer, Request

ASK = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_request_on_a_kept_socket_has_all_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "SWEEP_SECONDS", 0.05)
    async with running(tmp_path, handshake_seconds=2) as node:
        reader, writer = await asyncio.open_connection(*node.address.split(":"))
        writer.write(ASK)
        assert (await reader.readline()).split()[1] == b"200"
        await reader.readuntil(b"\r\n\r\nok")
        await asyncio.sleep(1.5)  # as one who may ask again
        writer.write(ASK[:10])
        await asyncio.sleep(1)
        writer.write(ASK[10:])
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


async def test_a_kept_socket_on_which_nothing_comes_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "SWEEP_SECONDS", 0.05)
    async with running(tmp_path, handshake_seconds=1) as node:
        reader, writer = await asyncio.open_connection(*node.address.split(":"))
        writer.write(ASK)
        async with asyncio.timeout(4):
            assert (await reader.read()).endswith(b"\r\n\r\nok")
        writer.close()


async def test_who_does_not_read_an_answer_is_let_go_without_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def much(request: Request) -> Answer:
        return Answer(200, b"x" * (32 << 20))

    async with running(tmp_path, idle_seconds=1) as node:
        monkeypatch.setattr(node.http, "answer", much)
        _, writer = await asyncio.open_connection(*node.address.split(":"), limit=1)
        writer.write(ASK)
        for _ in range(80):
            if (connection := next(iter(node._sockets), None)) is not None and connection._closing:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("nobody let it go")
        await asyncio.sleep(0.1)
        writer.transport.abort()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
