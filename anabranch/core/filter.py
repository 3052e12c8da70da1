"""NIP-01 filters: which events a reader asks for.

`parse` is strict about types, so that a filter always means what it says; `matches` is the rule that live delivery
runs and that every stored query is held equal to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from anabranch.core.nostr import KIND_MAX, TIMESTAMP_MAX, Event, Invalid, is_hex

VALUE_CHARACTERS = 64  # of a value that counts once: an id, a key
FILTER_ROOM = 20  # values that a filter counts for beside its own: events are held against it, however few those are
_TAG_KEY = re.compile(r"#[A-Za-z]")


class Filter(msgspec.Struct, frozen=True):
    """Conditions that all must hold; None is no condition, an empty set matches nothing."""

    ids: frozenset[str] | None = None
    authors: frozenset[str] | None = None
    kinds: frozenset[int] | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None
    tags: tuple[tuple[str, frozenset[str]], ...] = ()

    @property
    def impossible(self) -> bool:
        """Whether a condition is an empty set, so that nothing can ever match."""
        sets = (self.ids, self.authors, self.kinds, *(values for _, values in self.tags))
        return any(values is not None and not values for values in sets)

    @property
    def size(self) -> int:
        """How much room it takes while it is open; see `room`."""
        return FILTER_ROOM + room((self.ids, self.authors, self.kinds, *(values for _, values in self.tags)))

    def live(self) -> Filter:
        """What of the filter counts for events yet to come."""
        return msgspec.structs.replace(self, limit=None)


def parse(raw: Any, values_max: int) -> Filter:
    """The filter that a decoded JSON value spells, or `Invalid`. At most `values_max` values in all its lists."""
    if not isinstance(raw, dict):
        raise Invalid("a filter must be an object")
    if sum(len(value) for value in raw.values() if isinstance(value, list)) > values_max:
        raise Invalid(f"a filter has more than {values_max} values")
    fields: dict[str, Any] = {}
    tags: list[tuple[str, frozenset[str]]] = []
    for key, value in raw.items():
        if key in ("ids", "authors"):
            fields[key] = strings(key, value, values_max)
            if not all(is_hex(item, 64) for item in fields[key]):
                raise Invalid(f"{key} must be lower-case hex of 64 characters")
        elif key == "kinds":
            fields[key] = integers(key, value, KIND_MAX, values_max)
        elif key in ("since", "until", "limit"):
            fields[key] = integer(key, value, TIMESTAMP_MAX)
        elif _TAG_KEY.fullmatch(key):
            tags.append((key[1], strings(key, value, values_max)))
        else:
            raise Invalid(f"unknown filter field {key[:32]!r}")
    return Filter(**fields, tags=tuple(sorted(tags, key=lambda tag: tag[0])))


def room(conditions: Iterable[Collection[str | int] | None]) -> int:
    """How much room the values of conditions take: one for an id, a key or a number; a longer text counts as many."""
    return sum(
        1 if isinstance(value, int) else 1 + max(0, len(value) - 1) // VALUE_CHARACTERS
        for values in conditions
        for value in values or ()
    )


def strings(key: str, value: Any, values_max: int) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Invalid(f"{key} must be a list of strings")
    return frozenset(_bounded(key, value, values_max))


def integers(key: str, value: Any, most: int, values_max: int) -> frozenset[int]:
    if not isinstance(value, list):
        raise Invalid(f"{key} must be a list of integers")
    return frozenset(integer(key, item, most) for item in _bounded(key, value, values_max))


def integer(key: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Invalid(f"{key} must be an integer between 0 and {most}")
    return value


def _bounded(key: str, value: list[Any], values_max: int) -> list[Any]:
    if len(value) > values_max:
        raise Invalid(f"{key} has more than {values_max} values")
    return value


def matches(filter: Filter, event: Event) -> bool:
    """Whether the event meets every condition (`limit` is none)."""
    if filter.kinds is not None and event.kind not in filter.kinds:
        return False
    if filter.authors is not None and event.pubkey not in filter.authors:
        return False
    if filter.ids is not None and event.id not in filter.ids:
        return False
    if filter.since is not None and event.created_at < filter.since:
        return False
    if filter.until is not None and event.created_at > filter.until:
        return False
    return all(any(value in wanted for value in event.values(name)) for name, wanted in filter.tags)
