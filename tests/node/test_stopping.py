"""A node that stops comes to its end, whatever hangs."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from inside import running, settings
from websockets.asyncio.client import connect

from anabranch.core import nostr
from anabranch.node import main, prover
from anabranch.replicate.links import spec_of
from anabranch.store.opening import open_store


async def with_a_page_under_way(source: Path, mirror: Path) -> main.Node:
    """A node whose only checker hangs over a page of a link's."""
    keys = nostr.Keys(bytes([1]) * 32)
    node = main.Node(settings(mirror), open_store(mirror))
    async with running(source) as peer:
        async with connect(f"ws://{peer.address}/") as client:
            for number in range(300):
                event = keys.sign(1, [], str(number), 1_790_000_000)
                await client.send(b'["EVENT",%b]' % nostr.serialise(event), text=True)
            for _ in range(300):
                await client.recv()
        await node.start()
        (worker,) = node.prover._workers
        os.kill(worker._process.pid, signal.SIGSTOP)
        await node.links.add(spec_of({"peer": f"ws://{peer.address}/"}))
        async with asyncio.timeout(10):
            while not worker.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return node


async def test_a_checker_that_hangs_over_a_page_of_a_link_is_replaced_also_in_a_node_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prover, "HUNG_SECONDS", 1.0)
    monkeypatch.setattr(main, "SWEEP_SECONDS", 0.1)
    node = await with_a_page_under_way(tmp_path / "source", tmp_path / "mirror")
    async with asyncio.timeout(6):
        await node.stop()


async def test_a_page_of_a_link_holds_no_stop_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prover, "HUNG_SECONDS", 1_000.0)
    monkeypatch.setattr(main, "LINKS_SECONDS", 0.5)
    node = await with_a_page_under_way(tmp_path / "source", tmp_path / "mirror")
    host, port = node.address.split(":")
    async with asyncio.timeout(6):
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
        assert not stopping.done()
        await stopping
    assert "stopping with pages of links not stored" in caplog.text
    open_store(tmp_path / "mirror").close()
