"""NIP-44 version 2: a text that only two keys can read, and neither can pass off as changed.

Pure: the nonce comes in from outside, 32 fresh random bytes for every message. Both keys of a conversation derive one
`conversation_key` (ECDH, the x coordinate unhashed, then HKDF-extract); key and nonce give each message keys of its
own (HKDF-expand); the text is padded so that its length tells little, encrypted (ChaCha20), and proven together with
its nonce (HMAC-SHA256). `decrypt` proves before it decrypts, and refuses whatever another encoder could not have made.

Lengths. The audited version 2 ends at 65,535 bytes of text; the present NIP goes on with a longer length prefix. We
write and read both, up to a mebibyte: nostr-tools 2.25 does too. nostr-sdk 0.45 reads only the short form and writes
at most 65,408 bytes, so what every peer must read stays within `SHORT_BYTES_MAX`, which for a text inside two
envelopes (NIP-59) is `giftwrap.RUMOR_BYTES_MAX`.
"""

from __future__ import annotations

import binascii
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from anabranch.core.nostr import Invalid, Keys

VERSION = 2
SHORT_BYTES_MAX = 65_535
"""The longest text with the two-byte length prefix that every implementation reads."""
PLAINTEXT_BYTES_MAX = 1 << 20
"""The longest text at all: ours to choose, and far beyond what relays carry in one event."""

_EXTENDED = b"\0\0"  # no text is empty, so a length of zero says that the real one follows in four bytes
_OVERHEAD = 1 + 32 + 32  # version, nonce, mac
_RAW_MIN = _OVERHEAD + 2 + 32
_PAYLOAD_MIN = 132
_PAYLOAD_MAX = (_OVERHEAD + 6 + PLAINTEXT_BYTES_MAX + 2) // 3 * 4
_SALT = b"nip44-v2"


def conversation_key(owner: Keys | bytes, pubkey: str) -> bytes:
    """What both sides encrypt under: the same for (a, B) as for (b, A). Worth keeping, for it costs a multiplication.

    `owner` is a key pair or its secret; `pubkey` is the other's, x-only hex. Raises `Invalid` for a key that is none.
    """
    owner = keys(owner) if isinstance(owner, bytes) else owner
    return hmac.digest(_SALT, owner.shared_x(pubkey), "sha256")


def keys(secret: bytes) -> Keys:
    """The key pair of a secret, or `Invalid`."""
    try:
        if len(secret) == 32:
            return Keys(secret)
    except ValueError:
        pass
    raise Invalid("the secret is not a key")


def encrypt(plaintext: str, key: bytes, nonce: bytes) -> str:
    """The payload for a text of 1 to `PLAINTEXT_BYTES_MAX` bytes. Never use a nonce twice."""
    chacha_key, chacha_nonce, hmac_key = message_keys(key, nonce)
    ciphertext = _chacha20(chacha_key, chacha_nonce, _pad(plaintext))
    mac = hmac.digest(hmac_key, nonce + ciphertext, "sha256")
    return binascii.b2a_base64(bytes([VERSION]) + nonce + ciphertext + mac, newline=False).decode()


def decrypt(payload: str, key: bytes) -> str:
    """The text of a payload. Raises `Invalid` with a short reason; nothing is decrypted that is not proven."""
    nonce, ciphertext, mac = _open(payload)
    chacha_key, chacha_nonce, hmac_key = message_keys(key, nonce)
    if not hmac.compare_digest(hmac.digest(hmac_key, nonce + ciphertext, "sha256"), mac):
        raise Invalid("encrypted payload: invalid MAC")
    return _unpad(_chacha20(chacha_key, chacha_nonce, ciphertext))


def message_keys(key: bytes, nonce: bytes) -> tuple[bytes, bytes, bytes]:
    """The ChaCha20 key, its nonce and the HMAC key of one message (HKDF-expand to 76 bytes)."""
    if len(key) != 32 or len(nonce) != 32:
        raise Invalid("a conversation key and a nonce have 32 bytes each")
    first = hmac.digest(key, nonce + b"\1", "sha256")
    second = hmac.digest(key, first + nonce + b"\2", "sha256")
    third = hmac.digest(key, second + nonce + b"\3", "sha256")
    return first, second[:12], second[12:] + third[:12]


def padded_length(length: int) -> int:
    """How many bytes a text of that many is padded to: steps of an eighth of the next power of two, at least 32."""
    if length < 1:
        raise Invalid("a text has at least one byte")
    step = max(32, (1 << (length - 1).bit_length()) // 8)
    return -(-length // step) * step


def _pad(plaintext: str) -> bytes:
    try:
        text = plaintext.encode()
    except UnicodeEncodeError:
        raise Invalid("a text to encrypt must be valid Unicode") from None
    length = len(text)
    if not 1 <= length <= PLAINTEXT_BYTES_MAX:
        raise Invalid(f"a text to encrypt has 1 to {PLAINTEXT_BYTES_MAX} bytes")
    prefix = length.to_bytes(2, "big") if length <= SHORT_BYTES_MAX else _EXTENDED + length.to_bytes(4, "big")
    return prefix + text.ljust(padded_length(length), b"\0")


def _unpad(padded: bytes) -> str:
    start, length = 2, int.from_bytes(padded[:2], "big")
    if length == 0:
        start, length = 6, int.from_bytes(padded[2:6], "big")
        if not SHORT_BYTES_MAX < length <= PLAINTEXT_BYTES_MAX:
            raise Invalid("encrypted payload: invalid padding")
    if len(padded) != start + padded_length(length) or any(padded[start + length :]):
        raise Invalid("encrypted payload: invalid padding")
    try:
        return padded[start : start + length].decode()
    except UnicodeDecodeError:
        raise Invalid("encrypted payload: the text is not UTF-8") from None


def _open(payload: str) -> tuple[bytes, bytes, bytes]:
    """Nonce, ciphertext and MAC. The length is looked at first: nothing is decoded that cannot be meant."""
    if not payload or payload[0] == "#":
        raise Invalid("encrypted payload: unknown version")
    if not _PAYLOAD_MIN <= len(payload) <= _PAYLOAD_MAX:
        raise Invalid("encrypted payload: invalid length")
    try:
        raw = binascii.a2b_base64(payload.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError alike
        raise Invalid("encrypted payload: invalid base64") from None
    if raw[0] != VERSION:
        raise Invalid(f"encrypted payload: unknown version {raw[0]}")
    if len(raw) < _RAW_MIN or binascii.b2a_base64(raw, newline=False) != payload.encode():
        raise Invalid("encrypted payload: invalid base64")
    return raw[1:33], raw[33:-32], raw[-32:]


def _chacha20(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """RFC 8439 with the counter at 0; the library takes counter and nonce as one."""
    return Cipher(ChaCha20(key, b"\0\0\0\0" + nonce), mode=None).encryptor().update(data)
