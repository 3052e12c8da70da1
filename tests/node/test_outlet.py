"""What goes out at the end of a turn of the loop: of all who have something, together, and in one write for each."""

import asyncio
from typing import Any, cast

import pytest

from anabranch.node.outlet import Outlet, Turns


class Wire:
    def __init__(self, broken: bool = False) -> None:
        self.written: list[bytes] = []
        self.broken = broken

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.written.append(data)


def attached(turns: Turns, wire: Wire) -> Outlet:
    outlet = Outlet(turns, 1 << 20, lambda size: None, lambda: None)
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
    assert "a socket could not be written to" in caplog.text
