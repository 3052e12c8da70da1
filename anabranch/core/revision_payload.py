"""What a revision says, and the id that follows from it.

The payload is canonical JSON of the document, the sorted parents, the operation, the fields, the attachments and the
schema version. The revision id is its HMAC-SHA256 under a key that only the owner can derive: the same edit on two
devices is the same revision, and nobody else can guess a content from its id. Time is no part of it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anabranch.core import canonical
from anabranch.core.nostr import Invalid
from anabranch.core.replica import Version
from anabranch.core.revisions import SCHEMA

_PURPOSE = b"anabranch revision id, version 1"


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    d: str
    parents: tuple[str, ...]
    op: str
    fields: dict[str, Any]
    attachments: list[Any]
    schema: str = SCHEMA

    @property
    def content(self) -> dict[str, Any]:
        """What was put: the fields, and the attachments beside them where there are any."""
        return {**self.fields, "attachments": self.attachments} if self.attachments else dict(self.fields)

    @property
    def text(self) -> str:
        return canonical.encode(msgspec.structs.asdict(self))


def build(coordinate: str, parents: Sequence[str], deletes: bool, content: Mapping[str, Any]) -> Payload:
    """The payload of a version. An `attachments` list of the content stands apart, as the draft has it."""
    fields = dict(content)
    attachments = fields.pop("attachments", [])
    if not isinstance(attachments, list):
        raise Invalid("attachments must be a list")
    return Payload(coordinate, tuple(sorted(parents)), "del" if deletes else "put", fields, attachments)


def id_key(own_conversation_key: bytes) -> bytes:
    """The key of the owner's revision ids, from the key of their NIP-44 conversation with themselves."""
    return hmac.digest(own_conversation_key, _PURPOSE, "sha256")


def revision_id(payload: Payload, key: bytes) -> str:
    return _id(payload.text, key)


def _id(text: str, key: bytes) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()


def read(text: str, version: Version, key: bytes) -> Payload:
    """The payload inside a wrap whose outer tags say `version`; `Invalid` where the two do not agree.

    The id is that of the text as it came: only who knows the key can have written it.
    """
    if not hmac.compare_digest(_id(text, key), version.id):
        raise Invalid("revision: the id does not follow from the payload")
    try:
        payload = msgspec.convert(canonical.decode(text), Payload)
    except msgspec.ValidationError:
        raise Invalid("revision: the payload is not one") from None
    outside = (version.coordinate, version.parents, "del" if version.deletes else "put")
    if (payload.d, payload.parents, payload.op) != outside:
        raise Invalid("revision: the outer tags say something else than the payload")
    if payload.schema != SCHEMA:
        raise Invalid(f"revision: schema {payload.schema[:16]!r} is unknown")
    return payload
