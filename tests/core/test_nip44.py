"""NIP-44: the official vectors hold, a text comes back as it went in, and nothing forged is ever read.

`vectors/nip44.vectors.json` is the file that NIP-44 names by its hash; the extended lengths are from the NIP's text.
"""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import nip44
from anabranch.core.nostr import Invalid, Keys

FILE = Path(__file__).parent / "vectors" / "nip44.vectors.json"
V2 = json.loads(FILE.read_bytes())["v2"]
VALID, INVALID = V2["valid"], V2["invalid"]

A, B = Keys(b"\1" * 32), Keys(b"\2" * 32)
KEY = nip44.conversation_key(A, B.pubkey)
NONCE = bytes(range(32))


def hexed(vector: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(vector[name]) for name in names]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_vectors_are_the_official_ones() -> None:
    named = "269ed0f69e4c192512cc779e78c555090cebc7c785b609e338a62afc3ce25040"
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() == named


@pytest.mark.parametrize("vector", VALID["get_conversation_key"], ids=lambda v: v["sec1"][:8])
def test_conversation_keys_are_those_of_the_vectors(vector: dict[str, str]) -> None:
    secret, expected = hexed(vector, "sec1", "conversation_key")
    assert nip44.conversation_key(secret, vector["pub2"]) == expected
    assert nip44.conversation_key(Keys(secret), vector["pub2"]) == expected


@pytest.mark.parametrize("vector", INVALID["get_conversation_key"], ids=lambda v: v["note"])
def test_a_bad_key_is_refused(vector: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        nip44.conversation_key(bytes.fromhex(vector["sec1"]), vector["pub2"])


@pytest.mark.parametrize("pubkey", ["", "00", "zz" * 32, B.pubkey.upper(), B.pubkey + "00", " " * 64])
def test_a_misspelt_key_is_refused(pubkey: str) -> None:
    with pytest.raises(Invalid):
        nip44.conversation_key(A, pubkey)


def test_message_keys_are_those_of_the_vectors() -> None:
    (key,) = hexed(VALID["get_message_keys"], "conversation_key")
    for vector in VALID["get_message_keys"]["keys"]:
        (nonce, *expected) = hexed(vector, "nonce", "chacha_key", "chacha_nonce", "hmac_key")
        assert list(nip44.message_keys(key, nonce)) == expected


def test_padded_lengths_are_those_of_the_vectors() -> None:
    assert [[n, nip44.padded_length(n)] for n, _ in VALID["calc_padded_len"]] == VALID["calc_padded_len"]


@pytest.mark.parametrize("vector", VALID["encrypt_decrypt"], ids=lambda v: v["nonce"][:8])
def test_conversations_are_those_of_the_vectors(vector: dict[str, str]) -> None:
    first, second, key, nonce = hexed(vector, "sec1", "sec2", "conversation_key", "nonce")
    assert nip44.conversation_key(first, Keys(second).pubkey) == key
    assert nip44.conversation_key(second, Keys(first).pubkey) == key
    assert nip44.encrypt(vector["plaintext"], key, nonce) == vector["payload"]
    assert nip44.decrypt(vector["payload"], key) == vector["plaintext"]


@pytest.mark.parametrize("vector", VALID["encrypt_decrypt_long_msg"], ids=lambda v: str(v["repeat"]))
def test_long_messages_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    key, nonce = hexed(vector, "conversation_key", "nonce")
    text = vector["pattern"] * vector["repeat"]
    payload = nip44.encrypt(text, key, nonce)
    assert (sha256(text), sha256(payload)) == (vector["plaintext_sha256"], vector["payload_sha256"])
    assert nip44.decrypt(payload, key) == text


@pytest.mark.parametrize(
    "length, payload_sha256",
    [
        (65_535, "6d8c2810d1e870fbaa1f0a0937126cca837a15f9260e27060c331d70a3c0bc84"),
        (65_536, "b7b4edb36ba92e267d322d56d9aebc22e7fa96ff52e3c12adc07f07a43cbc616"),
        (65_537, "eeb7c7c5373894ea2c1547cfd3ccb15d5a0b2d619da852e5c79df792dcc9e435"),
    ],
)
def test_extended_lengths_are_those_of_the_nip(length: int, payload_sha256: str) -> None:
    key = bytes.fromhex("c41c775356fd92eadc63ff5a0dc1da211b268cbea22316767095b2871ea1412d")
    payload = nip44.encrypt("a" * length, key, bytes(31) + b"\1")
    assert sha256(payload) == payload_sha256
    assert nip44.decrypt(payload, key) == "a" * length


@pytest.mark.parametrize("vector", INVALID["decrypt"], ids=lambda v: v["note"])
def test_a_bad_payload_is_refused(vector: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        nip44.decrypt(vector["payload"], bytes.fromhex(vector["conversation_key"]))


def test_what_is_too_short_or_too_long_is_refused() -> None:
    # The vectors' other lengths (65,536 and more) are allowed by the present NIP; ours end at a mebibyte.
    for text in ("", "a" * (nip44.PLAINTEXT_BYTES_MAX + 1)):
        with pytest.raises(Invalid):
            nip44.encrypt(text, KEY, NONCE)
    longest = "a" * nip44.PLAINTEXT_BYTES_MAX
    payload = nip44.encrypt(longest, KEY, NONCE)
    assert nip44.decrypt(payload, KEY) == longest
    with pytest.raises(Invalid, match="length"):
        nip44.decrypt(payload + "AAAA", KEY)


@given(st.text(min_size=1), st.binary(min_size=32, max_size=32))
def test_a_text_comes_back_as_it_went_in(text: str, nonce: bytes) -> None:
    assert nip44.decrypt(nip44.encrypt(text, KEY, nonce), nip44.conversation_key(B, A.pubkey)) == text


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(Invalid):
        nip44.encrypt("half \ud83d", KEY, NONCE)


@given(st.integers(1, nip44.PLAINTEXT_BYTES_MAX))
def test_padding_hides_the_length_within_an_eighth(length: int) -> None:
    padded = nip44.padded_length(length)
    assert length <= padded <= max(32, length + length // 4 + 32)
    assert nip44.padded_length(padded) == padded


@given(st.data())
def test_nothing_tampered_with_is_read(data: st.DataObject) -> None:
    raw = bytearray(base64.b64decode(nip44.encrypt("a note " * 9, KEY, NONCE)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Invalid):
        nip44.decrypt(base64.b64encode(raw).decode(), KEY)


@given(st.text(max_size=300))
def test_any_text_at_all_is_read_or_refused(payload: str) -> None:
    with pytest.raises(Invalid):
        nip44.decrypt(payload, KEY)


def proven(padded: bytes) -> str:
    """A payload with a true MAC over whatever stands inside: what a dishonest holder of the key could make."""
    chacha_key, chacha_nonce, hmac_key = nip44.message_keys(KEY, NONCE)
    ciphertext = nip44._chacha20(chacha_key, chacha_nonce, padded)
    mac = hmac.digest(hmac_key, NONCE + ciphertext, "sha256")
    return base64.b64encode(b"\2" + NONCE + ciphertext + mac).decode()


def test_the_key_holder_too_must_pad_as_told() -> None:
    assert nip44.decrypt(proven(b"\0\1a" + bytes(31)), KEY) == "a"
    wrong = {
        "another length of padding": b"\0\1a" + bytes(63),
        "padding that says something": b"\0\1a" + bytes(30) + b"x",
        "longer than there is": b"\0\x21" + b"a" * 32,
        "empty": bytes(34),
        "short in the extended form": b"\0\0\0\0\0\1a" + bytes(31),
        "not UTF-8": b"\0\1\xff" + bytes(31),
        "half a character": b"\0\1\xc3" + bytes(31),
    }
    for name, padded in wrong.items():
        with pytest.raises(Invalid):
            assert nip44.decrypt(proven(padded), KEY) is None, name


def test_one_payload_has_one_spelling() -> None:
    payload = nip44.encrypt("a" * 32, KEY, NONCE)  # 99 bytes: no base64 padding
    longer = nip44.encrypt("a" * 33, KEY, NONCE)  # 131 bytes: one "=" and two bits that must be zero
    assert longer.endswith("=")
    loose = longer[:-2] + chr(ord(longer[-2]) + 1) + "="
    assert base64.b64decode(loose) == base64.b64decode(longer)
    for other in (payload + "\n", " " + payload, payload + "=", payload[:-1], loose, longer[:-1], "é" * 132):
        with pytest.raises(Invalid):
            nip44.decrypt(other, KEY)


def test_a_version_to_come_is_told_apart() -> None:
    future = base64.b64encode(b"\3" + bytes(98)).decode()
    for payload in ("", "#", "#" + "A" * 200, future):
        with pytest.raises(Invalid, match="unknown version"):
            nip44.decrypt(payload, KEY)


def test_keys_and_nonces_have_32_bytes() -> None:
    payload = nip44.encrypt("a", KEY, NONCE)
    for key, nonce in ((KEY[:-1], NONCE), (KEY, NONCE[:-1]), (KEY + b"\0", NONCE), (b"", b"")):
        with pytest.raises(Invalid):
            nip44.encrypt("a", key, nonce)
    with pytest.raises(Invalid):
        nip44.decrypt(payload, KEY[:-1])
    for secret in (b"", b"\1", b"\1" * 33, bytes(32)):
        with pytest.raises(Invalid):
            nip44.conversation_key(secret, B.pubkey)
