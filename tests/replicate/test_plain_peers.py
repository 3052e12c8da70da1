"""A relay without a log gives only the newest of what it is asked for. What it leaves out is not passed over."""

from itertools import pairwise
from typing import Any

import pytest
from histories import signed
from link_driving import WALL, Drive
from relay_model import HANG_UP, RelayModel

from anabranch.core.nostr import Event
from anabranch.replicate import room
from anabranch.replicate.manner import Survey
from anabranch.replicate.states import LinkState
from anabranch.store.contract import LinkRecord


class Plain(RelayModel):
    """A relay that tells what it knows; without NIP-77, unless it is said otherwise."""

    def __init__(self, *args: Any, nips: list[int] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.information = {"supported_nips": nips or [1]}
        self.live: dict[str, Any] = {}
        if 77 not in self.information["supported_nips"]:
            self.on_neg_open = None

    def greet(self):
        self.live = {}
        return super().greet()

    def on_req(self, name, *filters):
        self.live[name] = filters
        return super().on_req(name, *filters)

    def on_close(self, name):
        self.live.pop(name, None)
        return []

    def publish(self, event: Event) -> list[Any]:
        """Somebody else writes there: what those are told whose filters it matches."""
        self.events[event.id] = event
        return [
            ["EVENT", name, self.spelt(event)]
            for name, filters in self.live.items()
            if any(event in self.matching(filter) for filter in filters)
        ]


def notes(count: int) -> list[Event]:
    return [signed(content=f"old {number}", created_at=WALL - 100_000 + number) for number in range(count)]


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

    def on_req(name, *filters):
        nonlocal asked
        asked += 1
        return [] if asked == breaks_at else answer(name, *filters)

    drive.peer.on_req, drive.reachable = on_req, True
    drive.tell("resume").run(29)
    drive.cut().run(120)
    assert drive.link.caught_up
    assert drive.store.keys() == drive.peer.events.keys()


def rounds(drive: Drive, heard: int) -> list[dict[str, Any]]:
    """Whether each page that was asked for since then was one of what was made lately, or of everything."""
    return [
        message[2]
        for message in drive.peer.heard[heard:]
        if message[0] == "REQ" and message[1].startswith("round") and message[2]["limit"] > 2
    ]


def test_after_a_cut_what_was_made_since_is_read_first_and_everything_when_there_is_time(drive):
    heard = len(drive.peer.heard)
    drive.link._survey.due = drive.now + 1_000.0  # as if the last reading had taken ten seconds
    drive.cut().run(60)
    asked = rounds(drive, heard)
    assert asked and all(filter["since"] > WALL - 1_000 for filter in asked)
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up
    drive.run(1_000)
    assert any("since" not in filter for filter in rounds(drive, heard))
    assert drive.link.caught_up


def test_reading_everything_takes_a_hundredth_of_the_time_at_the_most():
    survey = Survey(pause=100.0)
    survey.begin(1_000.0)
    survey.begin(1_004.0)  # not equal yet, so it is read again
    survey.end(1_010.0, certain=True)
    assert survey.complete and survey.due == 2_010.0
    survey.lost()
    assert not survey.complete and survey.due == 2_010.0


@pytest.mark.parametrize("nips", [[1], [1, 77]])
def test_what_comes_with_an_old_date_while_the_link_is_live_arrives_at_once(nips):
    drive = Drive(Plain(notes(3), nips=nips)).run(60)
    backdated = signed(content="backdated", created_at=WALL - 200_000)
    drive.say(*drive.peer.publish(backdated))
    assert backdated.id in drive.store
    assert drive.run(10).link.caught_up


def test_what_came_with_an_old_date_during_a_cut_is_found_and_before_that_nothing_is_said_to_be_equal(drive):
    backdated = signed(content="backdated", created_at=WALL - 200_000)
    drive.peer.events[backdated.id] = backdated
    drive.cut()
    for _ in range(600):
        assert backdated.id in drive.store or not drive.link.caught_up
        drive.run(1)
    assert backdated.id in drive.store
    assert drive.link.caught_up


def test_what_was_not_compared_is_still_owed():
    """Polling compares what was made lately; the rest of our log is given all the same."""
    drive = Drive(Plain(notes(3)), direction="both").run(60)
    drive.reachable = False
    old = [signed(content=f"written meanwhile {n}", created_at=WALL - 300_000 + n) for n in range(5)]
    drive.cut().write(*old).run(100)
    assert drive.link.state is LinkState.DEGRADED_POLL
    drive.reachable = True
    drive.run(100)
    assert {event.id for event in old} <= drive.peer.events.keys()


@pytest.mark.parametrize("nips", [[1], [1, 77]])
def test_what_a_relay_has_taken_and_lost_again_is_given_again(nips):
    """An old backup was put back there, and we only push: there is no operation that we could ask for."""
    mine = notes(4)
    drive = Drive(Plain(nips=nips), mine, direction="push")
    answer = drive.peer.on_event

    def on_event(raw):
        answer(raw)
        return [HANG_UP] if len(drive.peer.events) == len(mine) else [["OK", raw["id"], True, ""]]

    drive.peer.on_event = on_event  # it hangs up on the last one, and so before anything is compared again
    drive.run(0.5)
    drive.peer.on_event, drive.peer.events = answer, {}
    drive.run(120)
    assert drive.peer.events.keys() == drive.store.keys()
    drive.peer.events = {}
    drive.cut().run(120)
    assert drive.peer.events.keys() == drive.store.keys()
    assert drive.link.caught_up


def test_who_refuses_to_reconcile_for_the_moment_is_asked_again_on_the_next_connection():
    drive = Drive(Plain(notes(3), nips=[1, 77])).run(60)
    busy = [True]
    answer = drive.peer.on_neg_open
    drive.peer.on_neg_open = lambda name, filter, message: (
        [["NEG-ERR", name, "error: busy"]] if busy.pop() else answer(name, filter, message)
    )
    drive.cut().run(60)
    assert drive.link.caught_up
    drive.peer.on_neg_open = answer
    heard = len(drive.peer.heard)
    drive.cut().run(60)
    assert "NEG-OPEN" in [message[0] for message in drive.peer.heard[heard:]]


def test_a_quiet_connection_leaves_the_operation_by_which_a_wiped_relay_is_noticed():
    drive = Drive(Plain(notes(3), nips=[1, 77]), direction="both").run(60)
    named = drive.link.pull.contiguous.message
    assert named
    drive.cut().run(60)
    assert drive.link.pull.contiguous.message
    drive.peer.events = {event.id: event for event in (signed(content="other", created_at=WALL - 50_000),)}
    drive.cut().run(60)
    assert ("gap", "repairing") in drive.states
    assert drive.store.keys() == drive.peer.events.keys()


class Streamless(Plain):
    """Answers whatever is stored, and gives no stream: the subscription is closed at once."""

    def on_req(self, name, *filters):
        answers = super().on_req(name, *filters)
        return [["CLOSED", name, "error: no subscriptions"]] if name.startswith("stream") else answers


def test_what_comes_with_an_old_date_is_found_by_polling_where_there_is_no_stream():
    drive = Drive(Streamless(notes(3), cap=10)).run(300)
    assert drive.link.state is LinkState.DEGRADED_POLL
    late = signed(content="late", created_at=WALL - 99_000)
    drive.peer.events[late.id] = late
    read = len(drive.peer.heard)
    drive.run(120)
    assert late.id in drive.store
    assert not drive.link.caught_up
    polls = [message for message in drive.peer.heard[read:] if message[0] == "REQ"]
    whole = [
        filters for _, _, *filters in polls if not any("since" in filter or "until" in filter for filter in filters)
    ]
    assert 0 < len(whole) < len(polls) / 2, "it is much to read: not each time"


def test_a_reading_that_never_comes_to_an_end_is_begun_less_and_less_often():
    survey, begun = Survey(pause=100.0), []
    for now in map(float, range(2_000)):
        if survey.is_due(now):
            survey.begin(now)
            begun.append(now)
            survey.lost()
    pauses = [after - before for before, after in pairwise(begun)]
    assert pauses[:3] == [10.0, 20.0, 40.0] and max(pauses) == 300.0
    survey.begin(5_000.0)
    survey.end(5_001.0, certain=True)
    survey.lost()
    assert survey.due == 5_101.0


def test_a_relay_that_refuses_one_operation_is_not_read_whole_all_the_time():
    peer = Plain(notes(300), cap=100)
    taken = peer.on_event

    def on_event(raw):
        return [["OK", raw["id"], False, "auth-required: who are you"]] if raw["content"] == "ours" else taken(raw)

    peer.on_event = on_event
    ours = [signed(content="ours", created_at=WALL - 50), signed(content="other", created_at=WALL - 40)]
    drive = Drive(peer, ours, direction="both").run(60)
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up
    assert ours[1].id in peer.events
    drive.link._survey.due = drive.now + 1_000.0  # as if the last reading had taken ten seconds
    read = len(peer.heard)
    drive.run(950)
    asked = [message[2] for message in peer.heard[read:] if message[0] == "REQ"]
    assert asked and all("since" in filter or filter["limit"] < 10 for filter in asked)
    peer.on_event = taken
    drive.run(200)
    assert drive.link.caught_up and ours[0].id in peer.events


def refusing(peer: Any, reason: str, what: str) -> Any:
    """The relay refuses, with this reason, all in whose content there is this."""
    taken = peer.on_event
    peer.on_event = lambda raw: [["OK", raw["id"], False, reason]] if what in raw["content"] else taken(raw)
    return peer


@pytest.mark.parametrize("reason", ["error: no", "auth-required: only its author"])
def test_one_operation_that_is_refused_keeps_no_later_one_from_a_relay_that_is_much_to_read(reason):
    drive = Drive(refusing(Plain(notes(30), cap=100), reason, "bad"), direction="both").run(60)
    drive.link._survey.due = drive.now + 20_000.0  # as if the last reading had taken minutes
    drive.write(signed(content="bad", created_at=WALL)).run(60)
    good = [signed(content=f"good {number}", created_at=WALL + number) for number in range(5)]
    for event in good:
        drive.write(event).run(60)
    assert {event.id for event in good} <= drive.peer.events.keys()
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up


@pytest.mark.parametrize("direction", ["push", "both"])
def test_what_is_refused_for_good_does_not_hide_what_was_refused_for_now(monkeypatch, direction):
    monkeypatch.setattr(room, "PORTION", 2)
    peer = Plain(notes(3), cap=100)
    taken = peer.on_event
    refusing(refusing(peer, "blocked: no", "never"), "rate-limited: later", "late")
    ours = [signed(content="late", created_at=WALL - 5_000)]
    ours += [signed(content=f"never {number}", created_at=WALL - 100 + number) for number in range(10)]
    drive = Drive(peer, ours, direction=direction).run(120)
    peer.on_event = taken
    refusing(peer, "blocked: no", "never")
    drive.run(3_600)
    assert ours[0].id in peer.events
    assert drive.link.caught_up


def test_a_poll_does_not_read_the_whole_relay_because_of_what_it_refuses():
    peer = refusing(Streamless(notes(30), cap=10), "auth-required: who are you", "bad")
    drive = Drive(peer, [signed(content="bad", created_at=WALL - 50)], direction="both").run(300)
    assert drive.link.state is LinkState.DEGRADED_POLL
    drive.link._survey.due = drive.now + 10_000.0
    read = len(peer.heard)
    drive.run(900)
    asked = [message[2] for message in peer.heard[read:] if message[0] == "REQ" and "page" in message[1]]
    assert asked and all("since" in filter or filter["limit"] < 50 for filter in asked)


def test_operations_that_are_refused_for_their_own_sake_do_not_hold_up_a_comparison():
    peer = refusing(Plain(cap=2_000, nips=[1, 77]), "auth-required: only its author", "bad")
    ours = [signed(content="bad" if number % 10 == 0 else "good", created_at=WALL - number) for number in range(600)]
    drive = Drive(peer, ours, direction="both").run(60)
    assert len(peer.events) == 540
    assert len(drive.link.deferred) == 60
