"""Peers: what another node or relay can do, and how its stream is asked for in a scope.

A peer is read from its information document (NIP-11). One that serves its whole log (`LOG`) or the feed of an author or
a recipient (`FEED`) has positions; any other relay (`PLAIN`) is compared, then followed by a REQ that overlaps with the
comparison. Where a relay names no epoch we give it one, and hold it to an operation that it is known to have, and
to its place: a relay that was wiped and used again no longer has it, or has it elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.core import snapshots
from anabranch.core.nostr import TIMESTAMP_MAX
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.scope import Scope
from anabranch.core.token import START, GapReason, Log, Position, ProgressToken, token_gap
from anabranch.wire import dialogue
from anabranch.wire.dialogue import printable

OVERLAP_SECONDS = 900
TEXT_MAX = 200
_PLAIN = "relay:"  # before the address, in the name that we give to the stream of a relay that has none
_TURN = "~"  # between the epoch that a peer tells and how often its log was set back within it


class PeerKind(StrEnum):
    LOG = "log"
    FEED = "feed"
    PLAIN = "plain"


class Peer(msgspec.Struct, frozen=True):
    kind: PeerKind
    log: Log
    """What it says of its log. Of a plain relay only the stream and the epoch, which we gave it, mean anything."""
    tells_epoch: bool
    tells_tip: bool
    reconciles: bool | None = None
    """Whether it says to speak NIP-77; None where it says nothing."""
    takes_tokens: bool = False
    """Whether its log can be asked for by stream and epoch too, so that it is surely the one that it told of."""
    message_bytes_max: int | None = None
    authenticates: bool = False
    """Whether it says that it serves only those whom it knows (NIP-42)."""


def identify(information: Mapping[str, Any], url: str, scope: Scope) -> Peer:
    """What a peer is, from what it says of itself."""
    feed = _object(information.get("changes_feed"))
    stream, epoch = _text(feed.get("stream_id")), _text(feed.get("epoch")).replace(_TURN, "-")
    tip = _count(feed.get("max_seq"))
    kind = PeerKind.PLAIN
    if stream and epoch and tip is not None and feed.get("log") is True:
        kind = PeerKind.LOG
    elif _feed_condition(information, scope) is not None:
        kind = PeerKind.FEED
    positioned = kind is not PeerKind.PLAIN
    nips = information.get("supported_nips")
    limitation = _object(information.get("limitation"))
    return Peer(
        kind,
        Log(
            stream if positioned and stream else f"{_PLAIN}{url}",
            epoch if positioned and epoch else "",
            Position(_count(feed.get("min_seq")) or 0) if positioned else Position(0),
            Position(tip or 0) if positioned else Position(0),
        ),
        tells_epoch=positioned and bool(epoch),
        tells_tip=positioned and tip is not None,
        takes_tokens=feed.get("tokens") is True and (feed.get("stream_id"), feed.get("epoch")) == (stream, epoch),
        reconciles=77 in nips if isinstance(nips, list) else None,
        message_bytes_max=_count(limitation.get("max_message_length")) or None,
        authenticates=limitation.get("auth_required") is True,
    )


def is_plain(stream: str) -> bool:
    """Whether a stream is one that we named, for a relay that has no log."""
    return stream.startswith(_PLAIN)


def epoch(peer: Peer, known: ProgressToken | None, wall: int, rewound: bool = False) -> str:
    """The epoch of a peer's log: as it tells; or as we gave it one before, and where that does not hold a new one.

    A log that was set back without a word (`rewound`) is another generation, whatever it says: a checkpoint only moves
    forward within one.
    """
    before = known.epoch if known is not None and known.stream == peer.log.stream else ""
    if not peer.tells_epoch:
        derived = "derived-" + hashlib.sha256(f"{peer.log.stream}\0{wall}".encode()).hexdigest()[:32]
        return before if before and not rewound else derived
    told, _, turn = before.partition(_TURN)
    if told != peer.log.epoch:
        return peer.log.epoch
    return f"{told}{_TURN}{int(turn or 0) + 1}" if rewound else before


def told_epoch(epoch: str) -> str:
    """The epoch as the peer tells it, however often its log was set back within it."""
    return epoch.partition(_TURN)[0]


def own_log(peer: Peer) -> tuple[str, str] | None:
    """Stream and epoch of a peer that tells them; None: it does not."""
    return (peer.log.stream, peer.log.epoch) if peer.tells_epoch else None


def resume_gap(peer: Peer, epoch: str, known: ProgressToken) -> GapReason | None:
    """Why a checkpoint cannot be resumed from, as far as the peer's information tells."""
    log = msgspec.structs.replace(peer.log, epoch=epoch)
    if peer.kind is PeerKind.PLAIN:  # its position is a time of our own
        log = Log(log.stream, epoch, START, known.position)
    elif not peer.tells_tip:
        log = Log(log.stream, epoch, log.floor, max(log.tip, known.position))
    found = token_gap(log, known)
    return found.reason if found is not None else None


def refused_for(reason: str) -> GapReason | None:
    """The gap that a peer means by the words in which it refuses its stream."""
    words = {
        "checkpoint too old": GapReason.TOKEN_TOO_OLD,
        "checkpoint too new": GapReason.TOKEN_TOO_NEW,
        "checkpoint of another epoch": GapReason.EPOCH_MISMATCH,
        "checkpoint of another stream": GapReason.STREAM_MISMATCH,
        "checkpoint of another history": GapReason.MESSAGE_MISMATCH,
    }
    return next((missed for said, missed in words.items() if reason.startswith(said)), None)


def tip(peer: Peer, epoch: str, wall: int) -> ProgressToken:
    """Where the stream is taken up after a comparison that begins now: nothing before it can be missed."""
    position: int = peer.log.tip if peer.tells_tip else max(peer.log.floor - 1, 0)
    return ProgressToken(peer.log.stream, epoch, Position(wall if peer.kind is PeerKind.PLAIN else position))


def overlapping(resume: ProgressToken | None, wall: int) -> int:
    """From when on a plain relay is asked: its clock is not ours, and what is made now may reach it a little later."""
    return max(0, (wall if resume is None else min(wall, resume.position)) - OVERLAP_SECONDS)


def request(peer: Peer, scope: Scope, name: str, resume: ProgressToken | None, wall: int) -> bytes:
    """The message that opens the peer's stream, from where we stand."""
    if peer.kind is PeerKind.PLAIN:
        # Two filters: whatever comes from now on, also with an older date, and what was made lately. In this order:
        # there are relays that go by the last limit alone.
        lately = {**scope.filter(), "since": overlapping(resume, wall)}
        return dialogue.req(name, {**scope.filter(), "limit": 1}, lately)
    since = resume.position if resume is not None else START
    if peer.kind is PeerKind.LOG:
        token = ProgressToken(peer.log.stream, peer.log.epoch, since)
        after = {"token": token.to_wire()} if peer.takes_tokens else {"since": since}
        return dialogue.changes(name, {"mode": "log", **after, "live": True, **scope.filter()})
    return dialogue.changes(name, {**_tail(scope, since), "live": True})


def request_at(peer: Peer, scope: Scope, name: str, position: Position) -> bytes | None:
    """The message that asks a feed which tells no epoch what it has at a position; None: there is no need, or no way
    to."""
    if peer.kind is not PeerKind.FEED or peer.tells_epoch:
        return None
    return dialogue.changes(name, {**_tail(scope, Position(position - 1)), "limit": 1})


def _tail(scope: Scope, since: Position) -> dict[str, Any]:
    mode = {} if scope.recipients is not None else {"mode": "tail"}
    return {**mode, "since": since, **scope.named()}  # a feed has one family, and refuses to be asked for other kinds


def streams_all(peer: Peer, scope: Scope) -> bool:
    """Whether the stream brings all that the scope carries. A feed has no requests to delete or to vanish: they come
    with comparisons."""
    return peer.kind is not PeerKind.FEED or not scope.adds_requests


def _feed_condition(information: Mapping[str, Any], scope: Scope) -> str | None:
    """Whose feed carries the whole scope, where the peer serves it: snapshots of one author, revisions of one
    recipient."""
    snapshot = _object(information.get("snapshot_sync")).get("changes_feed") is True
    revision = _object(information.get("revision_sync")).get("changes_feed") is True
    kinds = scope.kinds or frozenset()
    if snapshot and scope.authors is not None and len(scope.authors) == 1 and scope.recipients is None:
        return next(iter(scope.authors)) if kinds and all(map(snapshots.in_range, kinds)) else None
    if revision and scope.recipients is not None and len(scope.recipients) == 1 and kinds == {GIFT_WRAP}:
        return next(iter(scope.recipients)) if scope.collections is None else None
    return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return printable(value[:TEXT_MAX]) if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= TIMESTAMP_MAX else None
