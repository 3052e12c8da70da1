"""What a repair has fetched and could not apply, since something that it needs was not there. No I/O.

It is set aside, so that the repair gets on to what it may wait for. Once all has been looked at, it is fetched again,
as long as that leads on: something was stored, and of what had waited before something waits no more. Of what waits
still, one is named that lacks something which does not wait itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.core.checkpoint import Blocked
from anabranch.replicate.room import Share


class KeptBack:
    def __init__(self, share: Share) -> None:
        self.aside: dict[str, Blocked] = {}
        """What is not fetched for now, by id."""
        self._first: Blocked | None = None
        self._before: set[str] = set()  # what had waited when all was looked at the last time
        self._stored = False
        self._share = share

    @property
    def named(self) -> Blocked | None:
        """None: nothing waits."""
        named, others = self._first, dict(self.aside)
        while named is not None and named.missing in others:
            named = others.pop(named.missing)
        return named

    def note(self, blocked: Sequence[Blocked], stored: bool) -> bool:
        """What became of a page. False: there is no room to set all of it aside, and it is fetched again and again."""
        self._stored = self._stored or stored
        all_aside = True
        for one in blocked:
            self._first = self._first or one
            if one.operation in self.aside or not self._share.full:
                self._share.settle(one.operation not in self.aside)
                self.aside[one.operation] = one
            else:
                all_aside = False
        return all_aside

    def leads_on(self) -> bool:
        """All has been looked at: whether to look again. What was set aside is not any more."""
        leads_on = self._stored and not (self._before and self._before <= self.aside.keys())
        self._share.settle(-len(self._before))
        self._before, self.aside = set(self.aside), {}
        self._first, self._stored = None, False
        return leads_on

    def clear(self) -> None:
        self._share.settle(-len(self.aside) - len(self._before))
        self._before, self.aside = set(), {}
        self._first, self._stored = None, False
