"""Checkpoints: how far one direction of a link has come, and what it waits for.

`received` may be ahead of `contiguous`: what was received and cannot be applied yet, because something that it needs is
missing, is pending. `contiguous` is the last token before which all is applied, and the only one to resume from. Both
move forward only, and only within one stream and epoch; another log is begun in words (`Checkpoint.at`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


Settlement = tuple[ProgressToken, str, Blocked | None]
"""Where an operation stands, its id, and why it is not applied; None: it is."""


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

    def settle(self, arrived: Sequence[Settlement], through: ProgressToken | None = None) -> Checkpoint:
        """After a page, in the order of delivery; beyond it the source is complete up to `through`. Raises
        `MixedDomains`.

        What is pending is known by its operation: others may have the same token. A token that stands behind what was
        received changes nothing but what is pending, and `through` not even that. Of what overflows nothing is kept,
        and what comes after it counts for nothing either: only a repair leads on.
        """
        if self.overflows:
            return self
        received = self.received
        pending = {one.blocked.operation: one for one in self.pending}
        for token, operation, reason in arrived:
            waited = pending.get(operation)
            if reason is None:
                pending.pop(operation, None)
            elif waited is not None:
                pending[operation] = Pending(waited.token, reason, waited.resume)
            elif len(pending) >= PENDING_MAX:
                return self._with(received, pending, overflows=True)
            else:
                passed = received is not None and not before(received, token)
                pending[operation] = Pending(token, reason, self.contiguous if passed else received)
            if received is None or not before(token, received):
                received = token
        if through is not None and (received is None or not before(through, received)):
            received = through
        return self._with(received, pending)

    def _with(
        self, received: ProgressToken | None, waiting: Mapping[str, Pending], overflows: bool = False
    ) -> Checkpoint:
        pending = tuple(sorted(waiting.values(), key=lambda one: one.token.position))
        reached = pending[0].resume if pending else received
        contiguous = self.contiguous
        if reached is not None and (contiguous is None or not before(reached, contiguous)):
            contiguous = reached
        return Checkpoint(received, contiguous, pending, overflows)
