"""The simulated network: in order and whole in good weather, and in bad weather bad in just the way that is said."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch.sim.loop import VirtualLoop
from anabranch.sim.network import GIVE_UP_SECONDS, Fate, Network, Weather
from anabranch.sim.trace import Trace


class Fates(Weather):
    """Weather by the list: the fates of the chunks, in the order in which they are sent."""

    def __init__(self, *fates: tuple[Fate, float]) -> None:
        self._fates = list(fates)

    def fate(self, whole_frames: bool) -> tuple[Fate, float]:
        return self._fates.pop(0) if self._fates else (Fate.ARRIVES, 0.0)


class End(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.over: Any = None
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.over = error or "closed"

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


def live(weather: Weather, story: Callable[[Network, End, End], Awaitable[None]]) -> float:
    """Tell a story of two ends; the seconds it took, of the world's."""
    network = Network(weather)
    failed: list[str] = []
    network.loop = loop = VirtualLoop(network, failed.append)
    network.trace = Trace(loop.time)

    async def main() -> None:
        there: list[End] = []

        def serve() -> End:
            there.append(End())
            return there[-1]

        await loop.create_server(serve, "there", 1)
        _, here = await loop.create_connection(End, "there", 1)
        await story(network, here, there[0])

    loop.run_until_complete(main())
    assert not failed
    return loop.time()


def test_what_is_written_arrives_whole_and_in_order():
    async def story(network: Network, here: End, there: End) -> None:
        for number in range(5):
            here.transport.write(b"%d" % number)
        there.transport.write(b"back")
        await asyncio.sleep(1)
        assert b"".join(there.got) == b"01234"
        assert here.got == [b"back"]
        here.transport.close()
        await asyncio.sleep(1)
        assert (here.over, there.over) == ("closed", "closed")

    live(Weather(), story)


@pytest.mark.parametrize(
    "fate, seen",
    [
        ((Fate.TWICE, 0.0), b"one one two three "),
        ((Fate.OVERTAKEN, 0.0), b"two one three "),
        ((Fate.DELAYED, 3.0), b"one two three "),
        ((Fate.LOST, 2.0), b""),
    ],
)
def test_the_weather_does_to_a_chunk_what_it_says(fate: tuple[Fate, float], seen: bytes):
    async def story(network: Network, here: End, there: End) -> None:
        for chunk in (b"one ", b"two ", b"three "):
            here.transport.write(chunk)
        await asyncio.sleep(10)
        assert b"".join(there.got) == seen
        assert (there.over is not None) == (fate[0] is Fate.LOST)

    live(Fates(fate), story)


def test_a_cut_leaves_a_part_of_a_chunk_and_both_ends_are_told():
    async def story(network: Network, here: End, there: End) -> None:
        here.transport.write(b"x" * 100)
        await asyncio.sleep(5)
        assert there.got == [b"x" * 50]
        assert isinstance(here.over, ConnectionResetError)
        assert isinstance(there.over, ConnectionResetError)

    live(Fates((Fate.CUT, 0.5)), story)


def test_through_a_partition_nothing_comes_and_the_sender_gives_up_alone():
    async def story(network: Network, here: End, there: End) -> None:
        source = here.transport.host
        network.blocked.add((source, "there"))
        here.transport.write(b"lost")
        there.transport.write(b"this way is free")
        await asyncio.sleep(GIVE_UP_SECONDS + 2)
        assert here.got == [b"this way is free"]
        assert isinstance(here.over, TimeoutError)
        assert there.over is None  # half-open: it has not been told
        assert there.got == []

    live(Weather(), story)


def test_a_partition_that_ends_in_time_only_delays():
    async def story(network: Network, here: End, there: End) -> None:
        network.blocked.add((here.transport.host, "there"))
        here.transport.write(b"late")
        await asyncio.sleep(5)
        assert there.got == []
        network.blocked.clear()
        await asyncio.sleep(1)
        assert there.got == [b"late"]

    live(Weather(), story)


def test_a_reader_that_pauses_is_felt_by_the_writer():
    async def story(network: Network, here: End, there: End) -> None:
        there.transport.pause_reading()
        for _ in range(10):
            here.transport.write(b"x" * 50_000)
        await asyncio.sleep(1)
        assert here.paused
        assert there.got == []
        there.transport.resume_reading()
        await asyncio.sleep(1)
        assert not here.paused
        assert sum(map(len, there.got)) == 500_000

    live(Weather(), story)


def test_nobody_listens_where_nobody_is():
    async def story(network: Network, here: End, there: End) -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(End, "nowhere", 1)

    live(Weather(), story)


def test_a_day_passes_at_once():
    async def story(network: Network, here: End, there: End) -> None:
        await asyncio.sleep(86_400)

    assert live(Weather(), story) >= 86_400


def test_what_awaits_nothing_is_told_so():
    network = Network(Weather())
    network.loop = loop = VirtualLoop(network, print)

    async def for_ever() -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="nothing is left to happen"):
        loop.run_until_complete(for_ever())
