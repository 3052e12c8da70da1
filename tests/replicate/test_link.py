"""The link machine: every promise of its table and of its checkpoint, without I/O and in virtual time."""

import json

import pytest
from histories import signed
from link_driving import Drive, FeedPeer, LogPeer
from relay_model import RelayModel

from anabranch.core import nostr
from anabranch.core.checkpoint import PENDING_MAX, Checkpoint
from anabranch.core.nostr import Event
from anabranch.core.scope import Scope
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate.effects import Applied
from anabranch.replicate.spec import Timing
from anabranch.replicate.states import LinkState
from anabranch.store.contract import LinkRecord


def notes(count: int, first: int = 0, said: str = "note"):
    return [signed(content=f"{said} {number}", created_at=1_000 + number) for number in range(first, first + count)]


def at(position: int, message: str = "", epoch: str = "epoch-1") -> ProgressToken:
    return ProgressToken("stream-1", epoch, Position(position), message)


def resumed(position: int, message: str = "", **rest) -> LinkRecord:
    return LinkRecord("up", "ws://peer/", "pull", pull=Checkpoint.at(at(position, message, **rest)))


# --- catching up ---


def test_an_empty_follower_replays_the_whole_log_and_is_live_once_the_digests_are_equal():
    drive = Drive(LogPeer(notes(7))).run(1)
    assert drive.states == [("caught_up", "live")]
    assert drive.link.caught_up
    assert drive.link.pull.contiguous.position == 7
    assert set(drive.store) == set(drive.peer.events)
    assert "NEG-OPEN" in drive.peer.verbs()


def test_a_follower_that_has_something_compares_first_and_fetches_only_what_it_lacks():
    events = notes(40)
    drive = Drive(LogPeer(events), events[:35]).run(1)
    assert set(drive.store) == {event.id for event in events}
    fetched = [one.event.id for page in drive.pages for one in page.arrivals]
    assert sorted(fetched) == sorted(event.id for event in events[35:])
    assert drive.link.pull.contiguous.position == 40


def test_a_resumed_link_asks_from_its_checkpoint_and_compares():
    events = notes(9)
    drive = Drive(LogPeer(events), events[:6], record=resumed(6, events[5].id)).run(1)
    (asked,) = [frame for frame in drive.peer.heard if frame[0] == "CHANGES"]
    assert asked[2]["since"] == 6
    assert drive.link.caught_up
    assert set(drive.store) == {event.id for event in events}


def test_a_log_that_was_restored_after_it_told_of_itself_is_a_gap_and_not_followed():
    class Restored(LogPeer):
        """On its first connection it is of another epoch than it has just said."""

        @property
        def information(self):
            told = super().information
            feed = {**told["changes_feed"], "tokens": True}
            return {**told, "changes_feed": feed | ({"epoch": "epoch-0"} if self.connections <= 1 else {})}

    events = notes(9)
    record = resumed(6, events[5].id, epoch="epoch-0")
    drive = Drive(Restored(events), events[:6], record=record)
    drive.run(1)
    asked = [frame[2]["token"] for frame in drive.peer.heard if frame[0] == "CHANGES"]
    assert asked[0] == {"streamId": "stream-1", "epoch": "epoch-0", "position": "6", "messageCid": ""}
    assert drive.link.gap["reason"] == "epoch_mismatch"
    drive.run(60)
    assert drive.link.caught_up
    assert drive.link.pull.contiguous.epoch == "epoch-1"
    assert set(drive.store) == {event.id for event in events}


def test_what_comes_live_moves_the_checkpoint_with_its_page():
    drive = Drive(LogPeer(notes(3))).run(1)
    drive.say(*drive.peer.add(*notes(4, 3)))
    assert (drive.link.pull.contiguous.position, drive.link.pull.received.position) == (7, 7)
    assert drive.link.caught_up


def test_a_removal_that_a_peer_tells_of_moves_the_checkpoint_and_takes_nothing_away():
    drive = Drive(LogPeer(notes(3))).run(1)
    gone = next(iter(drive.peer.events))
    drive.say(["CHANGES", drive.peer.feeds[0], "DELETED", 4, gone, "expired"])
    assert (drive.link.pull.contiguous.position, drive.link.pull.pending) == (4, ())
    assert gone in drive.store
    assert drive.link.caught_up


@pytest.mark.parametrize(
    ("record", "reason", "why"),
    [
        (resumed(2, epoch="another"), "epoch_mismatch", "its log was restored or begun anew since our checkpoint"),
        (resumed(9), "token_too_new", "its log ends before our checkpoint"),
        (resumed(1), "token_too_old", "its log no longer reaches back to our checkpoint"),
        (resumed(4, "ab" * 32), "message_mismatch", "it no longer knows the operation that our checkpoint stands on"),
    ],
)
def test_after_a_gap_comes_repair_and_never_a_jump(record, reason, why):
    events = notes(6)
    peer = LogPeer(events)
    peer.floor = 4
    drive = Drive(peer, events[:1], record=record).run(1)
    assert drive.states == [("gap", "repairing"), ("caught_up", "live")]
    assert drive.told[0].why == why
    assert drive.link.gap == {
        "requested": record.pull.contiguous.to_wire(),
        "oldestAvailable": at(4).to_wire(),
        "latestAvailable": at(6).to_wire(),
        "reason": reason,
    }
    assert set(drive.store) == {event.id for event in events}
    assert drive.link.pull.contiguous.position == 6
    if record.pull.contiguous.position > 6:  # set back without a word: another generation, so nothing went back in one
        assert drive.link.pull.contiguous.epoch != record.pull.contiguous.epoch


def test_a_link_that_was_in_doubt_when_the_node_stopped_compares_before_it_resumes():
    events = notes(6)
    record = LinkRecord("up", "ws://peer/", "pull", state="repairing", unsure=True, pull=Checkpoint.at(at(6)))
    drive = Drive(LogPeer(events), events[:4], record=record).run(1)
    asked = [verb for verb in drive.peer.verbs() if verb in ("NEG-OPEN", "CHANGES")]
    assert asked[:2] == ["NEG-OPEN", "CHANGES"]
    assert drive.link.caught_up
    assert not drive.link.unsure
    assert len(drive.store) == 6


@pytest.mark.parametrize("direction", ["push", "both"])
def test_after_a_cut_it_is_caught_up_only_once_the_digests_were_equal_again(direction):
    """The peer has lost everything meanwhile, and has a new log."""
    events = notes(5)
    drive = Drive(LogPeer([]), events, direction=direction).run(5)
    assert drive.link.caught_up and len(drive.peer.events) == 5
    drive.cut()
    drive.peer.events.clear()
    drive.peer.log.clear()
    drive.peer.epoch = "epoch-2"
    for _ in range(300):
        drive.run(0.1)
        assert not drive.link.caught_up or len(drive.peer.events) == 5
    assert drive.link.caught_up


# --- checkpoints ---


def test_a_store_that_fails_holds_the_checkpoint_and_the_link_tries_again():
    drive = Drive(LogPeer(notes(5)))
    drive.disk_full = True
    drive.run(2)
    assert drive.link.pull.contiguous is None
    assert "our own store: disk full" in drive.link.last_error
    drive.disk_full = False
    drive.run(60)
    assert drive.link.caught_up
    assert len(drive.store) == 5


def test_what_needs_something_that_is_missing_is_pending_and_holds_the_checkpoint():
    first, child, last = notes(3)
    parent = signed(content="parent")
    drive = Drive(LogPeer([first])).run(1)
    drive.needs[child.id] = parent.id
    drive.say(*drive.peer.add(child, last))
    checkpoint = drive.link.pull
    assert (checkpoint.contiguous.position, checkpoint.received.position) == (1, 3)
    assert [one.blocked.operation for one in checkpoint.pending] == [child.id]
    drive.run(1)
    assert drive.states[-1] == ("closure", "repairing")
    assert f"{child.id} needs ancestry {parent.id}: not here" in drive.told[-1].why
    assert last.id in drive.store
    drive.peer.add(parent)
    drive.run(60)
    assert drive.link.caught_up
    assert drive.link.pull.contiguous.position == 4
    assert not drive.link.pull.pending


def test_more_pending_than_a_hundred_leads_to_repair_and_out_of_it_once_all_can_be_had():
    children, parent = notes(PENDING_MAX + 1), signed(content="parent")
    drive = Drive(LogPeer()).run(1)
    drive.needs |= {child.id: parent.id for child in children}
    drive.say(*drive.peer.add(*children))
    assert drive.states[-1] == ("overflow", "repairing")
    assert drive.link.pull.contiguous is None or drive.link.pull.contiguous.position == 0
    drive.peer.add(parent)
    drive.run(60)
    assert drive.states[-1] == ("caught_up", "live")
    assert drive.link.caught_up and not drive.link.pull.overflows


# --- a feed of one family ---


def test_requests_to_delete_that_a_feed_does_not_bring_come_with_comparisons_and_are_no_divergence():
    one, other, late = (signed(kind=42_061, content=said, created_at=1_000) for said in ("one", "other", "late"))
    first, second = (signed(kind=5, tags=[["e", of.id]], created_at=1_001) for of in (one, other))
    scope = Scope(authors=frozenset({one.pubkey}), kinds=frozenset({42_061}))
    drive = Drive(FeedPeer([one, other, first]), scope=scope).run(10)
    assert drive.link.peer.kind == "feed"
    assert drive.link.caught_up
    assert set(drive.store) == {one.id, other.id, first.id}
    drive.peer.add(second)
    drive.say(*drive.peer.add(late))
    assert late.id in drive.store and second.id not in drive.store
    drive.run(1_000)
    assert second.id in drive.store
    assert drive.link.caught_up
    assert (drive.states, drive.link.repairs) == ([("caught_up", "live")], 0)


def versions(*said: str) -> list[Event]:
    return [signed(kind=42_061, content=text, created_at=1_000) for text in said]


def following_a_feed(*said: str) -> Drive:
    events = versions(*said)
    scope = Scope(authors=frozenset({events[0].pubkey}), kinds=frozenset({42_061}))
    drive = Drive(FeedPeer(events[:-1]), scope=scope).run(1)
    drive.say(*drive.peer.add(events[-1])).run(1)
    assert drive.link.pull.contiguous.message == events[-1].id
    return drive


def test_a_feed_without_an_epoch_that_has_all_in_its_place_is_resumed():
    drive = following_a_feed("one", "two", "three")
    (late,) = versions("late")
    drive.peer.add(late)
    drive.cut().run(10)
    assert late.id in drive.store
    assert (drive.states, drive.link.repairs) == ([("caught_up", "live")], 0)


def test_a_feed_without_an_epoch_that_was_wiped_and_has_the_last_operation_elsewhere_is_noticed():
    drive = following_a_feed("one", "two", "three")
    last, epoch = drive.peer.log[-1], drive.link.pull.contiguous.epoch
    before, after = versions("before", "after")
    drive.peer.events, drive.peer.log = {}, []
    drive.peer.add(before, last, after)
    drive.cut().run(10)
    assert ("gap", "repairing") in drive.states
    assert drive.link.pull.contiguous.epoch != epoch
    assert {before.id, after.id} <= set(drive.store)
    assert drive.link.caught_up


# --- peers that lie ---


def test_a_position_that_goes_back_leads_to_repair_and_is_named():
    drive = Drive(LogPeer(notes(3))).run(1)
    (name,) = drive.peer.feeds
    drive.say(drive.peer.change(name, 2, drive.peer.log[1]))
    assert drive.states[-1] == ("disorder", "repairing")
    assert "went back to position 2 after 3" in drive.link.last_error
    drive.run(60)
    assert drive.states[-1] == ("caught_up", "live")


def test_a_forged_event_stores_nothing_and_moves_nothing():
    drive = Drive(LogPeer(notes(3))).run(1)
    lie = signed(content="lie")
    drive.forged.add(lie.id)
    drive.say(*drive.peer.add(lie))
    assert lie.id not in drive.store
    assert drive.link.pull.contiguous.position == 3
    assert f"sent the event {lie.id}, whose signature does not hold" in drive.link.last_error
    drive.run(120)
    assert drive.link.state is LinkState.REPAIRING
    assert drive.link.pull.contiguous.position == 3


class Withholding(LogPeer):
    """Its digest names what it does not give."""

    withheld = ""

    def on_req(self, name, *asked):
        return [
            frame for frame in super().on_req(name, *asked) if frame[0] != "EVENT" or frame[2]["id"] != self.withheld
        ]

    def change(self, name, position, event):
        return ["NOTICE", "nothing"] if event.id == self.withheld else super().change(name, position, event)


def test_a_tail_that_is_withheld_is_found_by_the_next_comparison_and_named():
    drive = Drive(Withholding(notes(3))).run(1)
    hidden = signed(content="hidden")
    drive.peer.withheld = hidden.id
    drive.say(*drive.peer.add(hidden))
    assert drive.link.caught_up
    drive.run(600)
    assert ("diverged", "repairing") in drive.states
    assert drive.link.state is LinkState.REPAIRING
    assert f"names 1 operations that it does not give or keep, {hidden.id} first" in drive.link.last_error
    drive.peer.withheld = ""
    drive.run(600)
    assert drive.link.caught_up
    assert hidden.id in drive.store


@pytest.mark.parametrize(
    "raw",
    [
        {"id": "00" * 32},
        json.loads(nostr.serialise(signed(kind=7, content="out of scope"))),
        {**json.loads(nostr.serialise(signed(content="x"))), "content": "changed"},
    ],
)
def test_what_is_no_event_or_out_of_scope_is_not_taken(raw):
    drive = Drive(LogPeer(notes(2)), scope=Scope(kinds=frozenset({1}))).run(1)
    (name,) = drive.peer.feeds
    drive.say(["CHANGES", name, "EVENT", 3, raw])
    assert drive.states[-1] == ("disorder", "repairing")
    assert drive.link.pull.contiguous.position == 2


# --- pauses ---


def test_a_peer_that_cannot_be_reached_is_polled_and_found_again_by_itself():
    drive = Drive(LogPeer(notes(2))).run(1)
    drive.reachable = False
    drive.cut().run(60)
    assert drive.states[-1] == ("exhausted", "degraded_poll")
    pauses = [later - sooner for sooner, later in zip(drive.dials[5:], drive.dials[6:], strict=False)]
    assert pauses and all(5 <= pause <= 15 for pause in pauses)
    drive.peer.add(*notes(2, 2))
    drive.reachable = True
    drive.run(20)
    assert drive.states[-1] == ("caught_up", "live")
    assert len(drive.store) == 4


def test_flapping_grows_the_pause_and_only_a_steady_link_shortens_it():
    drive = Drive(LogPeer(notes(1)), timing=Timing(reconnects=100)).run(1)
    pauses = []
    for _ in range(5):
        drive.cut()
        pauses.append(drive.link.retry_at - drive.now)
        drive.run(pauses[-1] + 1)
        assert drive.link.caught_up
    assert pauses == sorted(pauses)
    assert pauses[-1] > 8 * pauses[0]
    drive.run(Timing().steady + 1)
    drive.cut()
    assert drive.link.retry_at - drive.now == pauses[0]


def test_a_peer_that_falls_silent_is_left():
    class Mute(LogPeer):
        def on_changes(self, name, asked):
            return []

    drive = Drive(Mute(notes(2))).run(31)
    assert "no answer for 30 s while replaying the stream" in drive.link.last_error


# --- pushing ---


def test_what_the_peer_lacks_is_given_first_and_then_what_is_written():
    events = notes(5)
    drive = Drive(LogPeer(events[3:]), events, direction="push").run(1)
    assert set(drive.peer.events) == {event.id for event in events}
    assert drive.link.caught_up
    more = notes(3, 5)
    drive.write(*more)
    assert {event.id for event in more} <= set(drive.peer.events)
    assert drive.link.push.contiguous.position == 8
    assert drive.link.caught_up


def test_a_push_goes_on_from_its_checkpoint_after_a_cut():
    drive = Drive(LogPeer(), notes(3), direction="push").run(1)
    drive.cut()
    drive.write(*notes(2, 3))
    drive.peer.heard.clear()
    drive.run(5)
    given = [frame[1]["content"] for frame in drive.peer.heard if frame[0] == "EVENT"]
    assert given == ["note 3", "note 4"]


class Choosy(LogPeer):
    def __init__(self):
        super().__init__()
        self.reasons = {}

    def on_event(self, raw):
        reason = self.reasons.get(raw["content"])
        return super().on_event(raw) if reason is None else [["OK", raw["id"], False, reason]]


def test_a_refusal_for_good_is_a_dead_letter_and_one_for_now_holds_the_checkpoint():
    drive = Drive(Choosy(), direction="push").run(1)
    drive.peer.reasons = {"note 0": "blocked: no", "note 1": "rate-limited: slow down"}
    first, second, third = notes(3)
    drive.write(first, second, third)
    assert [(one.id, one.reason) for one in drive.buried] == [(first.id, "blocked: no")]
    assert drive.link.push.contiguous.position == 0
    assert not drive.link.caught_up
    drive.peer.reasons = {}
    drive.run(3)
    assert drive.link.push.contiguous.position == 3
    assert set(drive.peer.events) == {second.id, third.id}


def test_both_ways_nothing_that_came_from_the_peer_goes_back():
    drive = Drive(LogPeer(notes(4)), notes(2, 10, "mine"), direction="both").run(1)
    drive.say(*drive.peer.add(*notes(3, 4)))
    drive.run(1)
    given = {frame[1]["content"] for frame in drive.peer.heard if frame[0] == "EVENT"}
    assert given == {"mine 10", "mine 11"}
    assert set(drive.store) == set(drive.peer.events)


def test_a_log_of_our_own_that_was_restored_is_compared_before_anything_is_given():
    drive = Drive(LogPeer(), notes(3), direction="push").run(1)
    drive.own = type(drive.own)("own", "restored", Position(1), drive.own.tip)
    drive.write(signed(content="after"))
    assert ("gap", "repairing") in drive.states
    drive.run(5)
    assert drive.link.caught_up
    assert drive.link.push.contiguous.epoch == "restored"
    assert len(drive.peer.events) == 4


def test_a_page_that_reaches_the_disk_after_its_connection_is_gone_counts_unless_all_was_given_up():
    drive = Drive(LogPeer(notes(3))).run(1)
    domain = drive.link.pull.contiguous.domain

    def written(position: int) -> Applied:
        return Applied(1_000_000, 1, checkpoint=Checkpoint.at(ProgressToken(*domain, Position(position))))

    for position, stands_at in ((5, 5), (4, 5)):
        assert drive.link.applied(written(position), drive.now) == []
        assert drive.link.pull.contiguous.position == stands_at
    drive.link.reset(drive.now)
    drive.link.applied(written(6), drive.now)
    assert drive.link.pull.contiguous is None


def test_a_peer_that_says_what_nobody_asked_for_without_an_end_is_left(monkeypatch):
    monkeypatch.setattr("anabranch.replicate.link.UNASKED_MAX", 100)
    drive = Drive(LogPeer(notes(3))).run(1)
    for _ in range(3):
        drive.say(*[["EOSE", "never asked for"]] * 60)
        drive.say(*drive.peer.add(signed(content=f"late {drive.now}", created_at=1_800_000_000)))
    assert drive.link.failures == 0
    drive.say(*[["EOSE", "never asked for"]] * 101)
    assert "nobody had asked for" in drive.link.last_error


# --- plain relays ---


class Plain(RelayModel):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.information = {}
        self.live = {}

    def greet(self):
        self.live = {}
        return super().greet()

    def on_req(self, name, *asked):
        if "stream" in name:
            self.live[name] = asked
        return super().on_req(name, *asked)

    def add(self, *events):
        said = []
        for event in events:
            self.events[event.id] = event
            said += [
                ["EVENT", name, json.loads(nostr.serialise(event))]
                for name, asked in self.live.items()
                if any(event in self.matching(filter) for filter in asked)
            ]
        return said


class NoNegentropy(Plain):
    on_neg_open = None

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.information = {"supported_nips": [1]}


@pytest.mark.parametrize("kind", [Plain, NoNegentropy])
def test_a_plain_relay_is_compared_then_followed_with_overlap(kind):
    events = notes(30)
    drive = Drive(kind(events, cap=12), events[:3]).run(1)
    assert drive.link.caught_up, drive.link.last_error
    late = signed(content="late", created_at=1_800_000_001)
    drive.say(*drive.peer.add(late))
    assert late.id in drive.store
    drive.connected = False
    missed = signed(content="missed", created_at=1_800_000_002)
    drive.peer.add(missed)
    drive.cut().run(15)
    assert missed.id in drive.store
    assert drive.link.caught_up


@pytest.mark.parametrize("kind", [Plain, NoNegentropy])
def test_a_relay_that_was_wiped_and_used_again_is_noticed_and_filled_again(kind):
    drive = Drive(kind(notes(3)), notes(2, 10, "mine"), direction="both").run(1)
    drive.say(*drive.peer.add(signed(content="live", created_at=1_800_000_001)))
    drive.run(1)
    epoch = drive.link.pull.contiguous.epoch
    drive.peer.events = {}
    drive.peer.add(signed(content="new", created_at=1_800_000_003))
    drive.cut().run(10)
    assert ("gap", "repairing") in drive.states
    assert drive.link.pull.contiguous.epoch != epoch
    assert drive.link.caught_up, drive.link.last_error
    assert set(drive.store) == set(drive.peer.events)
    assert len(drive.store) == 7


def test_a_plain_relay_is_given_a_new_connection_before_it_tires_of_the_old_one(monkeypatch):
    monkeypatch.setattr("anabranch.replicate.link.RENEW_AFTER", 40)
    drive = Drive(Plain(), notes(30), direction="push").run(1)
    drive.write(*notes(30, 30)).write(*notes(30, 60)).run(1)
    assert len(drive.peer.events) == 90
    assert drive.peer.connections == 2
    assert drive.link.caught_up
    assert drive.link.failures == 0


# --- the operator ---


def test_a_paused_link_does_nothing_until_it_is_resumed():
    drive = Drive(LogPeer(notes(2))).run(1).tell("pause")
    dials = len(drive.dials)
    drive.run(1_000)
    assert len(drive.dials) == dials
    assert drive.link.state is LinkState.PAUSED
    drive.peer.add(*notes(1, 2))
    drive.tell("resume").run(1)
    assert drive.link.caught_up
    assert len(drive.store) == 3


def test_a_reset_link_begins_as_if_it_were_new():
    drive = Drive(LogPeer(notes(2))).run(1)
    manner = drive.link._manner
    manner._pages, manner._hang_ups = True, 2  # as after a peer that would not reconcile
    drive.tell("reset")
    assert not manner.refuses(drive.link.peer)
    assert drive.states[-2:] == [("reset", "initial"), ("caught_up", "live")]


def test_a_repair_on_command_compares_everything():
    drive = Drive(LogPeer(notes(2))).run(1)
    drive.store.clear()
    drive.tell("repair").run(1)
    assert drive.states[-2:] == [("repair", "repairing"), ("caught_up", "live")]
    assert len(drive.store) == 2


# --- a live log of which nothing is for us ---


def test_what_a_live_log_has_passed_moves_the_checkpoint_and_is_saved():
    drive = Drive(LogPeer(notes(7))).run(1)
    drive.say(["CHANGES", drive.peer.feeds[0], "PASSED", 12])
    assert drive.link.pull.contiguous.position == 12 and drive.link.caught_up
    assert drive.link.pull.contiguous.message  # still what the peer must have
    pages = len(drive.pages)
    drive.say(["CHANGES", drive.peer.feeds[0], "PASSED", 12])
    assert len(drive.pages) == pages


@pytest.mark.parametrize("position", [3, 0])
def test_a_log_that_passes_back_is_left(position: int):
    drive = Drive(LogPeer(notes(7))).run(1)
    drive.say(["CHANGES", drive.peer.feeds[0], "PASSED", position])
    assert drive.states[-1] == ("disorder", "repairing")
    assert drive.link.pull.contiguous.position == 7
