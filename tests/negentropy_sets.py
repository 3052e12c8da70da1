"""Two sets to reconcile: random ones of every shape, and the pair at which the reference implementations fail."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from anabranch.core.negentropy import Items

Item = tuple[int, bytes]

sizes = st.sampled_from([0, 0, 1, 2, 31, 32, 33, 150, 700])
limits = st.sampled_from([0, 4096, 4096, 5000])
SPREADS_IN_31_BITS = [1, 3, 40, 10**6, 2**31 - 2]
SPREADS = [*SPREADS_IN_31_BITS, 1_790_000_000_000, 2**53 + 7, 2**64 - 1]


@dataclass
class Sides:
    """What both have, what only the initiator has, what only the responder has."""

    both: set[Item]
    left: set[Item]
    right: set[Item]

    @property
    def initiator(self) -> set[Item]:
        return self.both | self.left

    @property
    def responder(self) -> set[Item]:
        return self.both | self.right

    @property
    def have(self) -> list[bytes]:
        return sorted(id_ for _, id_ in self.left)

    @property
    def need(self) -> list[bytes]:
        return sorted(id_ for _, id_ in self.right)


def items_of(members: set[Item] | list[Item]) -> Items:
    return Items.build([time for time, _ in members], b"".join(id_ for _, id_ in members))


@st.composite
def item_makers(draw: st.DrawFn, spreads: list[int] = SPREADS) -> Callable[[int], set[Item]]:
    """A source of random items: how far apart their timestamps are, whether they cluster, what their ids share.

    No id comes twice, with two timestamps: an id is that of one event.
    """
    source = random.Random(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from(spreads))
    centres = [source.randrange(spread) for _ in range(draw(st.sampled_from([0, 0, 1, 5])))]
    start = source.randbytes(draw(st.sampled_from([0, 0, 0, 7, 8, 29])))
    given_out: set[bytes] = set()

    def make(count: int) -> set[Item]:
        ids = {start + source.randbytes(32 - len(start)) for _ in range(count)} - given_out
        given_out.update(ids)
        return {(source.choice(centres) if centres else source.randrange(spread), id_) for id_ in sorted(ids)}

    return make


@st.composite
def sides(draw: st.DrawFn, spreads: list[int] = SPREADS) -> Sides:
    """Identical, disjoint, empty or overlapping; timestamps all equal, few, clustered, or spread over their range."""
    make = draw(item_makers(spreads))
    return Sides(*(make(draw(sizes)) for _ in range(3)))


def almost_lost(long_gaps: int) -> Sides:
    """2304 items in sixteen buckets. The responder has twelve of these, but for the last item of each: with a limit of
    4096 its answer is full just where it would say that it has nothing after them, and the initiator's next message is
    full at the same place. There the reference implementations' initiator sends the fingerprint of nothing, the
    responder finds it equal, and the last four buckets are never told of.
    """
    source = random.Random(7)
    ordered: list[Item] = []
    for n in range(16 * 144):
        gap = 20_000 if (n % 9 == 0 and n // 9 < long_gaps) or n >= 12 * 144 else 20
        ordered.append((ordered[-1][0] + gap if ordered else 1000, source.randbytes(32)))
    both = {item for n, item in enumerate(ordered) if n < 12 * 144 and n % 144 != 143}
    return Sides(both, set(ordered) - both, set())
