"""A link in numbers and in words: how it stands, what it waits for, since when, and what is probably the matter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.token import Log
from anabranch.replicate.link import Link
from anabranch.replicate.peers import PeerKind
from anabranch.replicate.refusals import advice, refused_count
from anabranch.replicate.states import LinkState, Phase

if TYPE_CHECKING:
    from anabranch.replicate.following import Following


def described(following: Following, clock: float, wall: int, own: Log) -> dict[str, Any]:
    """How a link stands; every value is JSON."""
    link, spec, record = following.link, following.spec, following.record
    return {
        "name": spec.name,
        "peer": spec.peer,
        "direction": str(spec.direction),
        "scope": spec.scope.conditions(),
        "scope_id": spec.scope.id,
        "origin": spec.origin,
        "key_file": spec.files.key,
        "access_key_file": spec.files.access_key,
        "pubkey": link.identity.keys.pubkey if link.identity is not None else None,
        "state": str(link.state),
        "phase": str(link.phase),
        "caught_up": link.caught_up,
        "peer_kind": str(link.peer.kind) if link.peer is not None else None,
        "pull": _checkpoint(link.pull) if spec.pulls else None,
        "push": _checkpoint(link.push) if spec.pushes else None,
        "lag_positions": lag_positions(link, own),
        "lag_seconds": lag_seconds(following, clock, wall),
        "in_flight": link.in_flight,
        "unkept": link.unkept,
        "untaken": link.untaken,
        "deferred": len(link.deferred),
        "failures": link.failures,
        "repairs": link.repairs,
        "last_gap": link.gap,
        "next_try_seconds": _until(link.retry_at, clock) if link.phase is Phase.OFFLINE else None,
        "verified_seconds_ago": None if link.verified_at is None else round(clock - link.verified_at, 3),
        "created_at": record.created_at,
        "last_success_at": record.last_success_at,
        "last_failure_at": record.last_failure_at,
        "last_error": link.last_error,
    }


def lag_positions(link: Link, own: Log) -> dict[str, int | None]:
    """How many positions each direction is behind, as far as that is known: the peer's log, and our own."""
    pull = push = None
    received, contiguous = link.pull.received, link.pull.contiguous
    if link.spec.pulls and link.peer is not None and link.peer.kind is not PeerKind.PLAIN and contiguous is not None:
        seen = max(link.peer.log.tip, received.position if received is not None else 0)
        same_log = contiguous.domain == (link.peer.log.stream, link.epoch)
        pull = max(0, seen - contiguous.position) if same_log else None
    at = link.pushed
    if link.spec.pushes and at is not None and at.domain == (own.stream, own.epoch):
        push = max(0, own.tip - at.position)
    return {"pull": pull, "push": push}


def lag_seconds(following: Following, clock: float, wall: int) -> float | None:
    """For how long the two may have been apart: 0 while caught up; None: never compared."""
    link = following.link
    if link.caught_up:
        return 0.0
    if following.caught_up_at is not None:
        return round(clock - following.caught_up_at, 3)
    last = following.record.last_success_at
    return None if last is None else float(max(0, wall - last))


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "received": checkpoint.received.to_wire() if checkpoint.received is not None else None,
        "contiguous": checkpoint.contiguous.to_wire() if checkpoint.contiguous is not None else None,
        "pending": [
            {
                "operation": one.blocked.operation,
                "token": one.token.to_wire(),
                "dependency": one.blocked.dependency,
                "missing": one.blocked.missing,
                "why": one.blocked.why,
            }
            for one in checkpoint.pending
        ],
    }


def _until(at: float | None, clock: float) -> float | None:
    return None if at is None else round(max(0.0, at - clock), 3)


def explained(following: Following, clock: float, wall: int, own: Log, dead_letters: int, since: int) -> dict[str, Any]:
    """The same for people: sentences, and the facts they are made of. `since` is when it came into its state."""
    link = following.link
    sentences = [_standing(link), _since(link, since, wall), *_waiting(link, clock), *_suspicion(link)]
    if link.pull.pending:
        waiting, first = link.pull.pending, link.pull.pending[0].blocked
        sentences.append(f"{_operations(len(waiting))} received and not applied; {first}.")
    if link.crowded:
        others = f" and {len(link.crowded) - 1} others" if len(link.crowded) > 1 else ""
        sentences.append(
            f"The peer holds more events of the second {link.crowded[0]}{others} than it gives at once, and did not "
            "reconcile: whether we have all of them cannot be seen."
        )
    elif link.partial and link.state is LinkState.LIVE and link.phase is Phase.STREAMING:
        sentences.append(
            "The peer has no log and does not reconcile: what came to it with an older date while its stream was cut "
            f"is found when all that it has is read again, in {_until(link.survey_at, clock) or 0.0:.0f} s or later."
        )
    if link.forgot:
        sentences.append(
            "One of the two does not take more operations than this node has room to remember: whether nothing else "
            "differs cannot be seen. A narrower scope helps."
        )
    if dead_letters:
        sentences.append(
            f"Refused for good: {refused_count(dead_letters)}; `anabranch link show {link.spec.name}` lists them, "
            f"`anabranch link repair {link.spec.name}` tries them again."
        )
    return {
        "name": link.spec.name,
        "state": str(link.state),
        "caught_up": link.caught_up,
        "since_seconds": max(0, wall - since),
        "next_try_seconds": _until(link.retry_at, clock) if link.phase is Phase.OFFLINE else None,
        "suspected_cause": link.last_error,
        "explanation": sentences,
        "lag_positions": lag_positions(link, own),
        "lag_seconds": lag_seconds(following, clock, wall),
    }


def _standing(link: Link) -> str:
    if link.caught_up:
        unkept = f", but for {link.unkept} that the peer has refused or does not keep" if link.unkept else ""
        untaken = f", but for {link.untaken} that our rules refuse" if link.untaken else ""
        but = unkept + untaken
        return f"It is live and caught up: the digests of both sides were equal{but}, and nothing is under way."
    if link.state is LinkState.LIVE and link.phase is Phase.STREAMING and (link.crowded or link.partial):
        return "It is live, and is not said to be caught up: not all that the peer has can be seen."
    if link.state is LinkState.LIVE and link.phase is Phase.STREAMING and link.deferred:
        return "It is live, and is not caught up: there are operations that the peer does not take now."
    return {
        LinkState.INITIAL: "It has not caught up since the node started or the link was made.",
        LinkState.LIVE: "It is live; something is under way, or the stream is being taken up again.",
        LinkState.DEGRADED_POLL: "The stream cannot be had; it compares with the peer every few seconds instead.",
        LinkState.REPAIRING: "Its checkpoint is in doubt: everything in scope is compared before it goes on.",
        LinkState.PAUSED: "It is paused; `anabranch link resume` lets it go on from its checkpoint.",
    }[link.state]


def _since(link: Link, since: int, wall: int) -> str:
    when = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"It has been {str(link.state).replace('_', ' ')} since {when}, for {_spoken(max(0, wall - since))}."


def _operations(count: int) -> str:
    return "1 operation" if count == 1 else f"{count} operations"


def _spoken(seconds: int) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _waiting(link: Link, clock: float) -> list[str]:
    if link.state is LinkState.PAUSED:
        return []
    if link.phase is Phase.OFFLINE:
        seconds = _until(link.retry_at, clock) or 0.0
        return [f"It waits to be tried again in {seconds:.1f} s (attempt {link.failures + 1})."]
    if link.phase is Phase.DIALLING:
        return ["It waits for the peer to answer the connection."]
    if link.round is not None:
        return [f"It waits while {link.round.step}."]
    if link.deferred:
        said = next(iter(link.deferred.values()))
        waits = f"It waits for the peer to take {_operations(len(link.deferred))} or more, and goes on with the rest"
        return [f"{waits}; the peer said: {said}.", *_advice(said)]
    if link.pusher is not None and not link.pusher.settled:
        return [f"It waits for the peer to take {_operations(link.pusher.waiting)}."]
    return [] if link.caught_up else [f"It waits while {link.phase}."]


def _suspicion(link: Link) -> list[str]:
    if link.last_error is None:
        return []
    said = f" The peer's last notice: {link.last_notice}" if link.last_notice else ""
    return [f"Suspected cause: {link.last_error}.{said}", *_advice(link.last_error)]


def _advice(reason: str | None) -> list[str]:
    found = advice(reason or "")
    return [found] if found is not None else []
