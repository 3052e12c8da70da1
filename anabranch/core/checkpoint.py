"""Checkpoints: how far one direction of a link has come, and what it waits for.

`received` may be ahead of `contiguous`: what was received and cannot be applied yet, because something that it needs is
missing, is pending. `contiguous` is the last token before which all is applied, and the only one to resume from. Both
move forward only, and only within one stream and epoch; another log is begun in words (`Checkpoint.at`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.core.token import ProgressToken, before

PENDING_MAX = 100


class Blocked(msgspec.Struct, frozen=True):
    """Why an operation cannot be applied yet: what it needs, of which class, and why that is not there."""

    operation: str
    dependency: str
    missing: str
    why: str

    def __str__(self) -> str:
        return f"{self.operation} needs {self.dependency} {self.missing}: {self.why}"


class Pending(msgspec.Struct, frozen=True):
    """A received operation that is not applied. `resume` is the token just before it, in the order of delivery."""

    token: ProgressToken
    blocked: Blocked
    resume: ProgressToken | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    received: ProgressToken | None = None
    contiguous: ProgressToken | None = None
    pending: tuple[Pending, ...] = ()
    overflows: bool = False
    """More would have to be pending than may be: it stands still, before the one that was too much."""

    @classmethod
    def at(cls, token: ProgressToken) -> Checkpoint:
        """All up to a token is applied: the beginning in a log, or the end of a repair."""
        return cls(token, token)

    def settle(self, tokens: Sequence[ProgressToken], blocked: Sequence[Blocked | None]) -> Checkpoint:
        """After a page, in the order of delivery; None: that one is applied. Raises `MixedDomains`.

        A token that stands behind what was received changes nothing but what is pending. Of what overflows nothing is
        kept, and what comes after it counts for nothing either: only a repair leads on.
        """
        if self.overflows:
            return self
        received, pending, overflows = self.received, list(self.pending), False
        for token, reason in zip(tokens, blocked, strict=True):
            waited = next((one for one in pending if one.token == token), None)
            pending = [one for one in pending if one is not waited]
            if reason is not None:
                if len(pending) >= PENDING_MAX:
                    overflows = True
                    break
                pending.append(Pending(token, reason, received if waited is None else waited.resume))
            if received is None or not before(token, received):
                received = token
        pending.sort(key=lambda one: one.token.position)
        return self._with(received, tuple(pending), overflows)

    def _with(self, received: ProgressToken | None, pending: tuple[Pending, ...], overflows: bool) -> Checkpoint:
        reached = pending[0].resume if pending else received
        contiguous = self.contiguous
        if reached is not None and (contiguous is None or not before(reached, contiguous)):
            contiguous = reached
        return Checkpoint(received, contiguous, pending, overflows)
