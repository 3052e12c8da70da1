"""Turmoil: nodes are killed, frozen and out of room, connections are cut, stalled and doubled, at moments that a seed
tells; and writers publish all the while, and know what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from authors import Author
from nodes import SECONDS_MAX, caught_up, explained, fill_disk, free_disk, ids, until
from processes import Node
from proxy import Proxy
from sockets import ConnectionEnded, RelayClient
from websockets.exceptions import WebSocketException

GONE = (ConnectionEnded, WebSocketException, OSError)
BATCH = 20
NUDGED_SECONDS_MAX = 90.0
"""What a peer had no room for is given to it again within a minute."""
ALONE_SECONDS_MAX = 150.0
"""And a link waits until it tries again, for seconds where a few tries in a row have failed."""

Fault = Callable[[Any, float], Awaitable[None]]


async def killed(node: Node, seconds: float) -> None:
    node.kill9()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(node.start)


async def frozen(node: Node, seconds: float) -> None:
    node.freeze()
    await asyncio.sleep(seconds)
    node.thaw()


async def out_of_room(node: Node, seconds: float) -> None:
    fill_disk(node)
    await asyncio.sleep(seconds)
    free_disk(node)


async def cut(proxy: Proxy, seconds: float) -> None:
    proxy.refuse()
    await asyncio.sleep(seconds)
    proxy.refuse(False)


async def stalled(proxy: Proxy, seconds: float) -> None:
    proxy.stall()
    await asyncio.sleep(seconds)
    proxy.stall(False)


async def doubled(proxy: Proxy, seconds: float) -> None:
    """Until it has happened: to the question who is there, and to what follows.

    A connection that is being made outlives a cut, and then the question was asked before: so cut again.
    """
    enough = proxy.repeated + 2
    proxy.repeat()
    async with asyncio.timeout(2 * SECONDS_MAX):  # nobody may tell the link to try again
        while proxy.repeated < enough:
            proxy.cut()
            await asyncio.sleep(1.0)
    await asyncio.sleep(seconds)
    proxy.repeat(False)


OF_NODES: tuple[Fault, ...] = (killed, killed, frozen, frozen, out_of_room)
OF_PROXIES: tuple[Fault, ...] = (cut, cut, stalled, stalled, doubled, doubled)


class Writer:
    """Publishes to one node, whatever becomes of that."""

    def __init__(self, node: Node, author: Author) -> None:
        self.sent: set[str] = set()
        self.acknowledged: set[str] = set()
        self.node = node
        self.over = False
        self._author = author
        self._numbers = itertools.count()

    async def write(self) -> None:
        """Until it is `over`."""
        while not self.over:
            with contextlib.suppress(*GONE):
                async with RelayClient.open(self.node.url) as client:
                    while not self.over:
                        await self.publish(client)
                        await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)

    async def publish(self, client: RelayClient) -> None:
        events = [self._author.event(content=f"{next(self._numbers)} of {self.node.port}") for _ in range(BATCH)]
        self.sent |= {event["id"] for event in events}
        for event in events:
            await client.send("EVENT", event)
        for event in events:
            _, identity, accepted, message = await client.next(("OK", event["id"]))
            assert accepted or message.startswith("error:"), message
            if accepted:
                self.acknowledged.add(identity)


class Turmoil:
    def __init__(
        self, seed: int, nodes: Sequence[Node], proxies: Sequence[Proxy], linked: Sequence[Node], nudged: bool = True
    ) -> None:
        """`linked` have a link of the usual name, each through one of the proxies. Unless they are `nudged` they heal
        by themselves, in their own time."""
        self._seed = seed
        self._nodes = nodes
        self._proxies = proxies
        self._linked = linked
        self._nudging = self._nudged() if nudged else contextlib.nullcontext()
        self._healing_seconds = NUDGED_SECONDS_MAX if nudged else ALONE_SECONDS_MAX
        self._began = time.monotonic()
        self._story: list[str] = []

    async def end_equal(self, *writers: Writer) -> None:
        """Let everything happen, then nothing more: all nodes have the same, and all that was acknowledged."""
        with self._nudging:
            await self._rage(writers)
            for writer in writers:
                acknowledged = len(writer.acknowledged)
                async with RelayClient.open(writer.node.url) as client:
                    await writer.publish(client)
                assert len(writer.acknowledged) == acknowledged + BATCH
            await asyncio.to_thread(until, self._equal, self._told, self._healing_seconds)
            held = ids(self._nodes[0])
            for writer in writers:
                lost = writer.acknowledged - held
                assert not lost, f"{len(lost)} acknowledged, and lost: {self._told()}"
            assert held <= set().union(*(writer.sent for writer in writers))
            for node in self._linked:
                await asyncio.to_thread(caught_up, node, seconds=self._healing_seconds)
        for node in self._nodes:
            node.verify()

    async def _rage(self, writers: Sequence[Writer]) -> None:
        async with asyncio.TaskGroup() as publishing:
            for writer in writers:
                publishing.create_task(writer.write())
            try:
                await self._befall_all()
            finally:
                for writer in writers:
                    writer.over = True

    async def _befall_all(self) -> None:
        async with asyncio.TaskGroup() as befallen:
            for kind, ones, faults in (("node", self._nodes, OF_NODES), ("proxy", self._proxies, OF_PROXIES)):
                for number, one in enumerate(ones):
                    befallen.create_task(self._befall(f"{kind} {number}", one, faults))

    async def _befall(self, name: str, one: Node | Proxy, faults: Sequence[Fault]) -> None:
        """All these faults, in some order, at some moments, for some time."""
        chance = random.Random(f"{self._seed} {name}")
        for fault in chance.sample(faults, len(faults)):
            await asyncio.sleep(chance.uniform(0.05, 1.0))
            self._story.append(f"{time.monotonic() - self._began:.2f} s: {name} {fault.__name__}")
            await fault(one, chance.uniform(0.05, 0.8))

    @contextmanager
    def _nudged(self) -> Iterator[None]:
        """Links try again at once, as when an operator asks them to: their own pauses outlast a test."""
        over = threading.Event()

        def nudge() -> None:
            while not over.wait(0.3):
                for node in self._linked:
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        node.http("POST", "/admin/links/up/resume", timeout=0.5)

        thread = threading.Thread(target=nudge, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _equal(self) -> bool:
        first, *others = (ids(node) for node in self._nodes)
        return all(other == first for other in others)

    def _told(self) -> str:
        counts = [len(ids(node)) for node in self._nodes]
        links = [explained(node) for node in self._linked]
        return "\n".join([f"seed {self._seed}: they hold {counts}", *links, *self._story])
