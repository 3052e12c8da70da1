"""The anchor: an operation that the peer must have if its log is still the one that we followed. No I/O.

A feed without an epoch is asked first what it has at the position of the checkpoint. That can only be the anchor, or
nothing that we would have been given: a relay that was wiped and has the anchor again has it somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.core.scope import Scope
from anabranch.core.token import ProgressToken
from anabranch.replicate import peers
from anabranch.replicate.effects import Effect, Send
from anabranch.replicate.peers import Peer
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Answer, Bounds, Changed, Closed, FeedError, Replayed
from anabranch.wire.paging import ByIds, checked


class Unanswered(Exception):
    """The peer does not say whether it has it; the text says why."""


class Anchor:
    def __init__(self, known: ProgressToken, peer: Peer, scope: Scope, bounds: Bounds, name: str) -> None:
        self.held: bool | None = None
        """Whether the peer has it, once it has said so."""
        self._known = known
        self._wanted = scope.parsed()
        self._at_place = peers.request_at(peer, scope, f"{name}-place", known.position)
        self._name = f"{name}-place"
        self._found = ""  # at the position of the checkpoint
        self._asked = False  # for it by its id
        self._request = ByIds([known.message], scope.filter(), bounds=bounds, prefix=name)

    def start(self) -> list[Effect]:
        return _sent(self._request.start()) if self._at_place is None else [Send(self._at_place)]

    def hear(self, answer: Answer) -> list[Effect] | None:
        """None: it is not about the anchor. Raises `Unanswered`."""
        if getattr(answer, "subscription", None) == self._name:
            return self._hear_place(answer)
        effects = self._request.hear(answer)
        if effects is None:
            return None
        for effect in effects:
            if isinstance(effect, dialogue.Accuse | dialogue.Refuse):
                raise Unanswered(f"the peer does not answer a request by id: {effect.reason}")
        if dialogue.Finish() in effects:
            self.held = not self._request.missing
        return _sent(effects)

    def _hear_place(self, answer: Answer) -> list[Effect] | None:
        match answer:
            case Changed(_, position, raw) if position == self._known.position and not self._found:
                found = checked(raw, self._wanted)
                self._found = found[0].id if isinstance(found, tuple) else "something else"
                return []
            case Replayed() | FeedError() | Closed() if self._found:
                self.held = self._found == self._known.message
                return []
            case Replayed() | FeedError() | Closed() if not self._asked:
                self._asked = True
                return _sent(self._request.start())
        return None


def _sent(effects: Sequence[dialogue.Effect]) -> list[Effect]:
    return [Send(effect.message) for effect in effects if isinstance(effect, dialogue.Send)]
