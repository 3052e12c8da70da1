"""Whose turn it is to read the store: nobody waits for somebody else's long queries."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from anabranch.node.readers import LITTLE, REMEMBERED, Readers, Use

LONG = 1.5 * LITTLE


@pytest.fixture
def readers():
    store = SimpleNamespace(open_reader=lambda: SimpleNamespace(close=lambda: None, give_up=None, log=lambda: None))
    readers = Readers(store, 3, seconds_max=20)
    yield readers
    readers.close()


def slowly(reader):
    until = time.monotonic() + LONG
    while time.monotonic() < until and not reader.give_up():
        time.sleep(0.001)


async def test_who_reads_little_does_not_wait_for_those_who_read_much(readers):
    await readers.start()
    greedy = [f"greedy {n}" for n in range(10)]
    await asyncio.gather(*(readers.run(slowly, who) for who in greedy))
    order: list[str] = []

    async def read(who, job):
        await readers.run(job, who)
        order.append(who)

    flood = [asyncio.create_task(read(who, slowly)) for who in greedy * 3]
    await asyncio.sleep(LONG / 2)
    for n in range(5):
        await read(f"modest {n}", lambda reader: None)
    assert order == [f"modest {n}" for n in range(5)], "somebody waited for a thread"
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_of_several_who_come_at_once_each_has_a_turn_before_any_has_two(readers):
    order: list[str] = []

    async def read(who):
        await readers.run(lambda reader: order.append(who) or slowly(reader), who)

    await asyncio.gather(*(read(who) for who in "aaaabbbbccccdddd"), read("late"))
    assert order[:3] == ["a"] * 3 and set(order[3:7]) == {"b", "c", "d", "late"}


async def test_those_who_read_much_come_after_the_others_and_have_their_turns(readers):
    await readers.run(slowly, "greedy")
    done: list[str] = []

    async def read(who):
        await readers.run(slowly, who)
        done.append(who)

    await asyncio.gather(*(read("greedy") for _ in range(4)), *(read(f"other {n}") for n in range(4)))
    assert sorted(done) == ["greedy"] * 4 + [f"other {n}" for n in range(4)]
    assert done[-2:] == ["greedy"] * 2  # two had begun before the others came


async def test_a_turn_that_is_given_up_goes_to_the_next(readers):
    """Whether it was waited for, just given, or begun; in the end all threads are to be had."""
    for _ in range(3):
        tasks = [asyncio.create_task(readers.run(slowly, n)) for n in range(9)]
        await asyncio.sleep(0.01)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    together = threading.Barrier(3)
    async with asyncio.timeout(5):
        await asyncio.gather(*(readers.run(lambda reader: together.wait(4), n) for n in "abc"))


async def test_a_reader_that_fails_gives_its_thread_back(readers):
    def fail(reader):
        raise ValueError("no")

    for _ in range(5):
        with pytest.raises(ValueError):
            await readers.run(fail)
    together = threading.Barrier(3)
    async with asyncio.timeout(5):
        await asyncio.gather(*(readers.run(lambda reader: together.wait(4), n) for n in "abc"))


def test_what_was_used_counts_for_less_as_time_goes_on_and_is_forgotten():
    use = Use()
    use.add("a", 1.0, 1_000_000.0)
    use.add("b", 1.0, 1_000_004.0)
    assert use.of("a") < use.of("b")
    use.add("a", 0.75, 1_000_004.0)
    assert use.of("a") == pytest.approx(use.of("b"))
    assert not use.is_little(use.of("a"), 1_000_004.0)
    assert use.is_little(use.of("a"), 1_000_012.0)
    for n in range(3 * REMEMBERED):
        use.add(n, 0.001, 1_000_100.0)
    assert len(use._use) <= REMEMBERED + 1
