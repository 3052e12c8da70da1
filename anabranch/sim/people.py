"""The people of the world: writers who publish until they are answered, and readers who follow a feed and look closely.

A writer sends what it has made to its node, or to another where that is away, and sends it again until it gets an OK.
A reader follows one author's changes, or the whole log, resumes from where it was, and holds every answer against what
the node gave which position.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.core import nostr
from anabranch.core.operation import document_key
from anabranch.core.replica import Version
from anabranch.core.token import Position
from anabranch.sim.caller import Caller
from anabranch.sim.checks import Checks, retained
from anabranch.sim.host import EPOCH_SECONDS, Host
from anabranch.sim.workload import Device, forged

ANSWER_SECONDS = 8.0
TEMPORARY = ("error:", "rate-limited:")


class Writer:
    """One device, at work."""

    def __init__(
        self,
        device: Device,
        hosts: Sequence[Host],
        home: Host,
        checks: Checks,
        random: random.Random,
        forges: Callable[[str], None] | None,
    ) -> None:
        """`forges` is called with every id that it forges; None: it never does."""
        self.device = device
        self._hosts = hosts
        self._home = home
        self._checks = checks
        self._random = random
        self._forges = forges
        self.outbox: dict[str, bytes] = {}
        self.left = 0  # operations still to be thought of
        self.burst = 1  # how many at a time, on average
        self.skew = 0.0
        self._lies: set[str] = set()
        self._answered = asyncio.Event()

    @property
    def done(self) -> bool:
        return not self.left and not self.outbox

    async def live(self, pause: float) -> None:
        """Make operations and publish them, for ever."""
        caller: Caller | None = None
        while True:
            await asyncio.sleep(self._random.expovariate(1 / pause) if self.left else pause)
            if self.left:
                self._work()
            if not self.outbox:
                continue
            if caller is None or not caller.alive:
                caller = await self._dial()
            if caller is not None:
                await self._publish(caller)

    def _work(self) -> None:
        if self._home.up and self._random.random() < 0.6:
            self._read()
        now = int(EPOCH_SECONDS + asyncio.get_running_loop().time() + self.skew)
        for _ in range(min(self.left, self._random.randrange(1, 2 * self.burst + 1))):
            self.left -= 1
            for event in self.device.write(now, self._checks.mark):
                self.outbox[event.id] = nostr.serialise(event)
                if self._forges is not None and self._random.random() < 0.1:
                    self._forges(self._forge(event))

    def _forge(self, event: nostr.Event) -> str:
        """Somebody else's words with a signature that is none; the content is its own, and so is the id."""
        content = f"forged {event.id}"
        id = nostr.event_id(event.pubkey, event.created_at, event.kind, event.tags, content)
        lie = forged(
            self._random,
            nostr.Event(id, event.pubkey, event.created_at, event.kind, event.tags, content, event.sig),
        )
        self._lies.add(id)
        self.outbox[id] = nostr.serialise(lie)
        return id

    def _read(self) -> None:
        """See what the home node has of one of the documents."""
        author = self.device.author
        coordinate = self._random.choice(author.coordinates)
        reader = self._home.store.open_reader()
        found = reader.heads(document_key(author.family, author.pubkey, 0, coordinate))
        versions = [
            Version(
                facts.revision.revision if facts.revision else facts.id,
                coordinate,
                bool(facts.action),
                0,
                clock=facts.clock or {},
                parents=facts.revision.parents if facts.revision else (),
            )
            for facts in found
        ]
        if len(versions) > 1:
            self._checks.mark("conflict read")
        self.device.sees(coordinate, versions)

    async def _dial(self) -> Caller | None:
        host = self._home if self._home.up and self._random.random() < 0.9 else self._random.choice(self._hosts)
        try:
            return await Caller.dial(host.name, lambda said: self._hear(host, said), self._answered.set)
        except OSError:
            return None

    async def _publish(self, caller: Caller) -> None:
        self._answered.clear()
        raws = list(self.outbox.values())
        if self._random.random() < 0.2:  # a child before its parent, a deletion before what it deletes
            self._random.shuffle(raws)
        caller.publish(raws)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while self.outbox and caller.alive:
                    await self._answered.wait()
                    self._answered.clear()
        except TimeoutError:
            caller.hang_up()

    def _hear(self, host: Host, said: list[Any]) -> None:
        if said[0] != "OK":
            return
        _, id, accepted, text = said
        if accepted:
            if id in self._lies:
                self._checks.breach(f"{host.name} accepted the forged {id[:8]}")
            else:
                self._checks.acknowledge(host, id)
        elif text.startswith(TEMPORARY):
            return  # it is sent again
        elif id not in self._lies:
            self._checks.mark(f"refused: {text.partition(':')[0]}")
        self.outbox.pop(id, None)
        if not self.outbox:
            self._answered.set()


class Reader:
    """Follows a feed of one node. `wants` says which operations the feed carries."""

    def __init__(
        self,
        host: Host,
        request: dict[str, Any],
        wants: Callable[[str], bool],
        checks: Checks,
        random: random.Random,
    ) -> None:
        self._host = host
        self._request = request
        self._wants = wants
        self._checks = checks
        self._random = random
        self._log = ("", "")
        self._at = 0
        self._caller: Caller | None = None
        self._asked: tuple[int, int] = (0, 0)  # since when, and where the floor was then
        self._waiting: deque[list[Any]] = deque()

    async def live(self, pause: float) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / pause))
            if self._caller is not None and self._caller.alive:
                if self._random.random() < 0.4:
                    self._caller.hang_up()
                continue
            try:
                self._caller = await Caller.dial(self._host.name, self._hear)
            except OSError:
                continue
            if self._host.up and self._caller.alive:
                self._ask(self._caller)

    def _ask(self, caller: Caller) -> None:
        log = self._host.store.log()
        if self._log != (log.stream, log.epoch):
            self._log, self._at = (log.stream, log.epoch), log.floor - 1
        elif self._random.random() < 0.3:  # it comes with an old checkpoint, near the floor
            self._at = max(0, log.floor - 1 - self._random.randrange(4))
        self._asked = self._at, log.floor
        caller.say("CHANGES", "w", {**self._request, "since": self._at, "live": True})

    def _hear(self, said: list[Any]) -> None:
        host, checks = self._host, self._checks
        if said[0] != "CHANGES" or self._caller is None or self._caller.tampered:
            return
        if not host.process.alive:  # it cannot be asked; what it said before it died holds all the same
            if said[2] in ("EVENT", "EOSE"):
                self._at = max(self._at, said[3])
            return
        log = host.store.log()
        if self._log != (log.stream, log.epoch):
            return  # said before the log was another one
        if said[2] == "ERR":
            self._told(said[3], log.floor)
            return
        since, floor = self._asked
        if since < floor - 1:
            checks.breach(f"{host.name} served from {since} with the floor at {floor} without a word")
        at = said[3]
        if said[2] == "EVENT":
            id = said[4]["id"]
            if at <= self._at:
                checks.breach(f"{host.name} served position {at} after {self._at}")
            if checks.logs.get(self._log, {}).get(at) != id:
                checks.breach(f"{host.name} served {id[:8]} at {at}, where another stands")
            checks.mark("fed")
            self._whole(at - 1)
            self._at = max(self._at, at)
        elif said[2] == "EOSE":
            checks.mark("fed to the end")
            self._whole(at)
            self._at = max(self._at, at)

    def _told(self, text: str, floor: int) -> None:
        if text.startswith("checkpoint too"):
            self._checks.mark("gap told")
            if self._at >= floor - 1 and self._at <= self._host.store.log().tip:
                self._checks.breach(f"{self._host.name} told of a gap at {self._at} with the floor at {floor}")
            self._at = max(self._at, floor - 1)
        if self._caller is not None:
            self._caller.hang_up()

    def _whole(self, until: int) -> None:
        """Nothing between what was served last and here was left out that is still there."""
        given = self._checks.logs.get(self._log, {})
        skipped = [Position(at) for at in range(self._at + 1, until + 1) if (id := given.get(at)) and self._wants(id)]
        if skipped and retained(self._host, skipped):
            self._checks.breach(f"{self._host.name} left out something between {self._at} and {until}")
