"""Lineage: what revisions stand on that a peer compacted before it reached us. No I/O.

A head whose parent is missing may hide that an older revision here is none. So the names of missing parents are asked
for, and what a peer says of them is taken down as hearsay: it counts only while something that is here descends from
it. A peer goes on by itself to what those stood on in turn; where it stops, its last names are asked for, until nothing
is missing or the peer knows no more. It is asked for a name once with every comparison, as it may have learnt or
compacted it since, and for so many at the most.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.core.revisions import GIFT_WRAP, Ancestor, Name
from anabranch.core.scope import Scope
from anabranch.core.token import START, Position
from anabranch.replicate.effects import LoadMissing
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Answer, Compacted, Effect, FeedError, Finish, Replayed, Send

ASKED_MAX = 10_000  # names with one comparison
NAMES_A_REQUEST = 100
NAMES_HEARD = 1_000  # with one request; whoever names more is listened to no longer


class Lineage:
    """What one link has looked at, and what it lacks; the peer is asked again with every comparison."""

    def __init__(self, scope: Scope) -> None:
        kinds_fit = scope.kinds is None or GIFT_WRAP in scope.kinds
        self.carried = kinds_fit and scope.authors is None and scope.collections is None
        """Whether the link carries revisions at all, all of a document or none."""
        self._scope = scope
        self._looked = START
        self._lacking: dict[Name, None] = {}
        self._asked: set[Name] = set()

    def begin(self) -> LoadMissing:
        self._asked.clear()
        return self.load()

    def load(self, also: Sequence[Name] = ()) -> LoadMissing:
        self._lacking.update(dict.fromkeys(also))  # also where the connection is lost before they are looked up
        return LoadMissing(self._looked, tuple(self._lacking))

    def loaded(self, looked: Position, lacking: Sequence[Name]) -> None:
        scope = self._scope
        self._looked = looked
        wanted = (
            name
            for name in lacking
            if (scope.recipients is None or name.recipient in scope.recipients)
            and (scope.documents is None or name.coordinate in scope.documents)
        )
        self._lacking = dict.fromkeys(list(wanted)[:ASKED_MAX])

    def request(self, subscription: str) -> Request | None:
        """The next names to ask for, of one recipient; None: there is nothing more to ask now."""
        open = [name for name in self._lacking if name not in self._asked]
        if not open or len(self._asked) >= ASKED_MAX:
            return None
        some = [name for name in open if name.recipient == open[0].recipient][:NAMES_A_REQUEST]
        self._asked.update(some)
        return Request(subscription, some)

    def answered(self, request: Request) -> LoadMissing:
        """What the peer has said is written down before what is still missing is looked up."""
        if request.refused:  # this peer does not speak of such things
            self._asked.update(self._lacking)
        self._asked.update(one.name for one in request.found)
        return self.load(request.open)


class Request:
    """A question for some ancestors. When the peer has finished, `found` holds what it said of them and of what they
    stood on, and `open` what it named last."""

    def __init__(self, subscription: str, names: Sequence[Name]) -> None:
        self.found: list[Ancestor] = []
        self.refused = False
        self._subscription = subscription
        self._asked = tuple(names)
        self._names = set(names)
        self._heard: set[Name] = set()

    @property
    def open(self) -> list[Name]:
        return [name for one in self.found for name in _parents(one) if name not in self._heard]

    def start(self) -> list[Effect]:
        asked = {
            "mode": "compacted",
            "#p": [self._asked[0].recipient],
            "#d": sorted({name.coordinate for name in self._asked}),
            "#r": sorted({name.revision for name in self._asked}),
        }
        return [Send(dialogue.changes(self._subscription, asked))]

    def hear(self, answer: Answer) -> list[Effect] | None:
        if getattr(answer, "subscription", None) != self._subscription:
            return None
        match answer:
            case Compacted(_, ancestor) if self._expects(ancestor.name):
                self._heard.add(ancestor.name)
                self.found.append(ancestor)
                self._names.update(_parents(ancestor))
                return []
            case Replayed():
                return [Finish()]
            case FeedError():
                self.refused = True
                return [Finish()]
        return None

    def _expects(self, name: Name) -> bool:
        return name in self._names and name not in self._heard and len(self._names) <= NAMES_HEARD

    def silence(self) -> list[Effect] | None:
        return None

    def lost(self, oversized: bool) -> list[Effect] | None:
        return None

    def again(self) -> list[Effect]:
        return self.start()


def _parents(one: Ancestor) -> list[Name]:
    return [Name(one.recipient, one.coordinate, parent) for parent in one.parents]
