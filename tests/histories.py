"""Random histories, small enough that everything collides: few authors, few documents, few moments.

Events made here are well-formed and carry true ids; their signatures are blank, because the rules and the store
never look at them. `signed` is for the tests that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from anabranch.core import clock as clocks
from anabranch.core import nostr
from anabranch.core.filter import Filter
from anabranch.core.nostr import Event
from anabranch.core.operation import KindPolicy, Operation, classify
from anabranch.core.snapshots import NOTE

OTHER_NOTE = 42_062
KINDS = KindPolicy(snapshot=frozenset({NOTE, OTHER_NOTE}))

AUTHORS = ["a1" * 32, "b2" * 32, "c3" * 32]
DEVICES = ["laptop", "phone", "tablet"]
COORDINATES = ["", "A", "B", "\0", "ключ", "long-" * 20]
COLLECTIONS = ["notes", "tasks"]
WORDS = ["x", "y", "ü", "A", "w" * 64, "w" * 65, "w" * 66, "\0"]
START_TIME = 1_000
MOMENTS = range(START_TIME, START_TIME + 12)
BLANK_SIG = "00" * 64

Tags = Sequence[Sequence[str]]


def event(
    kind: int, tags: Tags = (), content: str = "", created_at: int = START_TIME, author: str = AUTHORS[0]
) -> Event:
    identity = nostr.event_id(author, created_at, kind, tags, content)
    return Event(identity, author, created_at, kind, [list(tag) for tag in tags], content, BLANK_SIG)


def operation(of: Event) -> Operation:
    return classify(of, nostr.serialise(of), KINDS)


def snapshot(
    coordinate: str = "A",
    clock: dict[str, int] | None = None,
    *,
    deletes: bool = False,
    collection: str | None = None,
    content: str = "",
    created_at: int = START_TIME,
    author: str = AUTHORS[0],
    kind: int = NOTE,
    expires_at: int | None = None,
) -> Event:
    tags = [["d", coordinate], ["o", "del" if deletes else "put"], *clocks.tags(clock or {"laptop": 1})]
    if collection is not None:
        tags.append(["c", collection])
    if expires_at is not None:
        tags.append(["expiration", str(expires_at)])
    return event(kind, tags, content, created_at, author)


def signed(kind: int = 1, tags: Tags = (), content: str = "", created_at: int = START_TIME, secret: int = 1) -> Event:
    return nostr.Keys(secret.to_bytes(32, "big")).sign(kind, tags, content, created_at)


# --- strategies --------------------------------------------------------------------------------------------------

devices = st.sampled_from(DEVICES)
clock_values = st.dictionaries(devices, st.integers(1, 3), min_size=1)
moments = st.sampled_from(MOMENTS)
authors = st.sampled_from(AUTHORS[:2])
contents = st.sampled_from(["", "one", "two", 'three\n"\\\u2028\x01'])
expiries = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(MOMENTS))

snapshots = st.builds(
    snapshot,
    st.sampled_from(COORDINATES[1:4]),
    clock_values,
    deletes=st.booleans(),
    collection=st.one_of(st.none(), st.sampled_from(COLLECTIONS)),
    content=contents,
    created_at=moments,
    author=authors,
    kind=st.sampled_from([NOTE, NOTE, OTHER_NOTE]),
    expires_at=expiries,
)
"""Snapshots of a few documents of two authors, with clocks that are often equal or concurrent."""

_loose_tags = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["t", "p", "T"]), st.sampled_from(WORDS)).map(list),
        st.just(["t"]),
        st.just(["title", "x"]),
        st.tuples(st.just("t"), st.sampled_from(WORDS), st.just("more")).map(list),
    ),
    max_size=3,
)


@st.composite
def plain_events(draw: st.DrawFn, kinds: st.SearchStrategy[int] | None = None) -> Event:
    kind = draw(kinds or st.sampled_from([1, 7, 0, 10_002, 30_023, 30_024]))
    tags = draw(_loose_tags)
    if nostr.is_addressable(kind) and draw(st.booleans()):
        tags = [*tags, ["d", draw(st.sampled_from(COORDINATES[:3]))]]
    if (expires_at := draw(expiries)) is not None:
        tags = [*tags, ["expiration", str(expires_at)]]
    return event(kind, tags, draw(contents), draw(moments), draw(authors))


@st.composite
def deletions(draw: st.DrawFn, among: Sequence[Event]) -> Event:
    """A NIP-09 deletion of some of these events, by id or by address, not always by their author."""
    tags: list[list[str]] = []
    for target in draw(st.lists(st.sampled_from(among), min_size=1, max_size=2)) if among else ():
        if draw(st.booleans()):
            tags.append(["e", target.id])
        else:
            tags.append(["a", f"{target.kind}:{target.pubkey}:{target.first('d') or ''}"])
    tags += draw(st.sampled_from([[], [["e", "not an id"]], [["a", "x:y"]], [["a"]]]))
    return event(nostr.DELETION, tags, draw(contents), draw(moments), draw(authors))


@st.composite
def histories(draw: st.DrawFn, max_size: int = 24) -> list[Event]:
    """Everything at once, in any order: snapshots, plain events of every sort, deletions before and after."""
    events = draw(st.lists(st.one_of(snapshots, plain_events()), max_size=max_size))
    for _ in range(draw(st.integers(0, 3))):
        events.append(draw(deletions(events)))
    again = draw(st.lists(st.sampled_from(events), max_size=8)) if events else []
    return draw(st.permutations(events + again))


@st.composite
def groupings(draw: st.DrawFn, of: Sequence[Event]) -> list[list[Event]]:
    """The same sequence, cut into groups anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, len(of)))) | {0, len(of)})
    return [list(of[low:high]) for low, high in pairwise(cuts)]


@st.composite
def filters(draw: st.DrawFn, among: Sequence[Event] = ()) -> Filter:
    """A filter that more or less often matches something of these events."""
    maybe = st.booleans()
    ids = st.sampled_from([e.id for e in among] + ["00" * 32])
    tag_values = {"t": WORDS, "p": WORDS, "T": WORDS, "d": COORDINATES, "o": ["put", "del"], "c": COLLECTIONS}
    names = draw(st.sets(st.sampled_from(sorted(tag_values)), max_size=2)) if draw(maybe) else ()
    return Filter(
        ids=frozenset(draw(st.sets(ids, max_size=4))) if draw(st.sampled_from([False, False, True])) else None,
        authors=frozenset(draw(st.sets(st.sampled_from(AUTHORS), max_size=2))) if draw(maybe) else None,
        kinds=frozenset(draw(st.sets(st.sampled_from([0, 1, 3, 5, 7, 10_002, 30_023, NOTE, OTHER_NOTE]), max_size=4)))
        if draw(maybe)
        else None,
        since=draw(st.one_of(st.none(), st.none(), moments)),
        until=draw(st.one_of(st.none(), st.none(), moments)),
        limit=draw(st.one_of(st.none(), st.integers(0, 6))),
        tags=tuple(
            (name, frozenset(draw(st.sets(st.sampled_from(tag_values[name]), max_size=3)))) for name in sorted(names)
        ),
    )
