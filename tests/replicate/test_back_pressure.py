"""A slow disk stops the sockets: memory stays where it is, whatever the peers send."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from histories import signed

from anabranch.core.negentropy import Items
from anabranch.core.nostr import serialise
from anabranch.core.scope import EVERYTHING
from anabranch.core.token import Log, Position
from anabranch.replicate import budget, dialling
from anabranch.replicate.budget import Budget
from anabranch.replicate.links import Links
from anabranch.replicate.spec import Direction, LinkSpec
from anabranch.store.contract import LinkRecord

MESSAGE = 100_000
WALL = 1_800_000_000


class Flood:
    """A peer that sends as fast as it is read."""

    unfinished = 0

    def __init__(self):
        self.read = 0

    async def receive(self):
        await asyncio.sleep(0)
        self.read += 1
        return [b'["NOTICE","%s"]' % (b"x" * MESSAGE)]

    async def send(self, messages):
        pass

    def abort(self):
        pass


class StuckHost:
    """A node whose disk takes nothing."""

    log = Log("own", "epoch", Position(1), Position(0))

    async def read(self, read):
        return []

    async def write(self, job):
        await asyncio.Event().wait()

    async def items(self, filter):
        await asyncio.Event().wait()


async def test_links_together_hold_no_more_than_is_set_however_slow_the_disk_is(monkeypatch):
    monkeypatch.setattr(budget, "LINK_BYTES_MAX", 1_000_000)
    floods = []

    async def dial(url):
        floods.append(Flood())
        return {"changes_feed": {}}, floods[-1]

    monkeypatch.setattr(dialling, "dial", dial)
    loop = asyncio.get_running_loop()
    links = Links(StuckHost(), clock=loop.time, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    links.budget = Budget(bytes_max=3_000_000)
    for number in range(20):
        spec = LinkSpec(f"l{number}", f"ws://peer-{number}/", EVERYTHING, Direction.PULL)
        links._begin(spec, LinkRecord(spec.name, spec.peer, "pull"))
    await asyncio.sleep(0.3)
    read = sum(flood.read for flood in floods)
    assert len(floods) == 20
    assert links.budget.held <= 3_000_000 + 20 * (MESSAGE + 200)
    await asyncio.sleep(0.2)
    assert sum(flood.read for flood in floods) == read
    await links.stop()
    assert links.budget.held == 0


class Unending(Flood):
    """A peer that sends one message without an end."""

    async def receive(self):
        await asyncio.sleep(0)
        self.read += 1
        self.unfinished += MESSAGE
        return []


async def test_a_message_that_is_not_whole_stops_the_socket_too(monkeypatch):
    flood = Unending()

    async def dial(url):
        return {"changes_feed": {}}, flood

    monkeypatch.setattr(dialling, "dial", dial)
    loop = asyncio.get_running_loop()
    links = Links(StuckHost(), clock=loop.time, wall=lambda: WALL, share=lambda: 0.5)
    links.budget = Budget(bytes_max=1_000_000)
    links._begin(LinkSpec("l", "ws://p/", EVERYTHING, Direction.PULL), LinkRecord("l", "ws://p/", "pull"))
    await asyncio.sleep(0.3)
    assert 1_000_000 <= links.budget.held == flood.unfinished <= 1_000_000 + MESSAGE
    await links.stop()
    assert links.budget.held == 0


class Nothings(Flood):
    """A peer whose messages are empty."""

    async def receive(self):
        await asyncio.sleep(0)
        self.read += 100
        return [b""] * 100


async def test_also_empty_messages_stop_the_socket(monkeypatch):
    monkeypatch.setattr(budget, "LINK_BYTES_MAX", 1_000_000)
    flood = Nothings()

    async def dial(url):
        return {"changes_feed": {}}, flood

    monkeypatch.setattr(dialling, "dial", dial)
    loop = asyncio.get_running_loop()
    links = Links(StuckHost(), clock=loop.time, wall=lambda: WALL, share=lambda: 0.5)
    links._begin(LinkSpec("l", "ws://p/", EVERYTHING, Direction.PULL), LinkRecord("l", "ws://p/", "pull"))
    await asyncio.sleep(0.3)
    assert 0 < flood.read <= 20_000
    await links.stop()
    assert links.budget.held == 0


class Archive(Flood):
    """A plain relay that answers with large events as fast as they are read."""

    def __init__(self):
        super().__init__()
        self._asked = asyncio.Event()

    async def send(self, messages):
        for message in messages:
            verb, self.name, *_ = json.loads(message)
            if verb == "REQ":
                self._asked.set()

    async def receive(self):
        await self._asked.wait()
        await asyncio.sleep(0)
        self.read += 1
        large = signed(content="x" * MESSAGE, created_at=WALL - self.read)
        return [b'["EVENT","%s",%s]' % (self.name.encode(), serialise(large))]


class NothingProven(StuckHost):
    async def items(self, filter):
        return Items.build([], b""), self.log

    def __init__(self):
        self.gives_up = asyncio.Event()

    async def prove(self, proofs):
        await self.gives_up.wait()

    def operation(self, event, raw):
        return SimpleNamespace(event=event, raw=raw, ephemeral=False, revision=None)


async def test_what_a_comparison_fetches_stops_the_socket_too(monkeypatch):
    monkeypatch.setattr(budget, "LINK_BYTES_MAX", 6_000_000)
    archive = Archive()

    async def dial(url):
        return {"supported_nips": [1]}, archive

    monkeypatch.setattr(dialling, "dial", dial)
    loop = asyncio.get_running_loop()
    host = NothingProven()
    links = Links(host, clock=loop.time, wall=lambda: WALL, share=lambda: 0.5)
    links._begin(LinkSpec("l", "ws://p/", EVERYTHING, Direction.PULL), LinkRecord("l", "ws://p/", "pull"))
    await asyncio.sleep(1)
    assert 20 <= archive.read <= 6_000_000 // (2 * MESSAGE) + 2, "a message more than it may hold"
    assert links.budget.held >= 4_000_000
    host.gives_up.set()
    await links.stop()
    assert links.budget.held == 0


LARGE = [serialise(signed(content="x" * 10_000, created_at=WALL - number)) for number in range(200)]


class Shelf(Archive):
    """The same, of which all have the same events."""

    async def receive(self):
        await self._asked.wait()
        await asyncio.sleep(0)
        self.read += 1
        if self.read > len(LARGE):
            await asyncio.Event().wait()
        return [b'["EVENT","%s",%s]' % (self.name.encode(), LARGE[self.read - 1])]


async def test_a_thousand_links_over_a_disk_that_hangs_hold_the_budget_and_a_little_each(monkeypatch):
    shelves = []

    async def dial(url):
        shelves.append(Shelf())
        return {"supported_nips": [1]}, shelves[-1]

    monkeypatch.setattr(dialling, "dial", dial)
    loop = asyncio.get_running_loop()
    host, most = NothingProven(), 16 << 20
    links = Links(host, clock=loop.time, wall=lambda: WALL, share=lambda: 0.5)
    links.budget = Budget(most)
    for number in range(1_000):
        spec = LinkSpec(f"l{number}", f"ws://peer-{number}/", EVERYTHING, Direction.PULL)
        links._begin(spec, LinkRecord(spec.name, spec.peer, "pull"))
    before, read = -1, 0
    while before != read or not read:
        before, read = read, sum(shelf.read for shelf in shelves)
        await asyncio.sleep(0.5)
    assert most <= links.budget.held <= most + 1_000 * (budget.LINK_BYTES_MIN + 2 * 10_000 + 2_000)
    assert 2 * 10_000 * read <= links.budget.held
    host.gives_up.set()
    await links.stop()
    assert links.budget.held == 0


async def test_room_that_comes_free_wakes_those_who_wait():
    shared, room = Budget(bytes_max=100), asyncio.Event()
    shared.hold(150)
    waiting = asyncio.create_task(shared.wait(room))
    await asyncio.sleep(0)
    shared.hold(-20)
    await asyncio.sleep(0)
    assert not waiting.done()
    shared.hold(-40)
    await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize(("held", "share"), [(0, budget.LINK_BYTES_MAX), (200, budget.LINK_BYTES_MIN)])
def test_one_link_may_hold_a_little_however_much_the_others_do(held, share):
    shared = Budget(bytes_max=100)
    shared.hold(held)
    assert shared.share_of_one() == share
