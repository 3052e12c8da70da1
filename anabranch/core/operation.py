"""Operations: signed, immutable messages, and the family each falls under.

An operation is an event together with what the rules of its family read from it: the document it is a version of,
whether it writes or deletes, and its clock or its parents. `classify` is the one place where a kind becomes a family.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

import msgspec

from anabranch.core import nostr, revisions, snapshots
from anabranch.core.nostr import Event, Invalid
from anabranch.core.token import Position


class Family(IntEnum):
    """The rule set an operation falls under. The numbers are stored: never renumber."""

    PLAIN = 0
    SNAPSHOT = 1
    REVISION = 2


class State(IntEnum):
    """What became of a stored operation's payload. The facts of it stay in every state."""

    RETAINED = 0
    COMPACTED = 1  # known, and its payload gone by retention
    REMOVED = 2  # known, and gone by its author's deletion, its expiry or a newer version


class Action(IntEnum):
    PUT = 0
    DELETE = 1


class Standing(StrEnum):
    """How the configuration classes a kind that is outside the sync families."""

    COMPANION = "companion"
    PASS_THROUGH = "pass-through"
    ORDINARY = "ordinary"


class Unsupported(ValueError):
    """A kind that this node does not take."""


class KindPolicy(msgspec.Struct, frozen=True):
    """Which kinds are taken, and as what."""

    sync_only: bool = False
    companion: frozenset[int] = frozenset()
    pass_through: frozenset[int] = frozenset()
    snapshot: frozenset[int] = snapshots.KINDS
    relay_url: str | None = None  # under which name a request to vanish finds this node (NIP-62)

    def named_by(self, urls: Iterable[str]) -> bool:
        own = nostr.authority(self.relay_url or "")
        return any(url == "ALL_RELAYS" or (own and nostr.authority(url) == own) for url in urls)

    def standing(self, kind: int) -> Standing:
        if kind in self.companion:
            return Standing.COMPANION
        if kind in self.pass_through:
            return Standing.PASS_THROUGH
        if self.sync_only or snapshots.in_range(kind):
            raise Unsupported("non-snapshot event kind requires explicit classification")
        return Standing.ORDINARY


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One stored thing. `document` is None for what is never a version of anything."""

    event: Event
    raw: bytes
    family: Family
    document: bytes | None = None
    coordinate: str | None = None
    collection: str | None = None
    action: Action = Action.PUT
    clock: Mapping[str, int] | None = None
    revision: revisions.Facts | None = None
    expires_at: int | None = None
    ephemeral: bool = False
    standing: Standing = Standing.ORDINARY


class Removal(msgspec.Struct, frozen=True, gc=False):
    """That an operation has lost its payload, and why.

    A hard removal (by deletion, by a request to vanish, by expiry, by the operator) takes a position in the log of its
    own, so that whoever follows the log hears of it. What was compacted, replaced or forgotten has None. `recipient`
    and `revision` are those of a revision.
    """

    id: str
    created_at: int
    author: str
    reason: str
    position: Position | None = None
    recipient: str | None = None
    coordinate: str | None = None
    revision: str | None = None
    target: Position | None = None  # where the operation stands


def classify(event: Event, raw: bytes, kinds: KindPolicy) -> Operation:
    """The operation that an event is. Raises `Unsupported`, or `Invalid` where the family's metadata is malformed."""
    kind = event.kind
    expires_at = nostr.expiration(event)
    if kind in kinds.snapshot:
        facts = snapshots.validate(event)
        return Operation(
            event,
            raw,
            Family.SNAPSHOT,
            document_key(Family.SNAPSHOT, event.pubkey, 0, facts.coordinate),
            facts.coordinate,
            facts.collection,
            Action.DELETE if facts.deletes else Action.PUT,
            facts.clock,
            expires_at=expires_at,
        )
    if revisions.is_revision(event):
        revision = revisions.validate(event)
        return Operation(
            event,
            raw,
            Family.REVISION,
            document_key(Family.REVISION, revision.recipient, 0, revision.coordinate),
            revision.coordinate,
            action=Action.DELETE if revision.deletes else Action.PUT,
            revision=revision,
            expires_at=expires_at,
        )
    standing = kinds.standing(kind)
    if snapshots.in_range(kind):
        snapshots.validate(event)  # whatever it is stored as: in the sync range every event carries the sync tags
    if kind == nostr.VANISH and standing is Standing.ORDINARY and not kinds.named_by(event.values("relay")):
        raise Invalid("the request to vanish does not name this relay")
    coordinate = None
    if nostr.is_replaceable(kind):
        coordinate = ""
    elif nostr.is_addressable(kind):
        coordinate = event.first("d") or ""
    return Operation(
        event,
        raw,
        Family.PLAIN,
        None if coordinate is None else document_key(Family.PLAIN, event.pubkey, kind, coordinate),
        coordinate,
        expires_at=expires_at,
        ephemeral=nostr.is_ephemeral(kind),
        standing=standing,
    )


def deleted_by(request: Event) -> tuple[list[bytes], list[bytes]]:
    """What a deletion request (NIP-09) names of its author's: ids, and documents (up to the request's time)."""
    ids = [bytes.fromhex(value) for value in request.values("e") if nostr.is_hex(value, 64)]
    documents: list[bytes] = []
    for value in request.values("a"):
        kind, _, rest = value.partition(":")
        pubkey, _, coordinate = rest.partition(":")
        if pubkey == request.pubkey and kind.isascii() and kind.isdecimal() and len(kind) <= 5:
            documents.append(document_key(Family.PLAIN, pubkey, int(kind), coordinate))
    return ids, documents


def owners(event: Event) -> list[str]:
    """Who takes an event along when they vanish (NIP-62): its author, and whom it was wrapped for. A request stays."""
    if event.kind == nostr.VANISH:
        return []
    return [event.pubkey, *(event.values("p") if event.kind == revisions.GIFT_WRAP else ())]


def document_key(family: Family, namespace: str, kind: int, coordinate: str) -> bytes:
    """A short name for a document: 128 bits over family, namespace (author or recipient), kind and coordinate.

    The namespace stands inside, so a collision can only be made within one.
    """
    identity = f"{int(family)}\0{namespace}\0{kind}\0{coordinate}"
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()
