"""What goes over the wire to and from a relay, from the client's side: requests as bytes, answers taken apart.

Events are kept as the bytes they came in. A message that is none is a `ProtocolError`: the relay cannot be trusted to
mean what it says, and the connection is begun anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anabranch.core import revisions, snapshots
from anabranch.core.operation import Family

encode = msgspec.json.Encoder().encode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode


TEXT_MAX = 300


class ProtocolError(Exception):
    """A relay said what it may not say here."""


def short(text: str) -> str:
    """What somebody else said, short enough to be kept and shown."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


class Frame:
    """A message of a relay: its verb, and its other elements, read only when they are asked for."""

    __slots__ = ("_parts", "verb")

    def __init__(self, message: bytes | str) -> None:
        try:
            self._parts = _array(message)
            self.verb = self[0] if self._parts else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProtocolError("a message that is no JSON array") from None

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        """An element, or None where there is none."""
        if index >= len(self._parts):
            return None
        try:
            return _any(self._parts[index])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProtocolError("a message that is no JSON") from None

    def raw(self, index: int) -> bytes:
        if index >= len(self._parts):
            raise ProtocolError("a message that is too short")
        return bytes(self._parts[index])

    def raws(self, index: int) -> list[bytes]:
        """The bytes of the elements of a list."""
        try:
            return [bytes(part) for part in _array(self.raw(index))]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProtocolError("a list of events that is none") from None

    def position(self, index: int) -> int:
        value = self[index]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ProtocolError(f"a seq that is no position: {str(value)[:40]}")
        return value

    def text(self, index: int) -> str:
        value = self[index]
        return value if isinstance(value, str) else ""


# --- requests --------------------------------------------------------------------------------------------------------


def scope(family: Family, owner: str) -> dict[str, Any]:
    """The filter of everything that is the owner's."""
    if family is Family.SNAPSHOT:
        return {"kinds": sorted(snapshots.KINDS), "authors": [owner]}
    return {"kinds": [revisions.GIFT_WRAP], "#p": [owner]}


def bootstrap(name: str, owner: str) -> bytes:
    return encode(("CHANGES", name, {"mode": "bootstrap", **scope(Family.SNAPSHOT, owner)}))


def tail(name: str, family: Family, owner: str, since: int) -> bytes:
    mode = {"mode": "tail"} if family is Family.SNAPSHOT else {}
    return encode(("CHANGES", name, {**mode, "since": since, **scope(family, owner), "live": True}))


def by_revision(name: str, owner: str, wanted: Sequence[str], batched: bool, documents: Sequence[str] = ()) -> bytes:
    """With `documents`, only of those: what others put elsewhere under the same revision does not crowd it out."""
    verb = "REQ-BATCH" if batched else "REQ"
    within = {"#d": list(documents)} if documents else {}
    return encode((verb, name, {**scope(Family.REVISION, owner), "#r": list(wanted), **within}))


def negotiate(name: str, owner: str) -> bytes:
    return encode(("NEG-OPEN", name, {"#p": [owner]}))


def negotiation(name: str, message: bytes) -> bytes:
    return encode(("NEG-MSG", name, message.hex()))


def close(name: str, verb: str = "CLOSE") -> bytes:
    return encode((verb, name))


def publish(raw: bytes) -> bytes:
    return b'["EVENT",%b]' % raw
