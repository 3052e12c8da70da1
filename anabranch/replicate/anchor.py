"""The anchor: an operation that the peer must have if its log is still the one that we followed. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.core.scope import Scope
from anabranch.replicate.effects import Effect, Send
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Answer, Bounds
from anabranch.wire.paging import ByIds


class Unanswered(Exception):
    """The peer does not say whether it has it; the text says why."""


class Anchor:
    def __init__(self, id: str, scope: Scope, bounds: Bounds, name: str) -> None:
        self.held: bool | None = None
        """Whether the peer has it, once it has said so."""
        self._request = ByIds([id], scope.filter(), bounds=bounds, prefix=name)

    def start(self) -> list[Effect]:
        return _sent(self._request.start())

    def hear(self, answer: Answer) -> list[Effect] | None:
        """None: it is not about the anchor. Raises `Unanswered`."""
        effects = self._request.hear(answer)
        if effects is None:
            return None
        for effect in effects:
            if isinstance(effect, dialogue.Accuse | dialogue.Refuse):
                raise Unanswered(f"the peer does not answer a request by id: {effect.reason}")
        if dialogue.Finish() in effects:
            self.held = not self._request.missing
        return _sent(effects)


def _sent(effects: Sequence[dialogue.Effect]) -> list[Effect]:
    return [Send(effect.message) for effect in effects if isinstance(effect, dialogue.Send)]
