"""Keys as people pass them on: the examples of NIP-19, and that a mistyped key is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import nip19
from anabranch.core.nostr import Invalid

NSEC = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"


def test_the_examples_of_the_nip():
    public = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
    assert (
        nip19.encode("npub", bytes.fromhex(public)) == "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg"
    )
    assert nip19.decode("nsec", NSEC).hex() == "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
    assert nip19.decode("nsec", NSEC.upper()) == nip19.decode("nsec", NSEC)


@given(st.binary(min_size=32, max_size=32))
def test_what_is_written_is_read(key: bytes):
    assert nip19.decode("nsec", nip19.encode("nsec", key)) == key


@given(st.integers(5, len(NSEC) - 1), st.sampled_from("qpzry9x8gf2tvdw0s3jn54khce6mua7l"))
def test_one_wrong_character_is_always_noticed(at: int, character: str):
    mistyped = NSEC[:at] + character + NSEC[at + 1 :]
    if mistyped != NSEC:
        with pytest.raises(Invalid):
            nip19.decode("nsec", mistyped)


@pytest.mark.parametrize("wrong", ["", "nsec1", NSEC[:-1], NSEC[:-1] + "B", NSEC.replace("nsec", "npub"), "nsec1é"])
def test_what_is_no_key_is_refused(wrong: str):
    with pytest.raises(Invalid):
        nip19.decode("nsec", wrong)


def test_bytes_of_another_length_are_no_key():
    with pytest.raises(Invalid):
        nip19.decode("nsec", nip19.encode("nsec", b"short"))


def test_a_public_key_is_read_as_it_is_passed_on_and_in_hex():
    npub = nip19.encode("npub", b"\x7e" * 32)
    for text in (npub, npub.upper(), f" {npub} ", "7e" * 32, "7E" * 32):
        assert nip19.parse_public(text) == "7e" * 32
    for wrong in ("", "me", NSEC, npub[:-1], "7e" * 31):
        with pytest.raises(Invalid):
            nip19.parse_public(wrong)
