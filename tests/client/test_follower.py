"""The follower, driven by hand: what it asks for, what it believes, and when it gives up."""

from typing import Any

import pytest
from driving import AT, INFO, OWNER, dialled, event, follower, info, live, of, owed, raws, say, sent
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client import effects as do
from anabranch.client.bootstraps import Wanted
from anabranch.client.file import Checkpoint
from anabranch.client.follower import TRANSITIONS, Cue, Follower, State, Timing
from anabranch.core.operation import Family

# --- the table ---


def test_every_state_is_reached_and_every_state_but_the_last_can_be_left():
    assert set(TRANSITIONS) == set(State)
    reached = {to for row in TRANSITIONS.values() for to in row.values()}
    assert reached == set(State)
    for state, row in TRANSITIONS.items():
        assert (Cue.STOP in row) == (Cue.LOST in row) == (state is not State.STOPPED)


# --- bootstrap and tail ---


def test_from_nothing_it_bootstraps_and_then_follows_from_there():
    machine = follower()
    (request,) = sent(dialled(machine))
    boot = request[1]
    assert request == ["CHANGES", boot, {"mode": "bootstrap", "kinds": [42061], "authors": [OWNER]}]
    assert machine.state is State.BOOTSTRAPPING
    assert say(machine, "CHANGES", boot, "STATUS", {"mode": "bootstrap", "snapshot_seq": 77}) == []
    say(machine, "CHANGES", boot, "SNAPSHOT", event(1))
    say(machine, "NOTICE", "hello")
    say(machine, "CHANGES", boot, "SNAPSHOT", event(2))
    effects = say(machine, "CHANGES", boot, "EOSE", 77)
    assert effects[:2] == [do.Stage(raws(1, 2)), do.Apply(77, "s", "e")]
    (tail,) = sent(effects)
    assert tail[2] == {"mode": "tail", "since": 77, "kinds": [42061], "authors": [OWNER], "live": True}
    assert machine.state is State.REPLAYING
    effects = say(machine, "CHANGES", tail[1], "EOSE", 80)
    assert of(do.Apply, effects) == [do.Apply(80, "s", "e")]
    assert machine.state is State.LIVE


def test_nothing_is_applied_before_the_bootstrap_is_whole():
    machine = follower()
    boot = sent(dialled(machine))[0][1]
    effects = say(machine, "CHANGES", boot, "STATUS", {"snapshot_seq": 5})
    for number in range(1_000):
        effects += say(machine, "CHANGES", boot, "SNAPSHOT", event(number))
        effects += machine.flush()
    assert not of(do.Apply, effects)
    assert sum(len(stage.events) for stage in of(do.Stage, effects)) >= 768  # they are proven while more arrive


@pytest.mark.parametrize(
    "frames",
    [
        [("STATUS", {"snapshot_seq": 5}), ("SNAPSHOT", event(1)), ("EOSE", 6)],
        [("STATUS", {"snapshot_seq": 5}), ("EOSE", 4)],
        [("STATUS", {"snapshot_seq": 5}), ("STATUS", {"snapshot_seq": 5})],
        [("STATUS", {"snapshot_seq": 5}), ("EVENT", 3, event(1))],
        [("STATUS", {})],
        [("STATUS", {"snapshot_seq": "5"})],
        [("SNAPSHOT", event(1))],
        [("EOSE", 5)],
        [("STATUS", {"snapshot_seq": 5}), ("EOSE", None)],
        [("ERR", "snapshot CHANGES currently requires exactly one author")],
        [("LATER",)],
    ],
)
def test_a_bootstrap_that_contradicts_itself_is_left_and_nothing_is_applied(frames: list[tuple]):
    machine = follower()
    boot = sent(dialled(machine))[0][1]
    effects = [effect for frame in frames for effect in say(machine, "CHANGES", boot, *frame)]
    assert not of(do.Apply, effects)
    assert of(do.Discard, effects) and of(do.HangUp, effects)
    assert machine.state is State.OFFLINE
    assert machine.last_error
    assert machine.checkpoint is None


def test_from_a_checkpoint_it_resumes():
    machine = follower(checkpoint=AT)
    (request,) = sent(dialled(machine))
    assert request[2]["since"] == 50
    assert machine.state is State.REPLAYING


def test_all_that_arrived_at_once_is_one_page():
    machine, tail = live()
    for seq in (61, 62, 65):
        assert say(machine, "CHANGES", tail, "EVENT", seq, event(seq)) == []
    assert not machine.caught_up
    assert machine.flush()[:2] == [do.Stage(raws(61, 62, 65)), do.Apply(65, "s", "e")]
    assert machine.flush() == []


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=30))
def test_the_checkpoint_never_moves_backwards_whatever_the_relay_says(said: list[tuple[int, bool]]):
    machine, tail = live()
    reached = 60
    for seq, flush in said:
        say(machine, "CHANGES", tail, "EVENT", seq, event(seq))
        if flush:
            for apply in of(do.Apply, machine.flush()):
                assert apply.position >= reached
                reached = apply.position
    machine.flush()
    assert machine.checkpoint == Checkpoint("s", "e", max(60, *(seq for seq, _ in said)))


# --- gaps ---


@pytest.mark.parametrize(
    "feed, forgets",
    [
        ({"min_seq": 52}, False),  # 51 is gone, and we have not had it
        ({"epoch": "f"}, True),
        ({"stream_id": "t"}, True),
        ({"max_seq": 49}, True),
    ],
)
def test_a_checkpoint_that_is_of_no_use_is_told_and_answered_by_a_bootstrap(feed: dict[str, Any], forgets: bool):
    machine = follower(checkpoint=AT)
    effects = dialled(machine, info(**feed))
    assert sent(effects)[0][2]["mode"] == "bootstrap"
    assert bool(of(do.NewLog, effects)) == forgets
    (told,) = of(do.Told, effects)
    assert (told.state, bool(told.why)) == ("bootstrapping", True)


@pytest.mark.parametrize("feed", [{"min_seq": 51}, {"min_seq": 50}, {"max_seq": 50}, {"max_seq": None}])
def test_a_checkpoint_just_within_the_log_is_resumed_from(feed: dict[str, Any]):
    assert sent(dialled(follower(checkpoint=AT), info(**feed)))[0][2]["since"] == 50


@pytest.mark.parametrize(
    "text, forgets", [("checkpoint too old: min_seq is 90", False), ("checkpoint too new: max_seq is 3", True)]
)
def test_a_gap_that_shows_while_following_is_answered_by_a_bootstrap(text: str, forgets: bool):
    machine, tail = live()
    say(machine, "CHANGES", tail, "EVENT", 61, event(61))
    effects = say(machine, "CHANGES", tail, "ERR", text)
    assert of(do.Apply, effects)[0].position == 61  # what had come is applied
    assert bool(of(do.NewLog, effects)) == forgets
    assert machine.state is State.BOOTSTRAPPING
    assert say(machine, "CHANGES", tail, "EVENT", 62, event(62)) == []  # of a feed that is over
    boot = sent(effects)[0][1]
    say(machine, "CHANGES", boot, "STATUS", {"snapshot_seq": 95})
    effects = say(machine, "CHANGES", boot, "EOSE", 95)
    assert of(do.Apply, effects)[0].position == 95


def test_a_relay_without_stream_and_epoch_is_followed_by_its_positions_alone():
    machine = follower(checkpoint=Checkpoint("", "", 50))
    bare = {"changes_feed": {"min_seq": 3}, "snapshot_sync": {"changes_feed": True}}
    assert sent(dialled(machine, bare))[0][2]["since"] == 50


# --- authentication ---


def private(information: dict[str, Any] = INFO) -> dict[str, Any]:
    return {**information, "limitation": {"auth_required": True}}


@pytest.mark.parametrize("first", ["challenge", "information"])
def test_a_private_relay_is_answered_whichever_comes_first(first: str):
    machine = follower()
    machine.tick(0.0)
    if first == "challenge":
        assert say(machine, "AUTH", "riddle") == []
        effects = machine.opened(private(), 0.0)
    else:
        assert sent(machine.opened(private(), 0.0)) == []
        effects = say(machine, "AUTH", "riddle")
    assert of(do.Authenticate, effects) == [do.Authenticate("riddle")]
    assert machine.state is State.AUTHENTICATING
    machine.answering("1" * 64)
    assert sent(say(machine, "OK", "1" * 64, True, ""))[0][0] == "CHANGES"


def test_an_access_key_goes_before_the_answer():
    machine = follower(access_key="sk_key")
    machine.tick(0.0)
    say(machine, "AUTH", "riddle")
    assert sent(machine.opened(private(), 0.0)) == [["TOKEN", "sk_key"]]
    assert say(machine, "TOKEN", "sk_key", True, "") == [do.Authenticate("riddle")]


@pytest.mark.parametrize(
    "frame",
    [("TOKEN", "sk_key", False, "token-invalid: access key rejected"), ("OK", "1" * 64, False, "restricted: no")],
)
def test_a_refusal_is_told_in_its_words(frame: tuple):
    machine = follower(access_key="sk_key")
    machine.tick(0.0)
    say(machine, "AUTH", "riddle")
    machine.opened(private(), 0.0)
    if frame[0] == "OK":
        say(machine, "TOKEN", "sk_key", True, "")
        machine.answering("1" * 64)
    say(machine, *frame)
    assert machine.state is State.OFFLINE
    assert frame[3] in machine.last_error


def test_a_relay_that_gives_a_new_challenge_with_its_refusal_gets_an_answer_to_that():
    machine = follower()
    machine.tick(0.0)
    say(machine, "AUTH", "riddle")
    assert do.Authenticate("riddle") in machine.opened(private(), 0.0)
    machine.answering("1" * 64)
    assert say(machine, "AUTH", "another riddle") == []
    assert say(machine, "OK", "1" * 64, False, "auth-required: too late") == [do.Authenticate("another riddle")]
    machine.answering("2" * 64)
    assert sent(say(machine, "OK", "2" * 64, True, ""))[0][0] == "CHANGES"


def test_a_relay_that_asks_only_when_asked_gets_an_answer_too():
    machine = follower()
    machine.tick(0.0)
    say(machine, "AUTH", "riddle")
    boot = sent(machine.opened(INFO, 0.0))[0][1]
    effects = say(machine, "CHANGES", boot, "ERR", "auth-required: authentication required for snapshot changes")
    assert do.Authenticate("riddle") in effects
    machine.answering("1" * 64)
    boot = sent(say(machine, "OK", "1" * 64, True, ""))[0][1]
    say(machine, "CHANGES", boot, "ERR", "auth-required: authentication required for snapshot changes")
    assert machine.state is State.OFFLINE  # not twice


def test_a_relay_that_lets_everybody_read_is_told_who_writes():
    machine, _ = live()
    say(machine, "AUTH", "riddle")
    machine.wake()
    machine.owed(owed(1), 256, 0.0)
    assert do.Authenticate("riddle") in say(machine, "OK", "e1", False, "auth-required: who are you")
    machine.answering("1" * 64)
    machine.tick(1.0)
    assert say(machine, "OK", "1" * 64, True, "", now=1.0) == [] or machine.state is State.LIVE
    machine.owed(owed(1), 256, 1.0)
    assert do.Authenticate("riddle") not in say(machine, "OK", "e1", False, "auth-required: who are you", now=1.0)
    assert machine.state is State.LIVE


# --- losing and trying again ---


def test_pauses_double_and_only_a_steady_connection_shortens_them():
    machine, now, pauses = follower(checkpoint=AT), 0.0, []
    for _ in range(8):
        tail = sent(dialled(machine, now=now))[0][1]
        say(machine, "CHANGES", tail, "EOSE", 60, now=now)  # it comes up each time, and goes away at once
        machine.lost("flapping", now + 1)
        pauses.append(machine.retry_at - now - 1)
        now = machine.retry_at
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    tail = sent(dialled(machine, now=now))[0][1]
    say(machine, "CHANGES", tail, "EOSE", 60, now=now)
    machine.lost("after an hour", now + 3600)
    assert machine.retry_at - now - 3600 == 1


def test_jitter_makes_a_pause_shorter_by_up_to_a_half():
    machine = Follower(Family.SNAPSHOT, OWNER, None, None, Timing(), lambda: 0.0)
    machine.tick(0.0)
    machine.lost("gone", 0.0)
    assert machine.retry_at == 0.5


def test_a_relay_of_another_kind_is_told_and_hardly_ever_tried():
    machine = follower(Family.REVISION)
    dialled(machine, {**INFO, "revision_sync": {}})
    assert "does not serve revision sync" in machine.last_error
    assert machine.retry_at == 30


def test_silence_while_something_is_awaited_is_a_loss():
    machine = follower()
    dialled(machine)
    assert machine.deadline == 30
    assert machine.tick(29.9) == []
    machine.tick(30.0)
    assert machine.state is State.OFFLINE
    machine, _ = live()
    assert machine.deadline is None  # nothing is awaited: pings are the socket's


@pytest.mark.parametrize("message", [b"", b"{}", b"[", b'["EVENT"', b"\xff", b"[]", b"[1]", b'["CHANGES"]', b"null"])
def test_nonsense_is_a_loss_or_nothing(message: bytes):
    machine, _ = live()
    before = machine.checkpoint
    machine.receive(message, 0.0)
    assert machine.state in (State.OFFLINE, State.LIVE)
    assert machine.checkpoint == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from([Family.SNAPSHOT, Family.REVISION]),
    st.lists(
        st.lists(
            st.sampled_from(
                [
                    "CHANGES",
                    "EVENT",
                    "EOSE",
                    "OK",
                    "AUTH",
                    "TOKEN",
                    "NEG-MSG",
                    "NEG-STATUS",
                    "NEG-ERR",
                    "CLOSED",
                    "EVENTS",
                ]
            )
            | st.sampled_from(["boot-1", "tail-1", "tail-2", "boot-1-fetch", "STATUS", "ERR", "DELETED", "SNAPSHOT"])
            | json_values,
            max_size=6,
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_no_message_of_a_relay_breaks_the_machine(family: Family, frames: list[list[Any]], resumes: bool):
    machine = follower(family, AT if resumes else None)
    dialled(machine)
    for frame in frames:
        say(machine, *frame)
        machine.flush()
        machine.tick(1.0)
        assert machine.state in State
        assert machine.checkpoint is None or machine.checkpoint.position >= (50 if resumes else 0)


# --- publishing ---


def test_what_is_owed_is_sent_after_the_replay_and_acknowledged_in_one_piece():
    machine = follower(checkpoint=AT)
    tail = sent(dialled(machine))[0][1]
    effects = say(machine, "CHANGES", tail, "EOSE", 60)
    assert of(do.LoadOwed, effects) == [do.LoadOwed(256, True)]
    effects = machine.owed(owed(1, 2), 256, 0.0)
    assert [effect.message for effect in effects] == [b'["EVENT",{1}]', b'["EVENT",{2}]']
    say(machine, "OK", "e1", True, "stored: snapshot e1")
    say(machine, "OK", "e2", False, "duplicate: snapshot already exists")
    assert not machine.caught_up
    assert machine.flush() == [do.Acknowledge((("v1", "e1"), ("v2", "e2")))]
    assert machine.caught_up


def test_a_window_bounds_what_is_under_way():
    machine, _ = live()
    assert machine.wake() == [do.LoadOwed(256, False)]
    machine.owed(owed(*range(256)), 256, 0.0)
    assert machine.wake() == []
    say(machine, "OK", "e0", True, "")
    assert of(do.LoadOwed, machine.flush()) == [do.LoadOwed(1, False)]


@pytest.mark.parametrize("reason", ["invalid: no", "blocked: no", "restricted: no", "unsupported: no", "because", ""])
def test_a_refusal_for_good_is_remembered_with_its_reason(reason: str):
    machine, _ = live()
    machine.wake()
    machine.owed(owed(1), 256, 0.0)
    (refused,) = say(machine, "OK", "e1", False, reason)
    assert refused.version == "v1"
    assert refused.reason
    assert machine.caught_up


@pytest.mark.parametrize("reason", ["rate-limited: slow down", "error: try again", "auth-required: who are you"])
def test_a_refusal_for_now_is_tried_again_after_pauses_that_double(reason: str):
    machine, _ = live()
    machine.wake()
    now = 0.0
    for pause in (1, 2, 4, 8, 16, 30, 30):
        machine.owed(owed(1), 256, now)
        assert say(machine, "OK", "e1", False, reason, now=now) == []
        assert not machine.caught_up
        assert machine.deadline == now + pause
        assert machine.tick(now + pause - 0.1) == []
        now += pause
        assert machine.tick(now) == [do.LoadOwed(256, True)]


def test_a_version_without_an_answer_is_a_loss():
    machine, _ = live()
    machine.wake()
    machine.owed(owed(1), 256, 0.0)
    machine.tick(30.0)
    assert machine.state is State.OFFLINE


def test_an_ok_for_something_else_is_nothing():
    machine, _ = live()
    assert say(machine, "OK", "e9", True, "") == []
    assert machine.flush() == []


# --- gaps, names and what is awaited ---


def test_a_second_gap_in_a_row_is_a_loss_and_one_after_a_steady_while_is_none():
    machine, tail = live()
    boot = sent(say(machine, "CHANGES", tail, "ERR", "checkpoint too old: min_seq is 90", now=1.0))[0][1]
    say(machine, "CHANGES", boot, "STATUS", {"snapshot_seq": 95}, now=1.0)
    tail = sent(say(machine, "CHANGES", boot, "EOSE", 95, now=1.0))[0][1]
    say(machine, "CHANGES", tail, "EOSE", 95, now=1.0)
    assert machine.state is State.LIVE
    boot = sent(say(machine, "CHANGES", tail, "ERR", "checkpoint too old: min_seq is 99", now=70.0))[0][1]
    say(machine, "CHANGES", boot, "STATUS", {"snapshot_seq": 99}, now=70.0)
    tail = sent(say(machine, "CHANGES", boot, "EOSE", 99, now=70.0))[0][1]
    say(machine, "CHANGES", tail, "ERR", "checkpoint too old: min_seq is 120", now=70.0)
    assert machine.state is State.OFFLINE
    assert "right after a bootstrap" in machine.last_error
    assert machine.retry_at > 70.0


def test_what_had_come_before_the_feed_was_refused_is_applied_because_the_checkpoint_has_moved():
    machine, tail = live()
    say(machine, "CHANGES", tail, "EVENT", 61, event(61))
    effects = say(machine, "CHANGES", tail, "ERR", "error: something else")
    assert machine.state is State.OFFLINE
    assert [type(effect) for effect in effects][:3] == [do.Stage, do.Apply, do.Discard]
    assert machine.checkpoint.position == 61


def test_a_frame_without_a_name_is_nobodys_feed():
    machine = follower(checkpoint=AT)
    machine.tick(0.0)
    assert say(machine, "CHANGES", "", "EVENT", 99, event(1)) == []
    assert machine.flush() == []
    assert machine.state is State.CONNECTING
    assert machine.checkpoint == AT


def test_a_fetch_of_ancestors_has_a_deadline_that_only_its_own_frames_put_off():
    machine, _ = live(Family.REVISION)
    machine.wake()
    machine.owed([], 256, 0.0)
    (request,) = sent(machine.wanted([Wanted("c" * 64)], 0.0))
    assert machine.deadline == 30
    say(machine, "NOTICE", "still there", now=20.0)
    assert machine.deadline == 30
    say(machine, "EVENTS", request[1], [event(1)], now=20.0)
    assert machine.deadline == 50
    machine.tick(50.0)
    assert machine.state is State.OFFLINE
    assert "a fetch was left without an answer" in machine.last_error


def test_what_is_wanted_is_looked_up_again_when_more_came_to_be_wanted_meanwhile():
    machine, _ = live(Family.REVISION)
    assert do.LoadWanted(256) in machine.wake()
    assert do.LoadWanted(256) not in machine.wake()
    assert machine.wanted([], 0.0) == [do.LoadWanted(256)]
    assert machine.wanted([], 0.0) == []


def test_a_duplicate_of_a_revision_is_a_claim_that_is_to_be_shown():
    machine, _ = live(Family.REVISION)
    machine.wake()
    machine.wanted([], 0.0)
    machine.owed(owed(1, 2), 256, 0.0)
    say(machine, "OK", "e1", True, "")
    say(machine, "OK", "e2", False, "duplicate: have it")
    assert machine.flush() == [do.Acknowledge((("v1", "e1"), ("v2", None))), do.LoadWanted(256)]
    assert not machine.caught_up
