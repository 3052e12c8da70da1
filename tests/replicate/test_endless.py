"""Peers that come to no end: named and left, after a bounded while and with bounded memory; honest ones are not."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from histories import signed
from link_driving import Drive, LogPeer
from relay_model import RelayModel

from anabranch.core import nostr
from anabranch.core.nostr import Event
from anabranch.replicate import stream as streams
from anabranch.replicate.stream import Repeats
from anabranch.wire.dialogue import BOUNDS


def notes(count: int) -> list[Event]:
    return [signed(content=f"n{number}", created_at=1_000 + number) for number in range(count)]


NOTES = notes(5)


def spelt(event: Event) -> Any:
    return json.loads(nostr.serialise(event))


class Circle(LogPeer):
    """Says that its log is longer than any, and goes round in a circle."""

    @property
    def information(self) -> dict[str, Any]:
        told = super().information
        return {**told, "changes_feed": {**told["changes_feed"], "max_seq": 1 << 40}}

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        since = asked["since"]
        return [self.change(name, since + 1 + at, self.log[at % len(self.log)]) for at in range(1_000)]


class PlainCircle(RelayModel):
    """A relay that gives what it has again and again, on its stream."""

    information: ClassVar = {"supported_nips": [1, 77]}
    copies = 1_000
    ends = False

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        if not name.startswith("stream"):
            return super().on_req(name, *filters)
        events = [["EVENT", name, spelt(event)] for event in self.events.values()] * self.copies
        return [*events, ["EOSE", name]] if self.ends else events


class Multiplexer(PlainCircle):
    """It stands before five relays, and gives what each of them has."""

    copies, ends = 5, True


@pytest.mark.parametrize("kind", [Circle, PlainCircle])
def test_a_peer_that_only_repeats_itself_is_named_and_left_for_longer_and_longer(kind: type[RelayModel]) -> None:
    drive = Drive(kind(NOTES)).run(1_000)
    assert all("gives again" in noted.why for noted in drive.noted)
    assert "the peer is not to be trusted" in str(drive.link.last_error)
    assert drive.link.failures > 3 and not drive.link.caught_up


def test_a_relay_that_stands_before_others_may_give_something_more_than_once() -> None:
    drive = Drive(Multiplexer(notes(100))).run(10)
    assert drive.link.caught_up and not drive.noted


@pytest.mark.parametrize("kind", [LogPeer, PlainCircle])
def test_a_live_stream_that_only_repeats_itself_is_named_and_left(kind: type[RelayModel]) -> None:
    peer = kind(NOTES)
    if isinstance(peer, PlainCircle):
        peer.copies, peer.ends = 1, True
    drive = Drive(peer).run(10)
    assert drive.link.caught_up
    name = next(frame[1] for frame in peer.heard if str(frame[1]).startswith("stream"))
    for number in range(1_000):
        said = ["EVENT", name] if isinstance(peer, PlainCircle) else ["CHANGES", name, "EVENT", 6 + number]
        drive.say([*said, spelt(NOTES[0])])
    assert "gives again and again what it has just given" in drive.noted[0].why


def test_what_comes_again_on_a_live_stream_now_and_then_or_among_much_else_is_no_fault() -> None:
    peer = LogPeer(NOTES)
    drive = Drive(peer).run(10)
    for _ in range(2_000):
        drive.run(10)
        drive.say(*peer.add(NOTES[0]))
    fresh = notes(2_000)
    for _ in range(5):
        drive.say(*peer.add(*fresh))
    assert not drive.noted


class Changeful(LogPeer):
    """The same few were removed again and again, long ago."""

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        tip = len(self.log)
        removed = [["CHANGES", name, "DELETED", at, f"{at % 3:064x}"] for at in range(1, tip)]
        return [*removed, self.change(name, tip, self.log[-1]), ["CHANGES", name, "EOSE", tip]]


def test_a_log_may_tell_of_many_removals_of_the_same() -> None:
    peer = Changeful(NOTES[:1])
    peer.log = NOTES[:1] * 1_000
    drive = Drive(peer).run(10)
    assert drive.link.caught_up and not drive.noted


def test_a_large_circle_is_found_out_with_little_memory() -> None:
    repeats = Repeats(1_000)
    for number in range(50_000):
        repeats.note(f"{number:064x}")
    assert repeats.count == 0 and repeats.different <= 1_000
    for number in range(50_000):
        repeats.note(f"{number:064x}")
    assert repeats.count > streams.REPEATS_MAX


class LongPage(RelayModel):
    """A page of it has no end."""

    information: ClassVar = {"supported_nips": [1]}

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        return [["EVENT", name, spelt(event)] for event in self.events.values()]


class Unlimited(LongPage):
    """Gives all it has, however little it is asked for."""

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        found = {event.id: event for filter in filters for event in self.matching(filter)}
        return [*(["EVENT", name, spelt(event)] for event in found.values()), ["EOSE", name]]


def test_a_page_without_an_end_is_named() -> None:
    drive = Drive(LongPage(notes(200)))
    drive.link._bounds = type(BOUNDS)(page=10, page_most=100)
    drive.run(10)
    assert "gives more than 100 events at once" in str(drive.link.last_error)
    assert "the peer is not to be trusted" in str(drive.link.last_error)


def test_a_relay_that_ignores_limits_is_taken_as_it_is() -> None:
    events = notes(600)
    drive = Drive(Unlimited(events)).run(60)
    assert drive.store.keys() == {event.id for event in events}
    assert not drive.noted


class OnlyRemovals(Circle):
    """Tells of removals for ever."""

    def on_changes(self, name: str, asked: dict[str, Any]) -> list[Any]:
        self.name, self.at = name, asked["since"] if "since" in asked else int(asked["token"]["position"])
        return []

    def more(self, event: Event | None = None) -> Any:
        self.at += 1
        if event is not None:
            return self.change(self.name, self.at, event)
        return ["CHANGES", self.name, "DELETED", self.at, f"{self.at:064x}", "deleted by its author"]


def test_removals_fill_a_page_so_that_who_never_rests_is_asked_from_where_it_came_to() -> None:
    peer = OnlyRemovals([])
    drive = Drive(peer).run(1)
    effects: list[Any] = []
    for _ in range(1_000):
        effects += drive.link.heard(json.dumps(peer.more()).encode(), drive.now, more=True)
    assert [effect.through.position for effect in effects] == [500, 1_000]


@pytest.mark.parametrize("brings_something", [True, False])
def test_a_replay_of_nothing_but_removals_is_named_and_left_after_a_while(brings_something: bool) -> None:
    peer = OnlyRemovals([])
    drive = Drive(peer).run(1)
    for turn in range(80):
        brings = brings_something and turn % 20 == 0
        drive.say(peer.more(signed(content=f"n{turn}") if brings else None)).run(10)
    named = [noted for noted in drive.noted if "nothing but removals" in noted.why]
    assert bool(named) is not brings_something
    assert drive.link.pull.contiguous.position >= 60  # what it told is not asked for again
