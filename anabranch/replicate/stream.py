"""The stream of a peer: what it sends, in order and in scope, gathered into pages with their tokens. No I/O.

In a log positions ascend, each event is well-formed and in scope, none is replayed twice, and the end of the replay is
said once. Whatever else comes is `Broken`: the peer does not keep to its own word. A plain relay has no positions: a
time of our own that never goes back stands in their place.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.core import nostr
from anabranch.core.filter import Filter
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate.effects import Arrival
from anabranch.replicate.peers import Peer, PeerKind
from anabranch.wire.dialogue import (
    Answer,
    Changed,
    Closed,
    EndOfStored,
    FeedError,
    Odd,
    Passed,
    Removed,
    Replayed,
    Stored,
)
from anabranch.wire.paging import checked

REPEATS_MAX = 100  # something may be removed and come again
COPIES_MAX = 10  # of each event, on the average: a plain relay may stand before several others
REMEMBERED_MAX = 10_000  # ids that are remembered for that
LIVE_SECONDS = 600  # for so long what is live is remembered, and of it a sample
LIVE_REMEMBERED_MAX = 500


class Broken(Exception):
    """The peer broke its word; the text completes «it …»."""


class Ended(Exception):
    """The peer ended the stream, with its reason."""


class Repeats:
    """How often something came again. Of much only a sample is remembered, which nobody outside can foresee, and only
    what is of the sample is counted: so whoever goes round in a circle is found out, however large it is."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self.count = 0
        self._remembered_max = remembered_max
        self._seen: set[str] = set()
        self._one_of = 1

    @property
    def different(self) -> int:
        return len(self._seen)

    def note(self, what: str) -> None:
        if hash(what) % self._one_of:
            return
        if what in self._seen:
            self.count += 1
            return
        self._seen.add(what)
        if len(self._seen) > self._remembered_max:
            self._one_of *= 2
            self._seen = {one for one in self._seen if not hash(one) % self._one_of}


class Stream:
    def __init__(
        self,
        name: str,
        peer: Peer,
        epoch: str,
        wanted: Filter,
        resume: ProgressToken | None,
        wall: Callable[[], int],
    ) -> None:
        self.name = name
        self.replayed = False
        """What is stored has been sent: from here on it is live."""
        self.count = self.bytes = 0
        """Of the page."""
        self.odd: list[Odd] = []
        """What came with the page and can never be taken; whoever takes it away empties it."""
        self._peer = peer
        self._epoch = epoch
        self._wanted = wanted
        self._wall = wall
        self._last = resume.position if resume is not None else Position(0)
        self._message = resume.message if resume is not None else ""
        self._page: list[Arrival] = []
        self._through = False  # the peer has told how far it is complete, beyond the last arrival
        self._repeats = Repeats()  # of the replay, then of the last minutes
        self._repeats_since: int | None = None

    def take(self, answer: Answer) -> bool:
        """Whether it got on by this answer. Raises `Broken` and `Ended`."""
        match answer:
            case Changed(_, position, raw):
                self._reach(position)
                self._count(self._arrive(raw))
            case Removed(_, position, id):  # it moves us on, and takes nothing away: what is gone there may stay here
                self._reach(position)
                self.count += 1
                if self._is_beyond:  # before that it may have been removed, and stored, and removed again
                    self._count(f"-{id}")
                self._through = True
            case Stored(_, raw):
                self._pass_time()
                self._count(self._arrive(raw))
            case Replayed(_, position):
                if self.replayed or position < self._last:
                    raise Broken(f"ended its replay at {position} after {self._last}")
                self._last = Position(position)
                self.replayed = self._through = True
            case Passed(_, position):
                if position < self._last or not self.replayed:
                    raise Broken(f"passed position {position} after {self._last}")
                self._through = self._through or position > self._last
                self._last = Position(position)
            case EndOfStored() if not self.replayed:
                self._pass_time()
                self.replayed = self._through = True
            case FeedError(_, reason) | Closed(_, reason):
                raise Ended(reason or "without a reason")
            case _:
                return False
        return True

    def _reach(self, position: int) -> None:
        if position <= self._last:
            raise Broken(f"went back to position {position} after {self._last}")
        self._last = Position(position)

    @property
    def _is_beyond(self) -> bool:
        """Past what the peer had told to be its last: its log has grown meanwhile, or it has no end."""
        return self._peer.tells_tip and self._last > self._peer.log.tip

    def _count(self, what: str) -> None:
        """A log that grows while it is replayed has something new to say; one that only repeats has no end. What is
        live may be removed and come again: only who says little else within minutes is found out."""
        if self.replayed:
            self._forget_in_time()
        repeats = self._repeats
        repeats.note(what)
        if self.replayed:
            if repeats.count > REPEATS_MAX + COPIES_MAX * repeats.different:
                raise Broken("gives again and again what it has just given, and little else")
        elif self._peer.kind is PeerKind.PLAIN:
            if repeats.count > REPEATS_MAX + COPIES_MAX * repeats.different:
                raise Broken("gives again and again what it has given, and comes to no end")
        elif repeats.count > REPEATS_MAX:
            raise Broken("gives again what it has given, under ever new positions, and comes to no end")

    def _forget_in_time(self) -> None:
        now, since = self._wall(), self._repeats_since
        if since is None or not 0 <= now - since < LIVE_SECONDS:
            self._repeats, self._repeats_since = Repeats(LIVE_REMEMBERED_MAX), now

    def _pass_time(self) -> None:
        self._last = Position(max(self._wall(), self._last))

    def _arrive(self, raw: bytes) -> str:
        found = checked(raw, self._wanted)
        if isinstance(found, Odd):
            if self._peer.kind is PeerKind.LOG:  # it takes what we take
                raise Broken(f"sent no valid event: {found.reason}")
            self.odd.append(found)
            self.count += 1
            self.bytes += len(raw)
            self._through = True
            return found.id
        if isinstance(found, str):
            raise Broken(found)
        event, kept = found
        if is_lasting(event.kind):
            self._message = event.id
        self._page.append(Arrival(event, kept, self._token()))
        self.count += 1
        self.bytes += len(raw)
        return event.id

    def _token(self) -> ProgressToken:
        return ProgressToken(self._peer.log.stream, self._epoch, self._last, self._message)

    def page(self) -> tuple[tuple[Arrival, ...], ProgressToken | None] | None:
        """What has arrived since the last time, and how far the stream is complete beyond it; None: nothing."""
        if not self._page and not self._through:
            return None
        arrivals, through = tuple(self._page), self._token() if self._through else None
        self._page, self._through, self.count, self.bytes = [], False, 0, 0
        return arrivals, through


def is_lasting(kind: int) -> bool:
    """Whether a relay that has an event of this kind may be held to it: nothing newer takes its place."""
    return not (nostr.is_replaceable(kind) or nostr.is_addressable(kind) or nostr.is_ephemeral(kind))
