"""A relay without a log gives only the newest of what it is asked for. What it leaves out is not passed over."""

import pytest
from histories import signed
from link_driving import WALL, Drive
from relay_model import RelayModel

from anabranch.store.contract import LinkRecord


class Plain(RelayModel):
    """A relay without reconciliation."""

    @property
    def information(self):
        return {"supported_nips": [1]}


def add(peer: RelayModel, count: int, seconds: int) -> None:
    """So many new events, spread over the time from now on."""
    for number in range(count):
        new = signed(content=f"new {number}", created_at=WALL + 60 + number * seconds // count)
        peer.events[new.id] = new


@pytest.fixture
def drive() -> Drive:
    old = [signed(content=f"old {number}", created_at=WALL - 10_000 + number) for number in range(3)]
    return Drive(Plain(old, cap=10)).run(60)


def test_what_was_made_while_our_node_was_down_is_fetched_though_it_is_more_than_the_relay_gives_at_once(drive):
    add(drive.peer, 35, 7_200)
    before = [event for event in drive.peer.events.values() if event.id in drive.store]
    again = Drive(drive.peer, before, record=LinkRecord("up", "ws://peer/", "pull", state="live", pull=drive.link.pull))
    again.now = 7_400.0
    again.run(60)
    assert again.link.caught_up
    assert again.store.keys() == drive.peer.events.keys()


@pytest.mark.parametrize("breaks_at", range(1, 12))
def test_what_a_cut_left_out_is_fetched_whenever_it_came(drive, breaks_at):
    add(drive.peer, 35, 7_200)
    drive.reachable = False
    drive.cut().tell("pause")
    drive.now = 7_400.0
    asked, answer = 0, drive.peer.on_req

    def on_req(name, filter):
        nonlocal asked
        asked += 1
        return [] if asked == breaks_at else answer(name, filter)

    drive.peer.on_req, drive.reachable = on_req, True
    drive.tell("resume").run(29)
    drive.cut().run(120)
    assert drive.link.caught_up
    assert drive.store.keys() == drive.peer.events.keys()


def test_only_what_was_made_since_is_compared_after_a_cut(drive):
    heard = len(drive.peer.heard)
    drive.cut().run(60)
    asked = [
        message[2] for message in drive.peer.heard[heard:] if message[0] == "REQ" and message[1].startswith("round")
    ]
    assert asked and all(filter["since"] > WALL - 1_000 for filter in asked if "since" in filter)
    assert all(filter["limit"] <= 2 for filter in asked if "since" not in filter)
