"""Places in a log: positions, and the tokens and gaps by which a consumer resumes.

A position means something only in its stream and epoch. A gap is an answer, never an accident: it says what is
still to be had and why the token is of no use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

Position = NewType("Position", int)

START = Position(0)  # before the first operation


class GapReason(StrEnum):
    TOKEN_TOO_OLD = "token_too_old"
    TOKEN_TOO_NEW = "token_too_new"


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


def gap(log: Log, since: Position) -> Gap | None:
    """Why `since` cannot be resumed from, or None when all that follows it is still there.

    `since` is exclusive: a consumer that stands just before the floor misses nothing.
    """
    if since < log.floor - 1:
        return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_OLD)
    if since > log.tip:
        return Gap(since, log.floor, log.tip, GapReason.TOKEN_TOO_NEW)
    return None
