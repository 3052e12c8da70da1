"""Places in a log: positions, and the tokens and gaps by which a consumer resumes.

A position means something only in its stream and epoch: tokens of two domains are never compared. A gap is an answer,
never an accident: it says what is still to be had and why the token is of no use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NewType

import msgspec

Position = NewType("Position", int)

START = Position(0)  # before the first operation
_DIGITS_MAX = 20


class GapReason(StrEnum):
    TOKEN_TOO_OLD = "token_too_old"
    EPOCH_MISMATCH = "epoch_mismatch"
    STREAM_MISMATCH = "stream_mismatch"
    TOKEN_TOO_NEW = "token_too_new"
    MESSAGE_MISMATCH = "message_mismatch"


class MixedDomains(ValueError):
    """Two tokens of different streams or epochs were compared."""


class ProgressToken(msgspec.Struct, frozen=True):
    """Where to resume. `message` is an operation at or before the position that the source must have, "" for none."""

    stream: str
    epoch: str
    position: Position
    message: str = ""

    @property
    def domain(self) -> tuple[str, str]:
        return self.stream, self.epoch

    def to_wire(self) -> dict[str, str]:
        return {
            "streamId": self.stream,
            "epoch": self.epoch,
            "position": str(self.position),
            "messageCid": self.message,
        }

    @classmethod
    def from_wire(cls, value: Any) -> ProgressToken:
        """The token that a decoded JSON value spells. Raises `ValueError`."""
        names = ("streamId", "epoch", "position", "messageCid")
        if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in names):
            raise ValueError("a token has streamId, epoch, position and messageCid, all strings")
        stream, epoch, position, message = (value[name] for name in names)
        if not (position.isascii() and position.isdecimal() and len(position) <= _DIGITS_MAX):
            raise ValueError("a token's position is a decimal string")
        return cls(stream, epoch, Position(int(position)), message)


def before(one: ProgressToken, other: ProgressToken) -> bool:
    """Whether `one` stands before `other`. Raises `MixedDomains` unless both are of one stream and epoch."""
    if one.domain != other.domain:
        raise MixedDomains(f"tokens of {one.domain} and of {other.domain} cannot be compared")
    return one.position < other.position


class Log(msgspec.Struct, frozen=True):
    """What a source says of its log: floor is the first position still replayable, tip the last one given."""

    stream: str
    epoch: str
    floor: Position
    tip: Position


class Gap(msgspec.Struct, frozen=True):
    requested: Position
    oldest: Position
    latest: Position
    reason: GapReason

    def to_wire(self, log: Log, token: ProgressToken) -> dict[str, Any]:
        """The gap between a token and a log, in tokens."""
        oldest, latest = (ProgressToken(log.stream, log.epoch, at) for at in (self.oldest, self.latest))
        return {
            "requested": token.to_wire(),
            "oldestAvailable": oldest.to_wire(),
            "latestAvailable": latest.to_wire(),
            "reason": str(self.reason),
        }


def gap(log: Log, since: Position) -> Gap | None:
    """Why `since` cannot be resumed from, or None when all that follows it is still there.

    `since` is exclusive: a consumer that stands just before the floor misses nothing.
    """
    if since < log.floor - 1:
        return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_OLD)
    if since > log.tip:
        return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_NEW)
    return None


def message_gap(log: Log, token: ProgressToken, stands_at: Position | None) -> Gap | None:
    """Why a token of this log cannot be resumed from for what it names: that is unknown here (None), or stands only
    beyond it, because the log was set back and has grown anew."""
    if not token.message or (stands_at is not None and stands_at <= token.position):
        return None
    return Gap(token.position, log.floor, log.tip, GapReason.MESSAGE_MISMATCH)


def token_gap(log: Log, token: ProgressToken) -> Gap | None:
    """Why a token cannot be resumed from in this log, or None. Another stream or epoch is a reason of its own."""
    if token.stream != log.stream:
        return Gap(token.position, log.floor, log.tip, GapReason.STREAM_MISMATCH)
    if token.epoch != log.epoch:
        return Gap(token.position, log.floor, log.tip, GapReason.EPOCH_MISMATCH)
    return gap(log, token.position)


GAP_WORDS = {
    GapReason.TOKEN_TOO_OLD: "its log no longer reaches back to our checkpoint",
    GapReason.EPOCH_MISMATCH: "its log was restored or begun anew since our checkpoint",
    GapReason.STREAM_MISMATCH: "its log is another one than that of our checkpoint",
    GapReason.TOKEN_TOO_NEW: "its log ends before our checkpoint",
    GapReason.MESSAGE_MISMATCH: "it no longer knows the operation that our checkpoint stands on",
}
"""What each reason means to a person."""
