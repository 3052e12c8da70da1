"""What is told of a link in numbers: since when it is as it is, and how far behind; also after a restart."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from histories import signed
from link_driving import Drive, LogPeer
from msgspec.structs import replace
from test_links import LONG_PAUSES, FullHost

from anabranch.core.scope import EVERYTHING
from anabranch.core.token import Position
from anabranch.replicate import peers
from anabranch.replicate.explaining import explained, lag_positions, lag_seconds
from anabranch.replicate.link import Link
from anabranch.replicate.links import Links
from anabranch.store.contract import LinkRecord, Transition


class Ledger(FullHost):
    """A node that was stopped and runs again."""

    def __init__(self, state, *transitions, **rest):
        super().__init__()
        self.saved["up"] = LinkRecord("up", "ws://127.0.0.1:9/", "both", state=state, created_at=5, **rest)
        self.transitions = lambda name: transitions

    def dead_letter_count(self, name):
        return 0

    def note_link(self, change):
        pass


async def started(host, wall, timing=LONG_PAUSES):
    links = Links(host, clock=time.monotonic, wall=lambda: wall, share=lambda: 0.5, timing=timing)
    await links.start()
    return links


@pytest.mark.parametrize(("state", "seconds"), [("live", 0), ("paused", 400)])
async def test_since_when_is_told_of_the_state_that_it_is_in_also_after_a_restart(state, seconds):
    host = Ledger(state, Transition(600, "initial", state, "a cue"), Transition(700, state, state, "once more"))
    links = await started(host, 1_000)
    assert (await links.explain("up"))["since_seconds"] == seconds
    await links.stop()


async def test_since_when_is_told_anew_with_each_state_of_this_run():
    wall = 1_000
    host = Ledger("live", Transition(600, "initial", "live", "caught_up"))
    links = Links(host, clock=time.monotonic, wall=lambda: wall, share=lambda: 0.5, timing=LONG_PAUSES)
    await links.start()
    wall = 1_100
    await links.command("up", "pause")
    wall = 1_150
    assert (await links.explain("up"))["since_seconds"] == 50
    await links.stop()


async def test_when_the_two_were_last_equal_survives_a_restart(monkeypatch):
    monkeypatch.setattr(Link, "caught_up", property(lambda self: True))
    host = Ledger("live", last_success_at=100)
    links = await started(host, 90_000)
    await asyncio.sleep(0.05)
    await links.stop()
    monkeypatch.undo()
    assert host.saved["up"].last_success_at == 90_000
    links = await started(host, 90_010)
    assert lag_seconds(links.links["up"], links.clock(), 90_010) == 10
    await links.stop()


async def test_that_the_two_are_equal_still_is_written_once_in_a_while(monkeypatch):
    monkeypatch.setattr(Link, "caught_up", property(lambda self: True))
    host = Ledger("live", last_success_at=100)
    written = []
    monkeypatch.setattr(host, "save_link", lambda record: written.append(record.last_success_at))
    links = await started(host, 130)
    await asyncio.sleep(0.05)
    one = links.links["up"]
    written.clear()
    for wall in (150, 170, 180, 200, 240):
        links.wall = lambda wall=wall: wall
        one.link.verified_at = float(wall)
        one.call(lambda link, now: [])
        await asyncio.sleep(0.02)
    assert written == [170, 240]
    await links.stop()


def driven(**rest):
    events = [signed(content=f"n{number}", created_at=1_000 + number) for number in range(3)]
    return Drive(LogPeer(events), direction="both", **rest).run(10)


def test_the_lag_of_what_is_given_stays_when_the_link_goes_offline():
    drive = driven()
    drive.own = replace(drive.own, tip=Position(500))
    drive.log += list(drive.echoes)[:1] * (500 - len(drive.log))  # nothing of it is for the peer
    drive._do(drive.link.wake(drive.now))
    drive.run(1)
    assert lag_positions(drive.link, drive.own)["push"] == 0
    drive.reachable = False
    drive.cut()
    assert lag_positions(drive.link, drive.own)["push"] == 0


def test_positions_of_two_epochs_are_not_compared():
    drive = driven()
    assert lag_positions(drive.link, drive.own)["pull"] == 0
    drive.peer.epoch = "epoch-2"
    drive.peer.log *= 50
    drive.link.peer = peers.identify(drive.peer.information, "ws://peer/", EVERYTHING)
    drive.link._hang_up()
    assert lag_positions(drive.link, drive.own)["pull"] is None


def test_what_our_rules_refuse_is_said_where_it_is_said_to_be_caught_up():
    drive = Drive(LogPeer([signed(content="not here")]))
    drive.refuses = set(drive.peer.events)
    drive.run(10)
    one = SimpleNamespace(link=drive.link, caught_up_at=None, record=SimpleNamespace(last_success_at=None))
    said = explained(one, drive.now, 1_000, drive.own, dead_letters=10_000, since=0)["explanation"]
    assert "caught up: the digests of both sides were equal, but for 1 that our rules refuse" in said[0]
    assert said[-1].startswith("Refused for good: 10,000 or more; ")
