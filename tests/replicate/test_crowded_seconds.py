"""More events in one second than a peer gives at once: pages cannot tell whether that was all, and a link says so."""

import asyncio

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer
from nodes import link, named, serving, shown
from relay_model import HANG_UP, RelayModel

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate.spec import Timing
from anabranch.replicate.states import LinkState
from anabranch.store.contract import LinkRecord

CAP = 10
EVENTS = [signed(created_at=999), *(signed(content=f"note {number}", created_at=1_000) for number in range(3 * CAP))]


class Flaky(LogPeer):
    """It reconciles, and its first connections break just then."""

    breaks = 2

    def on_neg_open(self, name, filter, message):
        self.breaks -= 1
        return [HANG_UP] if self.breaks >= 0 else super().on_neg_open(name, filter, message)


class Unwilling(LogPeer):
    """It says that it reconciles, and does not."""

    def on_neg_open(self, name, filter, message):
        return [["NEG-ERR", name, "error: not today"]]


class HangsUp(RelayModel):
    """A plain relay that says it reconciles, and hangs up when it is asked to."""

    @property
    def information(self):
        return {"supported_nips": [1, 77]}

    def on_neg_open(self, name, filter, message):
        return [HANG_UP]


class Pages(RelayModel):
    """A plain relay without reconciliation."""

    @property
    def information(self):
        return {"supported_nips": [1]}

    def on_neg_open(self, name, filter, message):
        raise AssertionError("it says that it does not reconcile")


def behind() -> LinkRecord:
    """Its checkpoint is older than all that the peer's log still has."""
    return LinkRecord("up", "ws://peer/", "pull", pull=Checkpoint.at(ProgressToken("stream-1", "epoch-1", Position(1))))


def far_ahead(peer: LogPeer) -> LogPeer:
    peer.floor = len(peer.log)
    return peer


@pytest.mark.parametrize("breaks", [1, 2, 3, 5])
def test_a_peer_that_reconciles_is_asked_to_until_all_is_here(breaks):
    peer = far_ahead(Flaky(EVENTS, cap=CAP))
    peer.breaks = breaks
    drive = Drive(peer, EVENTS[:1], record=behind(), timing=Timing(retry_max=5.0))
    for _ in range(120):
        drive.run(1)
        assert drive.link.pull.contiguous.position == 1 or len(drive.store) == len(EVENTS)
        assert not drive.link.caught_up or len(drive.store) == len(EVENTS)
    assert drive.link.caught_up
    assert not drive.link.crowded


def test_no_checkpoint_is_taken_where_the_log_has_more_than_could_be_seen():
    drive = Drive(far_ahead(Unwilling(EVENTS, cap=CAP)), EVENTS[:1], record=behind(), timing=Timing(retry_max=5.0))
    drive.run(120)
    assert drive.link.pull.contiguous.position == 1
    assert not drive.link.caught_up
    assert "did not reconcile" in drive.link.last_error
    assert 1 < len(drive.store) < len(EVENTS)


def test_a_log_that_can_be_replayed_is_followed_though_its_node_does_not_reconcile():
    peer = Unwilling(EVENTS, cap=CAP)
    drive = Drive(peer, EVENTS[:1]).run(60)
    drive.say(*peer.add(signed(content="live", created_at=1_001))).run(600)
    assert drive.states == [("caught_up", "live")] and not drive.link.caught_up
    assert len(drive.store) == len(peer.log) and len(drive.dials) == 1
    drive.reachable = False
    drive.cut().run(120)
    assert drive.link.state is LinkState.DEGRADED_POLL
    peer.add(*(signed(content=f"more {number}", created_at=2_000) for number in range(3 * CAP)))
    drive.reachable = True
    drive.run(120)
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up
    assert drive.link.pull.contiguous.position == len(peer.log)
    assert len(drive.store) == len(peer.log)


@pytest.mark.parametrize("plain", [True, False])
def test_a_second_that_is_too_large_to_be_reconciled_is_not_taken_for_whole(plain):
    events = [*(signed(content=f"old {number}", created_at=500 + number) for number in range(5)), *EVENTS[1:]]
    peer = HangsUp(events, cap=CAP, set_max=20) if plain else far_ahead(LogPeer(events, cap=CAP, set_max=20))
    peer.on_neg_open = lambda *asked: RelayModel.on_neg_open(peer, *asked)
    drive = Drive(peer, events[:1]).run(300)
    assert len(drive.store) < len(events)
    assert not drive.link.caught_up
    assert drive.link.crowded == (1_000,)
    assert plain or drive.link.pull.contiguous is None


def test_a_relay_that_hangs_up_when_it_is_asked_to_reconcile_is_followed_all_the_same():
    drive = Drive(HangsUp(EVENTS, cap=CAP)).run(3_600)
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up
    assert drive.link.pull.contiguous is not None
    assert len(drive.dials) < 10
    late = signed(content="late", created_at=WALL + 3_600)
    stream = [asked[1] for asked in drive.peer.heard if asked[0] == "REQ" and asked[1].startswith("stream")][-1]
    drive.say(["EVENT", stream, drive.peer.spelt(late)])
    assert late.id in drive.store


def test_a_crowded_second_that_is_found_while_live_is_written_down():
    drive = Drive(Pages([signed(content=f"old {at}", created_at=WALL - 9_000 + at) for at in range(25)], cap=CAP)).run(
        60
    )
    assert drive.link.caught_up
    for number in range(3 * CAP):
        new = signed(content=f"new {number}", created_at=WALL + 60)
        drive.peer.events[new.id] = new
    drive.cut().run(60)  # nothing that was made before lies in what it compares now
    assert drive.link.state is LinkState.LIVE and not drive.link.caught_up
    assert drive.remembered == [(WALL + 60,)]


def test_a_plain_relay_is_followed_and_never_said_to_be_equal():
    drive = Drive(Pages(EVENTS, cap=CAP)).run(30)
    assert drive.states == [("caught_up", "live")]
    assert not drive.link.caught_up
    assert drive.link.verified_at is None
    assert drive.link.crowded == (1_000,)
    drive.cut().run(30)  # what it compares then is not everything
    assert drive.link.state is LinkState.LIVE
    assert not drive.link.caught_up
    assert drive.link.crowded == (1_000,)


def test_a_plain_relay_whose_seconds_fit_is_said_to_be_equal():
    drive = Drive(Pages(EVENTS[:CAP], cap=CAP)).run(30)
    assert drive.link.caught_up
    assert len(drive.store) == CAP


async def test_a_real_node_names_the_second_and_still_knows_it_when_it_starts_again(start_node):
    node = start_node()
    async with serving(Pages(EVENTS, cap=CAP)) as url:
        await asyncio.to_thread(link, node, url)
        await named(node, "of the second 1000 than it gives at once")
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
        said = await named(node, "of the second 1000 than it gives at once")
        await named(node, "It is live")
        assert not (await asyncio.to_thread(shown, node))["caught_up"], said
