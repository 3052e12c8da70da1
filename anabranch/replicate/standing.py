"""How a link stands: what it knows of its peer and of itself, and what others ask about that. Nothing here changes it.

The state of the machine is laid out here, what lasts first and then what belongs to one connection; `link` moves it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.core.token import START, ProgressToken, gap
from anabranch.replicate import peers
from anabranch.replicate.anchor import Anchor
from anabranch.replicate.comparisons import Comparisons, Portions
from anabranch.replicate.identity import Identity
from anabranch.replicate.intake import Intake
from anabranch.replicate.introduction import Introduction
from anabranch.replicate.lineage import Lineage
from anabranch.replicate.manner import Manner, Survey
from anabranch.replicate.patience import Patience
from anabranch.replicate.pauses import Pauses
from anabranch.replicate.peers import Peer, PeerKind
from anabranch.replicate.push import Pusher
from anabranch.replicate.repair import Round, Step
from anabranch.replicate.room import Room, Share
from anabranch.replicate.settled import Settled
from anabranch.replicate.spec import LinkSpec, Timing
from anabranch.replicate.states import LinkState, Phase
from anabranch.store.contract import LinkRecord
from anabranch.wire.dialogue import BOUNDS, Bounds


class Standing:
    def __init__(
        self,
        spec: LinkSpec,
        record: LinkRecord,
        timing: Timing,
        share: Callable[[], float],
        wall: Callable[[], int],
        bounds: Bounds = BOUNDS,
        room: Room | None = None,
    ) -> None:
        """`record` is what the ledger knows; `share` is randomness between 0 and 1, `wall` the time in seconds; `room`
        is that of all links together, for the ids that they hold."""
        self.spec = spec
        self.state = LinkState.PAUSED if record.state == LinkState.PAUSED else LinkState.INITIAL
        self.pull, self.push = record.pull, record.push
        self.unsure = record.unsure or record.pull.overflows
        self.crowded = record.crowded
        """Seconds of which could not be seen whether the peer has more, when everything was last compared."""
        self.last_error = record.last_error
        self.last_notice: str | None = None
        self.retry_at: float | None = 0.0
        """When it is tried again; None: it is being tried, or waits for nobody."""
        self.verified_at: float | None = None
        self.repairs = 0
        self.gap: dict[str, Any] | None = None
        """The last one that was met: what was asked for, what there was, and why that did not do."""
        self.peer: Peer | None = None
        self.phase = Phase.OFFLINE
        self._timing = timing
        self._share = share
        self._wall = wall
        self._bounds = bounds
        self._wanted = spec.scope.parsed()
        self._ids = Share(room if room is not None else Room())
        self._settled = Settled(self._ids)
        self._seen: tuple[str, str] | None = None  # the log that the peer had the last time
        self._lineage = Lineage(spec.scope)
        self._manner = Manner()
        self._survey = Survey(timing.survey_pause)
        self._pauses = Pauses(timing, share)
        self._names = 0
        self.pusher: Pusher | None = None
        self._pushed: ProgressToken | None = None  # as far as the last connection came
        self._numbers = itertools.count(1)
        self._clear()

    def _clear(self) -> None:
        """What belongs to one connection."""
        if self.pusher is not None and self.pusher.saves:
            self._pushed = self.pusher.at
        self.pusher = None
        self.round: Round | None = None
        self._introduction = Introduction(None, self.spec.peer, self._wall)
        self._anchor: Anchor | None = None
        self._sent = self._unasked = 0
        self._compared = False  # on this connection, to an end
        self._barren_since: float | None = None  # a replay that brings nothing to keep
        self._epoch = ""
        self._target: ProgressToken | None = None
        self._own: ProgressToken | None = None  # where our log stood when our set was read
        self._intake = Intake(self._numbers, self._settled)
        self._compare_at: float | None = None
        self._comparisons = Comparisons()
        self._portions = Portions()
        self._survey.lost()
        self._settled.lost()
        self._ids.found(0)
        self._patience = Patience()  # with what the phase, or a round, has asked for
        self._push_patience = Patience()

    # --- what others ask ---

    @property
    def unkept(self) -> int:
        """How many operations of ours the peer has refused, or taken and does not keep."""
        return self._settled.unkept

    @property
    def untaken(self) -> int:
        """How many operations of the peer's our own rules refuse."""
        return self._settled.untaken

    @property
    def forgot(self) -> bool:
        """Whether one of the two does not take more operations than there is room to remember."""
        return self._settled.forgot

    @property
    def caught_up(self) -> bool:
        """Live, the digests were equal on this connection, and nothing is under way in either direction."""
        live = self.state is LinkState.LIVE and self.phase is Phase.STREAMING
        return live and self._comparisons.equal and self._quiet and self._all_seen and not self.pull.pending

    @property
    def _all_seen(self) -> bool:
        return not self.partial and not self.owes and not self.forgot

    @property
    def equal_as_of(self) -> float | None:
        """Before when all that is said to be equal was there: when the comparison began that found it so."""
        return self._comparisons.equal_as_of

    @property
    def known_equal_at(self) -> float | None:
        """The same, where all could be seen: a stream that never rests is behind by no more than this."""
        return self.equal_as_of if self._all_seen else None

    @property
    def owes(self) -> bool:
        """Whether the peer does not take something now, or was not offered all since it did not."""
        return self.spec.pushes and (bool(self.deferred) or self.push.contiguous is None)

    @property
    def deferred(self) -> Mapping[str, str]:
        """What the peer does not take now, and its reasons. It keeps a link from being caught up, not from going on."""
        return self._settled.deferred

    @property
    def partial(self) -> bool:
        """Whether only what was made lately was compared: what came with an older date is not seen yet."""
        peer = self.peer
        paged = peer is not None and peer.kind is PeerKind.PLAIN and self._manner.refuses(peer)
        return paged and self.spec.pulls and not self._survey.complete

    @property
    def survey_at(self) -> float:
        """From when on all of a `partial` peer may be read again."""
        return self._survey.due

    @property
    def _quiet(self) -> bool:
        return not self._takes_in and (self.pusher is None or self.pusher.settled)

    @property
    def _takes_in(self) -> bool:
        return self._intake.count > 0 or self._intake.applying

    @property
    def pushed(self) -> ProgressToken | None:
        """How far the peer has answered for our log, also where nothing in scope was worth a write since."""
        if self.pusher is not None:
            return self.pusher.at
        saved, reached = self.push.contiguous, self._pushed
        if saved is None or reached is None or saved.domain != reached.domain:
            return saved
        return max(saved, reached, key=lambda token: token.position)

    @property
    def epoch(self) -> str | None:
        """Of the peer's log, as its positions are named in the checkpoint; None: it was never met."""
        if self.peer is None:
            return None
        return self._epoch or peers.epoch(self.peer, self.pull.contiguous, self._wall())

    @property
    def identity(self) -> Identity | None:
        """As whom the link speaks on its present connection."""
        return self._introduction.identity

    @property
    def failures(self) -> int:
        """Tries that failed since the link was last live for a while."""
        return self._pauses.failures

    @property
    def in_flight(self) -> int:
        """Operations received and not yet answered for by the store, and given and not yet by the peer."""
        return self._intake.count + (self.pusher.waiting if self.pusher else 0)

    @property
    def gathered(self) -> tuple[int, int]:
        """The bytes of what waits to become a page, and how many there are."""
        stream, running = self._intake.stream, self.round
        size, count = (stream.bytes, stream.count) if stream is not None else (0, 0)
        return (size, count) if running is None else (size + running.found_bytes, count + len(running.found))

    @property
    def deadline(self) -> float | None:
        """When `tick` is due, whatever else happens."""
        if self.state is LinkState.PAUSED:
            return None
        if self.phase is Phase.OFFLINE:
            return self.retry_at
        compare_at = self._compare_at if self._may_compare else None
        again_at = self.pusher.resume_at if self.pusher else None
        due = (self._patience.until, self._push_patience.until, compare_at, again_at)
        return min((at for at in due if at is not None), default=None)

    def holds_back(self, now: float) -> bool:
        """Whether what the peer says is to wait until what it said before is on disk: a comparison is overdue, or at
        its end, and a stream that never rests would keep it from its turn for ever."""
        if self.round is not None:
            return self.round.step is Step.DONE and self._intake.applying
        return self._is_overdue(now) and self._takes_in and (self.pusher is None or self.pusher.rests)

    def _is_overdue(self, now: float) -> bool:
        at = self._compare_at
        return self.phase is Phase.STREAMING and at is not None and now >= at + self._timing.settle

    # --- what the machine asks itself ---

    def _can_replay_all(self) -> bool:
        return self._replayable and self.spec.pulls and self.pull.contiguous is None and not self.unsure

    def _all_given(self, done: Round) -> bool:
        """Whether the peer has answered for all that the round found it to lack."""
        return not self.deferred and not done.left and (done.pushes or not self.owes)

    @property
    def _replayable(self) -> bool:
        """Whether the peer's stream can be had from our checkpoint on, or where there is none from its beginning."""
        peer, known = self.peer, self.pull.contiguous
        if peer is None or known is None:
            return peer is not None and peer.kind is PeerKind.LOG and gap(peer.log, START) is None
        return peers.resume_gap(peer, self._epoch, known) is None

    @property
    def _fetched_a_page(self) -> bool:
        page, timing = self.round, self._timing
        return page is not None and (len(page.found) >= timing.page_count or page.found_bytes >= timing.page_bytes)

    @property
    def _may_compare(self) -> bool:
        """Whether nothing is under way that would show as a difference."""
        rests = not self._takes_in and (self.pusher is None or self.pusher.rests)
        return rests and self.round is None and self.phase is Phase.STREAMING

    @property
    def _round_awaits_peer(self) -> bool:
        return self.round is not None and self.round.awaits_peer

    @property
    def _awaits_peer(self) -> bool:
        return self._round_awaits_peer or (self.pusher is not None and self.pusher.awaits_peer)
