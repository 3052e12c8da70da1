"""A peer that lies: a real node whose words are twisted on their way out.

Each liar has a few vices of its own. It breaks signatures, moves positions, changes its epoch with every answer, never
comes to an end, withholds, babbles, and says OK to what it did not take. What it says is well-formed: only its truth is
gone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.wire import frames

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_EPOCH = re.compile(rb'("epoch":")([0-9a-f-]+)(")')

Message = list[Any]
VICES = ("signature", "content", "back", "endless", "withholds", "babbles", "pretends", "epoch")


class Liar:
    """Twists what one host sends. `lied` is called for each lie."""

    def __init__(self, random: random.Random, lied: Callable[[str], None]) -> None:
        self._random = random
        self._lied = lied
        self.vices = random.sample(VICES, random.randrange(1, 4))
        self._chance = random.choice((0.05, 0.3, 1.0))
        self.honest = False

    def twist(self, chunk: bytes, websocket: bool) -> bytes:
        """What goes out in place of the chunk."""
        if self.honest:
            return chunk
        if not websocket or chunk.startswith(b"HTTP/"):
            return self._twist_document(chunk)
        whole = frames.FrameReader(len(chunk), of_server=True).feed(chunk)
        return b"".join(self._twist_frame(*frame) for frame in whole)

    def _twist_document(self, chunk: bytes) -> bytes:
        found = _EPOCH.search(chunk)
        if "epoch" not in self.vices or found is None:
            return chunk
        self._lied("epoch")
        other = "".join(self._random.choice("0123456789abcdef") for _ in found[2])
        return chunk[: found.start(2)] + other.encode() + chunk[found.end(2) :]

    def _twist_frame(self, opcode: int, payload: bytes) -> bytes:
        if opcode != frames.TEXT or self._random.random() >= self._chance:
            return frames.header(len(payload), opcode) + payload
        message: Message = _decode(payload)
        vice = self._random.choice(self.vices)
        twisted = getattr(self, f"_{vice}")(message)
        if twisted != [message]:
            self._lied(vice)
        return b"".join(frames.text(_encode(one)) for one in twisted)

    # --- vices: a message in, what is said instead out ---

    def _signature(self, message: Message) -> list[Message]:
        return self._with_event(message, lambda event: {**event, "sig": _other(event["sig"], self._random)})

    def _content(self, message: Message) -> list[Message]:
        return self._with_event(message, lambda event: {**event, "content": event["content"] + "!"})

    def _with_event(self, message: Message, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Message]:
        return [[*message[:-1], change(message[-1])]] if _has_event(message) else [message]

    def _back(self, message: Message) -> list[Message]:
        if message[0] == "CHANGES" and message[2] in ("EVENT", "EOSE") and message[3] > 0:
            return [[*message[:3], self._random.randrange(message[3]), *message[4:]]]
        return [message]

    def _endless(self, message: Message) -> list[Message]:
        if message[0] in ("EOSE", "CHANGES") and "EOSE" in message:
            return []
        if message[0] == "CHANGES" and message[2] == "EVENT":
            return [[*message[:3], message[3] + more, *message[4:]] for more in range(12)]
        return [message, message] if _has_event(message) else [message]

    def _withholds(self, message: Message) -> list[Message]:
        return [] if _has_event(message) else [message]

    def _babbles(self, message: Message) -> list[Message]:
        return [["NOTICE", "…" * 20], ["EOSE"], ["CHANGES", 1, 2], message]

    def _pretends(self, message: Message) -> list[Message]:
        return [["OK", message[1], True, ""]] if message[0] == "OK" else [message]

    def _epoch(self, message: Message) -> list[Message]:
        return [message]  # it lies in its information


def _has_event(message: Message) -> bool:
    return isinstance(message[-1], dict) and "sig" in message[-1]


def _other(digits: str, random: random.Random) -> str:
    at = random.randrange(len(digits))
    return digits[:at] + ("0" if digits[at] != "0" else "1") + digits[at + 1 :]
