"""NIP-59 gift wraps: an event for one reader, and nobody else learns what it is or who wrote it.

Three layers. The rumor is the event itself, unsigned. The seal (kind 13) is the rumor encrypted to the reader and
signed by its author. The gift wrap (kind 1059) is the seal encrypted to the reader once more, under a key that is used
for nothing else: its author and time say nothing, and its tags only what it takes to deliver it.

Pure: nonces, the one-time secret and the times come in from outside. `unwrap` believes nothing that it did not prove:
the seal's id and signature, that the rumor's author is the one who sealed it, and the rumor's id. The outer event is
the caller's to prove, as every event that comes in is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.core import nip44, nostr
from anabranch.core.nostr import Event, Invalid, Keys, Limits

SEAL = 13
GIFT_WRAP = 1059
EPHEMERAL_GIFT_WRAP = 21_059

RUMOR_BYTES_MAX = 40_960
"""The longest rumor, as JSON, whose seal still fits into the NIP-44 payload that every implementation reads. A longer
one is wrapped too, and read by peers that know the extended length; whether a relay takes it is another matter."""

_LIMITS = Limits(
    event_bytes=nip44.PLAINTEXT_BYTES_MAX,
    content_characters=nip44.PLAINTEXT_BYTES_MAX,
    created_at_ahead=None,
)


class Rumor(msgspec.Struct, frozen=True, gc=False):
    """An event without a signature: whoever holds it knows who wrote it, and cannot show it to anyone else."""

    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str
    id: str = ""

    def first(self, name: str) -> str | None:
        """The value of the first tag of that name, if it has one."""
        return next((tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name), None)

    def values(self, name: str) -> list[str]:
        return [tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name]


_decode = msgspec.json.Decoder(Rumor).decode
_encode = msgspec.json.Encoder().encode


def rumor(pubkey: str, kind: int, tags: Sequence[Sequence[str]], content: str, created_at: int) -> Rumor:
    """An event that is not signed, with its id."""
    id = nostr.event_id(pubkey, created_at, kind, tags, content)
    return Rumor(pubkey, created_at, kind, [list(tag) for tag in tags], content, id)


def wrap(
    rumor: Rumor,
    author: Keys | bytes,
    recipient: str,
    *,
    seal_nonce: bytes,
    seal_created_at: int,
    wrap_secret: bytes,
    wrap_nonce: bytes,
    wrap_created_at: int,
    wrap_tags: Sequence[Sequence[str]] = (),
) -> Event:
    """The gift wrap of a rumor of the author's for one recipient, tagged `p` first and then `wrap_tags`.

    `wrap_secret` and both nonces are 32 fresh random bytes, never used again. The times are the caller's to blur; the
    true one is the rumor's. To keep a copy, wrap it for yourself as well.
    """
    author = _keys(author)
    if rumor.pubkey != author.pubkey:
        raise Invalid("a rumor is sealed by its author only")
    key = nip44.conversation_key(author, recipient)
    seal = author.sign(SEAL, [], nip44.encrypt(_encode(rumor).decode(), key, seal_nonce), seal_created_at)
    once = _keys(wrap_secret)
    key = nip44.conversation_key(once, recipient)
    content = nip44.encrypt(nostr.serialise(seal).decode(), key, wrap_nonce)
    return once.sign(GIFT_WRAP, [["p", recipient], *wrap_tags], content, wrap_created_at)


def unwrap(event: Event, owner: Keys | bytes) -> Rumor:
    """The rumor inside a proven gift wrap for this owner. Raises `Invalid` with a reason.

    Tags on a seal and a signature on a rumor are the sender's own loss: they are ignored. A rumor without an id gets
    its own; one with another is refused.
    """
    if event.kind not in (GIFT_WRAP, EPHEMERAL_GIFT_WRAP):
        raise Invalid(f"a gift wrap is of kind {GIFT_WRAP}")
    owner = _keys(owner)
    sealed = nip44.decrypt(event.content, nip44.conversation_key(owner, event.pubkey))
    try:
        seal, _ = nostr.parse(sealed.encode(), _LIMITS)
    except Invalid as error:
        raise Invalid(f"gift wrap: the seal is not an event: {error}") from None
    if seal.kind != SEAL:
        raise Invalid(f"gift wrap: a seal is of kind {SEAL}")
    if nostr.verify([seal]) != [True]:
        raise Invalid("gift wrap: the seal's signature does not hold")
    text = nip44.decrypt(seal.content, nip44.conversation_key(owner, seal.pubkey))
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise Invalid("gift wrap: the rumor is not an event") from None
    if found.pubkey != seal.pubkey:
        raise Invalid("gift wrap: the rumor's author did not seal it")
    if not 0 <= found.kind <= nostr.KIND_MAX or not 0 <= found.created_at <= nostr.TIMESTAMP_MAX:
        raise Invalid("gift wrap: the rumor's kind or time is out of range")
    if not all(found.tags):
        raise Invalid("gift wrap: a tag must have a name")
    proven = rumor(found.pubkey, found.kind, found.tags, found.content, found.created_at)
    if found.id not in ("", proven.id):
        raise Invalid("gift wrap: the rumor's id does not match it")
    return proven


def _keys(owner: Keys | bytes) -> Keys:
    return owner if isinstance(owner, Keys) else nip44.keys(owner)
