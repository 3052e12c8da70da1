"""What goes wrong in a world, by its seed: each seed draws its own mix, so that rare pairs meet (swarm testing).

Faults of the network come with every chunk that is sent (`Storm`). The others are disasters: each comes again after a
while, does its harm to one host, and undoes it where that is part of it. Every one that took effect is counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from anabranch.sim.network import Fate, Weather

if TYPE_CHECKING:
    from anabranch.sim.host import Host
    from anabranch.sim.world import World


class Fault(StrEnum):
    """Every kind there is. Over the default seeds each fires."""

    LOSS = "loss"
    DUPLICATION = "duplication"
    REORDER = "reorder"
    DELAY = "delay"
    CLOG = "clog"
    CUT = "cut"
    PARTITION = "partition"
    CRASH = "crash"
    CRASH_IN_COMMIT = "crash_in_commit"
    CRASH_AFTER_COMMIT = "crash_after_commit"
    TORN_WRITE = "torn_write"
    RESTORE = "restore"
    EPOCH = "epoch_reset"
    RETENTION = "retention_passing"
    SKEW = "clock_skew"
    FULL_DISK = "full_disk"
    SLOW_DISK = "slow_disk"
    FORGERY = "forgery"
    LIAR = "malicious_peer"


_OF_CHUNKS = {
    Fault.LOSS: (Fate.LOST, 0.004, (0.5, 15.0)),
    Fault.DUPLICATION: (Fate.TWICE, 0.02, (0.0, 0.0)),
    Fault.REORDER: (Fate.OVERTAKEN, 0.02, (0.0, 0.0)),
    Fault.DELAY: (Fate.DELAYED, 0.05, (0.02, 1.5)),
    Fault.CLOG: (Fate.CLOGGED, 0.004, (2.0, 20.0)),
    Fault.CUT: (Fate.CUT, 0.006, (0.001, 0.9)),
}


class Storm(Weather):
    """The weather of a seed: which chunk meets what."""

    def __init__(self, random: random.Random, faults: Sequence[Fault], fired: Counter[Fault]) -> None:
        self._random = random
        self._fired = fired
        self._base = random.choice((0.0005, 0.002, 0.03))
        self.active = True
        self._chances: list[tuple[float, Fault]] = []
        upto = 0.0
        for fault in faults:
            if fault in _OF_CHUNKS:
                upto += _OF_CHUNKS[fault][1] * random.choice((0.3, 1.0, 2.0))
                self._chances.append((upto, fault))

    def latency(self) -> float:
        return self._base * (1.0 + self._random.random())

    def fate(self, whole_frames: bool) -> tuple[Fate, float]:
        if not self.active or not self._chances:
            return Fate.ARRIVES, 0.0
        drawn = self._random.random()
        if drawn >= self._chances[-1][0]:
            return Fate.ARRIVES, 0.0
        fault = next(fault for upto, fault in self._chances if drawn < upto)
        if fault in (Fault.DUPLICATION, Fault.REORDER) and not whole_frames:
            return Fate.ARRIVES, 0.0
        fate, _, (least, most) = _OF_CHUNKS[fault]
        self._fired[fault] += 1
        return fate, self._random.uniform(least, most)


class HostPace:
    """How fast a host's disk is just now."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self.slowness = 1.0

    def read(self) -> float:
        """Mostly quick, and now and then so slow that much happens meanwhile."""
        return float(self._random.random() ** 8 * 0.3 * self.slowness**0.5)

    def write(self) -> float:
        return (0.0005 + self._random.random() * 0.003) * self.slowness


# --- disasters ---------------------------------------------------------------------------------------------------


async def partition(world: World) -> None:
    """Between two hosts nothing gets through, in one direction or in both."""
    one, other = world.random.sample([host.name for host in world.hosts], 2)
    ways = {(one, other)} | ({(other, one)} if world.random.random() < 0.4 else set())
    world.network.blocked |= ways
    world.fire(Fault.PARTITION, f"{one} to {other}{' and back' if len(ways) > 1 else ''}")
    await asyncio.sleep(world.random.uniform(0.5, 25.0))
    world.network.blocked -= ways


async def crash(world: World) -> None:
    host = world.pick()
    world.fire(Fault.CRASH, host.name)
    host.kill()
    await _start_again(world, host)


async def crash_in_commit(world: World) -> None:
    host = world.pick()
    host.disk.writes_left = world.random.randrange(1, 60)
    if await _dies(host):
        world.fire(Fault.CRASH_IN_COMMIT, host.name)
        await _start_again(world, host)


async def crash_after_commit(world: World) -> None:
    host = world.pick()
    host.crash_after_work = True
    if await _dies(host):
        world.fire(Fault.CRASH_AFTER_COMMIT, host.name)
        await _start_again(world, host)
    host.crash_after_work = False


async def lose_power(world: World) -> None:
    """In the middle of a commit: what was not synced is lost or torn."""
    host, lost = world.pick(), 0

    def died() -> None:
        nonlocal lost
        lost = host.lose_power()

    host.disk.died = died
    host.disk.writes_left = world.random.randrange(1, 60)
    if await _dies(host):
        if lost:
            world.fire(Fault.TORN_WRITE, f"{host.name}: {lost} writes")
        await _start_again(world, host)


async def restore(world: World) -> None:
    """An old backup is put back over what came after it."""
    host = world.pick()
    host.make_backup()
    await asyncio.sleep(world.random.uniform(1.0, 10.0))
    assert host.backup is not None
    if not host.up or host.holder.tip <= host.backup[1]:
        return  # it is not old, or nobody could know
    host.kill()
    host.restore_backup()
    world.fire(Fault.RESTORE, f"{host.name} back to {host.backup[1]}")
    world.checks.restoring(host)
    await _start_again(world, host)


async def new_epoch(world: World) -> None:
    host = world.pick()
    host.kill()
    world.fire(Fault.EPOCH, host.name)
    await asyncio.sleep(world.random.uniform(0.1, 2.0))
    if not host.process.alive:
        await host.boot(new_epoch=True)


async def forget(world: World) -> None:
    """Compaction at a bad moment: the floor passes whoever is behind."""
    host = world.pick()
    floor = host.store.log().floor
    await world.on(host, host.node.retention.run())
    if host.process.alive and host.store.log().floor > floor:
        world.fire(Fault.RETENTION, host.name)


async def skew(world: World) -> None:
    host = world.pick()
    host.clock.skew = world.random.choice((-3_000.0, -30.0, 30.0, 3_000.0)) * world.random.random()
    world.fire(Fault.SKEW, f"{host.name} by {host.clock.skew:.0f} s")
    await asyncio.sleep(world.random.uniform(1.0, 30.0))


async def fill_disk(world: World) -> None:
    host = world.pick()
    disk = host.disk
    disk.full = True
    await asyncio.sleep(world.random.uniform(0.2, 8.0))
    disk.full = False
    if disk.refused:
        disk.refused = 0
        world.fire(Fault.FULL_DISK, host.name)


async def slow_disk(world: World) -> None:
    host = world.pick()
    pace = world.paces[host.name]
    pace.slowness = world.random.choice((20.0, 200.0, 1_000.0))
    world.fire(Fault.SLOW_DISK, host.name)
    await asyncio.sleep(world.random.uniform(1.0, 10.0))
    pace.slowness = 1.0


async def _dies(host: Host) -> bool:
    """Whether what was set up for it has ended it within a while."""
    died = host.process
    for _ in range(40):
        if not died.alive:
            break
        await asyncio.sleep(0.1)
    else:
        host.disk.writes_left = None
        host.disk.died = host.kill
        return False
    return True


async def _start_again(world: World, host: Host) -> None:
    await asyncio.sleep(world.random.choice((0.05, 0.5, 3.0, 15.0)) * (0.5 + world.random.random()))
    if not host.process.alive:
        await host.boot()


DISASTERS: dict[Fault, tuple[Callable[[World], Awaitable[None]], float]] = {
    Fault.PARTITION: (partition, 8.0),
    Fault.CRASH: (crash, 10.0),
    Fault.CRASH_IN_COMMIT: (crash_in_commit, 6.0),
    Fault.CRASH_AFTER_COMMIT: (crash_after_commit, 8.0),
    Fault.TORN_WRITE: (lose_power, 6.0),
    Fault.RESTORE: (restore, 10.0),
    Fault.EPOCH: (new_epoch, 15.0),
    Fault.RETENTION: (forget, 4.0),
    Fault.SKEW: (skew, 5.0),
    Fault.FULL_DISK: (fill_disk, 6.0),
    Fault.SLOW_DISK: (slow_disk, 8.0),
}
"""What comes again after so many seconds, on average."""


def draw(random: random.Random) -> list[Fault]:
    """The mix of a seed: some are quiet, some have nearly everything."""
    share = random.choice((0.1, 0.3, 0.3, 0.5, 0.7))
    return [fault for fault in Fault if random.random() < share]
