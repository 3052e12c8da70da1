"""Worlds with a plain relay in them: it has no log to follow, tells no epoch, and knows NIP-01, perhaps NIP-77.

Its words are a production node's, less all that makes it more than a relay; what it does not know it refuses, ignores,
or hangs up on, as relays do. It crashes and is put back like everybody, people write to it, and in the end it must
have what the nodes have that are linked with it, and they what it has.
"""

from __future__ import annotations

from typing import cast

import msgspec

from anabranch.config import RetentionSettings
from anabranch.node.connection import Connection
from anabranch.node.http import Answer, Request
from anabranch.replicate.spec import Direction
from anabranch.sim.faults import Fault
from anabranch.sim.host import Host, HostNode
from anabranch.sim.world import HABITS, World
from anabranch.wire.session import Effect, Hangup, Rules, Session

CALM = HABITS[:2]
"""Who has more in one second than a relay gives at once cannot be seen whole without NIP-77, and the link says so."""
QUERY_LIMITS = (200, 500)
MANNERS = ("refuses", "ignores", "hangs up")
_OWN = (b'["CHANGES"', b'["REQ-BATCH"')
_NIP_77 = (b'["NEG-',)
_TOLD = ("name", "description", "software", "version", "limitation")


class PlainSession(Session):
    """A session in which some words are unknown."""

    __slots__ = ("_manner", "_unknown")

    def __init__(self, rules: Rules, challenge: str, unknown: tuple[bytes, ...], manner: str) -> None:
        super().__init__(rules, challenge)
        self._unknown = unknown
        self._manner = manner

    def receive(self, message: bytes, now: int) -> list[Effect]:
        if not message.startswith(self._unknown):
            return super().receive(message, now)
        if self._manner == "ignores":
            return []
        if self._manner == "hangs up":
            return [Hangup("unknown message")]
        return self._refuse("invalid: unknown message type")


class PlainNode(HostNode):
    """A relay, and nothing more."""

    def upgraded(self, connection: Connection) -> None:
        super().upgraded(connection)
        host = cast(PlainHost, self._host)
        connection.session = PlainSession(self.rules, "", host.unknown, host.manner)

    async def start(self) -> None:
        await super().start()
        answer = self.http.answer

        async def plainly(request: Request) -> Answer:
            told = await answer(request)
            if told.content_type != "application/nostr+json":
                return told
            document = msgspec.json.decode(told.body)
            kept = {name: document[name] for name in _TOLD}
            kept["supported_nips"] = [1, 9, 11] + [77] * cast(PlainHost, self._host).reconciles
            return msgspec.structs.replace(told, body=msgspec.json.encode(kept))

        self.http.answer = plainly  # type: ignore[method-assign]


class PlainHost(Host):
    node_type = PlainNode
    reconciles = False
    manner = MANNERS[0]

    @property
    def unknown(self) -> tuple[bytes, ...]:
        return _OWN if self.reconciles else _OWN + _NIP_77


class PlainWorld(World):
    # A plain relay keeps what it has; and that its words came in another order than they were said in, nobody can see.
    without = frozenset({Fault.RETENTION, Fault.REORDER})
    survey_pause = 5.0  # so that it is done again within the time there is

    def __init__(self, seed: int, keep_trace: bool = False, to_the_end: bool = True) -> None:
        super().__init__(seed, keep_trace, to_the_end)
        self._reconciles = self.random.random() < 0.4
        if not self._reconciles:
            self.habits = CALM

    async def _invite(self) -> None:
        draw = self.random
        retention = RetentionSettings(interval_seconds=100_000)
        relay = await self._host("relay", retention, PlainHost, draw.choice(QUERY_LIMITS))
        assert isinstance(relay, PlainHost)
        relay.reconciles, relay.manner = self._reconciles, draw.choice(MANNERS)
        self.checks.mark(f"relay {relay.manner} {'' if relay.reconciles else 'NEG-OPEN and '}CHANGES")
        self.hosts.append(relay)

    async def _link(self) -> None:
        await super()._link()
        draw, relay = self.random, self.hosts[-1]
        for node in draw.sample(self.nodes, draw.choice((1, 1, 2))):
            if draw.random() < 0.5:
                await self._add(node, relay, Direction.BOTH)
            else:
                await self._add(node, relay, Direction.PULL)
                await self._add(node, relay, Direction.PUSH)
