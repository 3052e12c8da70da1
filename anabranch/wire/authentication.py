"""Authentication on one connection: the relay's challenge, an access key where there is one, and our answer. No I/O.

A private relay says in its NIP-11 document that it wants authentication, or refuses with `auth-required:` what it is
asked; its challenge (NIP-42) may come before or after that. An access key goes first (TOKEN), and the answer to the
challenge only after the relay's yes to it.
"""

from __future__ import annotations

import msgspec

from anabranch.core import nostr
from anabranch.core.nostr import Event, Keys
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Send

ANSWERS_MAX = 10  # on one connection: a relay may not have us sign without an end


class NotLetIn(Exception):
    """The relay does not take our access key or our answer; the text has its reason."""


class Sign(msgspec.Struct, frozen=True):
    """Sign an answer to the challenge, send it, and call `answering` with its id."""

    challenge: str


Step = Send | Sign


def answer(keys: Keys, url: str, challenge: str, at: int) -> Event:
    """The event that proves to the relay at `url` who we are (NIP-42)."""
    return keys.sign(nostr.AUTH, [["relay", url], ["challenge", challenge]], "", at)


class Authentication:
    def __init__(self, access_key: str | None) -> None:
        self.needed = False
        self._access_key = access_key
        self._challenge: str | None = None
        self._event: str | None = None
        self._answers = 0

    @property
    def possible(self) -> bool:
        """Whether there is a challenge that was not asked to be answered yet."""
        return self._challenge is not None and not self.needed

    def need(self) -> list[Step]:
        """The relay wants it: answer, as soon as there is a challenge."""
        self.needed = True
        return self._answer()

    def challenged(self, challenge: str) -> list[Step]:
        """A relay may give a new one with every refusal, and take an answer to the last one alone."""
        first, self._challenge = self._challenge is None, challenge
        if self._event is not None and self._answers < ANSWERS_MAX:
            return [Sign(challenge)]
        return self._answer() if self.needed and first else []

    def _answer(self) -> list[Step]:
        if self._challenge is None:
            return []  # it is on its way
        if self._access_key is not None:
            return [Send(dialogue.token(self._access_key))]
        return [Sign(self._challenge)]

    def token_answered(self, accepted: bool, reason: str) -> list[Step]:
        if not self.needed or self._challenge is None:
            return []
        if not accepted:
            raise NotLetIn(f"the access key was refused: {reason}")
        if self._event is not None:
            return []  # it was said before
        return [Sign(self._challenge)]

    def answering(self, event: str) -> None:
        """The answer has been signed, and is this event."""
        self._event = event
        self._answers += 1

    def proven_by(self, id: str, accepted: bool, reason: str) -> bool:
        """Whether an OK is the relay's yes to our answer; its no is `NotLetIn`."""
        if self._event is None or id != self._event:
            return False
        self._event = None
        if not accepted:
            raise NotLetIn(f"authentication was refused: {reason}")
        return True
