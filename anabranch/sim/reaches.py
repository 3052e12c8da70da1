"""How far a checkpoint answers for the log of a plain relay, which has one all the same, and does not tell of it.

There a checkpoint is a time and a witness, the lasting operation that came last. In positions of the relay's own log it
answers for what was there when the comparison began with which the connection did, as far back as that looked; and once
the stream is live, in which everything comes in the order of the log, for all up to the witness. For what was stored
between the two it does not: the next comparison looks for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from anabranch.core.operation import Operation
from anabranch.core.token import START, Log, Position, ProgressToken
from anabranch.replicate import peers
from anabranch.replicate.states import Phase

if TYPE_CHECKING:
    from anabranch.replicate.link import Link
    from anabranch.sim.checks import Checks
    from anabranch.sim.host import Host

_COMPARED = (Phase.TAILING, Phase.STREAMING)


class Reach(msgspec.Struct):
    """Of one link, on one connection."""

    log: tuple[str, str] = ("", "")
    compared: Position = START
    """The relay's tip when the comparison began."""
    looked: Position = START
    """Up to there it was looked at, on this connection or one before it."""
    since: int = 0
    """What was made before was not compared."""
    crowded: tuple[int, ...] = ()
    """What was made in these seconds could not be seen whole."""
    live: Position | None = None
    """The relay's tip when its stream was live, or the last witness since; None: it is not live."""
    phase: Phase = Phase.RECONCILING

    def shows(self, operation: Operation) -> bool:
        """Whether the comparison had to show it."""
        at = operation.event.created_at
        return at >= self.since and at not in self.crowded


class Reaches:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._reaches: dict[tuple[str, str], Reach] = {}  # by host and link

    def booted(self, host: Host) -> None:
        for key in [key for key in self._reaches if key[0] == host.name]:
            del self._reaches[key]

    def said(self, host: Host, link: Link, relay: Host) -> None:
        """The link has come further, or has lost its connection."""
        key = host.name, link.spec.name
        reach, log = self._reaches.get(key), _log(relay)
        if link.phase is Phase.RECONCILING and (reach is None or reach.phase is not Phase.RECONCILING):
            reach = self._reaches[key] = _begun(log, reach)
        if reach is None:
            return
        reach.phase, reach.crowded = link.phase, link.crowded
        if link.phase is Phase.RECONCILING and link.round is not None and not link.round.whole:
            wall = host.clock.nanoseconds() // 1_000_000_000
            reach.since = max(reach.since, peers.overlapping(link.pull.contiguous, wall))
        if link.phase is Phase.STREAMING and reach.live is None and log is not None:
            reach.live = log.tip

    def answered_for(self, host: Host, link: str, relay: Host, token: ProgressToken) -> Iterator[tuple[int, str]]:
        """What a checkpoint answers for, with its place in the relay's log, and was not looked at yet."""
        reach, log = self._reaches.get((host.name, link)), _log(relay)
        if reach is None or log is None or reach.log != (log.stream, log.epoch) or reach.phase not in _COMPARED:
            return
        given, made = self._checks.logs[reach.log], self._checks.made
        for at in range(reach.looked + 1, reach.compared + 1):
            if (id := given.get(at)) in made and reach.shows(made[id]):
                yield at, id
        reach.looked = reach.compared
        witness = self._checks.position(relay, token.message)
        if reach.live is None or witness is None or witness <= reach.live:
            return
        for at in range(reach.live + 1, witness + 1):
            if (id := given.get(at)) is not None:
                yield at, id
        reach.live = witness


def _begun(log: Log | None, before: Reach | None) -> Reach:
    """A connection begins with a comparison. Of a relay that has gone down meanwhile it will show nothing."""
    if log is None:
        return Reach()
    name = log.stream, log.epoch
    return Reach(name, log.tip, before.looked if before is not None and before.log == name else START)


def _log(relay: Host) -> Log | None:
    return relay.store.log() if relay.up else None
