"""Random histories of revisions, small enough that everything collides: two recipients, two documents, six revisions.

A revision is offered under several outer events, before and after its parents, merged, deleted, expired and wrapped
for those who vanish; beside it are snapshots, plain events and gift wraps that are no revisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from histories import (
    AUTHORS,
    COORDINATES,
    MOMENTS,
    START_TIME,
    contents,
    deletions,
    event,
    expiries,
    moments,
    plain_events,
    snapshots,
)
from hypothesis import strategies as st

from anabranch.core import nostr
from anabranch.core.changes import RevisionQuery
from anabranch.core.nostr import Event
from anabranch.core.revisions import GIFT_WRAP

RECIPIENTS = AUTHORS[:2]
WRAP_KEYS = ["d4" * 32, "e5" * 32, AUTHORS[0]]
DOCUMENTS = ["A", "B"]
REVISIONS = [f"{n:x}{n:x}" * 32 for n in range(10, 16)]
MTIME = 1_700_000_000_000  # milliseconds: more than 32 bits
MTIMES = [0, 5, 2**32 - 1, 2**32, MTIME, MTIME + 1, 2**53 - 1]


def revision(
    r: str = REVISIONS[0],
    parents: Sequence[str] = (),
    d: str = "A",
    *,
    p: str = RECIPIENTS[0],
    m: int = MTIME,
    deletes: bool = False,
    content: str = "sealed",
    created_at: int = START_TIME,
    author: str = WRAP_KEYS[0],
    expires_at: int | None = None,
    type: str | None = "note",
) -> Event:
    tags = [["p", p], ["d", d], ["r", r], *(["prev", parent] for parent in parents)]
    tags += [["op", "del" if deletes else "put"], ["m", str(m)], *([["type", type]] if type else []), ["v", "2"]]
    if expires_at is not None:
        tags.append(["expiration", str(expires_at)])
    return event(GIFT_WRAP, tags, content, created_at, author)


def vanishing(author: str, created_at: int = START_TIME, content: str = "") -> Event:
    """A request to vanish (NIP-62)."""
    return event(nostr.VANISH, [["relay", "ALL_RELAYS"]], content, created_at, author)


# --- strategies ----------------------------------------------------------------------------------------------------


@st.composite
def revisions(draw: st.DrawFn) -> Event:
    own = draw(st.sampled_from(REVISIONS))
    parents = draw(st.lists(st.sampled_from([r for r in REVISIONS if r != own]), max_size=3, unique=True))
    return revision(
        own,
        parents,
        draw(st.sampled_from(DOCUMENTS)),
        p=draw(st.sampled_from(RECIPIENTS)),
        m=draw(st.sampled_from(MTIMES)),
        deletes=draw(st.sampled_from([False, False, True])),
        content=draw(contents),
        created_at=draw(moments),
        author=draw(st.sampled_from(WRAP_KEYS)),
        expires_at=draw(expiries),
    )


def gift_wraps() -> st.SearchStrategy[Event]:
    """Gift wraps that are no revisions."""
    tags = st.lists(st.sampled_from([["p", RECIPIENTS[0]], ["p", RECIPIENTS[1]], ["alt", "x"]]), max_size=2)
    return st.builds(event, st.just(GIFT_WRAP), tags, contents, moments, st.sampled_from(WRAP_KEYS))


@st.composite
def deletions_of_revisions(draw: st.DrawFn, among: Sequence[Event]) -> Event:
    """By id, by the recipient, by the wrap's key, or by somebody who may not."""
    targets = draw(st.lists(st.sampled_from(among), min_size=1, max_size=3))
    chosen = draw(st.sampled_from([*RECIPIENTS, *(target.pubkey for target in targets)]))
    return event(nostr.DELETION, [["e", target.id] for target in targets], "", draw(moments), chosen)


@st.composite
def revision_histories(draw: st.DrawFn, max_size: int = 20, vanish: bool = True) -> list[Event]:
    """Everything at once, in any order."""
    one = st.one_of(revisions(), revisions(), revisions(), gift_wraps(), snapshots, plain_events())
    events = draw(st.lists(one, min_size=1, max_size=max_size))
    for _ in range(draw(st.integers(0, 3))):
        events.append(draw(st.one_of(deletions_of_revisions(events), deletions(events))))
    if vanish and draw(st.sampled_from([False, False, True])):
        events.append(vanishing(draw(st.sampled_from([*RECIPIENTS, WRAP_KEYS[0]])), draw(moments)))
    again = draw(st.lists(st.sampled_from(events), max_size=6))
    return draw(st.permutations(events + again))


revision_queries = st.builds(
    RevisionQuery,
    st.sampled_from([*RECIPIENTS, AUTHORS[2]]),
    st.one_of(st.none(), st.none(), st.sampled_from([frozenset(), frozenset({GIFT_WRAP})])),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from(WRAP_KEYS), max_size=2)),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from([*DOCUMENTS, COORDINATES[0]]), max_size=2)),
    st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from([*REVISIONS, "00" * 32]), max_size=4)),
)

times = st.sampled_from([0, MOMENTS[0], 1_006, MOMENTS[-1]])
