"""What must hold of links: no checkpoint ahead of what was applied, no echo, and «caught up» only where it is so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from anabranch.core.scope import Scope
from anabranch.core.token import START, Position, ProgressToken
from anabranch.replicate import peers
from anabranch.replicate.peers import PeerKind
from anabranch.sim.reaches import Reaches
from anabranch.store.contract import LinkChange, LinkRecord, Offer, Outcome, Stored

if TYPE_CHECKING:
    from anabranch.replicate.link import Link
    from anabranch.sim.checks import Checks
    from anabranch.sim.host import Host

CAUGHT_UP = "caught up: there was something to look at"
CHECKPOINT = "checkpoint: positions of a log looked at"
PLAIN_CHECKPOINT = "checkpoint: positions of a plain relay looked at"


class LinkChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self.hosts: dict[str, Host] = {}
        self.liars: set[str] = set()
        self._origins: dict[tuple[str, str], str] = {}  # (host, id) → from whom it has it
        self._booted: dict[str, float] = {}
        self._reaches = Reaches(checks)
        self._records: dict[tuple[str, str], LinkRecord] = {}  # peer, scope and direction: they never change
        self._at: dict[tuple[str, str], ProgressToken] = {}  # (host, link) → the checkpoint that was seen last
        self._equal: dict[tuple[str, str], float | None] = {}  # (host, link) → as of when it says that all is equal

    def booted(self, host: Host, held: set[str]) -> None:
        """What was checked may have been put back. What the host has not `held` on to may be given back to it, and the
        next time it may have it from somebody else."""
        self._booted[host.name] = host.loop.time()
        for key in [key for key in self._at if key[0] == host.name]:
            del self._at[key]
        self._reaches.booted(host)
        for key, giver in list(self._origins.items()):
            if key[1] not in held and host.name in (key[0], giver):
                del self._origins[key]

    def moved(
        self, host: Host, change: LinkChange, offers: Sequence[Offer] = (), outcomes: Sequence[Outcome] = ()
    ) -> None:
        record = self._record(host, change.link)
        if record is None:
            return
        peer = self.hosts.get(_host_of(record.peer))
        if peer is None:
            return
        for offer, outcome in zip(offers, outcomes, strict=True):
            if isinstance(outcome, Stored):
                id = offer.operation.event.id
                if id in self._checks.holding.get(peer.name, ()):  # or it was put back while that was on its way
                    self._origins[host.name, id] = peer.name
                self._checks.mark("pulled")
        if change.transition is not None:
            self._checks.mark(f"link {change.transition.after}: {change.transition.cue}")
        if peer.name in self.liars:
            return
        if change.pull is not None and change.pull.contiguous is not None:
            self._checkpoint(host, peer, record, change.pull.contiguous)
        if change.push is not None and change.push.contiguous is not None:
            self._answered(host, peer, record, change.push.contiguous)

    def said(self, host: Host, link: Link) -> None:
        """Whenever a link says that it is caught up, nothing of it is under way; and when it comes to say so, or says
        it of a later comparison, it must be so."""
        key = host.name, link.spec.name
        peer = self.hosts.get(_host_of(link.spec.peer))
        if peer is not None and link.peer is not None and link.peer.kind is PeerKind.PLAIN:
            self._reaches.said(host, link, peer)
        if link.caught_up and link.in_flight:
            self._checks.breach(
                f"{host.name}: {link.spec.name} says it is caught up, and {link.in_flight} operations are under way"
            )
        if not link.caught_up or peer is None or peer.name in self.liars:
            self._equal.pop(key, None)
            return
        as_of = link.equal_as_of
        if key in self._equal and self._equal[key] == as_of:
            return
        self._equal[key] = as_of
        if as_of is None:
            self._checks.breach(f"{host.name}: {link.spec.name} says it is equal, and has compared nothing")
        elif (record := self._record(host, link.spec.name)) is not None:
            self._caught_up(host, peer, record, as_of)

    def _record(self, host: Host, link: str) -> LinkRecord | None:
        key = host.name, link
        if key not in self._records:
            self._records.update({(host.name, one.name): one for one in host.store.open_reader().links()})
        return self._records.get(key)

    def _checkpoint(self, host: Host, peer: Host, record: LinkRecord, token: ProgressToken) -> None:
        """All that the peer's log has up to the checkpoint is known here, or there is a reason."""
        key = host.name, record.name
        before = self._at.get(key)
        self._at[key] = token
        start = before.position if before is not None and before.domain == token.domain else START
        if token.position < start:
            self._checks.breach(
                f"{host.name}: the checkpoint of {record.name} went back from {start} to {token.position}"
            )
        if frozenset((host.name, peer.name)) in host.network.disordered:
            return  # what overtook it was applied before anybody could know; the comparison finds it
        if peers.is_plain(token.stream):
            mark, given = PLAIN_CHECKPOINT, self._reaches.answered_for(host, record.name, peer, token)
        else:
            mark, given = CHECKPOINT, self._given(peer, token, start)
        for at, id in given:
            self._checks.mark(mark)
            if self._lacks(host, peer, id, record):
                self._checks.breach(
                    f"{host.name}: {record.name} stands at {token.position} and has not {id[:8]} of {at}"
                )

    def _given(self, peer: Host, token: ProgressToken, start: Position) -> Iterator[tuple[int, str]]:
        """What was given the positions between `start` and a token in a log that a peer tells of."""
        epoch = peers.told_epoch(token.epoch)
        if self._checks.was_put_back(peer) and peer.process.alive and peer.store.log().epoch != epoch:
            return  # of the log before an old backup was put back: what it had removed may be there again
        given = self._checks.logs.get((token.stream, epoch), {})
        for at in range(start + 1, token.position + 1):
            if (id := given.get(at)) is not None:
                yield at, id

    def _answered(self, host: Host, peer: Host, record: LinkRecord, token: ProgressToken) -> None:
        """All of our own log up to the checkpoint is known to the peer, unless it has lost it since."""
        key = host.name, f"{record.name} gives"
        before = self._at.get(key)
        self._at[key] = token
        start = before.position if before is not None and before.domain == token.domain else START
        given = self._checks.logs.get(token.domain, {})
        for at in range(start + 1, token.position + 1):
            id = given.get(at)
            if id is not None and not self._checks.was_put_back(peer) and self._lacks(peer, host, id, record):
                self._checks.breach(
                    f"{host.name}: {record.name} has given all up to {token.position}, but not {id[:8]}"
                )

    def _caught_up(self, host: Host, peer: Host, record: LinkRecord, as_of: float) -> None:
        """Two that say that they are equal have, both ways, what was there when they began to compare. Of an old backup
        that was put back since, nobody can know yet."""
        if any(self._checks.was_put_back(one, as_of) for one in (host, peer)):
            return
        ways = {"pull": [(host, peer)], "push": [(peer, host)], "both": [(host, peer), (peer, host)]}
        for one, other in ways[record.direction]:
            given = self._checks.stored_before(other, as_of)
            if given:
                self._checks.mark(CAUGHT_UP)
            for id in given:
                if self._lacks(one, other, id, record):
                    self._checks.breach(
                        f"{host.name}: {record.name} says it is equal, and {one.name} lacks {id[:8]} of {other.name}"
                    )
                    return

    def _lacks(self, host: Host, peer: Host, id: str, record: LinkRecord) -> bool:
        """Whether a host has not what its peer has to give, in scope, and nothing stands for it."""
        checks = self._checks
        if id in checks.holding[host.name] or not peer.process.alive or not host.process.alive:
            return False
        operation = checks.made.get(id)
        if operation is None or not _scope(record).matches(operation) or not checks.retains(peer, id):
            return False
        return not checks.stands_for(host, id)

    def offered(self, host: Host, source: str, id: str, since: float) -> None:
        """A node gives an operation to another: never to the one it has it from, unless that one has lost it since. It
        may then be on its way there twice: it is no echo. Nor is what came on a connection `since` a former life."""
        if self._origins.get((source, id)) != host.name or not self._checks.retains(host, id):
            return
        if since < self._booted.get(source, 0.0):
            return
        if not self._cannot_tell(source, host):
            self._checks.breach(f"{source} gave {id[:8]} back to {host.name}, from whom it has it")

    def _cannot_tell(self, source: str, host: Host) -> bool:
        """Whether it compared by pages, and what one second holds is more than was given at once: then only the answer
        to what is given tells whether it was there."""
        links = [
            one.link for one in self.hosts[source].node.links.links.values() if _host_of(one.spec.peer) == host.name
        ]
        return any(link.round is not None and link.round.crowded for link in links)


def _host_of(url: str) -> str:
    return url.partition("://")[2].partition(":")[0].partition("/")[0]


_scopes: dict[str, Scope] = {}


def _scope(record: LinkRecord) -> Scope:
    if record.scope not in _scopes:
        _scopes[record.scope] = Scope.parse(msgspec.json.decode(record.scope))
    return _scopes[record.scope]
