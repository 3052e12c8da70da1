"""Publishing to one relay: a bounded number of versions under way, and what its answers mean. No I/O.

OK true and a `duplicate:` refusal say the same: the relay has it. But of a revision anybody can put something else
under the same id first; so `duplicate:` is a claim then, which the relay has to show. A refusal for good (`invalid:`,
`blocked:`, `restricted:`, `unsupported:` and whatever has no prefix we know) is remembered with its reason;
`rate-limited:`, `error:` and `auth-required:` are tried again, each time after a longer pause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.client.effects import Acknowledge, Effect, LoadOwed, Refuse, Send
from anabranch.client.ledger import Owed
from anabranch.client.messages import Frame, publish, short
from anabranch.wire.publication import too_large

WINDOW_COUNT = 256
WINDOW_BYTES = 1 << 20
PAUSE_MIN, PAUSE_MAX = 1.0, 30.0
ANSWER_SECONDS = 30.0
FOR_NOW = ("rate-limited:", "error:", "auth-required:")


class Publisher:
    """What is under way on one connection; a new connection has a new one."""

    def __init__(self, share: Callable[[], float], doubts: bool = False) -> None:
        """`doubts`: a duplicate is not believed before it was shown."""
        self.message_bytes_max: int | None = None
        """What the relay reads at most, if it says so. It would hang up on more, each time anew."""
        self._share = share
        self._doubts = doubts
        self._under_way: dict[str, Owed] = {}
        self._bytes = 0
        self._taken: list[tuple[str, str | None]] = []
        self._asked = False
        self._stale = True  # something may be owed that was not looked at
        self._anew = True
        self._pause = 0.0
        self._resume_at: float | None = None
        self._answer_by: float | None = None
        self.last_refusal: str | None = None

    @property
    def settled(self) -> bool:
        """Everything that was owed when it was last looked at has been answered."""
        return not (self._under_way or self._taken or self._asked or self._stale or self._resume_at is not None)

    @property
    def deadline(self) -> float | None:
        return min((at for at in (self._resume_at, self._answer_by) if at is not None), default=None)

    def wake(self, anew: bool = False) -> list[Effect]:
        """Something may be owed now that was not before."""
        self._stale = True
        self._anew = self._anew or anew
        return self._load()

    def _load(self) -> list[Effect]:
        room = WINDOW_COUNT - len(self._under_way)
        if not self._stale or self._asked or self._resume_at is not None or self._bytes >= WINDOW_BYTES or room < 1:
            return []
        self._asked, self._stale = True, False
        anew, self._anew = self._anew, False
        return [LoadOwed(room, anew)]

    def owed(self, versions: Sequence[Owed], limit: int, now: float) -> list[Effect]:
        """The answer to `LoadOwed`."""
        self._asked = False
        self._stale = self._stale or len(versions) >= limit
        effects: list[Effect] = []
        for one in versions:
            if reason := too_large(one.raw, self.message_bytes_max):
                effects.append(Refuse(one.version, reason))
            elif one.event not in self._under_way:
                self._under_way[one.event] = one
                self._bytes += len(one.raw)
                effects.append(Send(publish(one.raw)))
        if self._under_way:
            self._answer_by = now + ANSWER_SECONDS
        return [*effects, *([] if self._under_way else self._load())]

    def answered(self, frame: Frame, now: float) -> list[Effect]:
        """An OK."""
        one = self._under_way.pop(frame.text(1), None)
        if one is None:
            return []
        self._bytes -= len(one.raw)
        self._answer_by = now + ANSWER_SECONDS if self._under_way else None
        text = short(frame.text(3))
        if frame[2] is True or text.startswith("duplicate:"):
            believed = frame[2] is True or not self._doubts
            self._taken.append((one.version, one.event if believed else None))
            self._pause = 0.0
            return []
        self.last_refusal = text
        if text.startswith(FOR_NOW):
            if self._resume_at is None:
                self._pause = min(max(self._pause * 2, PAUSE_MIN), PAUSE_MAX)
                self._resume_at = now + self._pause * (0.5 + self._share() / 2)
            return []
        return [Refuse(one.version, text or "refused without a reason")]

    def flush(self) -> list[Effect]:
        """What was acknowledged since the last time, in one piece; then more, if there is room."""
        taken, self._taken = self._taken, []
        acknowledged: list[Effect] = [Acknowledge(tuple(taken))] if taken else []
        return [*acknowledged, *self._load()]

    def tick(self, now: float) -> list[Effect] | None:
        """What is due; None when the relay has left a version without an answer for too long."""
        if self._answer_by is not None and now >= self._answer_by:
            return None
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
            return self.wake(anew=True)
        return []
