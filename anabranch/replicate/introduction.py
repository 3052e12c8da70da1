"""Proving to a peer who we are (NIP-42), on one connection, as soon as it wants to know. No I/O.

A peer says so in its information, or by refusing something with `auth-required:`. A link without an identity has
nothing to say, and the refusal stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.core.nostr import serialise
from anabranch.replicate.effects import Effect, Send
from anabranch.replicate.identity import Identity
from anabranch.wire import authentication, dialogue
from anabranch.wire.authentication import Authentication, Sign, Step
from anabranch.wire.dialogue import AUTH_REQUIRED, Answer, Challenge, Ok, TokenAnswer


class Introduction:
    def __init__(self, identity: Identity | None, url: str, wall: Callable[[], int]) -> None:
        self.identity = identity
        self._url = url
        self._wall = wall
        self._authentication = Authentication(identity.access_key if identity is not None else None)

    @property
    def proven(self) -> bool:
        """The peer knows us."""
        return self._authentication.proven

    def may_begin(self) -> bool:
        return self.identity is not None and not self._authentication.needed

    def is_asked_for(self, answer: Answer) -> bool:
        """Whether an answer is a refusal that an introduction may change."""
        return self.may_begin() and dialogue.refusal(answer).startswith(AUTH_REQUIRED)

    def begin(self) -> list[Effect]:
        """Say who we are, at once or when the challenge comes."""
        return self._carry_out(self._authentication.need())

    def hear(self, answer: Answer) -> list[Effect] | None:
        """None: it does not concern us. Raises `NotLetIn`."""
        match answer:
            case Challenge(text):
                return self._carry_out(self._authentication.challenged(text))
            case TokenAnswer(accepted, reason):
                return self._carry_out(self._authentication.token_answered(accepted, reason))
            case Ok(id, accepted, reason):
                steps = self._authentication.answered(id, accepted, reason)
                return None if steps is None else self._carry_out(steps)
        return None

    def _carry_out(self, steps: Sequence[Step]) -> list[Effect]:
        return [Send(self._signed(step.challenge) if isinstance(step, Sign) else step.message) for step in steps]

    def _signed(self, challenge: str) -> bytes:
        assert self.identity is not None
        event = authentication.answer(self.identity.keys, self._url, challenge, self._wall())
        self._authentication.answering(event.id)
        return dialogue.auth(serialise(event))
