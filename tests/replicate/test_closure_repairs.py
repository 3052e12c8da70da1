"""A repair brings all that can be had, in whatever order it comes, and names what cannot."""

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer
from relay_model import RelayModel
from test_link import notes
from test_portions import Paged, Watched

from anabranch.replicate import room
from anabranch.replicate.room import Room
from anabranch.replicate.spec import Timing

MISSING = "cd" * 32
HERE = signed(content="here", created_at=1)


def made(count, said="theirs"):
    return [signed(content=f"{said} {number}", created_at=WALL - 5_000 + number) for number in range(count)]


@pytest.mark.parametrize("kind", [LogPeer, RelayModel, Paged])
@pytest.mark.parametrize("page_count", [1, 3, 500])
def test_what_all_others_need_may_come_in_any_page(kind, page_count):
    for place in (0, 4, 8):
        events = made(9)
        drive = Drive(kind(events), [HERE], timing=Timing(page_count=page_count))
        drive.needs |= {event.id: events[place].id for event in events if event is not events[place]}
        drive.run(60)
        assert drive.store.keys() == {HERE.id, *drive.peer.events}
        assert drive.link.caught_up and len(drive.dials) == 1 and not drive.noted


@pytest.mark.parametrize("page_count", [1, 500])
def test_a_chain_that_comes_last_link_first_is_brought_in_one_connection(page_count):
    events = made(12)
    drive = Drive(LogPeer(events), [HERE], timing=Timing(page_count=page_count))
    drive.needs |= {events[at].id: events[at + 1].id for at in range(11)}
    drive.run(60)
    assert drive.link.caught_up and len(drive.store) == 13 and len(drive.dials) == 1


@pytest.mark.parametrize("page_count", [2, 500])
def test_all_that_can_be_had_comes_and_the_first_that_lacks_something_is_named(page_count):
    events = made(9)
    orphan, child, grandchild, *others = events
    drive = Drive(LogPeer(events), [HERE], timing=Timing(page_count=page_count))
    drive.needs |= {orphan.id: MISSING, child.id: orphan.id, grandchild.id: child.id}
    drive.run(600)
    assert drive.store.keys() == {HERE.id, *(event.id for event in others)}
    assert drive.states[-1] == ("closure", "repairing")
    assert drive.link.last_error.startswith(f"{orphan.id} needs ancestry {MISSING}")
    assert drive.link.pull.contiguous is None
    parent = drive.needs[orphan.id] = signed(content="parent", created_at=WALL).id
    drive.peer.add(signed(content="parent", created_at=WALL))
    drive.run(600)
    assert parent in drive.store and drive.link.caught_up and len(drive.store) == 11


def test_a_peer_that_is_written_to_all_the_time_is_not_asked_again_and_again_for_what_it_does_not_have():
    orphan = signed(content="orphan", created_at=500)

    class Busy(LogPeer):
        """Has something new each time it is asked."""

        def on_neg_open(self, name, filter, message):
            self.add(*notes(1, len(self.log), "new"))
            return super().on_neg_open(name, filter, message)

    drive = Drive(Busy([orphan]), [HERE])
    drive.needs[orphan.id] = MISSING
    drive.run(0)
    assert drive.states == [("closure", "repairing")]
    assert sum(message[0] == "NEG-OPEN" for message in drive.peer.heard) == 2


@pytest.mark.parametrize("place", [0, 150, 299])
@pytest.mark.parametrize("page_count", [20, 500])
def test_what_waits_does_not_hide_what_lies_behind_it(monkeypatch, place, page_count):
    monkeypatch.setattr(room, "PORTION", 50)
    events = made(300)
    watched = Watched()
    drive = Drive(LogPeer(events, frame=4_096), [HERE], room=watched, timing=Timing(page_count=page_count))
    drive.needs |= {event.id: events[place].id for event in events if event is not events[place]}
    drive.run(300)
    assert drive.link.caught_up and drive.store.keys() == {HERE.id, *drive.peer.events}
    drive.link.release()
    assert watched.taken == 0


def test_what_waits_in_many_portions_is_named_and_the_rest_is_brought(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    events = made(300)
    drive = Drive(LogPeer(events, frame=4_096), [HERE], direction="both")
    drive.needs |= {event.id: MISSING for event in events[:200]}
    drive.run(300)
    assert drive.store.keys() == {HERE.id, *(event.id for event in events[200:])}
    assert drive.states[-1] == ("closure", "repairing") and MISSING in drive.link.last_error
    assert not any("does not give" in note.why for note in drive.noted)
    assert HERE.id in drive.peer.events


def test_where_there_is_no_room_to_set_anything_aside_a_repair_still_ends(monkeypatch):
    monkeypatch.setattr(room, "LINK_IDS_MIN", 20)
    events = made(200)
    drive = Drive(LogPeer(events, frame=4_096), [HERE], room=Room(most=0))
    drive.needs |= {event.id: events[199].id for event in events[:199]}
    drive.run(600)
    assert events[199].id in drive.store
    assert drive.link.caught_up and len(drive.store) == 201


def test_what_comes_while_the_two_are_compared_and_can_be_had_leads_to_no_repair():
    parent, child, *others = made(4)
    drive = Drive(LogPeer(others), timing=Timing(page_count=1)).run(1)
    drive.needs[child.id] = parent.id
    asked, late = drive.peer.on_neg_open, [parent, child]

    def open_late(name, filter, message):
        """A comparison has begun when the child comes over the stream; its parent is there for the next one."""
        return [*(drive.peer.add(late.pop()) if late else ()), *asked(name, filter, message)]

    drive.peer.on_neg_open = open_late
    drive.run(600)
    assert drive.link.caught_up and child.id in drive.store
    assert drive.states == [("caught_up", "live")]


def test_what_waited_on_one_connection_is_fetched_anew_on_the_next():
    child, parent = made(2)
    watched = Watched()
    drive = Drive(LogPeer([child]), [HERE], timing=Timing(page_count=1), room=watched)
    drive.needs[child.id] = parent.id
    drive.run(0)
    assert (drive.states, len(drive.dials), watched.taken) == ([("closure", "repairing")], 1, 0)
    drive.peer.add(parent)
    drive.run(60)
    assert drive.link.caught_up and len(drive.dials) == 2
