"""What a refusal of a peer's means: not now, or never."""

from __future__ import annotations

PASSING = ("rate-limited:", "error:", "auth-required:")
"""Prefixes (NIP-01) of what is tried again. Whatever else is refused is a dead letter, with its reason."""


def is_passing(reason: str) -> bool:
    return reason.startswith(PASSING)
