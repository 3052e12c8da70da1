"""What a relay takes and we never can is a dead letter, and holds up nothing else. What nobody can take is a lie."""

import asyncio
from typing import Any

import msgspec
import pytest
from histories import signed
from link_driving import WALL, Drive
from test_forged_pages import SPEC, Slow, World
from test_link import LogPeer
from test_plain_peers import Plain, notes

from anabranch.core.nostr import Event, Keys
from anabranch.replicate import dialling
from anabranch.replicate.effects import Apply, Bury
from anabranch.replicate.following import Following
from anabranch.replicate.room import LINK_IDS_MIN, Room, Share
from anabranch.replicate.settled import Settled
from anabranch.store.contract import LinkRecord
from anabranch.wire.dialogue import Accuse, Bounds, Odd, Stored
from anabranch.wire.paging import Pages

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


OLD = [signed(content=f"quiet {number}", created_at=WALL - 200_000 + number) for number in range(3)]


@pytest.mark.parametrize("fields", [{"kind": 70_000}, {"tags": [[]]}], ids=["kind", "tag"])
def test_a_quiet_relay_is_not_accused_of_an_old_one_when_it_is_asked_for_whatever_it_has(fields):
    peer = Plain([*OLD, odd(1, created_at=WALL - 50_000, **fields)], nips=PAGED)
    drive = Drive(peer).run(100)
    drive.say(*peer.publish(signed(content="new", created_at=WALL + 100))).run(3_600)
    assert not drive.noted
    assert drive.link.caught_up


@pytest.mark.parametrize("cap", [12, 500])
def test_what_was_made_before_time_began_holds_up_nothing(cap):
    before = odd(created_at=-5)
    drive = Drive(Plain([*notes(30), before], nips=PAGED, cap=cap)).run(3_000)
    assert not drive.noted
    assert drive.link.caught_up
    assert {letter.id for letter in drive.buried} == {before.id}


def test_a_large_one_is_one_of_them_too():
    large = odd(kind=3, tags=[*[["p", f"{number:064x}"] for number in range(2_500)], []])
    drive = Drive(Plain([*notes(3), large], nips=PAGED)).run(10)
    assert drive.link.caught_up, drive.link.last_error
    assert [letter.id for letter in drive.buried] == [large.id]


class Hiding(Plain):
    """Puts something that nobody can take in the place of an event."""

    def spelt(self, event: Event) -> Any:
        return {**super().spelt(event), "kind": 70_000} if event.content == "old 1" else super().spelt(event)


class Shadowing(Plain):
    """The same, before the event itself."""

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        said = super().on_req(name, *filters)
        return [each for one in said for each in ([self._changed(one), one] if self._is_it(one) else [one])]

    def _is_it(self, message: list[Any]) -> bool:
        return message[0] == "EVENT" and message[2]["content"] == "old 1"

    def _changed(self, message: list[Any]) -> list[Any]:
        return [*message[:2], {**message[2], "kind": 70_000}]


@pytest.mark.parametrize("nips", [RECONCILES, PAGED], ids=["negentropy", "pages"])
@pytest.mark.parametrize("kind", [Hiding, Shadowing])
def test_nothing_is_hidden_behind_what_only_says_that_it_has_its_id(kind, nips):
    drive = Drive(kind(notes(3), nips=nips)).run(300)
    assert "sent no valid event" in drive.link.last_error
    assert not drive.link.caught_up
    assert not drive.buried


def test_what_is_here_does_not_become_a_dead_letter_by_its_id():
    peer = Plain(notes(3), nips=RECONCILES)
    drive = Drive(peer).run(10)
    (name,) = (name for name in peer.live if name.startswith("stream"))
    drive.say(["EVENT", name, {**peer.spelt(notes(3)[1]), "kind": 70_000}]).run(1)
    assert not drive.buried
    assert ("disorder", "repairing") in drive.states


class Endless(Plain):
    """Its pages have no end."""

    name = ""

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        self.name = name
        return []


def test_one_that_comes_again_and_again_from_beyond_time_is_no_page_that_gets_on():
    peer = Endless(notes(3), nips=PAGED)
    drive = Drive(peer).run(1)
    far = peer.spelt(odd(created_at=2**60))
    while drive.now < 100:
        drive.say(["EVENT", peer.name, far]).run(20)
    assert drive.noted[0].why.startswith("no answer for 30 s")


def test_a_page_has_only_so_many_from_beyond_time():
    pages = Pages({}, bounds=Bounds(page_most=10))
    pages.start()
    peer = Plain([])
    said: list[Any] = []
    for number in range(11):
        spelt = msgspec.json.encode(peer.spelt(odd(number, created_at=2**60 + number)))
        said = pages.hear(Stored("page-1", spelt)) or []
    assert said == [Accuse("gives more than 10 events at once, where fewer were asked for")]


class Idle(Plain):
    """Has a stream that comes to no end."""

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Any]:
        said = super().on_req(name, *filters)
        return [] if name.startswith("stream") else said


def test_a_stream_of_nothing_else_is_left_after_a_while():
    peer = Idle(notes(3), nips=PAGED)
    drive = Drive(peer).run(1)
    (name,) = (name for name in peer.live if name.startswith("stream"))
    number = 0
    while drive.now < 650 and not drive.noted:
        drive.say(["EVENT", name, peer.spelt(odd(number, kind=70_000))]).run(20)
        number += 1
    assert "nothing but removals and what nobody can take for 600 s" in drive.noted[0].why
    assert len(drive.buried) == number


def test_what_there_is_no_room_to_remember_is_not_told_each_time_it_is_seen():
    room = Room(most=0)
    settled = Settled(Share(room))
    for number in range(2 * LINK_IDS_MIN):
        settled.bury(Odd(f"{number:064x}", "kind", 1))
        settled.bury(Odd(f"{number:064x}", "kind", 1))
    assert len(settled.letters()) == LINK_IDS_MIN
    assert settled.letters() == []
    assert settled.forgot


def test_those_of_a_stream_are_told_with_its_pages():
    peer = Idle(notes(3), nips=PAGED)
    drive = Drive(peer).run(1)
    (name,) = (name for name in peer.live if name.startswith("stream"))
    told = []
    for number in range(500):
        said = msgspec.json.encode(["EVENT", name, peer.spelt(odd(number, kind=70_000))])
        told.append(drive.link.heard(said, 1.0, more=True))
    assert not any(told[:499])
    assert [type(effect) for effect in told[499]] == [Bury] * 500 + [Apply]


async def test_what_is_buried_together_is_written_down_in_one_go(tmp_path, monkeypatch):
    async def never(url: str) -> None:
        await asyncio.sleep(1_000)

    monkeypatch.setattr(dialling, "dial", never)
    host, writes = Slow(tmp_path), 0
    write = host.write

    async def counted(job: Any) -> Any:
        nonlocal writes
        writes += 1
        return await write(job)

    host.write = counted  # type: ignore[method-assign]
    one = Following(World(host), SPEC, LinkRecord("up", SPEC.peer, "pull"))
    await asyncio.sleep(0.01)
    writes = 0
    await one.command(lambda link, now: [Bury(f"{number:064x}", "no", "pull") for number in range(1_200)])
    assert writes == 3  # no single one takes long
    assert host.reader.dead_letter_count("up") == 1_200
    await one.stop()
