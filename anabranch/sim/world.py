"""One world of one seed: hosts, links, people, faults; then peace, and everybody must agree in time.

Everything that is drawn is drawn from the seed, and nothing runs beside the one thread: so the same seed is the same
world, to the byte. The first phase has the faults. In the second, whatever was broken is mended, and within a deadline
of the world's own time all nodes must have come to the same heads, conflicts and tombstones.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec

from anabranch.config import LimitSettings, RetentionSettings, Settings
from anabranch.core.filter import Filter
from anabranch.core.negentropy import Items
from anabranch.core.operation import Family, Operation
from anabranch.core.retention import Mode
from anabranch.core.scope import EVERYTHING, Scope
from anabranch.node import now
from anabranch.replicate.following import Following
from anabranch.replicate.spec import Direction, LinkSpec, Timing
from anabranch.sim import disk as disks
from anabranch.sim import faults, knobs
from anabranch.sim.checks import Checks, current
from anabranch.sim.faults import DISASTERS, Fault, HostPace, Storm
from anabranch.sim.host import PORT, CannotStart, Host
from anabranch.sim.liar import Liar
from anabranch.sim.loop import WORLD, NoEnd, Process, VirtualLoop, process
from anabranch.sim.network import Network
from anabranch.sim.people import Reader, Writer
from anabranch.sim.signing import Notary
from anabranch.sim.trace import Trace
from anabranch.sim.workload import Author, Device
from anabranch.store.contract import StoreError

HEAL_SECONDS = 1_200.0
LOOK_SECONDS = 2.0
HABITS = ((20, 1), (60, 10), (1_000, 400))
"""How many operations somebody writes, and how many at a time: by hand, or as an app does that was offline for long."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a seed."""

    seed: int
    operations: int
    breaches: list[str]
    faults: dict[str, int]
    marks: dict[str, int]
    hash: str
    seconds: float
    """Of the world's own time."""
    trace: list[str] = []


class World:
    habits: tuple[tuple[int, int], ...] = HABITS
    survey_pause = Timing().survey_pause
    without: frozenset[Fault] = frozenset()
    """What is not to happen here."""

    def __init__(self, seed: int, keep_trace: bool = False, to_the_end: bool = True) -> None:
        """Unless it is to go `to_the_end`, the world ends with the first breach."""
        self.seed = seed
        self._to_the_end = to_the_end
        self.random = random.Random(seed)
        self.fired: Counter[Fault] = Counter()
        self.mix = [fault for fault in faults.draw(self.random) if fault not in self.without]
        self.storm = Storm(self.random, self.mix, self.fired)
        self.network = Network(self.storm)
        self.loop = VirtualLoop(self.network, self._stumbled)
        self.trace = Trace(self.loop.time, keep_trace)
        self.network.loop, self.network.trace = self.loop, self.trace
        self.checks = Checks(self.trace, self.loop.time)
        self.notary = Notary(self.random)
        self.paces: dict[str, HostPace] = {}
        self.hosts: list[Host] = []  # all who must agree in the end
        self.nodes: list[Host] = []  # those of them that have links
        self.writers: list[Writer] = []
        self._faulty: list[asyncio.Task[None]] = []
        self._people: list[Process] = []

    def run(self) -> Outcome:
        handler = _Complaints(self)
        log = logging.getLogger("anabranch")
        before = log.handlers, log.propagate, log.level
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.ERROR)
        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # of every connection that breaks
        asyncio.set_event_loop(self.loop)
        try:
            with self.notary.in_office(), knobs.turned(self.random):
                living = self.loop.create_task(self._live())
                if not self._to_the_end:
                    self.checks.breached = lambda: self._stop(living)
                try:
                    self.loop.run_until_complete(living)
                except asyncio.CancelledError:
                    pass
                except (CannotStart, NoEnd) as error:
                    self.checks.breach(str(error))
        finally:
            log.handlers, log.propagate = before[:2]
            log.setLevel(before[2])
            self._close()
        return Outcome(
            self.seed,
            self.checks.operations,
            self.checks.breaches,
            {fault: self.fired[fault] for fault in Fault},
            dict(sorted(self.checks.marks.items())),
            self.trace.hash,
            self.loop.time(),
            self.trace.lines,
        )

    @staticmethod
    def _stop(living: asyncio.Task[None]) -> None:
        living.cancel()

    # --- the two phases ---

    async def _live(self) -> None:
        await self._build()
        draw = self.random
        for writer in self.writers:
            writer.left, writer.burst = draw.choice(self.habits)
            self._start(f"writer {writer.device.name}", writer.live(draw.uniform(0.2, 2.0)))
        for reader in self._readers():
            self._start("reader", reader.live(draw.uniform(0.5, 4.0)))
        for fault, (disaster, pause) in DISASTERS.items():
            if fault in self.mix:
                self._faulty.append(self.loop.create_task(self._again(disaster, pause)))
        await asyncio.sleep(draw.uniform(10.0, 40.0))
        await self._heal()
        await self._agree()

    async def _build(self) -> None:
        draw = self.random
        retention = self._retention()
        for number in range(draw.choice((2, 2, 3, 3, 4))):
            self.nodes.append(await self._host(f"node-{number}", retention))
        self.hosts += self.nodes
        await self._invite()
        authors = [
            Author(number, draw.choice((Family.SNAPSHOT, Family.PLAIN, Family.REVISION)), draw.randrange(1, 4))
            for number in range(draw.randrange(2, 5))
        ]
        self.authors = authors
        for number in range(draw.randrange(2, 6)):
            author = draw.choice(authors)
            device = Device(f"device-{number}", author, self.notary, draw)
            forges = self._forged if Fault.FORGERY in self.mix else None
            writer = Writer(device, self.hosts, draw.choice(self.hosts), self.checks, draw, forges)
            writer.skew = draw.uniform(-600, 600) if Fault.SKEW in self.mix else 0.0
            self.writers.append(writer)
        await self._link()
        if Fault.LIAR in self.mix:
            await self._add_liar(retention)

    async def _invite(self) -> None:
        """Whoever else is to live here."""

    async def _host(
        self, name: str, retention: RetentionSettings, kind: type[Host] = Host, query_limit: int | None = None
    ) -> Host:
        draw = self.random
        limits = LimitSettings(idle_seconds=draw.choice((20, 120)))
        if query_limit is not None:
            limits = msgspec.structs.replace(limits, query_limit=query_limit)
        settings = Settings(host=name, port=PORT, retention=retention, limits=limits)
        pace = self.paces[name] = HostPace(draw)
        pages = draw.choice((10, 100, 1_000))
        timing = Timing(
            retry_max=draw.choice((5.0, 300.0)),
            verify=draw.choice((20.0, 300.0)),
            page_count=draw.choice((20, 60, 500)),
            survey_pause=self.survey_pause,
        )
        host = kind(name, self.network, settings, pace, self.checks, draw, pages, timing)
        self.checks.links.hosts[name] = host
        await host.boot()
        return host

    async def _add_liar(self, retention: RetentionSettings) -> None:
        """One more node, that follows one of the others and is followed by some, and whose every word is doubtful."""
        liar = await self._host("liar", retention)
        self.checks.links.liars.add(liar.name)
        self.network.twisted[liar.name] = Liar(self.random, lambda vice: self.fire(Fault.LIAR, vice)).twist
        await self._add(liar, self.random.choice(self.nodes), Direction.PULL)
        for host in self.random.sample(self.nodes, self.random.choice((1, 1, 2))):
            await self._add(host, liar, self.random.choice((Direction.PULL, Direction.BOTH)))

    async def _link(self) -> None:
        """A way from everybody to everybody, and some more."""
        draw, names = self.random, range(len(self.nodes))
        edges = [(one, draw.randrange(one)) for one in names if one]
        edges += [(one, other) for one in names for other in range(one) if draw.random() < 0.2]
        for one, other in dict.fromkeys(edges):
            pair = [self.nodes[one], self.nodes[other]]
            draw.shuffle(pair)
            if self._compacts and any(author.family is Family.REVISION for author in self.authors):
                for host, peer in (pair, pair[::-1]):  # who is only fed cannot ask what a compacted revision stood on
                    await self._add(host, peer, draw.choice((Direction.PULL, Direction.BOTH)))
                continue
            match draw.choice(("both", "pull", "push", "twice")):
                case "both":
                    await self._add(pair[0], pair[1], Direction.BOTH)
                case "twice":
                    await self._add(pair[0], pair[1], Direction.PULL)
                    await self._add(pair[0], pair[1], Direction.PUSH)
                case way:
                    await self._add(pair[0], pair[1], Direction(way))
                    await self._add(pair[1], pair[0], Direction(way))
        if draw.random() < 0.2:  # one more, of which nothing depends
            host, peer = draw.sample(self.nodes, 2)
            scope = Scope(authors=frozenset({draw.choice(self.authors).pubkey}))
            await self._add(host, peer, draw.choice(list(Direction)), scope)

    async def _add(self, host: Host, peer: Host, direction: Direction, scope: Scope = EVERYTHING) -> None:
        name = f"{direction}-{peer.name}{'-some' if scope != EVERYTHING else ''}"
        spec = LinkSpec(name, peer.url, scope, direction)
        await self.on(host, host.node.links.add(spec))

    def _retention(self) -> RetentionSettings:
        draw = self.random
        if Fault.RETENTION not in self.mix:
            return RetentionSettings(interval_seconds=100_000)
        return RetentionSettings(
            mode=draw.choice((Mode.CURRENT_ONLY, Mode.RECENT_HISTORY)),
            recent_count=draw.choice((1, 2, 4)),
            payload_days=draw.choice((0, 0, None)),
            interval_seconds=draw.choice((3, 20, 100_000)),
            replay_count=draw.choice((5, 20, 100)),
        )

    def _readers(self) -> list[Reader]:
        draw = self.random
        readers: list[Reader] = []
        for _ in range(draw.randrange(0, 4)):
            host, author = draw.choice(self.nodes), draw.choice(self.authors)
            if author.family is Family.SNAPSHOT and draw.random() < 0.7:
                request = {"mode": "tail", "authors": [author.pubkey]}
                readers.append(Reader(host, request, _by(author.pubkey, self.checks.made), self.checks, draw))
            else:
                readers.append(Reader(host, {"mode": "log"}, lambda id: True, self.checks, draw))
        return readers

    async def _again(self, disaster: Any, pause: float) -> None:
        try:
            while True:
                await asyncio.sleep(self.random.expovariate(1 / pause))
                if any(host.up for host in self.hosts):
                    await disaster(self)
        except CannotStart as error:
            self.checks.breach(str(error))

    async def _heal(self) -> None:
        """Whatever was broken is mended; nothing new breaks."""
        self.trace.note("world", "heals")
        self.storm.active = False
        for task in self._faulty:
            task.cancel()
        self.network.blocked.clear()
        for host in self.hosts:
            host.disk.full, host.disk.refused, host.disk.writes_left = False, 0, None
            host.crash_after_work = False
            host.clock.skew = 0.0
            self.paces[host.name].slowness = 1.0
            await host.ready()

    async def _agree(self) -> None:
        deadline = self.loop.time() + HEAL_SECONDS
        while not self._agreed():
            if self.loop.time() >= deadline:
                self._tell_apart()
                break
            await asyncio.sleep(LOOK_SECONDS)
        sets: dict[str, Items] = {}
        for host in self.hosts:
            self.checks.heads_are_right(host)
            await self.on(host, self._digest(host, sets))
        self.checks.digests_are_right(sets)
        self.checks.all_there(self.hosts, self._compacts)

    async def _digest(self, host: Host, sets: dict[str, Items]) -> None:
        """The set that a node keeps for reconciliation is the set that its store has; it is put among the `sets`."""
        for _ in range(5):  # compaction may fall between the two
            kept, _ = await host.node.links.host.items(Filter())
            rows = await host.node.readers.run(lambda reader: reader.items(Filter(), 1_000_000, now.seconds()))
            stored, sets[host.name] = Items.build(rows.timestamps, rows.ids), kept
            if kept.id_list(0, len(kept)) == stored.id_list(0, len(stored)):
                return
            await asyncio.sleep(1.0)
        self.checks.breach(f"{host.name} compares a set of {len(kept)}, and has one of {len(stored)}")

    def _agreed(self) -> bool:
        if not all(writer.done for writer in self.writers) or not all(host.up for host in self.hosts):
            return False
        if not all(link.link.caught_up for _, _, link in self._links()):
            return False
        first, *others = (current(host, self._tombstones) for host in self.hosts)
        if any(one != first for one in others):
            return False
        # Heads may agree while a link has not noticed yet that its peer was down, and lacks what is no head any more.
        return next(self.checks.lacking(self.hosts, self._compacts), None) is None

    @property
    def _compacts(self) -> bool:
        return self.hosts[0].settings.retention.policy().compacts

    @property
    def _tombstones(self) -> bool:
        """Whether wholly deleted documents stay: then they are compared too."""
        return Fault.RETENTION not in self.mix

    def _links(self) -> Iterator[tuple[Host, str, Following]]:
        """The links between those who do not lie."""
        for host in self.hosts:
            for name, link in host.node.links.links.items():
                if not any(liar in link.spec.peer for liar in self.checks.links.liars):
                    yield host, name, link

    def _tell_apart(self) -> None:
        """Why they do not agree, in words."""
        self.checks.breach(f"no agreement within {HEAL_SECONDS:g} s")
        for writer in self.writers:
            if not writer.done:
                self.checks.breach(f"{writer.device.name} still has {len(writer.outbox)} operations to publish")
        for host, name, link in self._links():
            machine = link.link
            if not machine.caught_up:
                self.checks.breach(
                    f"{host.name}: {name} is {machine.state}, {machine.phase}, after {machine.failures} failures: "
                    f"{machine.last_error}"
                )
        first, *others = self.hosts
        for other in others:
            here, there = current(first, self._tombstones), current(other, self._tombstones)
            if apart := here.items() ^ there.items():
                self.checks.breach(
                    f"{first.name} and {other.name} differ in {len({one for one, _ in apart})} documents"
                )

    # --- for disasters and people ---

    def _stumbled(self, text: str) -> None:
        self.checks.breach(f"{process.get().name}: something failed that nobody had thought of: {text}")

    def fire(self, fault: Fault, text: str) -> None:
        self.fired[fault] += 1
        self.trace.note("FAULT", f"{fault} {text}")

    def _forged(self, id: str) -> None:
        self.fire(Fault.FORGERY, id[:8])

    def pick(self) -> Host:
        """A host that is up."""
        return self.random.choice([host for host in self.hosts if host.up])

    async def on(self, host: Host, work: Coroutine[Any, Any, Any]) -> None:
        """Do something in the name of a host's node, and wait for it while the node lives."""
        context = contextvars.copy_context()
        context.run(process.set, host.process)
        context.run(now.clock.set, host.clock)
        done = asyncio.Event()
        host.process.on_death.append(done.set)
        task = self.loop.create_task(work, context=context)
        task.add_done_callback(lambda _: done.set(), context=self.network.context)
        await done.wait()
        if task.done():
            with contextlib.suppress(StoreError):  # of a disk that is full
                task.result()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A process of its own for somebody."""
        context = contextvars.copy_context()
        own = Process(name)
        self._people.append(own)
        context.run(process.set, own)
        self.loop.create_task(work, context=context)

    def _close(self) -> None:
        """Let go of everything, so that the next world finds nothing of this one."""
        hosts = self.checks.links.hosts.values()
        for host in hosts:
            host.kill()
        for own in self._people:
            own.kill()
            own.bury()
        self.loop.run_until_complete(asyncio.sleep(0))  # what has died is buried
        WORLD.bury()
        for host in hosts:
            disks.detach(host.disk)
        asyncio.set_event_loop(None)
        self.loop.close()


def _by(pubkey: str, made: dict[str, Operation]) -> Callable[[str], bool]:
    """Whether an operation is one of theirs. What died with its commit is in a log, and nobody here has seen it yet."""
    return lambda id: (one := made.get(id)) is not None and one.event.pubkey == pubkey


class _Complaints(logging.Handler):
    """What production code logs as an error while its machine is sound is a breach."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        own = process.get()
        host = next((host for host in self._world.checks.links.hosts.values() if host.process is own), None)
        if host is None or not own.alive or host.disk.full or host.disk.refused:
            return
        error = record.exc_info[1] if record.exc_info else None
        self._world.checks.breach(f"{own.name} logs: {record.getMessage()}: {error!r}")
