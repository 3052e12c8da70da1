"""Pushing: our own log, read from the checkpoint, given to the peer page by page, acknowledged in full. No I/O.

The checkpoint moves past a page when the peer has answered for all of it: taken, known already, or refused for good
(a dead letter). What it refuses for now holds the checkpoint, and is sent again after a pause that grows. Where a few
operations fail, those that come after them are sent along with them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.token import Gap, ProgressToken, token_gap
from anabranch.replicate.effects import Bury, Effect, LoadOwed, Owed, SavePush, Send
from anabranch.replicate.refusals import may_be_about_one
from anabranch.replicate.settled import Settled
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Answer
from anabranch.wire.publication import Publication

PAGE = 500
SKIPPED_MAX = 10_000  # positions without anything in scope, after which the checkpoint is written all the same
PAUSE_MIN, PAUSE_MAX = 1.0, 60.0
PAUSE_OF_SOME = 8.0  # the longest while the peer takes others
TRIED_MAX = 10  # of what is sent again, where nothing was taken the last time
TOGETHER_MAX = 100  # that failed, and are sent again together with what has come since


class Pusher:
    """What is under way on one connection; a new connection has a new one."""

    def __init__(
        self,
        start: ProgressToken,
        settled: Settled,
        share: Callable[[], float],
        message_bytes_max: int | None = None,
        saves: bool = True,
    ) -> None:
        """What the peer answers for is noted in `settled`. It `saves` its checkpoint where all before the start is
        answered for."""
        self.saves = saves
        self.saved = start
        """The checkpoint on disk: it may be a little behind where nothing was in scope."""
        self.at = start
        """How far all is answered for, from the start on."""
        self.gap: Gap | None = None
        self.held = False
        """Nothing more is read of our log for a moment: a comparison is overdue."""
        self._settled = settled
        self._share = share
        self._message_bytes_max = message_bytes_max
        self._page: dict[str, bytes] = {}
        self._next: ProgressToken = self.at
        self._publication: Publication | None = None
        self._loading = False
        self._stale = True  # our log may have grown since it was looked at
        self._pause = 0.0
        self._in_vain = False  # the last time nothing was taken
        self.resume_at: float | None = None

    @property
    def read(self) -> ProgressToken:
        """How far our log was read."""
        return self._next

    @property
    def settled(self) -> bool:
        """All that was there when our log was last looked at is answered for."""
        return not (self._page or self._loading or self._stale or self.resume_at is not None)

    @property
    def rests(self) -> bool:
        """Nothing is under way but what the peer has refused for now."""
        under_way = self._page or self._loading
        return self.settled or self.resume_at is not None or (self.held and not under_way)

    @property
    def awaits_peer(self) -> bool:
        return self._publication is not None

    @property
    def waiting(self) -> int:
        return len(self._page)

    def wake(self) -> list[Effect]:
        self._stale = True
        return self._load()

    def _load(self) -> list[Effect]:
        if self.held or not self._stale or self._loading or self._page or self.gap is not None:
            return []
        return self._load_more()

    def go_on(self) -> list[Effect]:
        """It was held."""
        self.held = False
        return self._load()

    def _load_more(self) -> list[Effect]:
        self._loading, self._stale = True, False
        return [LoadOwed(self._next.position, PAGE)]

    def owed(self, owed: Owed, now: float) -> list[Effect]:
        """The answer to `LoadOwed`."""
        if not self._loading or owed.after != self._next.position:  # it was asked for by another
            return []
        self._loading = False
        self.gap = token_gap(owed.log, self._next)
        if self.gap is not None:
            return []
        self._stale = self._stale or owed.complete_to < owed.log.tip
        last = owed.entries[-1][0] if owed.entries else self._next.message
        self._next = ProgressToken(owed.log.stream, owed.log.epoch, owed.complete_to, last)
        self._page |= owed.entries
        return self._publish(now) if self._page else self._passed()

    def _publish(self, now: float) -> list[Effect]:
        count = TRIED_MAX if self._in_vain else None
        some = islice(self._page.items(), count)
        self._publication = Publication(some, message_bytes_max=self._message_bytes_max)
        return self._said(self._publication.start(), now)

    def hear(self, answer: Answer, now: float) -> list[Effect] | None:
        if self._publication is None:
            return None
        effects = self._publication.hear(answer)
        return None if effects is None else self._said(effects, now)

    def _said(self, effects: list[dialogue.Effect], now: float) -> list[Effect]:
        sent: list[Effect] = [Send(effect.message) for effect in effects if isinstance(effect, dialogue.Send)]
        if any(isinstance(effect, dialogue.Finish) for effect in effects):
            answers, self._publication = self._publication, None
            assert answers is not None
            sent += self._answered(answers, now)
        return sent

    def _answered(self, answers: Publication, now: float) -> list[Effect]:
        buried: list[Effect] = []
        refused = False
        for id in answers.accepted:
            self._settled.push(id)
            del self._page[id]
        for id, reason in answers.refused.items():
            if self._settled.refuse(id, reason):
                buried.append(Bury(id, reason))
                del self._page[id]
            else:
                self._page[id] = self._page.pop(id)  # the next time others are tried first
                refused = True
        self._in_vain = refused and not answers.accepted
        if refused:
            longest = PAUSE_OF_SOME if answers.accepted else PAUSE_MAX
            self._pause = min(max(self._pause * 2, PAUSE_MIN), longest)
            self.resume_at = now + self._pause * (0.5 + self._share() / 2)
            return buried
        self._pause = 0.0
        return [*buried, *(self._publish(now) if self._page else self._passed(saves=True))]

    def _passed(self, saves: bool = False) -> list[Effect]:
        self.at = self._next
        if not self.saves or (not saves and self.at.position - self.saved.position < SKIPPED_MAX):
            return self._load()
        self.saved = self.at
        return [SavePush(Checkpoint.at(self.at)), *self._load()]

    def tick(self, now: float) -> list[Effect]:
        if self.resume_at is None or now < self.resume_at:
            return []
        self.resume_at = None
        return self._load_more() if self._stale and self._may_be_poison() else self._publish(now)

    def _may_be_poison(self) -> bool:
        """Whether it may be about these few alone: then what has come since goes along, and shows it."""
        reasons = [self._settled.deferred.get(id, "") for id in self._page]
        return len(reasons) <= TOGETHER_MAX and all(map(may_be_about_one, reasons))
