"""A client's talk with a relay: what it can hear, and what its machines ask of their shell. No I/O.

`read` takes whatever a relay sent and gives one answer; what is no message of the protocol is `Unknown`, never an
error, because a peer that babbles is a case like any other. A machine (`Pages`, `ByIds`, `Reconciliation`) is started,
then told what was heard, that nothing came in time, or that the connection ended; it returns effects. None instead of
effects means that the answer was not for this machine: then the time in which the peer must get on with it runs on, so
that no chatter keeps a call alive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from anabranch.core.nostr import TIMESTAMP_MAX, Event, Limits
from anabranch.core.revisions import Ancestor, is_ancestor


class Bounds(msgspec.Struct, frozen=True):
    """How far a client goes with a relay: every loop and every buffer ends at one of these."""

    frame_bytes: int = 60_000
    """One of our messages of negentropy. In hex it stays below the 131,072 bytes that relays commonly take."""
    message_bytes: int = 4 << 20
    """Any message of the relay's."""
    page: int = 500
    """Events asked for at once by time."""
    page_most: int = 50_000
    """Events that such a page may have all the same: there are relays that ignore the limit."""
    chunk: int = 250
    """Events asked for at once by id."""
    windows: int = 10_000
    rounds: int = 20_000
    """Messages of negentropy; fewer where there is little to compare."""
    need: int = 2_000_000
    """Ids that the relay has and we lack: about 120 bytes of memory each."""
    retries: int = 3
    """Connections that may be lost on one thing, and sessions that the relay may forget."""


BOUNDS = Bounds()

LONG = 131_072
"""Characters of a message that may be of any kind, and bytes of nested values: to take them apart takes long."""
_LONG = re.compile(r'\s*\[\s*"(EVENT|CHANGES|NEG-MSG)"')
PARTS_MAX = 16  # of a message
REASON_MAX = 300  # characters of a text that are kept

# --- what is heard -----------------------------------------------------------------------------------------------


class Stored(msgspec.Struct, frozen=True, gc=False):
    """EVENT: one event of a subscription, as bytes."""

    subscription: str
    raw: bytes


class EndOfStored(msgspec.Struct, frozen=True, gc=False):
    subscription: str


class Closed(msgspec.Struct, frozen=True, gc=False):
    subscription: str
    reason: str


class Ok(msgspec.Struct, frozen=True, gc=False):
    id: str
    accepted: bool
    reason: str


class Notice(msgspec.Struct, frozen=True, gc=False):
    text: str


class Challenge(msgspec.Struct, frozen=True, gc=False):
    """AUTH: what to sign in order to be known (NIP-42)."""

    text: str


class TokenAnswer(msgspec.Struct, frozen=True, gc=False):
    """TOKEN: whether the relay takes an access key."""

    accepted: bool
    reason: str


class NegMessage(msgspec.Struct, frozen=True, gc=False):
    subscription: str
    message: str
    """In hex, as it came."""


class NegError(msgspec.Struct, frozen=True, gc=False):
    subscription: str
    reason: str
    records_max: int | None = None


class Changed(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … EVENT: one operation of a feed, as bytes, and its position."""

    subscription: str
    position: int
    raw: bytes


class Removed(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … DELETED: the hard removal of what had this id."""

    subscription: str
    position: int
    id: str


class Replayed(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … EOSE: up to this position the feed is complete; from here on it is live, if it was asked to be."""

    subscription: str
    position: int


class Passed(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … PASSED: up to this position a live feed of the log is complete."""

    subscription: str
    position: int


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … COMPACTED: what a revision stood on whose payload the peer has no longer. Nothing proves it."""

    subscription: str
    ancestor: Ancestor


class FeedError(msgspec.Struct, frozen=True, gc=False):
    """CHANGES … ERR: there is no such feed, or not any more."""

    subscription: str
    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """A verb that we do not know, or no message at all."""

    text: str


Answer = (
    Stored
    | EndOfStored
    | Closed
    | Ok
    | Notice
    | Challenge
    | TokenAnswer
    | NegMessage
    | NegError
    | Changed
    | Removed
    | Replayed
    | Passed
    | Compacted
    | FeedError
    | Unknown
)

_ok = msgspec.json.Decoder(tuple[str, str, bool, str]).decode
_stored = msgspec.json.Decoder(tuple[str, str, msgspec.Raw]).decode
_changed = msgspec.json.Decoder(tuple[str, str, str, int, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read(message: str | bytes) -> Answer:
    """What a message says."""
    if isinstance(message, bytes) and (usual := _usual(message)) is not None:
        return usual
    try:
        parts = _array(message) if len(message) <= LONG or _long(message) else []
        if len(parts) > PARTS_MAX:
            raise ValueError("more elements than any message has")
        readable = parts[: _readable(parts)]
        if sum(len(bytes(part)) for part in readable if bytes(part)[:1] != b'"') > LONG:
            raise ValueError("nested beyond all need")
        verb, *values = map(_any, readable)
        return _answer(verb, values, parts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError, LookupError):
        shown = message if isinstance(message, str) else message.decode("utf-8", "replace")
        return Unknown(printable(shown[:100]))


def _long(message: str | bytes) -> bool:
    """Whether a message that is long may be: what carries an event, or negentropy."""
    head = message[:20] if isinstance(message, str) else message[:20].decode("latin-1")
    return _LONG.match(head) is not None


def _usual(message: bytes) -> Answer | None:
    """What a message says that is spelled as most are, and of which there are many; None: it is another one."""
    try:
        if message.startswith(b'["OK",'):
            _, id, accepted, reason = _ok(message)
            return Ok(id, accepted, printable(reason[:REASON_MAX]))
        if message.startswith(b'["EVENT",'):
            _, name, event = _stored(message)
            return Stored(name, bytes(event))
        if message.startswith(b'["CHANGES",'):
            _, name, what, position, event = _changed(message)
            if what == "EVENT":
                return Changed(name, _position(position), bytes(event))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        pass
    return None


def _readable(parts: list[msgspec.Raw]) -> int:
    """How many elements to take apart: all, but for an event, which stays the bytes that it came in."""
    if len(parts) == 3 and bytes(parts[0]) == b'"EVENT"':
        return 2
    return 4 if len(parts) == 5 and bytes(parts[2]) == b'"EVENT"' else len(parts)


def _answer(verb: Any, values: list[Any], parts: list[msgspec.Raw]) -> Answer:
    if verb == "EVENT":
        return Stored(_text(values[0]), bytes(parts[2]))
    if verb == "EOSE":
        return EndOfStored(_text(values[0]))
    if verb == "CLOSED":
        return Closed(_text(values[0]), _reason(values[1:]))
    if verb == "OK":
        return Ok(_text(values[0]), values[1] is True, _reason(values[2:]))
    if verb == "CHANGES":
        return _change(values, parts)
    if verb == "NOTICE":
        return Notice(_reason(values))
    if verb == "AUTH":
        return Challenge(_text(values[0]))
    if verb == "TOKEN":
        return TokenAnswer(values[1] is True, _reason(values[2:]))
    if verb == "NEG-MSG":
        return NegMessage(_text(values[0]), _text(values[1]))
    if verb == "NEG-ERR":
        most = values[2] if len(values) > 2 and type(values[2]) is int and values[2] >= 0 else None
        return NegError(_text(values[0]), _reason(values[1:]), most)
    raise ValueError(verb)


def _change(values: list[Any], parts: list[msgspec.Raw]) -> Answer:
    name = _text(values[0])
    match values[1]:
        case "EVENT":
            return Changed(name, _position(values[2]), bytes(parts[4]))
        case "DELETED":
            return Removed(name, _position(values[2]), _text(values[3]))
        case "EOSE":
            return Replayed(name, _position(values[2]))
        case "COMPACTED":
            return Compacted(name, _ancestor(values[2]))
        case "PASSED":
            return Passed(name, _position(values[2]))
        case "ERR":
            return FeedError(name, _reason(values[2:]))
    raise ValueError(values[1])


def _ancestor(value: Any) -> Ancestor:
    parents = tuple(_text(parent) for parent in value["prev"])
    found = Ancestor(_text(value["p"]), _text(value["d"]), _text(value["r"]), parents)
    if not is_ancestor(found):
        raise ValueError(value)
    return found


def _position(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= TIMESTAMP_MAX:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _reason(values: list[Any]) -> str:
    """A text for people, which relays leave out or misspell: never worth an error."""
    return printable(values[0][:REASON_MAX]) if values and isinstance(values[0], str) else ""


def printable(text: str) -> str:
    """What a peer says, fit for a terminal and for one line of a log."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def refusal(answer: Answer) -> str:
    """The reason of a refusal; empty where an answer is none."""
    if isinstance(answer, Closed | NegError | FeedError) or (isinstance(answer, Ok) and not answer.accepted):
        return answer.reason
    return ""


# --- what is said ------------------------------------------------------------------------------------------------


def req(subscription: str, *filters: Mapping[str, Any]) -> bytes:
    return _encode(("REQ", subscription, *filters))


def changes(subscription: str, filter: Mapping[str, Any]) -> bytes:
    return _encode(("CHANGES", subscription, filter))


def close(subscription: str) -> bytes:
    return _encode(("CLOSE", subscription))


def event(raw: bytes) -> bytes:
    return b'["EVENT",%b]' % raw


def auth(raw: bytes) -> bytes:
    return b'["AUTH",%b]' % raw


def token(access_key: str) -> bytes:
    return _encode(("TOKEN", access_key))


def neg_open(subscription: str, filter: Mapping[str, Any], message: bytes) -> bytes:
    return _encode(("NEG-OPEN", subscription, filter, message.hex()))


def neg_msg(subscription: str, message: bytes) -> bytes:
    return _encode(("NEG-MSG", subscription, message.hex()))


def neg_close(subscription: str) -> bytes:
    return _encode(("NEG-CLOSE", subscription))


# --- effects -----------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    message: bytes


class Found(msgspec.Struct, frozen=True, gc=False):
    """An event that was asked for: well-formed, with its own id, matching what was asked. Its signature is yet to be
    checked: that is the shell's, in batches."""

    event: Event
    raw: bytes


class Odd(msgspec.Struct, frozen=True, gc=False):
    """An event that the relay has and nobody here can ever take: others are less strict. Nothing proves it."""

    id: str
    reason: str
    created_at: int


class Authenticate(msgspec.Struct, frozen=True):
    """Prove to the relay who asks (NIP-42), then call `again`."""

    reason: str


class Reconnect(msgspec.Struct, frozen=True):
    """Take a new connection, then call `again`."""


class Hurry(msgspec.Struct, frozen=True):
    """This looks like a refusal: wait only a little longer for what is awaited."""


class Refuse(msgspec.Struct, frozen=True):
    """The relay will not do it, and there is no other way."""

    reason: str


class Accuse(msgspec.Struct, frozen=True):
    """The relay breaks its word: what it sends is not what was asked, or not what it says it is."""

    reason: str


class Overflow(msgspec.Struct, frozen=True):
    """More than the caller is ready to take."""

    reason: str


class Finish(msgspec.Struct, frozen=True):
    """There is nothing more to do; the result is the machine's own."""


Effect = Send | Found | Odd | Authenticate | Reconnect | Hurry | Refuse | Accuse | Overflow | Finish


class Machine(Protocol):
    """One task with one relay."""

    def start(self) -> list[Effect]: ...

    def hear(self, answer: Answer) -> list[Effect] | None:
        """None: not for us."""

    def silence(self) -> list[Effect] | None:
        """Nothing that mattered came in time. None: then the call has failed."""

    def lost(self, oversized: bool) -> list[Effect] | None:
        """The connection ended, perhaps because a message was larger than we take. None: then the call has failed."""

    def again(self) -> list[Effect]:
        """The connection is another one, or we are known on it now: ask again for what is open."""


PARSING = Limits(event_bytes=1 << 30, tags=1 << 30, content_characters=1 << 30, created_at_ahead=None)
"""What an event of a peer's may be: anything well-formed that fits into a message we take."""

AUTH_REQUIRED = "auth-required:"
