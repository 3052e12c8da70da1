"""A difference that is larger than there is room for is closed portion by portion."""

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer
from relay_model import RelayModel, items

from anabranch.core.negentropy import Reconciler
from anabranch.core.nostr import Event
from anabranch.replicate import room
from anabranch.replicate.room import LINK_IDS_MIN, PORTION, Room
from anabranch.replicate.states import LinkState


def notes(count, said):
    return [signed(content=f"{said} {number}", created_at=WALL - 5_000 + number) for number in range(count)]


THEIRS, OURS = notes(900, "theirs"), notes(900, "ours")


class Watched(Room):
    """Remembers the most that was taken of it."""

    peak = 0

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "taken":
            self.peak = max(self.peak, value)


class Paged(RelayModel):
    """A plain relay that does not reconcile."""

    @property
    def information(self):
        return {"supported_nips": [1]}


@pytest.mark.parametrize("kind", [LogPeer, RelayModel, Paged])
@pytest.mark.parametrize("direction", ["pull", "push", "both"])
def test_all_of_it_comes_and_goes_though_there_is_room_for_little_at_a_time(kind, direction):
    watched = Watched(most=0)
    peer = kind(THEIRS, frame=8_192)
    drive = Drive(peer, OURS, direction=direction, room=watched).run(300)
    theirs, ours = {event.id for event in THEIRS}, {event.id for event in OURS}
    assert drive.store.keys() == (ours if direction == "push" else ours | theirs)
    assert peer.events.keys() == (theirs if direction == "pull" else ours | theirs)
    assert drive.link.state is LinkState.LIVE
    assert watched.peak < 3 * LINK_IDS_MIN + 500, "a message of the peer's, and what it was given, come on top"
    drive.link.release()
    assert watched.taken == 0


class Boastful(LogPeer):
    """Names a hundred thousand operations that nobody has ever seen."""

    def on_neg_open(self, name, filter, message):
        phantoms = [Event(f"{number:064x}", "", 1_000, 1, [], "", "") for number in range(1, 100_000)]
        self._sessions[name] = Reconciler(items([*self.matching(filter), *phantoms]), 100_000)
        return self.on_neg_msg(name, message)


def test_a_peer_that_boasts_is_named_and_takes_no_more_room_than_a_portion():
    watched = Watched()
    drive = Drive(Boastful(THEIRS[:5]), OURS[:5], room=watched).run(20)
    assert "operations that it does not give or keep" in " ".join(note.why for note in drive.noted)
    assert not drive.link.caught_up
    assert PORTION <= watched.peak < PORTION + 5_000
    assert drive.store.keys() == {event.id for event in OURS[:5]}


class Choosy(LogPeer):
    """Takes hardly anything."""

    def on_event(self, raw):
        return super().on_event(raw) if raw["content"].endswith("7") else [["OK", raw["id"], False, "blocked: no"]]


def test_what_is_settled_does_not_hide_what_lies_behind_it(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    drive = Drive(Choosy(THEIRS, frame=8_192), OURS, direction="both")
    drive.refuses = {event.id for event in THEIRS if not event.content.endswith("7")}
    drive.run(300)
    assert {event.id for event in THEIRS} - drive.refuses <= drive.store.keys()
    assert {event.id for event in OURS if event.content.endswith("7")} <= drive.peer.events.keys()
    assert drive.link.caught_up


class Withholding(LogPeer):
    """Names its newest operation, and never gives it."""

    def _without(self, said, place):
        secret = max(self.events.values(), key=lambda event: event.created_at).id
        return [message for message in said if "EVENT" not in message or message[place]["id"] != secret]

    def on_req(self, name, *filters):
        return self._without(super().on_req(name, *filters), 2)

    def on_changes(self, name, asked):
        return self._without(super().on_changes(name, asked), 4)


def test_what_is_withheld_in_the_last_of_many_portions_is_not_taken_to_be_on_its_way(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    drive = Drive(Withholding(THEIRS, frame=4_096), OURS[:1])
    for _ in range(60):
        assert not drive.run(1).link.caught_up


class Busy(LogPeer):
    """Something of each portion is deleted before it can be fetched."""

    def on_req(self, name, *filters):
        if len(filters[0].get("ids", ())) > 20:
            self.events.pop(filters[0]["ids"][0], None)
        return super().on_req(name, *filters)


def test_a_peer_in_which_something_is_deleted_all_the_time_is_not_accused(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    drive = Drive(Busy(THEIRS, frame=4_096), OURS[:1]).run(60)
    assert drive.link.caught_up
    assert not drive.noted


class Counting(Paged):
    """Knows which subscriptions are open."""

    def greet(self):
        self.open = set()
        return super().greet()

    def on_req(self, name, *filters):
        self.open.add(name)
        return super().on_req(name, *filters)

    def on_close(self, name):
        self.open.discard(name)
        return super().on_close(name)


def test_no_subscription_is_left_behind_by_a_portion(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    drive = Drive(Counting(THEIRS, cap=100), OURS, direction="both").run(60)
    assert drive.link.state is LinkState.LIVE
    assert [name.split("-")[0] for name in drive.peer.open] == ["stream"]


def test_windows_that_are_answered_one_by_one_count_together(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 50)
    watched = Watched()
    drive = Drive(RelayModel(THEIRS, set_max=40), OURS[:1], room=watched).run(60)
    assert drive.link.caught_up and drive.store.keys() == drive.peer.events.keys() | {OURS[0].id}
    assert 50 <= watched.peak <= 100


def test_what_comes_back_from_where_it_was_given_to_takes_no_room():
    watched = Watched()
    drive = Drive(LogPeer(), direction="both", room=watched).run(1)
    drive.write(*OURS).run(400)
    assert drive.link.caught_up
    assert watched.taken == 0


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_where_there_is_no_room_to_remember_what_is_refused_the_link_goes_on_and_is_not_caught_up(
    monkeypatch, direction
):
    monkeypatch.setattr(room, "LINK_IDS_MIN", 100)
    drive = Drive(Choosy(THEIRS[:500]), OURS[:500], direction=direction, room=Room(most=0))
    drive.refuses = {event.id for event in THEIRS if not event.content.endswith("7")}
    drive.run(3_600)
    assert drive.link.state is LinkState.LIVE and drive.link.forgot
    assert not drive.link.caught_up
    assert len(drive.dials) == 1
    assert len([message for message in drive.peer.heard if message[0] == "EVENT"]) < 5_000


class Leaky(LogPeer):
    """Says yes to everything, and keeps nothing."""

    def on_event(self, raw):
        return [["OK", raw["id"], True, ""]]


class LeakyPaged(Leaky):
    @property
    def information(self):
        return {"supported_nips": [1]}


@pytest.mark.parametrize("kind", [Leaky, LeakyPaged])
def test_a_peer_that_keeps_nothing_is_not_given_it_all_the_time_though_there_is_no_room_to_remember(monkeypatch, kind):
    monkeypatch.setattr(room, "LINK_IDS_MIN", 20)
    shared = Room(most=0)
    drive = Drive(kind(), OURS[:400], direction="push", room=shared)
    for _ in range(360):
        assert not drive.run(10).link.caught_up
    assert drive.link.state is LinkState.LIVE
    assert len([message for message in drive.peer.heard if message[0] == "EVENT"]) < 4_000
    shared.most = 10_000
    drive.run(1_800)
    assert drive.link.caught_up, "there is room again"
