"""When what is sent goes out: at the end of a turn of the loop, of all who have something, together, and in one write
for each; or at once, and never past what waits."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from anabranch.node import outlet as module
from anabranch.node.outlet import Outlet, Turns

MOST = 1 << 20


class Wire:
    def __init__(self, broken: bool = False, waiting: int = 0) -> None:
        self.written: list[bytes] = []
        self.broken = broken
        self.waiting = waiting
        self.aborted = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


def attached(turns: Turns, wire: Wire, lagging: Callable[[], None] = lambda: None) -> Outlet:
    outlet = Outlet(turns, MOST, lambda size: None, lagging)
    outlet.attach(cast(Any, wire))
    return outlet


async def test_what_is_sent_in_one_turn_goes_out_in_one_write() -> None:
    turns, wires = Turns(asyncio.get_running_loop()), [Wire() for _ in range(3)]
    outlets = [attached(turns, wire) for wire in wires]
    for part in (b"a", b"b"):
        for outlet in outlets:
            outlet.send(part)
    assert not any(wire.written for wire in wires)
    await asyncio.sleep(0)
    assert [wire.written for wire in wires] == [[b"ab"]] * 3
    outlets[0].send(b"c")
    await asyncio.sleep(0)
    assert [wire.written for wire in wires] == [[b"ab", b"c"], [b"ab"], [b"ab"]]


async def test_a_socket_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    turns, wires = Turns(asyncio.get_running_loop()), [Wire(), Wire(broken=True), Wire()]
    for outlet in [attached(turns, wire) for wire in wires]:
        outlet.send(b"x")
    await asyncio.sleep(0)
    assert [wire.written for wire in wires] == [[b"x"], [], [b"x"]]
    assert [wire.aborted for wire in wires] == [False, True, False]
    assert "a socket could not be written to" in caplog.text


async def test_what_is_sent_at_once_does_not_wait_for_the_end_of_the_turn() -> None:
    turns, wire = Turns(asyncio.get_running_loop()), Wire()
    attached(turns, wire).send_now(b"now")
    assert wire.written == [b"now"]
    await asyncio.sleep(0)
    assert wire.written == [b"now"]


async def test_what_is_sent_at_once_does_not_go_past_what_waits() -> None:
    turns, wire = Turns(asyncio.get_running_loop()), Wire()
    outlet = attached(turns, wire)
    outlet.send(b"first ")
    outlet.send_now(b"second ")
    outlet.send(b"third")
    assert wire.written == []
    await asyncio.sleep(0)
    assert wire.written == [b"first second third"]


async def test_a_turn_that_is_ended_early_lets_go_out_what_waits_and_later_turns_have_their_end() -> None:
    turns, wire = Turns(asyncio.get_running_loop()), Wire()
    outlet = attached(turns, wire)
    outlet.send(b"answer")
    turns.end()
    outlet.send_now(b"change")
    assert wire.written == [b"answer", b"change"]
    for part in (b"a", b"b"):
        outlet.send(part)
        await asyncio.sleep(0)
    assert wire.written[2:] == [b"a", b"b"]


async def test_a_socket_that_fails_keeps_from_nobody_what_is_sent_at_once(caplog: pytest.LogCaptureFixture) -> None:
    turns, wires = Turns(asyncio.get_running_loop()), [Wire(broken=True), Wire()]
    for outlet in [attached(turns, wire) for wire in wires]:
        outlet.send_now(b"x")
    assert [wire.written for wire in wires] == [[], [b"x"]]
    assert [wire.aborted for wire in wires] == [True, False]
    assert "a socket could not be written to" in caplog.text


async def test_nothing_is_sent_at_once_to_who_is_let_go_or_not_there_yet() -> None:
    turns, wire = Turns(asyncio.get_running_loop()), Wire()
    outlet = attached(turns, wire)
    outlet.close()
    outlet.send_now(b"x")
    Outlet(turns, MOST, lambda size: None, lambda: None).send_now(b"x")
    await asyncio.sleep(0)
    assert wire.written == []


async def test_a_reader_who_takes_nothing_of_what_is_sent_at_once_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAG_SECONDS", 0.01)
    turns, gone = Turns(asyncio.get_running_loop()), asyncio.Event()
    outlet = attached(turns, Wire(waiting=MOST + 1), gone.set)
    outlet.send_now(b"x")
    async with asyncio.timeout(5):
        await gone.wait()


@pytest.mark.parametrize("at_once", [True, False])
async def test_after_a_write_that_failed_nothing_more_goes_out(at_once: bool) -> None:
    """A reader who misses one event of a feed would take the next for the one after the last."""
    turns, wire = Turns(asyncio.get_running_loop()), Wire(broken=True)
    outlet = attached(turns, wire)
    for part in (b"1", b"2"):
        (outlet.send_now if at_once else outlet.send)(part)
        await asyncio.sleep(0)
        wire.broken = False
    assert (wire.written, wire.aborted) == ([], True)
