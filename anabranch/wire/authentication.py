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
        self.proven = False
        """The relay knows us."""
        self._access_key = access_key
        self._challenge: str | None = None
        self._answering: str | None = None  # the challenge that the last answer is for
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
        """A relay may give a new one with every refusal, and take an answer to the last one alone: that one is answered
        once the answer under way is refused."""
        first, self._challenge = self._challenge is None, challenge
        return self._answer() if self.needed and first else []

    def _answer(self) -> list[Step]:
        if self._challenge is None:
            return []  # it is on its way
        if self._access_key is not None:
            return [Send(dialogue.token(self._access_key))]
        return self._sign(self._challenge)

    def token_answered(self, accepted: bool, reason: str) -> list[Step]:
        if not self.needed or self._challenge is None:
            return []
        if not accepted:
            raise NotLetIn(f"the access key was refused: {reason}")
        return [] if self._answering is not None else self._sign(self._challenge)  # it may be said again

    def _sign(self, challenge: str) -> list[Step]:
        self._answering = challenge
        self._answers += 1
        return [Sign(challenge)]

    def answering(self, event: str) -> None:
        """The answer has been signed, and is this event."""
        self._event = event

    def answered(self, id: str, accepted: bool, reason: str) -> list[Step] | None:
        """What follows from an OK; None: it is not about our answer. The relay's no to it is `NotLetIn`."""
        if self._event is None or id != self._event:
            return None
        self._event = None
        if accepted:
            self.proven = True
            return []
        if self._challenge is not None and self._challenge != self._answering and self._answers < ANSWERS_MAX:
            return self._sign(self._challenge)
        raise NotLetIn(f"authentication was refused: {reason}")
