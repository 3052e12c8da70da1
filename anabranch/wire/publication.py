"""Publishing to a relay: every event gets its OK, or a reason why not. No I/O.

So many are on their way at a time; once half of them are answered, more follow together. A `duplicate:` is a success,
whichever way the relay counts it: the event is there. What was not answered when a connection ends, or when a relay
falls silent after it had answered before, is sent again on a new one; publishing twice does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from anabranch.wire import dialogue
from anabranch.wire.dialogue import AUTH_REQUIRED, Answer, Authenticate, Effect, Finish, Ok, Reconnect, Send

ON_THEIR_WAY_MAX = 100
DUPLICATE = "duplicate:"


class Publication:
    """Events as (id, bytes). `accepted` and `refused`, with the relay's reasons, grow as the OKs come.

    What is larger than a message that the relay reads is refused in its stead: it would hang up and answer for nothing.
    """

    def __init__(
        self,
        events: Iterable[tuple[str, bytes]],
        *,
        has_keys: bool = False,
        message_bytes_max: int | None = None,
    ) -> None:
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._sent: dict[str, bytes] = {}
        self._has_keys = has_keys
        self._known = False
        self._answered = 0  # on this connection
        self.accepted: list[str] = []
        self.refused: dict[str, str] = {}
        for id, raw in dict(events).items():
            if reason := too_large(raw, message_bytes_max):
                self.refused[id] = f"invalid: {reason}"
            else:
                self._waiting.append((id, raw))

    def start(self) -> list[Effect]:
        return self._fill()

    def again(self) -> list[Effect]:
        self._waiting.extendleft(reversed(self._sent.items()))
        self._sent.clear()
        self._answered = 0
        return self._fill()

    def _fill(self) -> list[Effect]:
        if len(self._sent) > ON_THEIR_WAY_MAX // 2:
            return []
        effects: list[Effect] = []
        while self._waiting and len(self._sent) < ON_THEIR_WAY_MAX:
            id, raw = self._waiting.popleft()
            self._sent[id] = raw
            effects.append(Send(dialogue.event(raw)))
        return effects or ([] if self._sent else [Finish()])

    def hear(self, answer: Answer) -> list[Effect] | None:
        if not isinstance(answer, Ok) or answer.id not in self._sent:
            return None
        if not answer.accepted and answer.reason.startswith(AUTH_REQUIRED) and self._has_keys and not self._known:
            self._known = True
            return [Authenticate(answer.reason)]
        del self._sent[answer.id]
        self._answered += 1
        if answer.accepted or answer.reason.startswith(DUPLICATE):
            self.accepted.append(answer.id)
        else:
            self.refused[answer.id] = answer.reason or "it gave no reason"
        return self._fill()

    def silence(self) -> list[Effect] | None:
        return self.lost(oversized=False)

    def lost(self, oversized: bool) -> list[Effect] | None:
        """As long as each connection gets on with it, there is another one."""
        self._known = False
        return [Reconnect()] if self._answered and not oversized else None


def too_large(raw: bytes, message_bytes_max: int | None) -> str | None:
    """Why an event cannot be sent to a relay that reads messages of so many bytes; None: it can."""
    if message_bytes_max is None or len(dialogue.event(raw)) <= message_bytes_max:
        return None
    return f"larger than the {message_bytes_max} bytes that this relay reads"
