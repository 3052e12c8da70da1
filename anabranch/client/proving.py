"""Proving what a relay sent, in batches and off the event loop.

Nothing is believed: the id is the hash, the signature holds, it is the owner's, its metadata is well-formed, and a
revision's payload was sealed by the owner. What does not hold is dropped with its reason; the rest is not touched by
it. But a stranger's revision that claims to supersede ours hides it on a relay: so what it names is looked for. A check
costs some fifty microseconds in libsecp256k1, which lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.client.file import Proven
from anabranch.client.sealing import Sealer
from anabranch.core import nostr, replica
from anabranch.core.nostr import Event, Invalid, Limits
from anabranch.core.replica import Version

LIMITS = Limits(event_bytes=1 << 24, tags=10_000, content_characters=1 << 24, created_at_ahead=None)
"""What is too large is the relays' to refuse; here it only bounds the damage."""


class Batch(msgspec.Struct, frozen=True):
    proven: list[Proven]
    dropped: list[str]
    hinted: list[str]  # revisions that what was dropped claims to supersede


def prove(events: Sequence[bytes], sealer: Sealer) -> Batch:
    """Which of these are versions of the owner's."""
    read: list[tuple[Event, bytes, Version]] = []
    dropped: list[str] = []
    for raw in events:
        try:
            event, kept = nostr.parse(raw, LIMITS)
            read.append((event, kept, replica.read(event, sealer.family, sealer.keys.pubkey)))
        except Invalid as error:
            dropped.append(str(error))
    proven: list[Proven] = []
    hinted: list[str] = []
    for (event, kept, version), held in zip(read, nostr.verify(event for event, _, _ in read), strict=True):
        if not held:
            dropped.append(f"the signature of {event.id} does not hold")
            continue
        try:
            sealer.prove(event, version)
        except Invalid as error:
            dropped.append(f"{event.id}: {error}")
            hinted += version.parents
            continue
        proven.append(Proven(version, event.id, kept))
    return Batch(proven, dropped, hinted)
