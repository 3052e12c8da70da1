"""Authentication on one connection: the relay's challenge, an access key where there is one, and our answer. No I/O.

A private relay says in its NIP-11 document that it wants authentication, or refuses with `auth-required:` what it is
asked; its challenge (NIP-42) may come before or after that. An access key goes first (TOKEN), and the answer to the
challenge only after the relay's yes to it.
"""

from __future__ import annotations

from anabranch.client import messages
from anabranch.client.effects import Authenticate, Effect, Send
from anabranch.client.messages import Frame, ProtocolError


class Authentication:
    def __init__(self, access_key: str | None) -> None:
        self.needed = False
        self._access_key = access_key
        self._challenge: str | None = None
        self._event: str | None = None

    @property
    def possible(self) -> bool:
        """Whether there is a challenge that was not asked to be answered yet."""
        return self._challenge is not None and not self.needed

    def need(self) -> list[Effect]:
        """The relay wants it: answer, as soon as there is a challenge."""
        self.needed = True
        return self._answer()

    def challenged(self, challenge: str) -> list[Effect]:
        first, self._challenge = self._challenge is None, challenge
        return self._answer() if self.needed and first else []

    def _answer(self) -> list[Effect]:
        if self._challenge is None:
            return []  # it is on its way
        if self._access_key is not None:
            return [Send(messages.token(self._access_key))]
        return [Authenticate(self._challenge)]

    def token_answered(self, frame: Frame) -> list[Effect]:
        if not self.needed or self._challenge is None:
            return []
        if frame[2] is not True:
            raise ProtocolError(f"the access key was refused: {frame.text(3)}")
        return [Authenticate(self._challenge)]

    def answering(self, event: str) -> None:
        """The answer has been signed, and is this event."""
        self._event = event

    def proven_by(self, frame: Frame) -> bool:
        """Whether an OK is the relay's yes to our answer; its no is a `ProtocolError`."""
        if self._event is None or frame[1] != self._event:
            return False
        self._event = None
        if frame[2] is not True:
            raise ProtocolError(f"authentication was refused: {frame.text(3)}")
        return True
