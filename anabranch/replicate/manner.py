"""In which manner a peer is compared with: by negentropy as long as it goes along, page by page where it does not.

A peer may refuse in words, by silence, or by hanging up on the first message. Pages do as well, but for one thing: of a
second that holds more than the peer gives at once they cannot tell whether it was seen whole. Then a peer that says it
reconciles is asked to once more; not at once where that has just cost two connections, unless nothing else would do.

Pages are read from the last checkpoint on. What came to a relay with an older date while nobody looked is not among
them: `Survey` says when all of it is to be read again.
"""

from __future__ import annotations

from anabranch.replicate.peers import Peer, PeerKind
from anabranch.replicate.repair import Round, Step
from anabranch.wire.reconciliation import Method

HANG_UPS = 2
HANG_UP_SECONDS = 3_600  # so long it is not asked again, where it says that it reconciles: it may have been the network
PAUSE_MIN, DOUBT_PAUSE_MIN = 10.0, 300.0  # seconds between two surveys


class Manner:
    def __init__(self) -> None:
        self._pages = False  # it refused, in words or by silence
        self._hang_ups = 0  # connections that ended on the first message of negentropy
        self._hung_up_at = 0.0

    def meet(self, peer: Peer) -> None:
        """A new connection: who says that it reconciles may have refused for the moment only."""
        self._pages = self._pages and not peer.reconciles

    def refuses(self, peer: Peer) -> bool:
        return self._pages or peer.reconciles is False or self._hang_ups >= HANG_UPS

    def look(self, peer: Peer, now: float) -> None:
        """A comparison begins: what a connection ended on long ago is tried once more."""
        if self._hang_ups >= HANG_UPS and peer.reconciles and now >= self._hung_up_at + HANG_UP_SECONDS:
            self._pages, self._hang_ups = False, HANG_UPS - 1

    def lost(self, round: Round | None, now: float) -> None:
        """The connection is gone, in this round: to hang up on NEG-OPEN is a refusal as well."""
        if round is not None and round.step is Step.RECONCILING and not round.talked:
            self._hang_ups, self._hung_up_at = self._hang_ups + 1, now

    def learn(self, done: Round) -> None:
        self._hang_ups = 0 if done.talked else self._hang_ups
        self._pages = self._pages or done.method is Method.PAGES

    def asks_again(self, done: Round, peer: Peer, needed: bool) -> bool:
        """Whether to compare by negentropy at once, after pages that did not show all. `needed`: nothing else does."""
        if not done.crowded or not peer.reconciles:
            return False
        hung_up, self._pages = self._hang_ups >= HANG_UPS, False
        if peer.kind is PeerKind.LOG:  # it does reconcile, and will be asked to the next time
            self._hang_ups = 0
        return not done.negentropy and (needed or not hung_up)

    def forget(self) -> None:
        """Try everything anew: the operator's word."""
        self._pages, self._hang_ups = False, 0


class Survey:
    """Whether all of a relay was read since its stream was last taken up: from then on nothing comes to it unseen.
    Where the stream cannot be had, it is read all the same, from time to time."""

    def __init__(self, pause: float) -> None:
        """`pause` times as long as it took, before it is done again: it is much to read."""
        self.complete = False
        self.due = 0.0
        """When it may be done again; one that is not brought to an end is not begun anew at once."""
        self._pause = pause
        self._began: float | None = None
        self._begun = 0  # times in a row, without coming to an end

    def is_due(self, now: float) -> bool:
        return not self.complete and self.allows(now)

    def allows(self, now: float) -> bool:
        """Whether all of the relay may be read."""
        return now >= self.due or self._began is not None

    def begin(self, now: float) -> None:
        if self._began is None:
            self._began, self.due = now, now + min(PAUSE_MIN * 2**self._begun, DOUBT_PAUSE_MIN)
            self._begun = min(self._begun + 1, 10)

    def end(self, now: float, certain: bool) -> None:
        """Unless it is `certain` that all was seen, it is done again: a second may only have looked too full."""
        if self._began is not None:
            self.complete = certain
            self.due = now + max(self._pause * (now - self._began), PAUSE_MIN if certain else DOUBT_PAUSE_MIN)
            self._begun = 0
        self._began = None

    def lost(self) -> None:
        """The stream is cut."""
        self.complete, self._began = False, None
