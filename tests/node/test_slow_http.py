"""HTTP with people who take their time: a request has the time it is given."""

import asyncio
from pathlib import Path

import pytest
from inside import running

from anabranch.node import main

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
