"""What a link is asked to be, and how patient it is."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from anabranch.core.scope import Scope
from anabranch.replicate.identity import KeyFiles


class Direction(StrEnum):
    PULL = "pull"
    PUSH = "push"
    BOTH = "both"


class LinkSpec(msgspec.Struct, frozen=True):
    name: str
    peer: str
    scope: Scope
    direction: Direction
    origin: str = "command"
    files: KeyFiles = KeyFiles()
    """Where the link's identity is."""

    @property
    def pulls(self) -> bool:
        return self.direction is not Direction.PUSH

    @property
    def pushes(self) -> bool:
        return self.direction is not Direction.PULL

    @property
    def purpose(self) -> tuple[str, Scope, Direction]:
        """What it does: two links that do the same are one too many."""
        return self.peer, self.scope, self.direction


class Timing(msgspec.Struct, frozen=True):
    """Seconds, but for the counts."""

    retry_min: float = 1.0
    retry_max: float = 300.0
    reconnects: int = 3  # that may fail before the link polls
    poll_min: float = 5.0
    poll_max: float = 15.0
    steady: float = 60.0  # live for so long, and the next loss begins with the shortest pause again
    patience: float = 30.0  # for the next message while something is awaited
    hurry: float = 2.0  # after something that looks like a refusal
    settle: float = 2.0  # between two comparisons: what is under way arrives meanwhile
    verify: float = 300.0  # between two comparisons of a link that is live
    refused: float = 60.0  # until what a peer does not take is given to it again
    survey_pause: float = 100.0  # times as long as reading a whole relay took, before that is done again
    page_count: int = 500
    page_bytes: int = 1 << 20
