"""NIP-19: keys as people pass them on. `nsec1…` and `npub1…` are 32 bytes in bech32 (BIP-173), with a checksum."""

from __future__ import annotations

from anabranch.core.nostr import Invalid, Keys, is_hex

_ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM = 6  # characters


def encode(prefix: str, key: bytes) -> str:
    """The text of 32 bytes: `prefix` is «nsec» for a secret key, «npub» for a public one."""
    values = _regroup(key, 8, 5, pad=True)
    checksum = _polymod([*_expanded(prefix), *values, *[0] * _CHECKSUM]) ^ 1
    values += [checksum >> 5 * (_CHECKSUM - 1 - place) & 31 for place in range(_CHECKSUM)]
    return f"{prefix}1" + "".join(_ALPHABET[value] for value in values)


def decode(prefix: str, text: str) -> bytes:
    """The 32 bytes of such a text, or `Invalid`."""
    lowered = text.lower()
    if text not in (lowered, text.upper()) or not lowered.startswith(f"{prefix}1"):
        raise Invalid(f"a key of this kind begins with {prefix}1")
    values = [_ALPHABET.find(character) for character in lowered[len(prefix) + 1 :]]
    if -1 in values or _polymod([*_expanded(prefix), *values]) != 1:
        raise Invalid(f"this {prefix} is mistyped: its checksum does not hold")
    key = bytes(_regroup(values[:-_CHECKSUM], 5, 8, pad=False))
    if len(key) != 32:
        raise Invalid(f"this {prefix} has not the length of a key")
    return key


def parse_secret(text: str) -> bytes:
    """A secret key as `nsec1…` or hex, or `Invalid`."""
    text = text.strip()
    secret = bytes.fromhex(text.lower()) if is_hex(text.lower(), 64) else decode("nsec", text)
    try:
        Keys(secret)
    except ValueError:
        raise Invalid("these bytes are no secret key") from None
    return secret


def parse_public(text: str) -> str:
    """A public key as `npub1…` or hex, in hex, or `Invalid`."""
    text = text.strip()
    if is_hex(text.lower(), 64):
        return text.lower()
    if not text.lower().startswith("npub1"):
        raise Invalid("a public key is npub1… or 64 hexadecimal digits")
    return decode("npub", text).hex()


def _expanded(prefix: str) -> list[int]:
    return [*(ord(character) >> 5 for character in prefix), 0, *(ord(character) & 31 for character in prefix)]


def _polymod(values: list[int]) -> int:
    check = 1
    for value in values:
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATORS):
            check ^= generator if top >> bit & 1 else 0
    return check


def _regroup(values: bytes | list[int], wide: int, narrow: int, pad: bool) -> list[int]:
    """The same bits in groups of another width."""
    held = bits = 0
    found: list[int] = []
    for value in values:
        held, bits = held << wide | value, bits + wide
        while bits >= narrow:
            bits -= narrow
            found.append(held >> bits & (1 << narrow) - 1)
        held &= (1 << bits) - 1
    if pad and bits:
        found.append(held << narrow - bits & (1 << narrow) - 1)
    elif not pad and (bits >= wide or held):
        raise Invalid("the key's last bits say something that no key says")
    return found
