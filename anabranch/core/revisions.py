"""The revision family: immutable revisions in gift wraps, ordered by the parents each one names.

A document is (recipient, `d`), a revision is (recipient, `d`, `r`); the outer event is new on every publish and no
identity of anything. A head is a stored revision that no other stored revision of its document names as a parent;
several heads are a conflict. Revisions arrive in any order, a child before its parent too: so what has been named is
remembered whether the parent is there or not, and `heads` and `advance` give the same answer in every order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from anabranch.core.nostr import TIMESTAMP_MAX, Event, Invalid, is_hex

GIFT_WRAP = 1059
SCHEMA = "2"
STRATEGY = "revision-sync.v1"
PARENTS_MAX = 1_000
MALFORMED = "missing or malformed revision metadata"

_TAGS = frozenset({"d", "r", "prev", "op", "m", "type", "v"})


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the relay reads of a revision; what is wrapped it cannot read. The relay never computes `revision`."""

    recipient: str
    coordinate: str
    revision: str
    parents: tuple[str, ...]
    deletes: bool
    mtime: int  # milliseconds
    type: str | None


class Name(msgspec.Struct, frozen=True, gc=False):
    """Which revision, of which document."""

    recipient: str
    coordinate: str
    revision: str


class Ancestor(msgspec.Struct, frozen=True, gc=False):
    """What can be known of a revision without its payload: which it is, and what it stands on."""

    recipient: str
    coordinate: str
    revision: str
    parents: tuple[str, ...]

    @property
    def name(self) -> Name:
        return Name(self.recipient, self.coordinate, self.revision)


def is_ancestor(one: Ancestor) -> bool:
    """Whether a revision could be like this."""
    distinct = len(set(one.parents)) == len(one.parents) <= PARENTS_MAX and one.revision not in one.parents
    return distinct and all(is_hex(name, 64) for name in (one.revision, *one.parents))


def is_revision(event: Event) -> bool:
    """Whether an event means to be a revision. A gift wrap with none of the tags but `p` is an ordinary event."""
    return event.kind == GIFT_WRAP and not _TAGS.isdisjoint([tag[0] for tag in event.tags])


def validate(event: Event) -> Facts:
    """The sync metadata of a revision, or `Invalid`: one that is tagged in part is none. Refused, never rewritten."""
    single: dict[str, str] = {}
    parents: dict[str, None] = {}
    for tag in event.tags:
        name = tag[0]
        if name != "p" and name not in _TAGS:
            continue
        if len(tag) < 2 or not tag[1] or name in single:
            raise Invalid(MALFORMED)
        if name == "prev":
            parents[tag[1]] = None
        else:
            single[name] = tag[1]
    recipient, coordinate, revision = single.get("p"), single.get("d"), single.get("r")
    mtime = single.get("m", "")
    if recipient is None or coordinate is None or revision is None or single.get("op") not in ("put", "del"):
        raise Invalid(MALFORMED)
    if not recipient.isprintable() or not is_hex(revision, 64) or revision in parents:
        raise Invalid(MALFORMED)
    for parent in parents:
        if not is_hex(parent, 64):
            raise Invalid(MALFORMED)
    if len(parents) > PARENTS_MAX or single.get("v", SCHEMA) != SCHEMA:
        raise Invalid(MALFORMED)
    if not (mtime.isascii() and mtime.isdecimal() and len(mtime) <= 16 and int(mtime) <= TIMESTAMP_MAX):
        raise Invalid(MALFORMED)
    return Facts(recipient, coordinate, revision, tuple(parents), single["op"] == "del", int(mtime), single.get("type"))


class Revision(Protocol):
    """Anything with a revision id; of one document."""

    @property
    def revision(self) -> str: ...


class Linked(Revision, Protocol):
    @property
    def parents(self) -> Sequence[str]: ...


R = TypeVar("R", bound=Revision)
L = TypeVar("L", bound=Linked)


def heads(revisions: Iterable[L], removed: Iterable[Linked] = ()) -> list[L]:
    """The revisions of one document that no other names as a parent, by ascending revision id, each once."""
    distinct = {one.revision: one for one in revisions}
    return [distinct[revision] for revision in sorted(distinct.keys() - named(distinct.values(), removed))]


def named(revisions: Iterable[Linked], removed: Iterable[Linked] = ()) -> set[str]:
    """Which revisions of a document are named as parents, there or not.

    What was `removed` names nobody by itself: a stranger's revision that is taken away leaves no trace. But where a
    revision that is there descends from it, it was on the way, and what it had superseded stays superseded.
    """
    present = list(revisions)
    there = {one.revision for one in present}
    between: dict[str, set[str]] = {}
    for gone in removed:
        if gone.revision not in there:
            between.setdefault(gone.revision, set()).update(gone.parents)
    names: set[str] = set()
    found = {parent for one in present for parent in one.parents}
    while found:
        names |= found
        found = {parent for revision in found for parent in between.get(revision, ())} - names
    return names


def advance(current: Sequence[R], one: R, parents: Collection[str], named: bool) -> list[R]:
    """The heads after one more revision, given the heads before it.

    `named` says whether a revision that is already there names it as a parent: then it comes late, and is no head.
    """
    superseded = {*parents, one.revision}  # a set: a thousand heads times a thousand parents would be felt
    remaining = [head for head in current if head.revision not in superseded]
    return remaining if named else [*remaining, one]
