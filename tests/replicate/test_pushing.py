"""What is given to a peer: answered for in full, and nothing that it does not take holds up the rest for ever."""

import itertools
from typing import Any

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer

from anabranch.core import nostr
from anabranch.replicate.states import LinkState


def notes(count: int, content: str = "note") -> list[Any]:
    return [signed(content=f"{content} {number}", created_at=WALL - 1_000 + number) for number in range(count)]


class Small(LogPeer):
    """Hangs up on what is too large, as relays do."""

    message_bytes = 2_000

    @property
    def information(self):
        return {**super().information, "limitation": {"max_message_length": self.message_bytes}}

    def answer(self, message):
        assert len(message) <= self.message_bytes, "it would have hung up"
        return super().answer(message)


@pytest.mark.parametrize("direction", ["push", "both"])
def test_what_is_larger_than_the_peer_reads_is_a_dead_letter_and_the_rest_goes_through(direction):
    large, small = signed(content="x" * 3_000, created_at=WALL), notes(20)
    drive = Drive(Small(), [*small, large], direction=direction).run(60)
    assert drive.peer.events.keys() == {event.id for event in small}
    assert [(letter.id, letter.reason) for letter in drive.buried] == [
        (large.id, "invalid: larger than the 2000 bytes that this relay reads")
    ]
    assert drive.link.caught_up
    another, last = signed(content="y" * 3_000, created_at=WALL), signed(content="last", created_at=WALL)
    drive.write(another, last).run(60)
    assert last.id in drive.peer.events
    assert drive.buried[-1].id == another.id
    assert drive.link.caught_up


def test_a_page_in_which_everything_is_too_large_is_passed():
    drive = Drive(Small(), notes(2), direction="push").run(60)
    drive.write(signed(content="x" * 3_000, created_at=WALL)).run(1)
    assert drive.link.caught_up
    assert drive.link.push.contiguous.position == 3


def test_what_is_sent_again_and_never_answered_ends_the_connection():
    drive = Drive(LogPeer(), notes(2), direction="push").run(60)
    answer, said = drive.peer.on_event, []

    def on_event(raw):
        said.append(raw["id"])
        return [["OK", raw["id"], False, "rate-limited: slow down"]] if len(said) == 1 else []

    drive.peer.on_event = on_event
    late = signed(content="late", created_at=WALL)
    drive.write(late).run(20)
    assert len(said) == 2
    drive.run(30)
    assert "no answer" in drive.link.last_error
    drive.peer.on_event = answer
    drive.run(60)
    assert late.id in drive.peer.events
    assert drive.link.caught_up


class Choosy(LogPeer):
    """Takes some things and does not keep them, and refuses others."""

    def on_event(self, raw):
        if "bad" in raw["content"]:
            return [["OK", raw["id"], False, "blocked: no"]]
        if "gone" in raw["content"]:
            return [["OK", raw["id"], True, ""]]
        return super().on_event(raw)


def test_what_a_peer_refuses_or_does_not_keep_is_no_divergence_and_is_not_sent_again():
    drive = Drive(Choosy(), notes(2), direction="push").run(60)
    for number in range(4):
        drive.write(
            *(signed(content=f"{what} {number}", created_at=WALL) for what in ("bad", "gone", "good", "gone again"))
        ).run(700)
    sent = [message[1]["id"] for message in drive.peer.heard if message[0] == "EVENT"]
    assert len(sent) == len(set(sent))
    assert len(drive.buried) == 4
    assert drive.link.state is LinkState.LIVE and drive.link.repairs == 0
    assert drive.link.caught_up and drive.link.unkept == 12


class Failing(LogPeer):
    """An error for some things, always; while it is `broken` for everything."""

    broken = False
    poison = "poison"
    reason = "error: could not save it"

    def on_event(self, raw):
        if self.broken or self.poison in raw["content"]:
            return [["OK", raw["id"], False, self.reason]]
        return super().on_event(raw)


def poison(number: int = 0) -> Any:
    return signed(content=f"poison {number}", created_at=WALL - 500 + number)


def test_an_error_about_one_operation_holds_up_neither_the_pull_nor_the_rest_of_the_push():
    theirs, ours, bad = notes(30, "theirs"), notes(250, "ours"), poison()
    drive = Drive(Failing(theirs), [*ours, bad], direction="both").run(30)
    assert drive.link.state is LinkState.LIVE
    assert {event.id for event in theirs} <= drive.store.keys()
    assert {event.id for event in ours} <= drive.peer.events.keys()
    assert not drive.link.caught_up and not drive.buried
    assert drive.link.deferred == {bad.id: "error: could not save it"}
    more = notes(3, "later")
    drive.write(*more).run(1)
    assert {event.id for event in more} <= drive.peer.events.keys()


def test_an_operation_that_fails_again_and_again_while_others_are_taken_is_a_dead_letter():
    bad = poison()
    drive = Drive(Failing(), [*notes(3), bad], direction="both").run(1)
    for number in range(20):
        drive.write(*notes(1, f"round {number}")).run(70)
    assert [(letter.id, letter.reason) for letter in drive.buried] == [(bad.id, "error: could not save it")]
    assert drive.link.caught_up and drive.link.unkept == 1


def test_an_operation_that_fails_as_it_is_written_goes_the_same_way_and_the_checkpoint_passes_it():
    drive = Drive(Failing(), notes(3), direction="push").run(1)
    drive.write(poison()).run(1)
    for number in range(20):
        drive.write(*notes(1, f"after {number}")).run(10)
    assert len(drive.buried) == 1
    assert drive.link.push.contiguous.position == len(drive.log)
    assert drive.link.caught_up and drive.link.repairs == 0


@pytest.mark.parametrize("reason", ["error: the disk is full", "rate-limited: slow down"])
@pytest.mark.parametrize("live", [False, True])
def test_a_peer_that_takes_nothing_for_hours_is_still_pulled_from_and_gets_all_when_it_can(reason, live):
    peer = Failing(notes(5, "theirs"))
    peer.reason, peer.broken = reason, not live
    ours = notes(450, "ours")
    drive = Drive(peer, [] if live else ours, direction="both").run(1)
    peer.broken = True
    if live:
        drive.write(*ours)
    drive.run(4 * 3_600)
    assert drive.link.state is LinkState.LIVE
    assert not drive.link.caught_up and not drive.buried
    assert len([frame for frame in peer.heard if frame[0] == "EVENT"]) < 500 + 20_000, "a page, and then a few to try"
    news = notes(2, "news")
    drive.say(*peer.add(*news))
    assert {event.id for event in news} <= drive.store.keys()
    peer.broken = False
    drive.run(400)
    assert {event.id for event in ours} <= peer.events.keys()
    assert drive.link.caught_up


def test_what_the_peer_did_not_take_and_is_deleted_here_is_waited_for_no_more():
    drive = Drive(Failing(), [*notes(3), bad := poison()], direction="both").run(1)
    assert drive.link.deferred
    del drive.store[bad.id]
    drive.run(200)
    assert not drive.link.deferred and drive.link.caught_up


@pytest.mark.parametrize("direction", ["push", "both"])
def test_many_that_fail_do_not_keep_others_from_being_tried(direction):
    bad, ours = [poison(number) for number in range(40)], notes(60, "ours")
    drive = Drive(Failing(), bad, direction=direction).run(1)
    drive.write(*bad[:20], *ours[:30], *bad[20:], *ours[30:]).run(300)
    assert {event.id for event in ours} <= drive.peer.events.keys()
    drive = Drive(Failing(), [*bad, *ours], direction=direction).run(300)
    assert {event.id for event in ours} <= drive.peer.events.keys()


def test_no_checkpoint_is_written_past_what_the_peer_does_not_take():
    bad = poison()
    drive = Drive(Failing(), [*notes(3), bad], direction="both").run(1)
    drive.write(*notes(2, "more")).run(100)
    assert drive.link.deferred
    assert "own" not in {saved.contiguous.stream for saved in drive.saved if saved.contiguous is not None}
    drive.peer.poison = "none"
    drive.run(100)
    assert drive.link.caught_up
    assert drive.link.push.contiguous.position == len(drive.log)


def test_a_log_of_our_own_that_never_rests_keeps_nobody_from_comparing():
    drive = Drive(LogPeer(), direction="push").run(10)
    verified, number = drive.link.verified_at, itertools.count()

    class Endless(LogPeer):
        def on_event(self, raw):
            """While one is taken the next is written."""
            if drive.now < 1_000:
                drive.now += 1.0
                event = signed(content=f"more {next(number)}")
                drive._keep(event.id, nostr.serialise(event))
                drive._do(drive.link.wake(drive.now))
            return super().on_event(raw)

    drive.peer.__class__ = Endless
    drive.write(signed(content="the first"))
    assert next(number) > 900
    assert len([frame for frame in drive.peer.heard if frame[0] == "NEG-OPEN"]) > 3
    drive.run(30)
    assert drive.link.verified_at > verified and drive.link.caught_up and not drive.noted
    assert drive.peer.events.keys() == drive.store.keys()
