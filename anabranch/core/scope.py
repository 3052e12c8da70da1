"""Scopes: which operations a link carries.

A scope is a set of conditions that all must hold; without any it is everything. It has one canonical form (RFC 8785,
lists sorted, what is not set left out), and the SHA-256 of that is its id: two nodes that mean the same say the same.

What deletes what a scope carries belongs to it: one that names kinds also carries the deletion requests (NIP-09) and
the requests to vanish (NIP-62) of its authors. These have no document, collection or recipient: a scope that names any
cannot ask for them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from anabranch.core import canonical
from anabranch.core import filter as filters
from anabranch.core.filter import Filter
from anabranch.core.nostr import DELETION, VANISH, Invalid
from anabranch.core.operation import Operation

VALUES_MAX = 1_000
REQUESTS = frozenset({DELETION, VANISH})
FILTER_VALUES_MAX = VALUES_MAX + len(REQUESTS)
_IN_FILTER = {
    "authors": "authors",
    "kinds": "kinds",
    "documents": "#d",
    "collections": "#c",
    "recipients": "#p",
}


class Scope(msgspec.Struct, frozen=True):
    """None is no condition. `recipients` are those to whom revisions are addressed: their authors are one-time keys."""

    authors: frozenset[str] | None = None
    kinds: frozenset[int] | None = None
    documents: frozenset[str] | None = None
    collections: frozenset[str] | None = None
    recipients: frozenset[str] | None = None

    @classmethod
    def parse(cls, raw: Any) -> Scope:
        """The scope that a decoded JSON or TOML value spells; `Invalid` says what is wrong with it."""
        if not isinstance(raw, dict):
            raise Invalid("a scope is an object")
        unknown = sorted(str(name) for name in raw if name not in _IN_FILTER)
        if unknown:
            raise Invalid(f"unknown scope field {unknown[0][:32]!r}; known are {', '.join(_IN_FILTER)}")
        for name, values in raw.items():
            if not values:
                raise Invalid(f"{name} names nothing, so the scope would carry nothing; leave it out for everything")
        parsed = filters.parse({_IN_FILTER[name]: values for name, values in raw.items()}, VALUES_MAX)
        tags = dict(parsed.tags)
        return cls(parsed.authors, parsed.kinds, tags.get("d"), tags.get("c"), tags.get("p"))

    def conditions(self) -> dict[str, list[Any]]:
        """What is set, in order: the value that is canonical, and that `parse` reads again."""
        return {name: sorted(values) for name in _IN_FILTER if (values := getattr(self, name)) is not None}

    def canonical(self) -> str:
        return canonical.encode(self.conditions())

    @property
    def id(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @property
    def adds_requests(self) -> bool:
        """Whether it carries requests to delete and to vanish beside what it names."""
        by_tag = (self.documents, self.collections, self.recipients) != (None, None, None)
        return self.kinds is not None and not by_tag and not self.kinds >= REQUESTS

    def named(self) -> dict[str, Any]:
        """The NIP-01 filter of what the scope names."""
        return {_IN_FILTER[name]: values for name, values in self.conditions().items()}

    def filter(self) -> dict[str, Any]:
        """The NIP-01 filter of what the scope carries."""
        kinds = {"kinds": sorted((self.kinds or frozenset()) | REQUESTS)} if self.adds_requests else {}
        return {**self.named(), **kinds}

    def parsed(self) -> Filter:
        return filters.parse(self.filter(), FILTER_VALUES_MAX)

    def matches(self, operation: Operation) -> bool:
        return filters.matches(self.parsed(), operation.event)

    def __str__(self) -> str:
        return ", ".join(f"{name} {_few(values)}" for name, values in self.conditions().items()) or "everything"


def _few(values: list[Any]) -> str:
    shown = " ".join(str(value)[:12] for value in values[:3])
    return f"{shown} and {len(values) - 3} more" if len(values) > 3 else shown


EVERYTHING = Scope()
