"""No checkpoint passes an operation that was not applied, whatever else stands at the same place."""

import json

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer
from relay_model import RelayModel
from test_crowded_seconds import Unwilling
from test_link import notes

from anabranch.core import nostr
from anabranch.core.checkpoint import PENDING_MAX
from anabranch.replicate.spec import Timing

MISSING = "cd" * 32


def waiting(drive):
    return [one.blocked.operation for one in drive.link.pull.pending]


def test_what_waits_at_the_very_end_of_a_replay_holds_the_checkpoint():
    first, child = notes(2)
    drive = Drive(LogPeer([first])).run(1)
    drive.needs[child.id] = MISSING
    drive.cut()
    drive.peer.add(child)
    for _ in range(40):
        drive.run(0.5)
        assert drive.link.pull.contiguous.position == 1
        assert not drive.link.caught_up or drive.link.pull.received.position == 1


def test_what_waits_is_not_passed_by_something_else_of_the_same_second():
    first, child = notes(2)
    profile = signed(kind=0, content="{}", created_at=WALL)
    drive = Drive(RelayModel([first])).run(1)
    drive.needs[child.id] = MISSING
    before, stream = drive.link.pull.contiguous, drive.link._intake.stream.name
    drive.say(*(["EVENT", stream, json.loads(nostr.serialise(event))] for event in (child, profile)))
    assert profile.id in drive.store
    assert (drive.link.pull.contiguous, waiting(drive)) == (before, [child.id])


def test_a_link_is_not_caught_up_while_something_waits():
    drive = Drive(LogPeer(notes(1))).run(1)
    assert drive.link.caught_up
    (child,) = notes(1, 1)
    drive.needs[child.id] = MISSING
    drive.peer.on_neg_open = lambda *asked: []  # it takes its time
    drive.say(*drive.peer.add(child))
    assert waiting(drive) and drive.link.state == "live"
    assert not drive.link.caught_up


@pytest.mark.parametrize("page_count", [20, 500])
@pytest.mark.parametrize("peer", [LogPeer, Unwilling])
def test_a_repair_after_an_overflow_comes_to_its_end(peer, page_count):
    children, parent = notes(PENDING_MAX + 50, 100), signed(content="parent", created_at=500)
    drive = Drive(peer(notes(1)), timing=Timing(page_count=page_count)).run(1)
    drive.needs |= {child.id: parent.id for child in children}
    drive.say(*drive.peer.add(*children)).run(2)
    assert drive.link.state == "repairing" and drive.link.pull.contiguous.position == 1
    drive.say(*drive.peer.add(parent)).run(600)
    assert drive.link.caught_up and not drive.link.pull.overflows
    assert drive.store.keys() == drive.peer.events.keys()


def test_a_repair_after_an_overflow_comes_to_its_end_though_pages_cannot_show_all():
    children = [signed(content=f"child {number}", created_at=1_000) for number in range(PENDING_MAX + 50)]
    parent = signed(content="parent", created_at=500)
    drive = Drive(Unwilling(notes(1), cap=10)).run(1)
    drive.needs |= {child.id: parent.id for child in children}
    drive.say(*drive.peer.add(*children)).run(2)
    drive.say(*drive.peer.add(parent)).run(600)
    assert drive.store.keys() == drive.peer.events.keys()
    assert not drive.link.pull.overflows and drive.link.pull.contiguous.position == len(drive.peer.log)
