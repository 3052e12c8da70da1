"""The relay's messages, as bytes. Every word that goes over the wire stands here or in the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anabranch.core.operation import Family, Operation, Standing
from anabranch.core.revisions import STRATEGY, Ancestor
from anabranch.core.token import Position

encode = msgspec.json.Encoder().encode


def ok(id: str, accepted: bool, text: str = "") -> bytes:
    return encode(("OK", id, accepted, text))


def notice(text: str) -> bytes:
    return encode(("NOTICE", text))


def closed(subscription: str, text: str) -> bytes:
    return encode(("CLOSED", subscription, text))


def eose(subscription: str) -> bytes:
    return encode(("EOSE", subscription))


def count(subscription: str, number: int) -> bytes:
    return encode(("COUNT", subscription, {"count": number}))


def auth(challenge: str) -> bytes:
    return encode(("AUTH", challenge))


def token(key: str, accepted: bool, text: str = "") -> bytes:
    return encode(("TOKEN", key, accepted, text))


def compacted(subscription: str, id: str, position: Position | None = None) -> bytes:
    status: dict[str, Any] = {"id": id, "status": "payload_compacted"}
    if position is not None:
        status["seq"] = position
    return encode(("EVENT-STATUS", subscription, status))


def compacted_revision(
    subscription: str, revision: str, id: str | None = None, position: Position | None = None
) -> bytes:
    status: dict[str, Any] = {"rev": revision, "status": "payload_compacted"}
    if id is not None:
        status |= {"id": id, "seq": position}
    return encode(("EVENT-STATUS", subscription, status))


def changes_status(subscription: str, position: Position) -> bytes:
    return encode(("CHANGES", subscription, "STATUS", {"mode": "bootstrap", "snapshot_seq": position}))


def changes_eose(subscription: str, position: Position) -> bytes:
    return encode(("CHANGES", subscription, "EOSE", position))


def changes_error(subscription: str, text: str, gap: dict[str, Any] | None = None) -> bytes:
    """With the gap in tokens for those who asked with one."""
    return encode(("CHANGES", subscription, "ERR", text, *(() if gap is None else (gap,))))


def changes_deleted(subscription: str, position: Position, id: str, reason: str) -> bytes:
    return encode(("CHANGES", subscription, "DELETED", position, id, reason))


def changes_compacted(subscription: str, one: Ancestor) -> bytes:
    known = {"p": one.recipient, "d": one.coordinate, "r": one.revision, "prev": one.parents}
    return encode(("CHANGES", subscription, "COMPACTED", known))


def changes_passed(subscription: str, position: Position) -> bytes:
    return encode(("CHANGES", subscription, "PASSED", position))


def neg_status(subscription: str, position: Position) -> bytes:
    return encode(("NEG-STATUS", subscription, {"strategy": STRATEGY, "snapshot_seq": position}))


def neg_message(subscription: str, message: bytes) -> bytes:
    return encode(("NEG-MSG", subscription, message.hex()))


def neg_error(subscription: str, text: str, *more: int) -> bytes:
    return encode(("NEG-ERR", subscription, text, *more))


# Events go out as the bytes they came in: a frame is an opening, the raw event and a closing.


def event_opening(subscription: str) -> bytes:
    return b'["EVENT",%b,' % encode(subscription)


def events_opening(subscription: str) -> bytes:
    return b'["EVENTS",%b,[' % encode(subscription)


def snapshot_opening(subscription: str) -> bytes:
    return b'["CHANGES",%b,"SNAPSHOT",' % encode(subscription)


def change_opening(subscription: str) -> bytes:
    return b'["CHANGES",%b,"EVENT",' % encode(subscription)


def events(opening: bytes, raws: Sequence[bytes]) -> bytes:
    return b"%b%b]]" % (opening, b",".join(raws))


# What is said to a publisher.


def stored_text(operation: Operation) -> str:
    if operation.family is Family.SNAPSHOT:
        return f"stored: snapshot {operation.event.id}"
    if operation.revision is not None:
        return f"stored: revision {operation.revision.revision}"
    if operation.standing is Standing.ORDINARY:
        return ""
    return f"stored: {operation.standing} event kind={operation.event.kind}"


def duplicate_text(operation: Operation) -> str:
    if operation.family is Family.SNAPSHOT:
        return "duplicate: snapshot already exists"
    if operation.family is Family.REVISION:
        return "duplicate: revision already exists"
    return "duplicate: event already exists"


TOO_MANY = "blocked: too many query results"
NO_ROOM = "rate-limited: no room for one more reconciliation; try again later"
TOO_LONG = "closed: you took too long to respond"
NO_ANSWER_AWAITED = "closed: messages came faster than they were answered"
NEG_CLOSED = "negentropy session closed"
SUPERSEDED = "duplicate: a newer version exists"
FORGED = "invalid: signature does not match the event"
UNPROVEN = "error: the signature could not be checked; try again"
NOT_STORED = "error: the event could not be stored; try again later"
NOT_READ = "error: the relay could not read its store; try again later"
TOO_SLOW = "error: the query took too long; ask for less"
BOOTSTRAP_TOO_SLOW = "error: the bootstrap was read too slowly and has been ended; bootstrap again"
LAGGING = "error: too slow: the subscription fell behind and was dropped; resume from your checkpoint"
