"""«Caught up» says that nothing is under way: what is given is answered for, and what has come is on disk."""

from typing import Any

import pytest
from histories import signed
from link_driving import WALL, Drive, LogPeer


def note(said: str) -> Any:
    return signed(content=said, created_at=WALL)


class Slow(LogPeer):
    """Answers for what it is given when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, Any]] = []

    def on_event(self, raw: dict[str, Any]) -> list[Any]:
        self.given.append(raw)
        return []

    def answers(self) -> list[Any]:
        return [said for raw in self.given for said in super(Slow, self).on_event(raw)]


@pytest.mark.parametrize("direction", ["push", "both"])
def test_a_link_is_not_caught_up_until_the_peer_has_answered_for_what_is_written_here(direction):
    drive = Drive(Slow(), [], direction=direction).run(1)
    assert drive.link.caught_up
    drive.write(written := note("written here"))
    assert [raw["id"] for raw in drive.peer.given] == [written.id]
    assert not drive.link.caught_up and drive.link.in_flight == 1
    drive.say(*drive.peer.answers()).run(1)
    assert drive.link.caught_up and drive.link.in_flight == 0
    assert drive.link.push.contiguous.position == 1


class SlowDisk(Drive):
    """While it is `busy` no page is on it."""

    busy = False

    def _apply(self, asked: Any) -> None:
        if self.busy:
            self.waiting = asked
        else:
            super()._apply(asked)


@pytest.mark.parametrize("direction", ["pull", "both"])
def test_a_link_is_not_caught_up_until_what_has_come_is_on_disk(direction):
    drive = SlowDisk(LogPeer([note("there")]), [], direction=direction).run(1)
    assert drive.link.caught_up
    drive.busy = True
    drive.say(*drive.peer.add(come := note("come")))
    assert [arrival.event.id for arrival in drive.waiting.arrivals] == [come.id]
    assert not drive.link.caught_up and drive.link.in_flight == 1
    drive.busy = False
    drive._apply(drive.waiting)
    assert drive.run(1).link.caught_up and drive.link.in_flight == 0
    assert drive.link.pull.contiguous.position == 2
