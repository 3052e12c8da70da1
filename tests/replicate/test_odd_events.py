"""What a relay takes and we never can is a dead letter, and holds up nothing else. What nobody can take is a lie."""

from typing import Any

import pytest
from histories import signed
from link_driving import WALL, Drive
from test_link import LogPeer
from test_plain_peers import Plain, notes

from anabranch.core.nostr import Event, Keys
from anabranch.replicate.effects import Bury

STRANGER = Keys(bytes([8]) * 32)


def odd(number: int = 0, **fields: Any) -> Event:
    """Properly signed, and by our rules no event."""
    given = {"kind": 1, "tags": [], "content": f"odd {number}", "created_at": WALL - number, **fields}
    return STRANGER.sign(given["kind"], given["tags"], given["content"], given["created_at"])


ODD = [
    odd(created_at=2**60),
    odd(created_at=2**53),
    odd(kind=70_000),
    odd(tags=[[]]),
    odd(tags=[["t", "x"], []], created_at=WALL - 99_990),
]
RECONCILES, PAGED = [1, 77], [1]


@pytest.mark.parametrize("nips", [RECONCILES, PAGED], ids=["negentropy", "pages"])
@pytest.mark.parametrize("direction", ["pull", "both"])
def test_events_that_we_can_never_take_are_told_and_hold_up_nothing(nips, direction):
    peer = Plain([*notes(30), *ODD], nips=nips, cap=12)
    drive = Drive(peer, direction=direction).run(30)
    assert drive.link.caught_up, drive.link.last_error
    assert {event.id for event in notes(30)} == set(drive.store)
    told = {one.id for one in drive.buried}
    assert told <= {event.id for event in ODD}
    assert {event.id for event in ODD[2:]} <= told
    assert all(isinstance(one, Bury) and one.direction == "pull" for one in drive.buried)
    assert drive.link.untaken == len(told)
    assert drive.link.failures == 0


@pytest.mark.parametrize("nips", [RECONCILES, PAGED], ids=["negentropy", "pages"])
@pytest.mark.parametrize("one", ODD, ids=lambda event: f"{event.kind} {event.created_at} {event.tags}")
def test_one_that_comes_live_holds_up_nothing_that_comes_after_it(nips, one):
    peer = Plain(notes(3), nips=nips)
    drive = Drive(peer).run(5)
    drive.say(*peer.publish(one))
    new = signed(content="new", created_at=WALL + 10)
    drive.say(*peer.publish(new)).run(400)
    assert new.id in drive.store
    assert drive.link.caught_up, drive.link.last_error
    assert {letter.id for letter in drive.buried} == {one.id}
    assert len(drive.buried) <= 2  # however often it is seen


def test_behind_a_page_of_nothing_else_the_others_are_found():
    far = [odd(number, created_at=2**55 + number) for number in range(30)]
    strange = [odd(number, kind=66_000) for number in range(30)]
    drive = Drive(Plain([*notes(30), *far, *strange], cap=12)).run(60)
    assert {event.id for event in notes(30)} == set(drive.store)
    assert drive.link.caught_up, drive.link.last_error


def test_a_log_of_ours_has_no_such_events_and_one_that_says_so_is_named():
    drive = Drive(LogPeer([*notes(3), odd(kind=70_000)])).run(5)
    assert drive.states[0] == ("disorder", "repairing")
    assert "no valid event" in drive.noted[0].why
    assert drive.link.caught_up  # with a dead letter


class Garbled(Plain):
    def spelt(self, event: Event) -> Any:
        return {"id": event.id} if event.content == "old 1" else super().spelt(event)


class Renamed(Plain):
    def spelt(self, event: Event) -> Any:
        return {**super().spelt(event), "kind": 7} if event.content == "old 1" else super().spelt(event)


@pytest.mark.parametrize("kind, why", [(Garbled, "no valid event"), (Renamed, "id does not match")])
def test_what_nobody_could_have_taken_is_a_lie(kind, why):
    drive = Drive(kind(notes(3))).run(5)
    assert why in drive.link.last_error
    assert not drive.link.caught_up
