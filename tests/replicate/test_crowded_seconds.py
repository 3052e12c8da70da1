"""More events in one second than a peer gives at once: pages cannot tell whether that was all, and a link says so."""

import asyncio

import pytest
from histories import signed
from link_driving import Drive, LogPeer
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
