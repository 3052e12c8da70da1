"""Payloads: what only the owner can read, and how it becomes a signed version and back.

A snapshot is its content as canonical JSON, encrypted to the owner themselves (NIP-44). A revision is a gift wrap to
the owner (NIP-59) whose outer tags name the document, the revision and its parents. Whoever knows the owner's public
key can sign such a wrap, so a revision is proven only by what is inside: the owner's seal, and an id that follows from
the payload. `prove` does that once, when it arrives; nothing it reads is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.now import World
from anabranch.core import canonical, giftwrap, nip44, notes, replica, revision_payload, revisions, snapshots
from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Invalid, Keys
from anabranch.core.operation import Family
from anabranch.core.replica import Version


@dataclass(frozen=True, slots=True)
class Draft:
    """What a person or an app wants to write, before it stands on anything. No content deletes."""

    d: str
    content: Mapping[str, Any] | None
    collection: str | None = None


class Sealer:
    """Writes and reads the payloads of one owner on one device."""

    def __init__(self, keys: Keys, family: Family, device: str, world: World) -> None:
        self.keys = keys
        self.family = family
        self.device = device
        self._world = world
        self._own_key = nip44.conversation_key(keys, keys.pubkey)
        self._id_key = revision_payload.id_key(self._own_key)

    # --- writing ---

    def seal(self, draft: Draft, base: Sequence[Version], heads: Sequence[Version] = ()) -> Event:
        """The signed next version of a document, on top of `base`, while `heads` are current. Raises `Invalid`."""
        if not draft.d:
            raise Invalid("a document has a name")
        if self.family is Family.SNAPSHOT:
            return self._snapshot(draft, base, heads)
        return self._revision(draft, base)

    def _writer(self, base: Sequence[Version], heads: Sequence[Version]) -> str:
        """Who counts the next snapshot. A device that has written since `base` counts beside itself: with its own next
        number it would claim to have seen that, and with a number it has used another version could hide this one."""
        seen = clocks.merge(version.clock for version in base)
        known = clocks.merge(version.clock for version in (*base, *heads))
        names = (f"{self.device}~{number}" if number else self.device for number in itertools.count())
        return next(name for name in names if known.get(name, 0) == seen.get(name, 0))

    def _snapshot(self, draft: Draft, base: Sequence[Version], heads: Sequence[Version]) -> Event:
        world = self._world
        content = draft.content
        if content is None:
            content = notes.tombstone(self.device, world.milliseconds())
        tags = [["d", draft.d], ["o", "del" if draft.content is None else "put"]]
        tags += clocks.tags(replica.next_clock(base, self._writer(base, heads)))
        if draft.collection:
            tags.append(["c", draft.collection])
        text = nip44.encrypt(canonical.encode(dict(content)), self._own_key, world.fresh_bytes(32))
        return self.keys.sign(snapshots.NOTE, tags, text, world.seconds())

    def _revision(self, draft: Draft, base: Sequence[Version]) -> Event:
        world, owner = self._world, self.keys.pubkey
        parents = replica.next_parents(base)
        # A deletion says nothing but that: two devices that delete the same version make the same revision.
        payload = revision_payload.build(draft.d, parents, draft.content is None, draft.content or {})
        now = world.seconds()
        inner = giftwrap.rumor(owner, snapshots.NOTE, [["d", draft.d]], payload.text, now)
        tags = [
            ["d", draft.d],
            ["r", revision_payload.revision_id(payload, self._id_key)],
            *(["prev", parent] for parent in parents),
            ["op", payload.op],
            ["m", str(world.milliseconds())],
            *([["type", draft.collection]] if draft.collection else []),
            ["v", revisions.SCHEMA],
        ]
        return giftwrap.wrap(
            inner,
            self.keys,
            owner,
            seal_nonce=world.fresh_bytes(32),
            seal_created_at=now,
            wrap_secret=world.fresh_bytes(32),
            wrap_nonce=world.fresh_bytes(32),
            wrap_created_at=now,
            wrap_tags=tags,
        )

    # --- reading ---

    def open(self, event: Event, version: Version) -> dict[str, Any]:
        """The content of a proven version, or `Invalid`."""
        if self.family is Family.REVISION:
            return self._open_revision(event, version)
        content = canonical.decode(nip44.decrypt(event.content, self._own_key))
        if not isinstance(content, dict):
            raise Invalid("the payload is no JSON object")
        return content

    def prove(self, event: Event, version: Version) -> None:
        """Whether the owner wrote it, beyond what its signature says. Raises `Invalid`."""
        if self.family is Family.REVISION:
            self._open_revision(event, version)

    def _open_revision(self, event: Event, version: Version) -> dict[str, Any]:
        inner = giftwrap.unwrap(event, self.keys)
        if inner.pubkey != self.keys.pubkey:
            raise Invalid("revision: sealed by somebody else")
        return revision_payload.read(inner.content, version, self._id_key).content
