"""How a link lets go of its peer, and whether it will believe its checkpoint when it comes back. No I/O.

A connection is lost, or what the peer says is in doubt, or the operator says a word: then the link hangs up, and comes
back after a pause, at once, or not before it is told to.
"""

from __future__ import annotations

from anabranch.core.checkpoint import Checkpoint
from anabranch.replicate import effects as do
from anabranch.replicate.effects import Effect
from anabranch.replicate.standing import Standing
from anabranch.replicate.states import TRANSITIONS, Cue, LinkState, Phase

TEXT_MAX = 300
DISTRUST = "the peer is not to be trusted: it "


class Retreating(Standing):
    """What a link does about its connection, whatever it was doing with it."""

    def lost(self, reason: str, now: float) -> list[Effect]:
        """The connection is gone, or is to go: what was not applied is forgotten, and it is tried again later."""
        if self.phase is Phase.OFFLINE:
            return []
        self._manner.lost(self.round, now)
        effects = self._retreat(reason, now)
        if self._pauses.exhausted and Cue.EXHAUSTED in TRANSITIONS[self.state]:
            effects += self._turn(Cue.EXHAUSTED, reason)
        return effects

    def not_applied(self, reason: str, now: float) -> list[Effect]:
        """The store could not take a page; none after it was applied either."""
        return [] if self.phase is Phase.OFFLINE else self._retreat(f"our own store: {reason}", now, "not_applied")

    def _retreat(self, reason: str, now: float, code: str = "stream_lost") -> list[Effect]:
        """Hang up, and come back after a pause."""
        reached = self.peer is not None and self.phase is not Phase.DIALLING
        polls = self.state is LinkState.DEGRADED_POLL
        self.retry_at = now + self._pauses.after_failure(now, polls=polls, reached=reached)
        self.last_error = reason[:TEXT_MAX]
        self._hang_up()
        return [do.HangUp(), do.Noted(code, self.last_error)]

    def _hang_up(self) -> None:
        self.phase = Phase.OFFLINE
        self._clear()

    def _turn(self, cue: Cue, why: str) -> list[Effect]:
        before, self.state = self.state, TRANSITIONS[self.state][cue]
        return [do.Told(before, self.state, cue, why[:TEXT_MAX])]

    # --- in doubt ---

    def _doubt(self, cue: Cue, why: str, now: float) -> list[Effect]:
        """The checkpoint may not hold: compare on a new connection before anything else."""
        return [*self._retreat(why, now, cue), *self._suspect(cue, why)]

    def _suspect(self, cue: Cue, why: str) -> list[Effect]:
        self.unsure = True
        self.repairs += self.state is not LinkState.REPAIRING
        return self._turn(cue, why)

    def _accuse(self, what: str, now: float) -> list[Effect]:
        return self._doubt(Cue.DISORDER, DISTRUST + what, now)

    def _accuse_late(self, what: str) -> list[Effect]:
        """It was found out only after the connection was gone: it is named all the same."""
        if Cue.DISORDER not in TRANSITIONS[self.state]:
            self.unsure = True
            return []
        self.last_error = (DISTRUST + what)[:TEXT_MAX]
        return [do.Noted(Cue.DISORDER, self.last_error), *self._suspect(Cue.DISORDER, self.last_error)]

    # --- the operator ---

    def pause(self, now: float) -> list[Effect]:
        if self.state is LinkState.PAUSED:
            return []
        self._hang_up()
        self.retry_at = None
        return [do.HangUp(), *self._turn(Cue.PAUSE, "")]

    def resume(self, now: float) -> list[Effect]:
        if self.state is not LinkState.PAUSED:
            return self._at_once(now)
        return [*self._turn(Cue.RESUME, ""), *self._at_once(now)]

    def repair(self, now: float) -> list[Effect]:
        """Compare everything anew."""
        if self.state is LinkState.PAUSED:
            return []
        self.unsure = True
        self.repairs += 1
        self._manner.forget()
        self._hang_up()
        return [do.HangUp(), *self._turn(Cue.REPAIR, ""), *self._at_once(now)]

    def reset(self, now: float) -> list[Effect]:
        """Forget the checkpoints, and begin as if the link were new."""
        self._hang_up()
        self.pull = self.push = Checkpoint()
        self.unsure, self.crowded, self._pushed, self._seen = False, (), None, None
        self._manner.forget()
        return [do.HangUp(), do.Forget(), *self._turn(Cue.RESET, ""), *self._at_once(now)]

    def release(self) -> None:
        """The link is no more: what it holds is free for others."""
        self._hang_up()
        self._settled.clear()

    def _at_once(self, now: float) -> list[Effect]:
        if self.phase is Phase.OFFLINE and self.state is not LinkState.PAUSED:
            self.retry_at = now
        return []
