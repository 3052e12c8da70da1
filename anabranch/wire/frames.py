"""WebSocket frames (RFC 6455), without I/O.

Bytes in, whole messages out. A server's frames are unmasked, so the bytes of a frame are built once for all who get it;
a client's are masked. Many frames are joined into one write by whoever sends them. Anything a peer does wrong is a
`ProtocolError` with the close code to send.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Sequence

from websockets.speedups import apply_mask

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
MASK = 0x80
_CONTINUATION = 0x0
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

GOING_AWAY, PROTOCOL_ERROR, POLICY, TOO_BIG, TRY_LATER = 1001, 1002, 1008, 1009, 1013

_CLOSE_CODES = frozenset({*range(1_000, 1_004), *range(1_007, 1_015)})  # of the protocol itself, as registered by now

FRAGMENTS_MAX = 1_000

_SHORT_TEXT = [bytes((0x80 | TEXT, length)) for length in range(126)]
_MEDIUM, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")


class ProtocolError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def accept_key(key: str) -> str:
    """The answer to a `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID).digest()).decode()


def header(length: int, opcode: int = TEXT, mask: int = 0) -> bytes:
    """The head of an unfragmented frame: a server's, or with a `mask` a client's, whose key follows."""
    if length < 126:
        return bytes((0x80 | opcode, mask | length))
    if length < 65_536:
        return _MEDIUM.pack(0x80 | opcode, mask | 126, length)
    return _LONG.pack(0x80 | opcode, mask | 127, length)


def text(payload: bytes) -> bytes:
    length = len(payload)
    return (_SHORT_TEXT[length] if length < 126 else header(length)) + payload


def control(opcode: int, payload: bytes = b"") -> bytes:
    return header(len(payload), opcode) + payload


def close(code: int, reason: str) -> bytes:
    return control(CLOSE, last_words(code, reason))


def last_words(code: int, reason: str) -> bytes:
    """What a close frame says."""
    return struct.pack("!H", code) + reason.encode()[:120]


def masked(payloads: Sequence[bytes], keys: bytes, opcode: int = TEXT) -> bytes:
    """A client's frames, one for each payload, masked with four bytes of `keys` each, which nobody must foresee."""
    parts: list[bytes] = []
    for number, payload in enumerate(payloads):
        key = keys[4 * number : 4 * number + 4]
        parts += (header(len(payload), opcode, MASK), key, apply_mask(payload, key))
    return b"".join(parts)


class FrameReader:
    """Turns the bytes of one connection into messages: a client's, or else a server's."""

    __slots__ = ("_fragments", "_mask", "_missing", "_opcode", "_pending", "_room", "_size_max")

    def __init__(self, size_max: int, *, of_server: bool = False) -> None:
        self._size_max = size_max
        self._mask = 0 if of_server else MASK
        self._pending = (
            bytearray()
        )  # a frame that is not whole; in one piece, however small those are in which it comes
        self._missing = 0
        self._fragments: list[bytes] | None = None
        self._room = 0  # bytes that the fragmented message may still have
        self._opcode = 0

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._pending) + sum(map(len, self._fragments or ()))

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages and control frames that are whole with this data, as (opcode, payload)."""
        if self._pending:
            self._pending += data
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = bytes(self._pending)
            self._pending = bytearray()
        at, end, stop = 0, len(data), 0
        while end - at >= 2:
            stop = 0
            first, second = data[at], data[at + 1]
            length = second & 0x7F
            start = at + 2
            if length == 126:
                if end < start + 2:
                    break
                length = data[start] << 8 | data[start + 1]
                start += 2
            elif length == 127:
                if end < start + 8:
                    break
                length = int.from_bytes(data[start : start + 8])
                start += 8
            if second & MASK != self._mask:
                raise ProtocolError(PROTOCOL_ERROR, "client frames must be masked, and only they")
            if length > self._size_max:
                raise ProtocolError(TOO_BIG, f"message is larger than {self._size_max} bytes")
            if self._mask:
                start += 4
            stop = start + length
            if end < stop:
                break
            payload = data[start:stop]
            if self._mask:
                payload = apply_mask(payload, data[start - 4 : start])
            at = stop
            if first == 0x80 | TEXT and self._fragments is None:
                yield TEXT, payload
            elif (message := self._other(first, payload)) is not None:
                yield message
        if at < end:
            self._pending = bytearray(data[at:])
            self._missing = max(1, stop - end)

    def _other(self, first: int, payload: bytes) -> tuple[int, bytes] | None:
        """Control frames, binary messages and fragments: what is not the one common case."""
        final, opcode = first & 0x80, first & 0x0F
        if first & 0x70:
            raise ProtocolError(PROTOCOL_ERROR, "no extension was agreed on")
        if opcode in (CLOSE, PING, PONG):
            if not final or len(payload) > 125:
                raise ProtocolError(PROTOCOL_ERROR, "a control frame must be short and whole")
            if opcode == CLOSE and payload and not _may_close(payload):
                raise ProtocolError(PROTOCOL_ERROR, "a close frame must have a code that may be sent, or nothing")
            return opcode, payload
        if opcode in (TEXT, BINARY):
            if self._fragments is not None:
                raise ProtocolError(PROTOCOL_ERROR, "a new message inside a fragmented one")
            if final:
                return opcode, payload
            self._opcode, self._fragments = opcode, [payload]
            self._room = self._size_max - len(payload)
            return None
        if opcode != _CONTINUATION or self._fragments is None:
            raise ProtocolError(PROTOCOL_ERROR, "unexpected frame")
        self._fragments.append(payload)
        self._room -= len(payload)
        if self._room < 0 or len(self._fragments) > FRAGMENTS_MAX:
            raise ProtocolError(TOO_BIG, f"message is larger than {self._size_max} bytes")
        if not final:
            return None
        message, self._fragments = b"".join(self._fragments), None
        return self._opcode, message


def _may_close(payload: bytes) -> bool:
    """Whether a close frame that says something begins with a code that may stand in one (RFC 6455, 7.4)."""
    code = int.from_bytes(payload[:2])
    return len(payload) > 1 and (code in _CLOSE_CODES or 3_000 <= code < 5_000)
