"""Gift wraps: what goes in comes out at its reader's only, and nobody can put words into another's mouth."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import giftwrap, nip44, nostr
from anabranch.core.giftwrap import Rumor
from anabranch.core.nostr import Event, Invalid, Keys

ALICE, BOB, MALLORY = Keys(b"\1" * 32), Keys(b"\2" * 32), Keys(b"\3" * 32)
ONCE = Keys(b"\7" * 32)
FRESH: dict[str, Any] = {
    "seal_nonce": b"s" * 32,
    "seal_created_at": 1_700_000_001,
    "wrap_secret": b"\7" * 32,
    "wrap_nonce": b"w" * 32,
    "wrap_created_at": 1_700_000_002,
}


def note(content: str = "hello", author: Keys = ALICE, tags: list[list[str]] | None = None) -> Rumor:
    return giftwrap.rumor(author.pubkey, 14, tags or [["p", BOB.pubkey]], content, 1_700_000_000)


def wrap(rumor: Rumor, author: Keys = ALICE, recipient: Keys = BOB, **more: Any) -> Event:
    return giftwrap.wrap(rumor, author, recipient.pubkey, **{**FRESH, **more})


@given(
    st.text(max_size=200),
    st.lists(st.lists(st.text(max_size=9), min_size=1, max_size=3), max_size=4),
    st.integers(0, nostr.KIND_MAX),
    st.integers(0, nostr.TIMESTAMP_MAX),
)
def test_what_goes_in_comes_out(content: str, tags: list[list[str]], kind: int, created_at: int) -> None:
    rumor = giftwrap.rumor(ALICE.pubkey, kind, tags, content, created_at)
    assert rumor.id == nostr.event_id(ALICE.pubkey, created_at, kind, tags, content)
    assert giftwrap.unwrap(wrap(rumor), BOB) == rumor


def test_the_outside_is_a_valid_event_that_names_the_reader_only() -> None:
    event = wrap(note("secret"), wrap_tags=[["d", "doc"], ["v", "2"]])
    assert nostr.parse(nostr.serialise(event), nostr.Limits())[0] == event and nostr.verify([event]) == [True]
    assert (event.kind, event.created_at, event.pubkey) == (1059, 1_700_000_002, ONCE.pubkey)
    assert event.tags == [["p", BOB.pubkey], ["d", "doc"], ["v", "2"]]
    assert ALICE.pubkey not in nostr.serialise(event).decode()


def test_only_its_reader_can_open_it() -> None:
    event = wrap(note())
    assert giftwrap.unwrap(event, b"\2" * 32) == giftwrap.unwrap(event, BOB)
    for other in (ALICE, MALLORY):
        with pytest.raises(Invalid):
            giftwrap.unwrap(event, other)


def test_an_author_can_wrap_for_themselves() -> None:
    rumor = note()
    assert giftwrap.unwrap(wrap(rumor, recipient=ALICE), ALICE) == rumor


def test_everything_comes_from_outside() -> None:
    """The same nonces, secret and times give the same seal and wrap but for the signatures, which have salt."""
    rumor = note()
    one, two = (giftwrap.wrap(rumor, b"\1" * 32, BOB.pubkey, **FRESH) for _ in range(2))
    assert (one.pubkey, one.created_at, one.tags) == (two.pubkey, two.created_at, two.tags)
    assert giftwrap.unwrap(one, BOB) == giftwrap.unwrap(two, BOB)


# --- lies ---------------------------------------------------------------------------------------------------------


def sealed(text: str, author: Keys = ALICE, kind: int = giftwrap.SEAL, tags: list[list[str]] | None = None) -> Event:
    key = nip44.conversation_key(author, BOB.pubkey)
    return author.sign(kind, tags or [], nip44.encrypt(text, key, b"s" * 32), 1_700_000_001)


def wrapped(text: str, kind: int = giftwrap.GIFT_WRAP) -> Event:
    key = nip44.conversation_key(ONCE, BOB.pubkey)
    return ONCE.sign(kind, [["p", BOB.pubkey]], nip44.encrypt(text, key, b"w" * 32), 1_700_000_002)


def with_seal(seal: Event) -> Event:
    return wrapped(nostr.serialise(seal).decode())


def spelt(rumor: Rumor, **other: Any) -> str:
    return msgspec.json.encode({**msgspec.structs.asdict(rumor), **other}).decode()


def refused(event: Event, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        giftwrap.unwrap(event, BOB)


def test_nobody_speaks_for_another() -> None:
    """Mallory seals, with her own true signature, a rumor that says it is Alice's."""
    refused(with_seal(sealed(spelt(note(author=ALICE)), author=MALLORY)), "did not seal it")
    with pytest.raises(Invalid, match="author only"):
        wrap(note(author=ALICE), author=MALLORY)


def test_a_seal_must_be_signed_by_its_author() -> None:
    """Bob could make a seal from Alice to himself: they share its key. He cannot sign it."""
    true = sealed(spelt(note()))
    key = nip44.conversation_key(BOB, ALICE.pubkey)
    content = nip44.encrypt(spelt(note("never said")), key, b"x" * 32)
    id = nostr.event_id(ALICE.pubkey, true.created_at, giftwrap.SEAL, [], content)
    refused(with_seal(msgspec.structs.replace(true, id=id, content=content)), "signature")
    refused(with_seal(msgspec.structs.replace(true, content=content)), "id does not match")
    refused(with_seal(msgspec.structs.replace(true, sig="00" * 64)), "signature")


def test_a_seal_is_a_seal_and_a_wrap_is_a_wrap() -> None:
    refused(with_seal(sealed(spelt(note()), kind=1)), "kind 13")
    refused(wrapped(nostr.serialise(sealed(spelt(note()))).decode(), kind=1), "kind 1059")
    assert giftwrap.unwrap(wrapped(nostr.serialise(sealed(spelt(note()))).decode(), kind=21_059), BOB) == note()


@pytest.mark.parametrize(
    "other, why",
    [
        ({"id": "00" * 32}, "id does not match"),
        ({"content": "other"}, "id does not match"),
        ({"kind": -1}, "out of range"),
        ({"kind": 65_536}, "out of range"),
        ({"created_at": -1}, "out of range"),
        ({"created_at": 1e3}, "not an event"),
        ({"tags": [[]]}, "name"),
        ({"tags": "x"}, "not an event"),
        ({"content": None}, "not an event"),
    ],
)
def test_a_rumor_must_be_an_event_with_its_own_id(other: dict[str, Any], why: str) -> None:
    refused(with_seal(sealed(spelt(note(), **other))), why)


@pytest.mark.parametrize("text", ["hello", "[]", "{}", "null", "[" * 5000])
def test_nonsense_inside_is_refused(text: str) -> None:
    refused(wrapped(text), "not an event")
    refused(with_seal(sealed(text)), "not an event")


def test_what_harms_only_the_sender_is_let_pass() -> None:
    rumor = note()
    assert giftwrap.unwrap(with_seal(sealed(spelt(rumor, sig="00" * 64))), BOB) == rumor
    assert giftwrap.unwrap(with_seal(sealed(spelt(rumor), tags=[["expiration", "1"]])), BOB) == rumor
    assert giftwrap.unwrap(with_seal(sealed(spelt(rumor, id=""))), BOB) == rumor


def test_a_rumor_of_the_named_size_stays_in_the_payload_that_all_peers_read() -> None:
    overhead = len(spelt(note("")))
    fits, over = (
        note("a" * (giftwrap.RUMOR_BYTES_MAX - overhead)),
        note("a" * (giftwrap.RUMOR_BYTES_MAX + 1 - overhead)),
    )

    def inside(rumor: Rumor) -> int:
        event = wrap(rumor)
        assert giftwrap.unwrap(event, BOB) == rumor
        return len(nip44.decrypt(event.content, nip44.conversation_key(BOB, event.pubkey)))

    assert inside(fits) <= nip44.SHORT_BYTES_MAX - 127 < nip44.SHORT_BYTES_MAX < inside(over)
