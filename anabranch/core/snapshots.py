"""The snapshot family: whole encrypted versions of a document, ordered by vector clocks.

A document is (author, `d`). Its heads are the snapshots that no other stored one dominates; several heads are a
conflict that only a person or an app can settle. Two different snapshots with equal clocks are both heads.
Because `heads(A ∪ B) = heads(heads(A) ∪ heads(B))`, heads can be kept on write and computed in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Invalid

SYNC_RANGE = range(40_000, 50_000)
NOTE = 42_061
KINDS = frozenset({NOTE})
"""The kinds defined so far. The rest of the range is reserved: refused unless configured."""

_SINGLE = frozenset({"d", "o", "c"})
MALFORMED = "missing or malformed snapshot metadata"


def in_range(kind: int) -> bool:
    return kind in SYNC_RANGE


class Facts(msgspec.Struct, frozen=True):
    """What the relay reads of a snapshot; the payload it never reads."""

    coordinate: str
    deletes: bool
    clock: Mapping[str, int]
    collection: str | None


def validate(event: Event) -> Facts:
    """The sync metadata of an event, or `Invalid`. Refused, never rewritten."""
    single: dict[str, str] = {}
    for tag in event.tags:
        if tag[0] in _SINGLE:
            if len(tag) < 2 or tag[0] in single:  # two of them, or one without a value, say nothing for certain
                raise Invalid(MALFORMED)
            single[tag[0]] = tag[1]
    coordinate, action, collection = single.get("d"), single.get("o"), single.get("c")
    clock = clocks.parse(event.tags)
    if not coordinate or action not in ("put", "del") or collection == "" or clock is None:
        raise Invalid(MALFORMED)
    return Facts(coordinate, action == "del", clock, collection)


class Versioned(Protocol):
    """Anything with an id and a clock."""

    @property
    def id(self) -> str: ...
    @property
    def clock(self) -> Mapping[str, int]: ...


V = TypeVar("V", bound=Versioned)


def advance(current: Sequence[V], version: V) -> list[V]:
    """The heads after one more version, given the heads before it: `heads([*current, version])`, in one pass."""
    if any(clocks.dominates(head.clock, version.clock) or head.id == version.id for head in current):
        return list(current)
    return [*(head for head in current if not clocks.dominates(version.clock, head.clock)), version]


def heads(versions: Iterable[V]) -> list[V]:
    """The versions of one document that no other dominates, by ascending id, each id once."""
    distinct = {version.id: version for version in versions}
    # A dominating clock has the greater sum, so going down by sum each version meets its dominators first.
    ranked = sorted(distinct.values(), key=lambda version: -clocks.total(version.clock))
    kept: list[V] = []
    for version in ranked:
        if not any(clocks.dominates(head.clock, version.clock) for head in kept):
            kept.append(version)
    return sorted(kept, key=lambda version: version.id)
