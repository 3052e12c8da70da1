"""Notes: the payload profile that note apps share, over either family.

A note is Markdown with a few dates; its coordinate is an upper-case UUIDv4. Times are milliseconds. What another app
put into a payload beyond these fields is kept through an edit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anabranch.core.nostr import Invalid

VERSION = 1
TITLE_CHARACTERS_MAX = 80
_COORDINATE = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-4[0-9A-F]{3}-[89AB][0-9A-F]{3}-[0-9A-F]{12}")


class Note(msgspec.Struct, frozen=True):
    """What a payload says of a note."""

    markdown: str
    note_created_at: int
    edited_at: int
    device_id: str = ""
    archived_at: int | None = None
    pinned_at: int | None = None
    readonly: bool = False
    tags: tuple[str, ...] = ()
    attachments: tuple[Any, ...] = ()

    @property
    def title(self) -> str:
        """The first line that says something, without the marks of a heading."""
        for line in self.markdown.splitlines():
            text = line.strip().lstrip("#").strip()
            if text:
                return text if len(text) <= TITLE_CHARACTERS_MAX else text[: TITLE_CHARACTERS_MAX - 1] + "…"
        return ""


def is_coordinate(text: str) -> bool:
    return _COORDINATE.fullmatch(text) is not None


def new(markdown: str, device: str, now: int, tags: Sequence[str] = ()) -> dict[str, Any]:
    """The payload of a new note."""
    return {
        "version": VERSION,
        "device_id": device,
        "markdown": markdown,
        "note_created_at": now,
        "edited_at": now,
        "tags": list(tags),
        "attachments": [],
    }


def edited(payload: Mapping[str, Any], device: str, now: int, **changed: Any) -> dict[str, Any]:
    """The payload of the next version: fields that are None go, all that is not named stays."""
    after = {**payload, **changed, "version": VERSION, "device_id": device, "edited_at": now}
    return {name: value for name, value in after.items() if value is not None}


def tombstone(device: str, now: int) -> dict[str, Any]:
    """What is left of a deleted note."""
    return {"version": VERSION, "device_id": device, "deleted_at": now}


def read(payload: Mapping[str, Any]) -> Note:
    """The note that a payload spells, or `Invalid`."""
    if payload.get("version") != VERSION:
        raise Invalid(f"note: version {payload.get('version')!r} is unknown; a newer app wrote it")
    try:
        return msgspec.convert(dict(payload), Note)
    except msgspec.ValidationError as error:
        raise Invalid(f"note: {error}") from None
