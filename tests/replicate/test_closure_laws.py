"""Whatever needs whatever: a link ends caught up with all that can be had, or names what cannot; nothing is passed."""

import json

from histories import signed
from hypothesis import given, settings
from hypothesis import strategies as st
from link_driving import WALL, Drive, LogPeer
from relay_model import RelayModel
from test_portions import Paged

from anabranch.core import nostr
from anabranch.replicate.spec import Timing

MISSING = "cd" * 32


@st.composite
def histories(draw):
    """Operations in the order in which they are published, what each needs, and what our rules refuse."""
    count = draw(st.integers(2, 12))
    events = [signed(content=str(at), created_at=WALL - draw(st.integers(0, 20))) for at in range(count)]
    needs = {}
    for at, event in enumerate(events):
        needed = draw(st.one_of(st.none(), st.integers(0, at)))
        if needed is not None and needed < at:
            needs[event.id] = events[needed].id
    if draw(st.booleans()):
        lacking = draw(st.sampled_from(events))
        needs[lacking.id] = MISSING
    refused = draw(st.sets(st.sampled_from([event.id for event in events]), max_size=1))
    return draw(st.permutations(events)), needs, refused


moves = st.lists(st.sampled_from(["publish", "publish", "cut", "full", "repair", "wait"]), max_size=12)


def publish(drive, *events):
    peer, stream = drive.peer, drive.link._intake.stream
    if isinstance(peer, LogPeer):
        drive.say(*peer.add(*events))
        return
    peer.events |= {event.id: event for event in events}
    if stream is not None and drive.connected:
        drive.say(*(["EVENT", stream.name, json.loads(nostr.serialise(event))] for event in events))


def to_be_had(drive):
    """The largest part of what the peer has that is closed, the slow way."""
    had = set(drive.peer.events) - drive.refuses
    while lacking := {id for id in had if drive.needs.get(id, id) not in had}:
        had -= lacking
    return had


def passes_nothing(drive):
    at = drive.link.pull.contiguous
    if at is None or not isinstance(drive.peer, LogPeer):
        return True
    return {event.id for event in drive.peer.log[: at.position]} <= drive.store.keys() | drive.refuses


@settings(max_examples=150)
@given(
    histories(),
    moves,
    st.sampled_from([LogPeer, RelayModel, Paged]),
    st.sampled_from(["pull", "both"]),
    st.sampled_from([1, 2, 500]),
    st.booleans(),
)
def test_a_link_ends_caught_up_with_all_that_can_be_had_or_names_what_cannot(
    history, moves, kind, direction, page_count, holds
):
    order, needs, refused = history
    here = [signed(content="here", created_at=WALL - 100)] if holds else []
    drive = Drive(kind(order[: len(order) // 3]), here, direction=direction, timing=Timing(page_count=page_count))
    drive.needs, drive.refuses = needs, refused
    drive.run(1)
    rest = order[len(order) // 3 :]
    for move in moves:
        match move:
            case "publish":
                publish(drive, *rest[:2])
                rest = rest[2:]
            case "cut":
                drive.cut()
            case "full":
                drive.disk_full = not drive.disk_full
            case "repair":
                drive.tell("repair")
        assert passes_nothing(drive)
        drive.run(1 if move == "publish" else 30)
        assert passes_nothing(drive)
    publish(drive, *rest)
    drive.disk_full = False
    drive.run(6_000)
    had = to_be_had(drive)
    assert drive.store.keys() == had.union(event.id for event in here)
    assert passes_nothing(drive)
    if drive.peer.events.keys() - refused == had:
        assert drive.link.caught_up, drive.link.last_error
        return
    assert (drive.link.caught_up, drive.states[-1][1]) == (False, "repairing")
    roots = [id for id, need in needs.items() if id not in had | refused and need in refused | {MISSING}]
    assert any(drive.link.last_error.startswith(f"{id} needs ancestry {needs[id]}") for id in roots)
