"""A machine with a disk and a clock, and on it a node: the production node, on stand-ins for threads and processes.

The node is killed, loses its power in the middle of a commit, is started again on what its disk has kept, gets an old
backup put back or a new epoch. Its store is the SQLite store on a simulated disk; its readers share the writer's
connection, which a single thread may. What it commits is told to the world's checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import apsw

from anabranch.config import Settings
from anabranch.core import nostr
from anabranch.core.operation import Operation, Removal
from anabranch.core.token import Log, Position
from anabranch.node import now
from anabranch.node.main import Node
from anabranch.node.writing import WriterThread
from anabranch.replicate.effects import Effect
from anabranch.replicate.following import Following, World
from anabranch.replicate.link import Link
from anabranch.replicate.spec import LinkSpec, Timing
from anabranch.sim import disk as disks
from anabranch.sim.disk import Disk
from anabranch.sim.loop import Process, process
from anabranch.sim.network import Network
from anabranch.store import held, sqlite
from anabranch.store.contract import Advance, LinkChange, LinkRecord, Offer, Outcome, Reader
from anabranch.store.held import Holder
from anabranch.store.sqlite import DATABASE
from anabranch.store.sqlite_reader import SqliteReader
from anabranch.store.sqlite_writer import SqliteWriter

T = TypeVar("T")

PORT = 80
USUAL = Timing()
EPOCH_SECONDS = 1_800_000_000  # what the clocks of the world show when it begins


class CannotStart(Exception):
    """A node does not start on what its disk has. That is the end of its world."""


class Watch(Protocol):
    """Who is told what a host does."""

    def committed(
        self, host: Host, offers: Sequence[Offer], outcomes: Sequence[Outcome], change: LinkChange | None
    ) -> None: ...
    def link_moved(self, host: Host, change: LinkChange) -> None: ...
    def link_said(self, host: Host, link: Link) -> None: ...
    def offered(self, host: Host, source: str, id: str, since: float) -> None: ...
    def forgetting(self, host: Host) -> contextlib.AbstractContextManager[None]: ...
    def forgot(self, host: Host) -> None: ...
    def booted(self, host: Host) -> None: ...


class HostClock(now.Clock):
    """Time on one machine: the world's, and how far it is off."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.skew = 0.0

    def nanoseconds(self) -> int:
        return int((EPOCH_SECONDS + self._time() + self.skew) * 1_000_000) * 1_000

    def monotonic(self) -> float:
        return self._time()


class Pace(Protocol):
    """How long a disk takes, in seconds of the world."""

    def read(self) -> float: ...
    def write(self) -> float: ...


class HostWriter(SqliteWriter):
    """The store's writer, watched."""

    def __init__(self, connection: apsw.Connection, host: Host) -> None:
        super().__init__(connection)
        self._host = host

    def append(
        self, offers: Sequence[Offer], received_at: int, advance: Advance | None = None, epoch: str | None = None
    ) -> list[Outcome]:
        changed: list[LinkChange] = []

        def noted(outcomes: Sequence[Outcome]) -> LinkChange:
            assert advance is not None
            changed.append(advance(outcomes))
            return changed[0]

        outcomes = super().append(offers, received_at, noted if advance is not None else None, epoch)
        self._host.watch.committed(self._host, offers, outcomes, changed[0] if changed else None)
        return outcomes

    def note_link(self, change: LinkChange) -> None:
        super().note_link(change)
        self._host.watch.link_moved(self._host, change)

    def compact(self, positions: Sequence[Position]) -> tuple[int, int]:
        with self._host.watch.forgetting(self._host):
            return super().compact(positions)

    def forget(self, documents: Sequence[bytes]) -> int:
        with self._host.watch.forgetting(self._host):
            forgotten = super().forget(documents)
        self._host.watch.forgot(self._host)
        return forgotten


class HostReader(SqliteReader):
    """Reads through the writer's connection, and leaves it open."""

    def close(self) -> None:
        pass


class HostStore:
    """A store on a host's disk."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.path = Path(DATABASE)
        self.connection = disks.connection(host.disk, DATABASE)
        self._read_at = -1
        self._read: dict[Any, Any] = {}
        try:
            sqlite.tuned(self.connection, "FULL")
            self.connection.pragma("wal_autocheckpoint", host.pages_a_checkpoint)
            self.writer = HostWriter(self.connection, host)
            self.renewed = held.notice_restore(self.writer, host.holder)
        except BaseException:
            self.connection.close(True)
            raise

    def open_reader(self) -> HostReader:
        return HostReader(self.connection, self.path)

    def log(self) -> Log:
        return self.read("log", self.writer.log)

    def read(self, name: Any, read: Callable[[], T]) -> T:
        """What `read` finds, under a name; read anew only after something was written."""
        if self._read_at != (changes := self.connection.total_changes()):
            self._read_at = changes
            self._read.clear()
        if name not in self._read:
            self._read[name] = read()
        return cast(T, self._read[name])

    def announce(self, url: str = "") -> None:
        log = self.writer.log()
        self._host.holder = Holder(1, url, log.stream, log.epoch, log.tip)

    def close(self) -> None:
        self.connection.close()


class HostReaders:
    """In place of threads: what is read is read at once, and arrives after a while."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader

    async def start(self) -> None:
        pass

    async def run(self, read: Callable[[Reader], T], who: Hashable = None) -> T:
        result = read(self._reader)
        await asyncio.sleep(self._host.pace.read())
        return result

    def close(self) -> None:
        pass


class HostWriterThread(WriterThread):
    """In place of the writer's thread: one piece of work after the other, each after a while."""

    def __init__(
        self,
        host: Host,
        writer: SqliteWriter,
        loop: asyncio.AbstractEventLoop,
        removed: Callable[[Sequence[Removal]], None],
    ) -> None:
        self._host = host
        self._writer = writer
        self._loop = loop
        self._removed = removed
        self._queue = self  # type: ignore[assignment]
        self._waiting: deque[tuple[Any, Any]] = deque()

    def put(self, item: tuple[Any, Any]) -> None:
        self._waiting.append(item)
        if len(self._waiting) == 1:
            self._loop.call_later(self._host.pace.write(), self._next)

    def _next(self) -> None:
        self._do(*self._waiting[0])
        self._host.after_work()
        self._waiting.popleft()
        if self._waiting:
            self._loop.call_later(self._host.pace.write(), self._next)


class HostProver:
    """In place of the checkers' processes."""

    working = idle = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def start(self) -> None:
        pass

    def submit(self, proofs: bytes, done: Callable[[bytes | None], None]) -> None:
        self._loop.call_later(0.0002, done, nostr.verify_proofs(proofs))

    async def check(self, proofs: bytes) -> bytes | None:
        await asyncio.sleep(0.0002)
        return nostr.verify_proofs(proofs)

    check_beside = check

    def replace_hung(self) -> None:
        pass

    def close(self) -> None:
        pass


class HostFollowing(Following):
    """A link at work, watched: whatever its machine says is looked at as soon as it says it."""

    def __init__(self, host: Host, world: World, spec: LinkSpec, record: LinkRecord) -> None:
        self._machine = host
        super().__init__(world, spec, record)

    def _tell(self, effects: list[Effect]) -> None:
        super()._tell(effects)
        self._machine.watch.link_said(self._machine, self.link)


class HostNode(Node):
    """The node as it is, without threads and processes."""

    def __init__(self, settings: Settings, host: Host) -> None:
        super().__init__(settings, host.store)  # type: ignore[arg-type]
        self._host = host

    def _equip(self) -> None:
        self.writer = HostWriterThread(self._host, self._host.store.writer, self.loop, self._removed)
        self.readers = HostReaders(self._host, self._host.store.open_reader())  # type: ignore[assignment]
        self.prover = HostProver(self.loop)
        self.share = self._host.random.random
        self.timing = self._host.timing
        self.follow = partial(HostFollowing, self._host)

    async def start(self) -> None:
        await super().start()
        offer, watch, host = self.admission.offer, self._host.watch, self._host

        def offered(publisher: Any, operation: Operation, access_key: str | None) -> None:
            watch.offered(host, publisher.peer, operation.event.id, publisher.began)
            offer(publisher, operation, access_key)

        self.admission.offer = offered  # type: ignore[method-assign]


class Host:
    """One machine. `up` while its node runs."""

    store: HostStore
    node: HostNode
    node_type: type[HostNode] = HostNode

    def __init__(
        self,
        name: str,
        network: Network,
        settings: Settings,
        pace: Pace,
        watch: Watch,
        random: random.Random,
        pages_a_checkpoint: int = 1_000,
        timing: Timing = USUAL,
    ) -> None:
        self.name = name
        self.network = network
        self.settings = settings
        self.pace = pace
        self.watch = watch
        self.random = random
        self.pages_a_checkpoint = pages_a_checkpoint
        self.timing = timing
        self.loop = network.loop
        self.clock = HostClock(self.loop.time)
        self.holder = Holder()
        self.disk = Disk(name)
        self.disk.put_back({DATABASE: _empty_store()})
        self.process = Process(name)
        self.process.alive = False
        self._serves: Process | None = None  # the process whose node is ready
        self.boots = 0
        self.crash_after_work = False
        self.backup: tuple[dict[str, bytes], Position] | None = None
        self._attach()

    @property
    def up(self) -> bool:
        return self.process.alive and self._serves is self.process

    @property
    def url(self) -> str:
        return f"ws://{self.name}:{PORT}/"

    async def ready(self) -> None:
        """Start it unless it is up; wait while it is starting."""
        while not self.up:
            if self.process.alive:
                await asyncio.sleep(0.1)
            else:
                await self.boot()

    def _attach(self) -> None:
        disks.attach(self.disk)
        self.disk.died = self.kill

    # --- starting ---

    async def boot(self, new_epoch: bool = False) -> None:
        """Start a node on what the disk has, and wait until it is ready or has died on the way."""
        self.boots += 1
        self.network.silent.discard(self.name)
        self.process = Process(self.name)
        context = contextvars.copy_context()
        context.run(process.set, self.process)
        context.run(now.clock.set, self.clock)
        over = asyncio.Event()
        self.process.on_death.append(over.set)
        starting = self.loop.create_task(self._start(new_epoch), context=context)
        starting.add_done_callback(lambda _: over.set(), context=self.network.context)
        await over.wait()
        if starting.done() and (error := starting.exception()) is not None:
            self.kill()
            raise CannotStart(f"{self.name} cannot start: {error!r}") from error

    async def _start(self, new_epoch: bool) -> None:
        self.store = HostStore(self)
        if self.boots == 1:
            self._name_log()
        if new_epoch:
            self.store.writer.new_epoch()
        self.watch.booted(self)
        self.node = self.node_type(self.settings, self)
        await self.node.start()
        self._serves = process.get()
        self.network.trace.note(self.name, f"is up at {self.store.log().tip}")

    def _name_log(self) -> None:
        """Stores start as copies of one that is empty; each has a log of its own."""
        names = (f"stream of {self.name}", f"{self.random.getrandbits(128):032x}")
        self.store.connection.execute("UPDATE log SET stream = ?, epoch = ?", names)

    # --- ending ---

    def kill(self) -> None:
        """As SIGKILL does it: what was written is written, and nothing more is."""
        self._end(quietly=False)

    def lose_power(self) -> int:
        """What was not synced is lost, or torn; nobody is told. How many writes were."""
        self._end(quietly=True)
        self.network.silent.add(self.name)
        return self.disk.power_lost(self.random)

    def _end(self, quietly: bool) -> None:
        if not self.process.alive:
            return
        died = self.process
        died.kill()
        old = self.disk
        old.down = True
        self.disk = Disk(self.name)
        self.disk.files = old.files
        self._attach()
        self.network.trace.note(self.name, "dies")
        self.network.process_died(self.name, quietly)
        store = getattr(self, "store", None)
        self.loop.call_soon(_bury, died, store, old, context=self.network.context)

    def after_work(self) -> None:
        """The writer has committed, and told nobody yet."""
        if self.crash_after_work:
            self.crash_after_work = False
            self.kill()

    # --- backups ---

    def make_backup(self) -> None:
        self.backup = self.disk.copy(), self.store.log().tip

    def restore_backup(self) -> None:
        """Put the old files in place of the new ones; the node is down."""
        assert self.backup is not None and not self.process.alive
        self.disk.put_back(self.backup[0])


def _bury(died: Process, store: HostStore | None, disk: Disk) -> None:
    died.bury()
    if store is not None:
        with contextlib.suppress(apsw.Error):
            store.connection.close(True)
    disks.detach(disk)


_empty: bytes = b""


def _empty_store() -> bytes:
    """The file of a store in which nothing is yet; made once."""
    global _empty
    if not _empty:
        disk = Disk("template")
        disks.attach(disk)
        connection = disks.connection(disk, DATABASE)
        sqlite.prepare(connection)
        connection.close()
        _empty = bytes(disk.files[DATABASE].data)
    return _empty
