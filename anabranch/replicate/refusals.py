"""What a refusal of a peer's means: not now, or never; and what a person can do about it."""

from __future__ import annotations

from anabranch.store.contract import DEAD_LETTERS_MAX

PASSING = ("rate-limited:", "error:", "auth-required:")
"""Prefixes (NIP-01) of what is tried again. Whatever else is refused is a dead letter, with its reason."""


def is_passing(reason: str) -> bool:
    return reason.startswith(PASSING)


def may_be_about_one(reason: str) -> bool:
    """Whether what is refused for now may be refused for its own sake, so that others are worth a try: an error, or
    what only its author may bring (NIP-70)."""
    return reason.startswith(("error:", "auth-required:"))


def may_be_for_good(reason: str) -> bool:
    """Whether what is tried again may be refused for good all the same: there are relays that call everything an
    error that they have no other word for."""
    return reason.startswith("error:")


def refused_count(dead_letters: int) -> str:
    """In words: beyond so many they are not told apart any more."""
    return f"{DEAD_LETTERS_MAX:,} or more" if dead_letters >= DEAD_LETTERS_MAX else str(dead_letters)


ADVICE = {
    "auth-required:": "The peer serves only those whom it knows: give the link a key (--key-file FILE, or key_file in "
    "the settings), and let the peer's operator allow it.",
    "token-required:": "The peer asks for an access key: get one from its operator, and give it to the link "
    "(--access-key-file FILE, or access_key_file in the settings).",
    "token-invalid:": "The peer does not take the access key, or not any more: get one from its operator and put it "
    "into the link's access key file; the link finds it by itself.",
    "restricted:": "The peer knows the link's key and allows it less than the link asks for: let its operator allow "
    "the key, or narrow the scope to what is the key's own (--author, or --recipient with --kind 1059).",
}
"""What to do about a refusal, by the prefix of its reason."""


def advice(reason: str) -> str | None:
    return next((words for prefix, words in ADVICE.items() if prefix in reason), None)
