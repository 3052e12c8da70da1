"""The snapshot changes feed: what a reader asks for, and which operations that is.

`parse` turns the filter of a CHANGES message into a request; `matches` is the rule for live delivery that the
store's pages are held equal to (seed 000, «Filter Shape»).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.core.filter import integer, integers, strings
from anabranch.core.nostr import KIND_MAX, TIMESTAMP_MAX, Invalid, is_hex
from anabranch.core.operation import Action, Family, Operation
from anabranch.core.snapshots import in_range
from anabranch.core.token import START, Gap, GapReason, Position

ONE_AUTHOR = "snapshot CHANGES currently requires exactly one author"
_ACTIONS = {"put": Action.PUT, "del": Action.DELETE}


class Mode(StrEnum):
    BOOTSTRAP = "bootstrap"
    TAIL = "tail"


class ChangesQuery(msgspec.Struct, frozen=True):
    """Which snapshots of one author a feed carries. None is no condition, an empty set matches nothing."""

    author: str
    kinds: frozenset[int] | None = None
    coordinates: frozenset[str] | None = None
    actions: frozenset[Action] | None = None
    collections: frozenset[str] | None = None

    @property
    def size(self) -> int:
        """How many values its conditions name."""
        sets = (self.kinds, self.coordinates, self.actions, self.collections)
        return 1 + sum(len(values) for values in sets if values is not None)

    @property
    def impossible(self) -> bool:
        """Whether a condition is an empty set, so that nothing can ever match."""
        sets = (self.kinds, self.coordinates, self.actions, self.collections)
        return any(values is not None and not values for values in sets)


class ChangesRequest(msgspec.Struct, frozen=True):
    mode: Mode
    query: ChangesQuery
    since: Position = START
    until: Position | None = None
    limit: int | None = None
    live: bool = False
    include_compacted: bool = False


def parse(raw: Mapping[str, Any], values_max: int) -> ChangesRequest:
    """The request that a CHANGES filter spells, or `Invalid` with the text for an ERR."""
    fields: dict[str, Any] = {"mode": Mode.TAIL}  # old clients send none
    query: dict[str, Any] = {}
    for key, value in raw.items():
        match key:
            case "mode":
                if value not in ("bootstrap", "tail"):
                    raise Invalid('mode must be "bootstrap" or "tail"')
                fields["mode"] = Mode(value)
            case "authors":
                pass
            case "since" | "until_seq":
                fields["until" if key == "until_seq" else key] = Position(integer(key, value, TIMESTAMP_MAX))
            case "limit":
                fields["limit"] = integer(key, value, TIMESTAMP_MAX)
            case "live" | "include_compacted":
                if not isinstance(value, bool):
                    raise Invalid(f"{key} must be true or false")
                fields[key] = value
            case "kinds":
                query["kinds"] = integers(key, value, KIND_MAX, values_max)
                if not all(map(in_range, query["kinds"])):
                    raise Invalid("snapshot CHANGES kinds must be in the sync range 40000 to 49999")
            case "#d":
                query["coordinates"] = strings(key, value, values_max)
            case "#c":
                query["collections"] = strings(key, value, values_max)
            case "#o":
                wanted = strings(key, value, values_max)
                query["actions"] = frozenset(action for name, action in _ACTIONS.items() if name in wanted)
            case _:
                raise Invalid(f"unknown filter field {key[:32]!r}")
    authors = raw.get("authors")
    if not isinstance(authors, list) or len(authors) != 1:
        raise Invalid(ONE_AUTHOR)
    if not isinstance(authors[0], str) or not is_hex(authors[0], 64):
        raise Invalid("authors must be lower-case hex of 64 characters")
    return ChangesRequest(query=ChangesQuery(authors[0], **query), **fields)


def matches(query: ChangesQuery, operation: Operation) -> bool:
    return (
        operation.family is Family.SNAPSHOT
        and operation.event.pubkey == query.author
        and (query.kinds is None or operation.event.kind in query.kinds)
        and (query.coordinates is None or operation.coordinate in query.coordinates)
        and (query.actions is None or operation.action in query.actions)
        and (query.collections is None or operation.collection in query.collections)
    )


def gap_text(gap: Gap) -> str:
    """The words of an ERR for a checkpoint that is of no use; a client then bootstraps."""
    if gap.reason is GapReason.TOKEN_TOO_NEW:
        return f"checkpoint too new: max_seq is {gap.latest}"
    return f"checkpoint too old: min_seq is {gap.oldest}"
