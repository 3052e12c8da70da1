"""NIP-01 events: what is signed, and how it is proven.

`parse` takes the bytes of one event and gives an `Event` whose every field has the right type and whose id is the
hash of its content; the signature is checked apart (`verify`), because it is slow and done in batches elsewhere.
The bytes are kept as they came, so that what was signed is what is served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

import coincurve
import msgspec

KIND_MAX = 65_535
TIMESTAMP_MAX = 9_007_199_254_740_991

DELETION = 5
VANISH = 62
AUTH = 22_242


class Invalid(ValueError):
    """What was sent is not well-formed; the text may be shown to whoever sent it."""


class Strange(Invalid):
    """No event that we could ever take. Others are less strict: who has it need not be lying."""


class TooEarly(Invalid):
    """It may be taken later, from a moment on."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


class Event(msgspec.Struct, frozen=True, gc=False):
    """A Nostr event with fields of the right types. Ids, keys and signatures are lower-case hex."""

    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str
    sig: str

    def first(self, name: str) -> str | None:
        """The value of the first tag of that name, if it has one."""
        for tag in self.tags:
            if tag and tag[0] == name and len(tag) > 1:
                return tag[1]
        return None

    def values(self, name: str) -> list[str]:
        return [tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name]


class Limits(msgspec.Struct, frozen=True):
    """What an event may be, at the most. Advertised in NIP-11."""

    event_bytes: int = 131_072
    tags: int = 2_000
    content_characters: int = 102_400
    created_at_ahead: int | None = 86_400  # seconds
    created_at_behind: int | None = None


_FIELDS = frozenset(Event.__struct_fields__)
_decode = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256


def preimage(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> bytes:
    """The bytes whose SHA-256 is the id."""
    return _encode((0, pubkey, created_at, kind, tags, content))


def event_id(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> str:
    return _sha256(preimage(pubkey, created_at, kind, tags, content)).hexdigest()


def is_hex(text: str, length: int) -> bool:
    """Whether the text is exactly `length` lower-case hexadecimal digits."""
    if len(text) != length or not text.isascii():
        return False
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


# A compact event is its preimage in other words: `{"id":"…64…","pubkey":…,"sig":"…128…"}` against `[0,…]`. An object
# of just this length has no white space, no other field and none twice: its bytes need no second look.
_COMPACT_EXTRA = (
    len('{"id":"","pubkey":,"created_at":,"kind":,"tags":,"content":,"sig":""}') - len("[0,,,,,]") + 64 + 128
)


def parse(raw: bytes | memoryview | msgspec.Raw, limits: Limits) -> tuple[Event, bytes]:
    """The event that the bytes spell, and the bytes to keep. Raises `Invalid` with a reason for the sender."""
    kept = bytes(raw)
    if len(kept) > limits.event_bytes:
        raise Invalid(f"event is larger than {limits.event_bytes} bytes")
    try:
        event = _decode(kept)
    except msgspec.ValidationError as error:
        raise Strange(f"malformed event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Strange("malformed event: not valid JSON in UTF-8") from None
    if not 0 <= event.kind <= KIND_MAX:
        raise Strange(f"kind must be between 0 and {KIND_MAX}")
    if not 0 <= event.created_at <= TIMESTAMP_MAX:
        raise Strange("created_at must be a unix timestamp in seconds")
    within(event, limits)
    if [] in event.tags:
        raise Strange("a tag must have a name")
    if len(event.pubkey) != 64 or not is_hex(event.pubkey + event.sig, 64 + 128):
        raise Invalid("pubkey and sig must be lower-case hex of 64 and 128 characters")
    signed = preimage(event.pubkey, event.created_at, event.kind, event.tags, event.content)
    if _sha256(signed).hexdigest() != event.id:
        raise Invalid("id does not match the event")
    if len(kept) != len(signed) + _COMPACT_EXTRA:
        kept = _without_strangers(kept, event)
    return event, kept


def claims(raw: bytes) -> tuple[str, int] | None:
    """The id and the time of what has all that an event has, whether or not we would take it, and with it the id that
    it has to have: so it stands for no other event. Its signature is not checked."""
    try:
        match json.loads(raw):
            case {
                "id": str(id),
                "pubkey": str(pubkey),
                "created_at": int() | float() as created_at,
                "kind": int() | float() as kind,
                "tags": list(tags),
                "content": str(content),
                "sig": str(sig),
            } if len(id) == len(pubkey) == 64 and is_hex(id + pubkey + sig, 64 + 64 + 128):
                signed = json.dumps(
                    (0, pubkey, created_at, kind, tags, content), ensure_ascii=False, separators=(",", ":")
                ).encode("utf-8", "backslashreplace")  # as others spell half of a pair of surrogates
                return (id, int(created_at)) if _sha256(signed).hexdigest() == id else None
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


def within(event: Event, limits: Limits) -> None:
    """Raise `Invalid` for an event with more tags or content than is taken."""
    if len(event.tags) > limits.tags:
        raise Invalid(f"more than {limits.tags} tags")
    if len(event.content) > limits.content_characters:
        raise Invalid(f"content is longer than {limits.content_characters} characters")


def _without_strangers(raw: bytes, event: Event) -> bytes:
    """The bytes as they came, unless they say more than was signed: then only what was signed."""
    try:
        names = [name for name, _ in json.loads(raw, object_pairs_hook=lambda pairs: pairs, parse_int=str)]
    except (ValueError, RecursionError):
        raise Invalid("malformed event: an unknown field cannot be read") from None
    if len(set(names)) < len(names):
        raise Invalid("malformed event: a field stands twice")
    # A line break can only stand between tokens, where a blank does as well: an event is always one line.
    return raw.strip().translate(_ONE_LINE) if _FIELDS.issuperset(names) else serialise(event)


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def serialise(event: Event) -> bytes:
    """The compact JSON of an event."""
    return _encode(event)


def timely(event: Event, limits: Limits, now: int) -> None:
    """Raise `Invalid` for an event from too far in the future or the past, or one that has expired (NIP-40)."""
    if limits.created_at_ahead is not None and event.created_at > now + limits.created_at_ahead:
        raise TooEarly("created_at is too far in the future", event.created_at - limits.created_at_ahead)
    if limits.created_at_behind is not None and event.created_at < now - limits.created_at_behind:
        raise Invalid("created_at is too far in the past")
    if (expires := expiration(event)) is not None and expires <= now:
        raise Invalid("event has expired")


def expiration(event: Event) -> int | None:
    """When the event expires (NIP-40), or None. An unreadable time is no time."""
    value = event.first("expiration")
    if value is None or not value.isdecimal() or not value.isascii() or len(value) > 16:
        return None
    return int(value)


def authority(url: str) -> str:
    """Host and port of a relay url: all that must agree where a url names a relay (NIP-42, NIP-62). "" for no url."""
    scheme, _, rest = url.strip().lower().partition("://")
    named = rest.partition("/")[0].partition("?")[0]
    return named.removesuffix({"wss": ":443", "ws": ":80"}.get(scheme, ""))


def is_replaceable(kind: int) -> bool:
    return kind in (0, 3) or 10_000 <= kind < 20_000


def is_ephemeral(kind: int) -> bool:
    return 20_000 <= kind < 30_000


def is_addressable(kind: int) -> bool:
    return 30_000 <= kind < 40_000


def newer(a_created_at: int, a_id: str, b_created_at: int, b_id: str) -> bool:
    """Whether replaceable version `a` takes the place of `b`: the later wins, of equals the one with the lower id."""
    return (-a_created_at, a_id) < (-b_created_at, b_id)


# --- proof -----------------------------------------------------------------------------------------------------

PROOF_BYTES = 32 + 32 + 64
"""A proof is what a signature check needs and nothing else: id, key and signature in binary."""


def proof(event: Event) -> bytes:
    return bytes.fromhex(event.id + event.pubkey + event.sig)


def proofs(events: Iterable[Event]) -> bytes:
    """A run of proofs, one for each event, in order."""
    return bytes.fromhex("".join([event.id + event.pubkey + event.sig for event in events]))


def verify_proofs(run: bytes) -> bytes:
    """Check a run of proofs (BIP-340, libsecp256k1): one byte each, 1 for a signature that holds."""
    return bytes(
        _signature_holds(run[at : at + 32], run[at + 32 : at + 64], run[at + 64 : at + PROOF_BYTES])
        for at in range(0, len(run), PROOF_BYTES)
    )


def verify(events: Iterable[Event]) -> list[bool]:
    return [bool(held) for held in verify_proofs(proofs(events))]


def _signature_holds(digest: bytes, pubkey: bytes, signature: bytes) -> bool:
    key = _public_key(pubkey)
    return key is not None and key.verify(signature, digest)


@lru_cache(maxsize=4096)
def _public_key(pubkey: bytes) -> coincurve.PublicKeyXOnly | None:
    """The point that a key stands for, or None: finding it costs a tenth of a check, and authors come back."""
    try:
        return coincurve.PublicKeyXOnly(pubkey)
    except ValueError:
        return None


# --- making events (clients, tests, the demo) --------------------------------------------------------------------


class Keys:
    """A key pair that signs."""

    def __init__(self, secret: bytes) -> None:
        self._private = coincurve.PrivateKey(secret)
        self.pubkey = coincurve.PublicKeyXOnly.from_secret(secret).format().hex()

    def shared_x(self, pubkey: str) -> bytes:
        """The x coordinate of the point that only the two keys can find (ECDH, unhashed). Raises `Invalid`."""
        try:
            point = coincurve.PublicKey(b"\2" + bytes.fromhex(pubkey)) if is_hex(pubkey, 64) else None
        except ValueError:
            point = None
        if point is None:
            raise Invalid("the public key is not a point of the curve")
        return point.multiply(self._private.secret).format()[1:]

    def sign(
        self, kind: int, tags: Sequence[Sequence[str]], content: str, created_at: int, deterministic: bool = False
    ) -> Event:
        """A signed event; the same one every time if `deterministic`, else the signature holds fresh randomness."""
        identity = event_id(self.pubkey, created_at, kind, tags, content)
        signature = self._private.sign_schnorr(bytes.fromhex(identity), bytes(32) if deterministic else b"").hex()
        return Event(identity, self.pubkey, created_at, kind, [list(tag) for tag in tags], content, signature)
