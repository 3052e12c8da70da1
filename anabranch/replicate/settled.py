"""What two sides need not talk about again, though only one of them has it; and what is to be tried again. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.core.checkpoint import Blocked
from anabranch.replicate.effects import Bury, Effect
from anabranch.replicate.kept_back import KeptBack
from anabranch.replicate.refusals import is_passing, may_be_for_good
from anabranch.replicate.room import Room, Share
from anabranch.wire.dialogue import Odd

PUSHED_MAX = 1_000  # of what goes out as it comes in; a thousand links must have room
DEFERRED_MAX = 1_000
FAILURES_MAX = 10


class Settled:
    """What needs no more talk on this link: ours that the peer does not keep, the peer's that we do not take.

    What the peer refuses for now is `deferred`, and given again later. An error of the peer's may be about one
    operation alone: one that failed again and again, while the peer took others, is refused for good.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.declined: set[str] = set()
        self.deferred: dict[str, str] = {}
        """The peer's reasons."""
        self.forgot = False
        """Whether there was no room to remember something: it looks open again each time."""
        self.untaken = 0
        """How much of what is declined our own rules refuse."""
        self._later: dict[str, int] = {}  # of that, what they may take from a time on
        self._letters: list[Effect] = []
        self._share = share if share is not None else Share(Room())
        self.kept_back = KeptBack(self._share)
        self._given: set[str] = set()  # the peer has answered for it, and it was not looked for since
        self._sought: set[str] = set()  # the same, when the comparison that is under way began
        self._vain: set[str] = set()  # it refused it, or it was not there when it was looked for
        self._failures: dict[str, tuple[int, int]] = {}  # how often, and how much the peer had taken by then
        self._taken = 0

    def clear(self) -> None:
        self._share.settle(-len(self.declined) - len(self._vain))
        self.declined.clear()
        self.untaken = 0
        self._later.clear()
        self._vain.clear()
        self.deferred.clear()
        self._failures.clear()
        self.forgot = False
        self.lost()

    def lost(self) -> None:
        """The connection is gone, and perhaps with it what the peer had just answered for."""
        self._share.settle(-len(self._given) - len(self._sought))
        self._given.clear()
        self._sought.clear()
        self.kept_back.clear()

    def give(self, id: str) -> None:
        """The peer has taken it, in a round."""
        self._take(id)
        self._remember(self._given, id)

    def push(self, id: str) -> None:
        """The same outside of a round."""
        self._take(id)
        if len(self._given) < PUSHED_MAX:
            self._share.settle(id not in self._given)
            self._given.add(id)

    def _take(self, id: str) -> None:
        self._taken += 1
        self.deferred.pop(id, None)
        self._failures.pop(id, None)

    def refuse(self, id: str, reason: str) -> bool:
        """The peer has refused it: whether for good."""
        if is_passing(reason) and not (may_be_for_good(reason) and self._fails(id)):
            if len(self.deferred) < DEFERRED_MAX:
                self.deferred[id] = reason
            return False
        self.deferred.pop(id, None)
        self._failures.pop(id, None)
        self._remember(self._vain, id)
        return True

    def _fails(self, id: str) -> bool:
        """Whether it has failed so often, with others taken in between each time, that it will not do otherwise."""
        count, taken = self._failures.get(id, (0, -1))
        if taken != self._taken and (id in self._failures or len(self._failures) < DEFERRED_MAX):
            count += 1
            self._failures[id] = count, self._taken
        return count >= FAILURES_MAX

    @property
    def overflows(self) -> bool:
        """Whether more is refused for now than can be told apart."""
        return len(self.deferred) >= DEFERRED_MAX

    def look(self) -> None:
        """A comparison begins: it shows what was answered for before it, and perhaps not what is from now on."""
        both = self._sought | self._given
        self._share.settle(len(both) - len(self._sought) - len(self._given))
        self._sought, self._given = both, set()

    def lacking(self, have: Sequence[str], all_seen: bool = True) -> list[str]:
        """What is to be given of what only we have, as a comparison shows: not what had been given in vain; and what
        was refused for now after all else. Where not `all_seen`, what was given is looked for the next time too."""
        vain = self._sought.intersection(have) - self._vain
        still_sought = set() if all_seen or self._share.full else self._sought.difference(have)
        self._share.settle(len(vain) + len(still_sought) - len(self._sought))
        self._vain |= vain
        self._sought = still_sought
        return sorted((id for id in have if id not in self._vain), key=self.deferred.__contains__)

    def keep_deferred(self, have: Sequence[str]) -> None:
        """These are all that the peer lacks: whatever else was to be tried again is there by now, or is gone here."""
        if self.deferred:
            left = set(have)
            self.deferred = {id: reason for id, reason in self.deferred.items() if id in left}
            self._failures = {id: count for id, count in self._failures.items() if id in left}

    @property
    def unkept(self) -> int:
        """How many the peer has refused, or taken and does not keep."""
        return len(self._vain)

    def bury(self, odd: Odd) -> None:
        """The peer has something that can never be taken. Told once; what cannot be remembered is not told, or it would
        be told each time."""
        if odd.id in self.declined:
            return
        self.decline(odd.id, refused=True)
        if odd.id in self.declined:
            self._letters.append(Bury(odd.id, f"our rules: {odd.reason}", "pull"))

    def letters(self) -> list[Effect]:
        """What was buried since this was asked last, to be written down in one go."""
        letters, self._letters = self._letters, []
        return letters

    def decline(self, id: str, refused: bool = False, until: int | None = None) -> None:
        """We do not take it: `refused` by our own rules, or because it is known or superseded; or only not `until` a
        time."""
        known = id in self.declined
        self._remember(self.declined, id)
        if known or id not in self.declined:
            return
        self.untaken += refused
        if until is not None:
            self._later[id] = until

    def reconsider(self, wall: int) -> bool:
        """Whether there is something that our rules may take by now: it is open again."""
        due = [id for id, until in self._later.items() if until <= wall]
        for id in due:
            del self._later[id]
            self.declined.discard(id)
        self.untaken -= len(due)
        self._share.settle(-len(due))
        return bool(due)

    def keep_back(self, blocked: Sequence[Blocked], stored: bool) -> None:
        """What became of a page that was fetched: some of it may wait for others."""
        self.forgot = not self.kept_back.note(blocked, stored) or self.forgot

    def _remember(self, ids: set[str], id: str) -> None:
        if self._share.full and id not in ids:
            self.forgot = True
        else:
            self._share.settle(id not in ids)
            ids.add(id)
