"""A link: peer × scope × direction, as a machine without I/O.

    offline → dialling → [authenticating] → [anchoring] → [reconciling] → tailing → streaming

Calls come in (`opened`, `heard`, `tick`, the answers to `Load…` and `Apply`, the operator's words), effects go out. On
a connection the link first looks whether its checkpoint holds: in the peer's log by stream, epoch and position, with a
relay that tells none of these by an operation that it must still have. Where it does not, or there is none, the two
are reconciled by digest. Then the stream is followed, and the digests are compared again; only when nothing is found to
differ but what the peer does not take now is the link live, and only when all could be seen and given is it caught up.
From time to time they are compared once more: a peer that withholds something is found out. With a relay that has no
log a part is compared before each stream.

The checkpoint moves with the page it belongs to, in one transaction, through contiguous completion, within one log.
A peer that breaks its word is named and left, and tried again after a pause that grows; nothing that it said moves the
checkpoint. Only a link that was live for a while begins with the shortest pause again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.negentropy import Items
from anabranch.core.token import GAP_WORDS, Gap, GapReason, Log, ProgressToken
from anabranch.replicate import effects as do
from anabranch.replicate import peers
from anabranch.replicate.anchor import Anchor, Unanswered
from anabranch.replicate.comparisons import Verdict
from anabranch.replicate.effects import Applied, Effect, Owed
from anabranch.replicate.identity import Identity
from anabranch.replicate.introduction import Introduction
from anabranch.replicate.patience import Patience
from anabranch.replicate.peers import PeerKind
from anabranch.replicate.push import Pusher
from anabranch.replicate.repair import CROWDED_MAX, Round, RoundFailed, Step
from anabranch.replicate.retreat import Retreating
from anabranch.replicate.states import Cue, LinkState, Phase
from anabranch.replicate.stream import Broken, Ended, Stream
from anabranch.wire import dialogue
from anabranch.wire.authentication import NotLetIn
from anabranch.wire.dialogue import Answer, Removed

BARREN_SECONDS = 600  # of a replay: some ten millions of removals, say
UNASKED_MAX = 100_000  # late answers to what was given up may be many
RENEW_AFTER = 5_000  # messages to a plain relay on one connection


class Link(Retreating):
    """The machine, on from a connection that is to be had."""

    # --- the connection ---

    def tick(self, now: float) -> list[Effect]:
        if self.state is LinkState.PAUSED:
            return []
        if self.phase is Phase.OFFLINE:
            if self.retry_at is None or now < self.retry_at:
                return []
            self.retry_at = None
            self.phase = Phase.DIALLING
            return [do.Dial()]
        if self._is_over(self._push_patience, now):
            return self.lost(f"no answer for {self._timing.patience:g} s to what it was given", now)
        if self._is_over(self._patience, now):
            return self._out_of_patience(now)
        effects = self.pusher.tick(now) if self.pusher is not None else []
        if effects:
            self._await_push(now)
        return self._go_on(effects, now)

    def _is_over(self, patience: Patience, now: float) -> bool:
        """Unless what the peer sent before is still on its way to the disk."""
        if not patience.is_over(now):
            return False
        return not (self._intake.applying and patience.put_off(now + self._timing.patience))

    def _out_of_patience(self, now: float) -> list[Effect]:
        try:
            effects = self.round.silence() if self.round is not None and self.round.awaits_peer else None
        except RoundFailed:
            effects = None
        if effects is None:
            doing = self.phase if self.round is None else self.round.step
            return self.lost(f"no answer for {self._patience.seconds:g} s while {doing}", now)
        self._await(now)
        return self._go_on(effects, now)

    def opened(self, information: Mapping[str, Any], now: float, identity: Identity | None = None) -> list[Effect]:
        """The connection stands, and this is what the peer says of itself; {} where it says nothing."""
        if self.phase is not Phase.DIALLING:
            return []
        self.peer = peers.identify(information, self.spec.peer, self.spec.scope)
        self._manner.meet(self.peer)
        self._await(now)
        known = self.pull.contiguous
        if not information and known is not None and not peers.is_plain(known.stream):
            return self.lost("the peer told nothing about itself, and it had a log before", now)
        self._introduction = Introduction(identity, self.spec.peer, self._wall)
        if self.peer.authenticates and self._introduction.may_begin():
            return self._go_on(self._introduce(now), now)
        return self._go_on(self._ask_anchor(now), now)

    def _introduce(self, now: float) -> list[Effect]:
        """Prove who we are before anything else; what was refused without it is asked for again afterwards."""
        self.phase = Phase.AUTHENTICATING
        self._await(now)
        self._anchor = self.round = self._intake.stream = None
        return self._introduction.begin()

    def _ask_anchor(self, now: float) -> list[Effect]:
        """Ask for the operation that the peer must have, where the checkpoint names one."""
        known, peer = self.pull.contiguous, self.peer
        assert peer is not None
        if known is None or not known.message or self.unsure or peers.epoch(peer, known, 0) != known.epoch:
            return self._begin(None, now)
        self.phase = Phase.ANCHORING
        self._anchor = Anchor(known, peer, self.spec.scope, self._bounds, self._name("anchor"))
        return self._anchor.start()

    def _await(self, now: float) -> None:
        if self.phase is Phase.OFFLINE:
            return
        hurried = self.round is not None and self.round.hurried
        self._patience.begin(now, self._timing.hurry if hurried else self._timing.patience)

    def _await_push(self, now: float) -> None:
        """The pusher has got on, or has something new under way."""
        if self.pusher is not None and self.pusher.awaits_peer:
            self._push_patience.begin(now, self._timing.patience)
        else:
            self._push_patience.end()

    def _name(self, what: str) -> str:
        """Never the same twice: what is still under way for an old subscription concerns nobody."""
        self._names += 1
        return f"{what}-{self._names}-"

    # --- where to begin ---

    def _begin(self, missed: GapReason | None, now: float) -> list[Effect]:
        """Resume from the checkpoint where it holds; otherwise compare first."""
        assert self.peer is not None
        known = self.pull.contiguous
        self._epoch = peers.epoch(self.peer, known, self._wall())
        if known is not None and self.spec.pulls and missed is None:
            missed = peers.resume_gap(self.peer, self._epoch, known)
        seen, self._seen = self._seen, peers.own_log(self.peer) or self._seen
        if seen not in (None, self._seen) and missed is None:
            missed = GapReason.EPOCH_MISMATCH  # what it was given it may have lost
        if missed in (GapReason.MESSAGE_MISMATCH, GapReason.TOKEN_TOO_NEW):
            self._epoch = peers.epoch(self.peer, known, self._wall(), rewound=True)
        if missed is not None:
            self.unsure = True
            self.repairs += 1
            self._note_gap(missed)
            why = GAP_WORDS[missed]
            return [*self._turn(Cue.GAP, why), do.Noted(Cue.GAP, f"{missed}: {why}"), *self._reconcile(now)]
        lacks = (self.spec.pulls and known is None) or (self.spec.pushes and self.push.contiguous is None)
        if lacks or self.unsure or self.state is LinkState.REPAIRING:
            return self._reconcile(now)
        if self.state is LinkState.DEGRADED_POLL:
            return self._cover(now, pushes=self.spec.pushes)
        if self.peer.kind is PeerKind.PLAIN and self.spec.pulls:
            return self._cover(now)
        return self._subscribe(now)

    def _note_gap(self, missed: GapReason) -> None:
        known = self.pull.contiguous
        if self.peer is not None and known is not None:
            found = Gap(known.position, self.peer.log.floor, self.peer.log.tip, missed)
            self.gap = found.to_wire(self.peer.log, known)

    def _reconcile(self, now: float) -> list[Effect]:
        self._settled.clear()
        return self._cover(now, pushes=self.spec.pushes)

    def _cover(self, now: float, pushes: bool = False) -> list[Effect]:
        """Fetch all that the peer has by now. A relay without a log may give only the newest of what it is asked for:
        before its stream can be a place to resume from, what was made since the last such place is compared."""
        assert self.peer is not None
        self.phase = Phase.RECONCILING
        self._target = peers.tip(self.peer, self._epoch, self._wall())
        return self._start_round(now, closes=True, pushes=pushes)

    def items(self, items: Items, log: Log, now: float) -> list[Effect]:
        """The answer to `LoadItems`: our set, and our own log as it was before the set was read."""
        if self.round is None or self.round.step is not Step.LOADING:
            return []
        self._own = ProgressToken(log.stream, log.epoch, log.tip)
        if self.phase is Phase.RECONCILING and not len(items) and self._can_replay_all():
            self.round = None  # with nothing here there is nothing to compare: the log itself is the shortest way
            return self._go_on([*self._save_push(), *self._subscribe(now)], now)
        self._await(now)
        return self._in_round(lambda running: running.items(items), now)

    def _save_push(self, all_given: bool = True) -> list[Effect]:
        """After a repair: all that we had when our set was read is answered for; or not, and then there is no place in
        our log up to which it is, until a comparison finds the peer willing."""
        if not self.spec.pushes or self._own is None:
            return []
        self.push = Checkpoint.at(self._own) if all_given else Checkpoint()
        return [do.SavePush(self.push)]

    # --- comparing ---

    def _start_round(self, now: float, closes: bool, pushes: bool) -> list[Effect]:
        assert self.peer is not None
        self._manner.look(self.peer, now)
        refuses = self._manner.refuses(self.peer)
        unseen = self.phase is Phase.STREAMING or self.state is LinkState.DEGRADED_POLL
        surveys = self.partial and unseen and self._survey.is_due(now)
        paged = refuses and self.peer.kind is PeerKind.PLAIN
        unknown = self.unsure or self.pull.contiguous is None
        if paged and self.owes and not unknown and not self._survey.allows(now):
            pushes = False  # to find out what is owed, all of the relay has to be read; so long it is only pulled from
        owes = pushes and self.owes
        again = self.forgot and not self._ids.full
        reconsiders = self._settled.reconsider(self._wall())
        beside = self.spec.pulls and not peers.streams_all(self.peer, self.spec.scope)
        whole = surveys or owes or unknown or not paged
        if paged and whole and unseen:
            self._survey.begin(now)
        if again:
            self._settled.forgot = False
        log_followed = self.phase is Phase.STREAMING and self.peer.kind is PeerKind.LOG and self.spec.pulls
        traces = log_followed and self._lineage.carried
        self.round = Round(
            self.spec.scope,
            self._settled,
            self._ids,
            name=self._name("round"),
            pulls=self.spec.pulls,
            pushes=pushes,
            closes=closes or surveys or owes or again or beside or reconsiders,
            negentropy=not refuses,
            since=None if whole else peers.overlapping(self.pull.contiguous, self._wall()),
            wall=self._wall(),
            bounds=self._bounds,
            message_bytes_max=self.peer.message_bytes_max,
            lineage=self._lineage if traces else None,
            named=self._comparisons.named,
            began=now,
        )
        self._compare_at = None
        return self.round.begin()

    def loaded(self, step: Callable[[Round], list[Effect]], now: float) -> list[Effect]:
        """The answer to `LoadUnknown`, `LoadPayloads` or `LoadMissing`: a call of the round that asked."""
        return self._in_round(step, now) if self.round is not None else []

    def _in_round(self, step: Callable[[Round], list[Effect]], now: float) -> list[Effect]:
        assert self.round is not None
        try:
            effects = step(self.round)
        except RoundFailed as failed:
            return self._accuse(str(failed), now) if failed.accuses else self.lost(str(failed), now)
        if self.round.awaits_peer:
            self._await(now)
        return self._go_on(effects, now)

    def _round_done(self, now: float) -> list[Effect]:
        done, self.round = self.round, None
        assert done is not None and self.peer is not None
        if done.pushes or not self.spec.pushes or done.finding.more:  # or the next portion would be the same one
            self._ids.end(0 if self.forgot else len(done.finding.open), done.finding.more)
        self._ids.found(0)
        self._manner.learn(done)
        named = self.crowded
        self.crowded = done.crowded if done.whole else tuple(sorted({*named, *done.crowded}))[:CROWDED_MAX]
        remember: list[Effect] = [do.Remember()] if self.crowded != named else []
        return [*remember, *self._conclude(done, now)]

    def _conclude(self, done: Round, now: float) -> list[Effect]:
        assert self.peer is not None
        reconciling = self.phase is Phase.RECONCILING
        positioned = self.peer.kind is not PeerKind.PLAIN
        stuck = reconciling and self.peer.kind is PeerKind.LOG and bool(done.crowded) and not self._replayable
        if self._manner.asks_again(done, self.peer, needed=stuck):
            return self._start_round(now, done.closes, done.pushes)
        if stuck:
            return self.lost("it did not reconcile, and has more of one second than it gives at once", now)
        if reconciling and done.finding.more:
            return self._go_on_comparing(done, now)
        waits = self._settled.kept_back.named
        if waits is None and self.pull.pending and not reconciling:
            waits = self.pull.pending[0].blocked
        if waits is not None:  # what it needs may have come since it was looked at
            if self._settled.kept_back.leads_on() or not done.closes:
                return self._start_round(now, closes=True, pushes=done.pushes)
            return self._doubt(Cue.CLOSURE, str(waits), now)
        self._settled.kept_back.clear()
        if reconciling:
            # What pages could not show comes with the stream, if that can be had from where it was known to be whole.
            streamed = done.crowded and positioned and self._replayable
            covered = self._replay_anew() if streamed else self._save_pull()
            compared = done.pushes and done.whole  # the rest may still be owed
            given = self._save_push(self._all_given(done)) if compared else []
            self._survey.end(now, not done.crowded)
            self._survey.lost()  # until the stream is taken up, something may come unseen again
            return [*covered, *given, *self._subscribe(now)]
        certain = not self.crowded and self._all_given(done)
        verdict = self._comparisons.judge(done.finding, certain, done.began)
        resumed = self._pushing_again(done)
        if verdict is Verdict.DIFFERENT and self._settled.forgot and not done.finding.missing:
            verdict = Verdict.UNCERTAIN
        if verdict in (Verdict.EQUAL, Verdict.UNCERTAIN):
            self._survey.end(now, not self.crowded)
            return [*resumed, *self._verified(now)]
        if verdict is Verdict.UNCLEAR:
            self._compare_at = now + self._timing.settle
            return resumed
        if self.state is LinkState.LIVE:
            count = len(self._comparisons.stays)
            return self._doubt(Cue.DIVERGED, f"the digests differ in {count} operations, and stay so", now)
        return self._accuse_of_withholding(self._comparisons.stays, now)

    def _pushing_again(self, done: Round) -> list[Effect]:
        """Where there was no place in our log to push from: whether there is one now."""
        all_of_it = done.pushes and done.whole and not done.finding.more and self._all_given(done)
        if self.push.contiguous is not None or not all_of_it or not (done.closes or not done.finding.open):
            return []
        return [*self._save_push(), *self._start_pushing()]

    def _go_on_comparing(self, done: Round, now: float) -> list[Effect]:
        """A portion of what differs is closed: on to the next. What the peer does not take now is left for later."""
        if self._portions.are_in_vain(done.finding):
            return self._accuse_of_withholding(done.finding.missing or done.finding.open, now)
        if done.pushes and not self._all_given(done):
            return [*self._save_push(all_given=False), *self._start_round(now, done.closes, pushes=False)]
        return self._start_round(now, done.closes, done.pushes)

    def _accuse_of_withholding(self, stays: frozenset[str], now: float) -> list[Effect]:
        return self._accuse(f"names {len(stays)} operations that it does not give or keep, {min(stays)} first", now)

    def _save_pull(self) -> list[Effect]:
        """After a repair: all that the peer had when we came is here."""
        known, target = self.pull.contiguous, self._target
        if not self.spec.pulls or target is None:
            return []
        position, witness = target.position, self._intake.witness
        if known is not None and known.domain == target.domain:
            position, witness = max(known.position, position), witness or known.message
        self.pull = Checkpoint.at(ProgressToken(*target.domain, position, witness))
        return [do.SavePull(self.pull)]

    def _replay_anew(self) -> list[Effect]:
        """After an overflow, where the stream has to bring what is still lacking: what waited comes with it again."""
        if not self.pull.overflows:
            return []
        known = self.pull.contiguous
        self.pull = Checkpoint() if known is None else Checkpoint.at(known)
        return [do.SavePull(self.pull)]

    def _verified(self, now: float) -> list[Effect]:
        self._compared = True
        if self._sent >= RENEW_AFTER:
            self._sent = 0  # it has answered more than some do, so it is none of them
        self.verified_at = now if self._comparisons.equal and not self.partial else self.verified_at
        self.unsure = False
        self._compare_at = now + self._timing.verify * (0.75 + self._share() / 2)
        if self.partial:
            self._compare_at = min(self._compare_at, max(now, self._survey.due))
        if self.owes:
            again = now + self._timing.refused * (0.5 + self._share() / 2)
            self._compare_at = min(self._compare_at, max(again, self._survey.due))
        self._pauses.live(now)
        self.last_error = None
        if self.state is LinkState.LIVE:
            return []
        return self._turn(Cue.CAUGHT_UP, "")

    # --- the stream ---

    def _subscribe(self, now: float) -> list[Effect]:
        assert self.peer is not None
        self._await(now)
        if not self.spec.pulls:
            return self._follow(now)
        resume = self.pull.contiguous
        self.phase = Phase.TAILING
        stream = Stream(self._name("stream"), self.peer, self._epoch, self._wanted, resume, self._wall)
        self._intake.stream = stream
        return [do.Send(peers.request(self.peer, self.spec.scope, stream.name, resume, self._wall()))]

    def _follow(self, now: float) -> list[Effect]:
        """The stream is live: give what is owed, and compare."""
        self.phase = Phase.STREAMING
        self._compare_at = now
        return self._start_pushing()

    def _start_pushing(self) -> list[Effect]:
        """From the checkpoint on. Without one comparisons give what is owed: then from where our set was last read."""
        resume = self.push.contiguous
        start = resume or self._own
        if not self.spec.pushes or start is None:
            return []
        assert self.peer is not None
        limit = self.peer.message_bytes_max
        self.pusher = Pusher(start, self._settled, self._share, limit, saves=resume is not None)
        return self.pusher.wake()

    def heard(self, message: bytes | str, now: float, more: bool = False) -> list[Effect]:
        """With `more` to be told at once, what follows from where things stand may wait for that."""
        if self.phase in (Phase.OFFLINE, Phase.DIALLING):
            return []
        answer = dialogue.read(message)
        if isinstance(answer, dialogue.Notice):
            self.last_notice = answer.text
        effects = self._hear(answer, now)
        self._unasked = self._unasked + 1 if effects is None else 0
        if self._unasked > UNASKED_MAX:
            return self.lost(f"it said {UNASKED_MAX} things in a row that nobody had asked for", now)
        if effects is None:
            return []
        if more and not effects and not self._fetched_a_page:
            return effects
        return self._go_on(effects, now)

    def _hear(self, answer: Answer, now: float) -> list[Effect] | None:
        """None: nobody waits for it. Whoever does is patient anew, where it got on by it."""
        try:
            if (said := self._introduction.hear(answer)) is not None:
                if self.phase is not Phase.AUTHENTICATING:
                    return said or None
                if said or self._introduction.proven:
                    self._await(now)
                return [*said, *self._ask_anchor(now)] if self._introduction.proven else said
        except NotLetIn as error:
            return self.lost(str(error), now)
        if self._introduction.is_asked_for(answer):
            if self.phase is not Phase.STREAMING:
                return self._introduce(now)
            return [*self._introduction.begin(), *(self._hear_task(answer, now) or ())]
        return self._hear_task(answer, now)

    def _hear_task(self, answer: Answer, now: float) -> list[Effect] | None:
        stream = self._intake.stream
        if stream is not None and getattr(answer, "subscription", None) == stream.name:
            return self._take(stream, answer, now)
        if self._anchor is not None:
            return self._hear_anchor(self._anchor, answer, now)
        if self.round is not None:
            try:
                if (effects := self.round.hear(answer)) is not None:
                    self._await(now)
                    return effects
            except RoundFailed as failed:
                return self._accuse(str(failed), now) if failed.accuses else self.lost(str(failed), now)
        return self._hear_pushed(self.pusher, answer, now) if self.pusher is not None else None

    def _hear_pushed(self, pusher: Pusher, answer: Answer, now: float) -> list[Effect] | None:
        effects = pusher.hear(answer, now)
        if effects is not None:
            self._await_push(now)
        return effects

    def _hear_anchor(self, anchor: Anchor, answer: Answer, now: float) -> list[Effect] | None:
        try:
            effects = anchor.hear(answer)
        except Unanswered as error:
            return self.lost(str(error), now)
        if effects is None:
            return None
        self._await(now)
        if anchor.held is None:
            return effects
        self._anchor = None
        return [*effects, *self._begin(None if anchor.held else GapReason.MESSAGE_MISMATCH, now)]

    def _take(self, stream: Stream, answer: Answer, now: float) -> list[Effect] | None:
        try:
            got_on = stream.take(answer)
        except Broken as broken:
            return self._accuse(str(broken), now)
        except Ended as ended:
            return self._refused(str(ended), now)
        if not got_on:
            return None
        odd, stream.odd = stream.odd, []
        for one in odd:
            self._settled.bury(one)
        if self.phase is Phase.TAILING:
            if self._is_barren(isinstance(answer, Removed) or bool(odd), now):
                why = (
                    f"it sent nothing but removals and what nobody can take for {BARREN_SECONDS} s, and came to no end"
                )
                return [*self._intake.of_stream(), *self.lost(why, now)]
            self._await(now)
        if stream.replayed and self.phase is Phase.TAILING:
            return [*self._intake.of_stream(), *self._follow(now)]
        full = stream.count >= self._timing.page_count or stream.bytes >= self._timing.page_bytes
        return self._intake.of_stream() if full else []

    def _is_barren(self, nothing_to_keep: bool, now: float) -> bool:
        if not nothing_to_keep:
            self._barren_since = None
        elif self._barren_since is None:
            self._barren_since = now
        return self._barren_since is not None and now - self._barren_since > BARREN_SECONDS

    def _refused(self, reason: str, now: float) -> list[Effect]:
        before = self._intake.of_stream()  # what came before it was in order
        missed = peers.refused_for(reason)
        if missed is not None:
            self._note_gap(missed)
            return [*before, *self._doubt(Cue.GAP, f"{missed}: {GAP_WORDS[missed]}", now)]
        return [*before, *self.lost(f"the peer ended the stream: {reason or 'without a reason'}", now)]

    # --- pages ---

    def flush(self, now: float) -> list[Effect]:
        """The end of what has arrived for now: it is applied without waiting for more."""
        return self._go_on([*self._intake.of_stream(), *self._fetched()], now)

    def _fetched(self) -> list[Effect]:
        return self._intake.of_round(self.round, self.pull.pending)

    def applied(self, result: Applied, now: float) -> list[Effect]:
        """The answer to `Apply`: the page is on disk, and the checkpoint with it."""
        if not self._intake.answered(result.number):  # of a connection that is gone
            self._catch_up_with_ledger(result.checkpoint)
            return self._accuse_late(_forgery(result)) if result.forged else []
        if result.checkpoint is not None:
            self.pull = result.checkpoint
        refused, later = set(result.refused), dict(result.later)
        for id in result.declined:
            self._settled.decline(id, id in refused, later.get(id))
        if result.forged:
            return self._accuse(_forgery(result), now)
        if self.round is not None:
            self._settled.keep_back(result.blocked, result.stored > 0)
        if self.pull.overflows and self.phase is not Phase.RECONCILING:
            return self._doubt(Cue.OVERFLOW, f"{len(self.pull.pending)} operations wait for others", now)
        return self._go_on([], now)

    def _catch_up_with_ledger(self, written: Checkpoint | None) -> None:
        """What stands on disk does not go back, unless the checkpoint was given up since."""
        known = self.pull.contiguous
        if written is None or known is None or written.contiguous is None:
            return
        if written.contiguous.domain == known.domain and written.contiguous.position > known.position:
            self.pull = written

    def _go_on(self, effects: list[Effect], now: float) -> list[Effect]:
        """What follows from where things stand after a call."""
        if self.phase is Phase.OFFLINE:
            return effects
        done = self.round is not None and self.round.step is Step.DONE
        if done or self._fetched_a_page:
            effects = [*effects, *self._fetched()]
        if done and not self._intake.applying:
            effects += self._round_done(now)
        if self.pusher is not None and self.pusher.saves:
            self.push = Checkpoint.at(self.pusher.saved)
        if self.pusher is not None and self.pusher.gap is not None:
            return [*effects, *self._doubt(Cue.GAP, f"our own log: {self.pusher.gap.reason}", now)]
        if self.pull.pending and self.phase is Phase.STREAMING and not self._intake.applying and self.round is None:
            at = self._compare_at  # a comparison fetches what they wait for, if the peer has it
            self._compare_at = now if at is None else min(at, now)
        if self.pusher is not None and self._is_overdue(now):
            self.pusher.held = self.round is None
        if self._may_compare and self._compare_at is not None and now >= self._compare_at:
            closes = self.state is not LinkState.LIVE or bool(self.pull.pending)
            effects += self._start_round(now, closes, self.spec.pushes)
            effects += self.pusher.go_on() if self.pusher is not None else []
        if self.phase is Phase.STREAMING and not self._round_awaits_peer:
            self._patience.end()
        return self._renewed(effects, now)

    def _renewed(self, effects: list[Effect], now: float) -> list[Effect]:
        """Some relays answer only so many messages on one connection: take another one before, between two pages; and
        after a comparison, or what that found would be lost with the connection, and found anew on the next."""
        if self.peer is None or self.peer.kind is not PeerKind.PLAIN:
            return effects
        self._sent += sum(isinstance(effect, do.Send) for effect in effects)
        if self._sent < RENEW_AFTER or not self._compared or self.phase is not Phase.STREAMING or self._awaits_peer:
            return effects
        self._hang_up()
        self.retry_at = now
        return [*effects, do.HangUp()]

    # --- pushing ---

    def wake(self, now: float) -> list[Effect]:
        """Our own log has grown."""
        return self._go_on(self.pusher.wake(), now) if self.pusher is not None else []

    def owed(self, owed: Owed, now: float) -> list[Effect]:
        """The answer to `LoadOwed`."""
        if self.pusher is None:
            return []
        effects = self.pusher.owed(owed, now)
        self._await_push(now)
        return self._go_on(effects, now)


def _forgery(result: Applied) -> str:
    return f"sent the event {result.forged[0]}, whose signature does not hold"
