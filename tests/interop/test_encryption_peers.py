"""Encrypted texts and gift wraps cross over to real libraries and back: nostr-sdk (Rust) and nostr-tools (npm)."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
import nostr_sdk
import pytest
from nostr_sdk import Nip44Version, NostrSdkError, UnsignedEvent, UnwrappedGift

from anabranch.core import giftwrap, nip44, nostr
from anabranch.core.nostr import Event, Invalid, Keys, Limits

NOW = 1_700_000_000
TEXTS = ["a", "é😀\n\u0000\u2028", "x" * 32, "x" * 33, "note " * 100, "long " * 13_000]
RUST_WRITES_MAX = 65_408


class Person:
    """One key, as each side holds it."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self.ours = Keys(self.secret)
        self.theirs = nostr_sdk.Keys.parse(self.secret.hex())
        self.pubkey = self.ours.pubkey


ALICE, BOB = Person(), Person()


def gift(rumor: giftwrap.Rumor, author: Person, recipient: Person, **more: Any) -> Event:
    return giftwrap.wrap(
        rumor,
        author.ours,
        recipient.pubkey,
        seal_nonce=secrets.token_bytes(32),
        seal_created_at=NOW - 1,
        wrap_secret=secrets.token_bytes(32),
        wrap_nonce=secrets.token_bytes(32),
        wrap_created_at=NOW - 2,
        **more,
    )


def parsed(json_text: str) -> Event:
    event, _ = nostr.parse(json_text.encode(), Limits())
    assert nostr.verify([event]) == [True]
    return event


def rumor(content: str = "é😀 hello") -> giftwrap.Rumor:
    return giftwrap.rumor(ALICE.pubkey, 14, [["p", BOB.pubkey], ["subject", 'a "b" \\ c']], content, NOW)


# --- nostr-sdk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(len(text)))
def test_nostr_sdk_reads_what_we_encrypt_and_we_read_what_it_encrypts(text: str) -> None:
    key = nip44.conversation_key(ALICE.secret, BOB.pubkey)
    ours = nip44.encrypt(text, key, secrets.token_bytes(32))
    assert nostr_sdk.nip44_decrypt(BOB.theirs.secret_key(), ALICE.theirs.public_key(), ours) == text
    theirs = nostr_sdk.nip44_encrypt(BOB.theirs.secret_key(), ALICE.theirs.public_key(), text, Nip44Version.V2)
    assert nip44.decrypt(theirs, key) == text


def test_where_nostr_sdk_ends() -> None:
    """It writes less than the short form holds, reads all of the short form, and none of the extended one."""
    key = nip44.conversation_key(ALICE.secret, BOB.pubkey)

    def reads(length: int) -> bool:
        payload = nip44.encrypt("a" * length, key, secrets.token_bytes(32))
        try:
            found = nostr_sdk.nip44_decrypt(BOB.theirs.secret_key(), ALICE.theirs.public_key(), payload)
        except NostrSdkError:
            return False
        assert found == "a" * length
        return True

    def writes(length: int) -> bool:
        try:
            payload = nostr_sdk.nip44_encrypt(
                ALICE.theirs.secret_key(), BOB.theirs.public_key(), "a" * length, Nip44Version.V2
            )
        except NostrSdkError:
            return False
        return nip44.decrypt(payload, key) == "a" * length

    assert (writes(RUST_WRITES_MAX), writes(RUST_WRITES_MAX + 1)) == (True, False)
    assert (reads(nip44.SHORT_BYTES_MAX), reads(nip44.SHORT_BYTES_MAX + 1)) == (True, False)


def test_nostr_sdk_opens_our_gift_wraps() -> None:
    event = gift(rumor(), ALICE, BOB, wrap_tags=[["d", "doc"]])
    theirs = nostr_sdk.Event.from_json(nostr.serialise(event).decode())
    assert theirs.verify()
    opened = UnwrappedGift.from_gift_wrap(BOB.theirs, theirs)
    assert opened.sender().to_hex() == ALICE.pubkey
    assert msgspec.json.decode(opened.rumor().as_json(), type=giftwrap.Rumor) == rumor()
    with pytest.raises(NostrSdkError):
        UnwrappedGift.from_gift_wrap(ALICE.theirs, theirs)


def test_nostr_sdk_opens_the_largest_gift_wrap_that_we_promise() -> None:
    overhead = len(msgspec.json.encode(rumor("")))
    largest = rumor("a" * (giftwrap.RUMOR_BYTES_MAX - overhead))
    event = nostr_sdk.Event.from_json(nostr.serialise(gift(largest, ALICE, BOB)).decode())
    assert UnwrappedGift.from_gift_wrap(BOB.theirs, event).rumor().content() == largest.content


def test_we_open_the_gift_wraps_of_nostr_sdk() -> None:
    unsigned = UnsignedEvent.from_json(msgspec.json.encode(rumor()).decode())
    event = parsed(nostr_sdk.nip59_make_gift_wrap(ALICE.theirs, BOB.theirs.public_key(), unsigned).as_json())
    assert event.tags[0] == ["p", BOB.pubkey]
    assert giftwrap.unwrap(event, BOB.ours) == rumor()
    with pytest.raises(Invalid):
        giftwrap.unwrap(event, ALICE.ours)


# --- nostr-tools ------------------------------------------------------------------------------------------------


def test_nostr_tools_reads_ours_and_we_read_its_own(javascript: Callable[..., dict[str, Any]]) -> None:
    key = nip44.conversation_key(BOB.ours, ALICE.pubkey)
    texts = [*TEXTS, "a" * nip44.SHORT_BYTES_MAX, "a" * (nip44.SHORT_BYTES_MAX + 1), "a" * 200_000]
    reply = giftwrap.rumor(BOB.pubkey, 14, [["p", ALICE.pubkey]], "and hello", NOW)
    answer = javascript(
        "encryption.mjs",
        told={
            "secret": ALICE.secret.hex(),
            "peer": BOB.pubkey,
            "texts": texts,
            "payloads": [nip44.encrypt(text, key, secrets.token_bytes(32)) for text in texts],
            "rumor": {"kind": 14, "tags": rumor().tags, "content": rumor().content, "created_at": NOW},
            "gift": json.loads(nostr.serialise(gift(reply, BOB, ALICE))),
        },
    )
    assert answer["texts"] == texts
    assert [nip44.decrypt(payload, key) for payload in answer["payloads"]] == texts
    assert giftwrap.unwrap(parsed(json.dumps(answer["gift"])), BOB.ours) == rumor()
    assert msgspec.convert(answer["rumor"], giftwrap.Rumor) == reply
