"""A stream that never rests: it is compared all the same, and deadlines hold."""

import asyncio
import json
from collections import deque

from histories import signed
from link_driving import LogPeer
from relay_model import items
from stores import SqliteBackend
from test_applying import Host

from anabranch.core.scope import EVERYTHING
from anabranch.replicate import dialling
from anabranch.replicate.explaining import lag_seconds
from anabranch.replicate.links import Links
from anabranch.replicate.spec import Direction, LinkSpec, Timing


class RestlessPeer(LogPeer):
    """Tells without a pause how far its log has come."""

    unfinished = 0

    def __init__(self, events):
        super().__init__(events)
        self.said = deque()
        self.position = 10

    async def receive(self):
        await asyncio.sleep(0)
        said = list(self.said)
        self.said.clear()
        for name in self.feeds:
            self.position += 100
            said += [["CHANGES", name, "PASSED", self.position - 99 + number] for number in range(100)]
        if not said:
            await asyncio.sleep(0.01)
        return [json.dumps(frame).encode() for frame in said]

    async def send(self, messages):
        for message in messages:
            self.said += self.answer(message)

    def abort(self):
        pass


class NodeInMemory(Host):
    async def write(self, job):
        return job(self.store_.writer)

    async def items(self, filter):
        return items([]), self.log

    async def store(self, offers, advance):
        await asyncio.sleep(0.005)
        return await super().store(offers, advance)


class MuteAndRestless(RestlessPeer):
    """Answers no comparison, and no page either."""

    def on_neg_open(self, *rest):
        return []

    def on_req(self, *rest):
        return []


async def follow(peer, tmp_path, monkeypatch, **timing):
    async def dial(url):
        peer.said.extend(peer.greet())
        return peer.information, peer

    monkeypatch.setattr(dialling, "dial", dial)
    host = NodeInMemory(SqliteBackend(tmp_path).create())
    clock = asyncio.get_running_loop().time
    links = Links(host, clock=clock, wall=lambda: 1_800_000_000, share=lambda: 0.5, timing=Timing(**timing))
    return links, await links.add(LinkSpec("busy", "ws://peer/", EVERYTHING, Direction.PULL))


async def until(condition, seconds=10.0):
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_stream_that_never_rests_keeps_nobody_from_comparing(tmp_path, monkeypatch):
    links, one = await follow(RestlessPeer([]), tmp_path, monkeypatch, settle=0.05, verify=0.2)
    assert await until(lambda: one.link.state == "live")
    verified, reached = one.link.verified_at, one.link.pull.contiguous.position
    assert await until(lambda: one.link.verified_at > verified + 0.2)
    assert one.link.pull.contiguous.position > reached
    assert lag_seconds(one, links.clock(), 0) < 5
    assert one.link.last_error is None
    await links.stop()


async def test_a_stream_that_never_rests_hides_no_silence(tmp_path, monkeypatch):
    links, one = await follow(MuteAndRestless([signed()]), tmp_path, monkeypatch, settle=0.05, patience=0.1)
    assert await until(lambda: one.link.last_error is not None)
    assert "no answer for 0.1 s while comparing digests" in one.link.last_error
    await links.stop()
