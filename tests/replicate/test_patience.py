"""Who talks and does not answer is silent: it is named, left and tried again. Who is slow and gets on is waited for."""

from typing import Any, ClassVar

import pytest
from histories import signed
from link_driving import WALL, Drive, FeedPeer, LogPeer
from relay_model import RelayModel

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.nostr import Event, Keys
from anabranch.core.scope import Scope
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate.identity import Identity
from anabranch.replicate.patience import PUT_OFF_MAX
from anabranch.store.contract import LinkRecord

NOTES = [signed(content=f"n{number}", created_at=1_000 + number) for number in range(5)]
CHATTER = 20.0  # seconds, less than the patience


def chat(drive: Drive, seconds: float) -> Drive:
    """Meanwhile the peer says something on its stream again and again."""
    end = drive.now + seconds
    while drive.now < end:
        drive.run(CHATTER)
        drive.say(*(["CHANGES", name, "PASSED", len(drive.peer.log)] for name in drive.peer.feeds))
    return drive


class Mute(LogPeer):
    """Answers no comparison."""

    def on_neg_open(self, *rest: Any) -> list[Any]:
        return []


def test_a_comparison_that_is_not_answered_ends_though_the_stream_goes_on() -> None:
    drive = chat(Drive(Mute(NOTES)), 300)
    assert drive.link.caught_up, "its pages were not read instead"
    assert drive.link.round is None


class Forgetful(LogPeer):
    """Forgets to answer for what it is given once."""

    forgets = False

    def on_event(self, raw: dict[str, Any]) -> list[Any]:
        if self.forgets:
            self.forgets = False
            return []
        return super().on_event(raw)


def forgetful(**rest: Any) -> tuple[Drive, Event]:
    drive = Drive(Forgetful(NOTES), direction="both", **rest).run(10)
    assert drive.link.caught_up
    drive.peer.forgets = True
    given = signed(content="forgotten")
    drive.write(given)
    return drive, given


def test_an_answer_to_a_push_that_is_lost_ends_in_words_and_it_is_given_again() -> None:
    drive, given = forgetful()
    chat(drive, 120)
    assert "no answer for 30 s to what it was given" in [noted.why for noted in drive.noted]
    assert given.id in drive.peer.events
    assert drive.link.caught_up


def test_an_answer_to_a_push_that_is_lost_is_missed_while_comparisons_get_on() -> None:
    drive, given = forgetful()
    drive.link._compare_at = drive.now
    chat(drive, 120)
    assert given.id in drive.peer.events


class ElsewhereForEver(FeedPeer):
    """Asked for one position, it talks of others."""

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        return [] if "limit" in asked else super().on_changes(name, asked)


def test_a_peer_that_talks_of_other_positions_than_it_was_asked_for_is_left() -> None:
    event = signed(kind=40_001, tags=[["d", "x"]], created_at=WALL)
    scope = Scope(authors=frozenset([event.pubkey]), kinds=frozenset([event.kind]))
    known = Checkpoint.at(ProgressToken("relay:ws://peer/", "derived-x", Position(5), event.id))
    peer = ElsewhereForEver([event])
    drive = Drive(peer, [event], scope=scope, record=LinkRecord("up", "ws://peer/", "pull", pull=known)).run(1)
    (asked,) = [frame[1] for frame in peer.heard if frame[0] == "CHANGES"]
    for _ in range(3):
        drive.run(CHATTER)
        drive.say(peer.change(asked, 7, event))
    assert drive.noted[0].why == "no answer for 30 s while asking for an operation that the peer must have"


class Guarded(RelayModel):
    """Wants to know who asks, and is never content."""

    information: ClassVar = {"limitation": {"auth_required": True}}

    def on_token(self, *rest: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("says", [["AUTH", "another challenge"], ["TOKEN", "key", True]])
def test_a_peer_that_asks_who_we_are_again_and_again_is_left(says: list[Any]) -> None:
    identity = Identity(Keys(b"\1" * 32), "key" if says[0] == "TOKEN" else None)
    drive = Drive(Guarded(NOTES), identity=identity).run(1)
    drive.say(["AUTH", "challenge"])
    for _ in range(4):
        drive.run(CHATTER)
        drive.say(says)
    assert any("while proving to the peer who we are" in noted.why for noted in drive.noted)


class Slow(LogPeer):
    """Replays one operation at a time."""

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        replayed = super().on_changes(name, asked)
        self.later = replayed[1:]
        return replayed[:1]


def test_a_slow_peer_that_gets_on_is_waited_for() -> None:
    drive = Drive(Slow(NOTES)).run(1)
    while drive.peer.later:
        drive.run(CHATTER)
        drive.say(drive.peer.later.pop(0))
    drive.run(1)
    assert not drive.noted
    assert drive.link.caught_up


class SlowToTake(LogPeer):
    """Answers for what it is given one by one."""

    def __init__(self, events: Any) -> None:
        super().__init__(events)
        self.later: list[Any] = []

    def on_event(self, raw: dict[str, Any]) -> list[Any]:
        said = super().on_event(raw)
        self.later.append(said[0])
        return said[1:]


def test_a_peer_that_answers_slowly_for_what_it_is_given_is_waited_for() -> None:
    drive = Drive(SlowToTake(NOTES), direction="both").run(1)
    drive.write(*(signed(content=f"w{number}") for number in range(6)))
    while drive.peer.later:
        drive.run(CHATTER)
        drive.say(drive.peer.later.pop(0))
    assert not drive.noted


def test_while_our_own_disk_is_slow_the_peer_is_given_time_but_not_for_ever() -> None:
    drive, _ = forgetful()
    drive.link._intake._under_way[10_000] = 1  # a page that does not reach the disk
    drive.run(30 * PUT_OFF_MAX)
    assert not drive.noted
    drive.run(60)
    assert drive.noted
