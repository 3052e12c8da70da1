"""A link goes round in no circle: what a connection has taught is not thrown away to be learnt again on the next."""

import asyncio
from types import SimpleNamespace

import pytest
from histories import signed
from link_driving import Drive, LogPeer
from relay_model import HANG_UP, RelayModel
from test_link import NoNegentropy, Plain, notes

from anabranch.core.scope import EVERYTHING
from anabranch.core.token import Log, Position
from anabranch.replicate import link as machine
from anabranch.replicate.links import Links
from anabranch.replicate.spec import Direction, LinkSpec
from anabranch.replicate.states import LinkState
from anabranch.store.contract import StoreError

# --- relays that answer only so many messages on a connection ---------------------------------------------------------


class KeepsNothing(Plain):
    given = 0

    def on_event(self, event):
        self.given += 1
        return [["OK", event["id"], True, ""]]


def test_a_relay_that_keeps_nothing_is_given_it_once_however_much_it_is(monkeypatch):
    monkeypatch.setattr(machine, "RENEW_AFTER", 50)
    peer = KeepsNothing()
    drive = Drive(peer, notes(80), direction="push").run(60)
    assert drive.link.state is LinkState.LIVE
    assert peer.connections <= 2 and peer.given <= 2 * 80


def test_a_relay_that_refuses_much_for_good_does_so_once_for_each_repair(monkeypatch):
    monkeypatch.setattr(machine, "RENEW_AFTER", 50)
    peer = Plain()
    peer.on_event = lambda event: [["OK", event["id"], False, "blocked: no"]]
    drive = Drive(peer, notes(80), direction="push").run(60)
    drive.tell("repair")
    drive.run(60)
    assert drive.link.state is LinkState.LIVE
    assert peer.connections <= 4 and len(drive.buried) <= 2 * 80


def test_a_relay_that_is_only_paged_is_caught_up_with_however_many_pages_it_takes(monkeypatch):
    monkeypatch.setattr(machine, "RENEW_AFTER", 100)
    events = [signed(content=str(n), created_at=1_000 + n) for n in range(240)]
    peer = NoNegentropy(events, cap=2)
    drive = Drive(peer, events[:-5]).run(3_600)
    assert drive.link.caught_up
    heard = len(peer.heard)
    drive.tell("repair")
    drive.run(600)
    assert drive.link.caught_up
    assert len(peer.heard) - heard <= 5 * 240


# --- relays that are slow, or were cut off ----------------------------------------------------------------------------


class SlowToStore(Plain):
    """Knows nothing of NIP-77 and says so in a NOTICE; drops what it was about to store when we hang up."""

    on_neg_open = None

    def __init__(self):
        super().__init__()
        self.waiting = []

    def greet(self):
        self.waiting = []
        return super().greet()

    def on_event(self, event):
        self.waiting.append(event)
        return []


def test_who_did_not_know_negentropy_has_time_for_what_it_is_given():
    peer = SlowToStore()
    drive = Drive(peer, notes(3), direction="push")
    for _ in range(20):
        drive.run(3)
        waiting, peer.waiting = peer.waiting, []
        for event in waiting:
            drive.say(*RelayModel.on_event(peer, event))
    assert len(peer.events) == 3
    assert drive.link.caught_up and peer.connections == 1


class CutOff(LogPeer):
    cuts = 2

    def on_neg_open(self, *asked):
        if self.cuts:
            self.cuts -= 1
            return [HANG_UP]
        return super().on_neg_open(*asked)


def test_two_cuts_at_the_wrong_moment_do_not_end_reconciliation_for_good():
    events = notes(60)
    peer = CutOff(events, cap=20)
    drive = Drive(peer, events[:50]).run(3_700)
    assert drive.link.caught_up
    peer.heard.clear()
    drive.run(3_600)
    assert "NEG-OPEN" in peer.verbs()
    assert "REQ" not in peer.verbs()


class Streamless(LogPeer):
    def on_changes(self, name, asked):
        return [["CHANGES", name, "ERR", "error: too many subscriptions"]]

    def on_event(self, event):
        self.given = getattr(self, "given", 0) + 1
        return [["OK", event["id"], False, "blocked: no"]]


def test_what_a_peer_refuses_for_good_is_not_given_again_at_every_poll():
    peer = Streamless(notes(3))
    drive = Drive(peer, notes(20, 100), direction="both").run(3_600)
    assert drive.link.state is LinkState.DEGRADED_POLL
    assert len(drive.store) == 23
    assert (peer.given, len(drive.buried)) == (20, 20)


def test_what_is_given_in_parts_is_given_whole():
    """However few of them are read of our store at once."""
    drive = Drive(LogPeer(), notes(30), direction="push")
    drive.payloads_at_once = 7
    drive.run(5)
    assert len(drive.peer.events) == 30 and drive.link.caught_up


# --- junk -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [["AUTH", "x"], ["TOKEN", True, ""], ["EOSE", None], ["NEG-MSG", None, "61"]],
    ids=lambda said: said[0],
)
def test_who_says_the_same_without_an_end_is_left(said, monkeypatch):
    monkeypatch.setattr(machine, "UNASKED_MAX", 100)
    drive = Drive(LogPeer(notes(3))).run(1)
    message = [drive.peer.feeds[0] if part is None else part for part in said]
    connections = drive.peer.connections
    drive.say(*[message] * 150)
    assert "nobody had asked for" in (drive.link.last_error or "")
    drive.run(60)
    assert drive.peer.connections > connections and drive.link.caught_up


# --- the settings -----------------------------------------------------------------------------------------------------


class FullDisk:
    log = Log("own", "epoch", Position(1), Position(0))

    def __init__(self):
        self.full = False
        self.records = {}

    async def read(self, read):
        return list(self.records.values())

    async def write(self, job):
        def save(record):
            if self.full:
                raise StoreError("database or disk is full")
            self.records[record.name] = record

        def delete(name):
            self.records.pop(name, None)

        job(SimpleNamespace(save_link=save, delete_link=delete, note_link=lambda change: None))

    async def items(self, filter):
        await asyncio.Event().wait()


async def test_a_paused_link_is_still_paused_after_a_reload_that_found_no_room():
    host, loop = FullDisk(), asyncio.get_running_loop()
    links = Links(host, clock=loop.time, wall=lambda: 1_800_000_000, share=lambda: 0.5)

    def configured(direction: Direction) -> list[LinkSpec]:
        return [LinkSpec("a", "ws://127.0.0.1:9/", EVERYTHING, direction, "config")]

    await links.configure(configured(Direction.PULL))
    await links.command("a", "pause")
    host.full = True
    with pytest.raises(StoreError):
        await links.configure(configured(Direction.BOTH))
    host.full = False
    await links.configure(configured(Direction.BOTH))
    assert links.find("a").link.state is LinkState.PAUSED
    await links.stop()
