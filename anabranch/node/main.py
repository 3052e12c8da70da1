"""The node: everything put together, started, and brought to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from anabranch.config import Settings
from anabranch.core import nostr
from anabranch.core.operation import Removal
from anabranch.core.token import Log
from anabranch.node import logs, now
from anabranch.node.access import Access
from anabranch.node.admin import Admin
from anabranch.node.admission import Admission
from anabranch.node.allowance import Allowance
from anabranch.node.connection import Connection
from anabranch.node.gate import Gate
from anabranch.node.http import Http
from anabranch.node.hub import Hub
from anabranch.node.linking import NodeHost, Reloading, link_specs
from anabranch.node.metrics import Metrics
from anabranch.node.outlet import Turns
from anabranch.node.prover import Checkers, Prover
from anabranch.node.readers import Readers
from anabranch.node.reconciliation import Reconciliation
from anabranch.node.replay import Replay
from anabranch.node.retention import Retention
from anabranch.node.writing import WriterThread
from anabranch.replicate.following import Following, World
from anabranch.replicate.links import LinkError, Links
from anabranch.replicate.measuring import Measures
from anabranch.replicate.spec import LinkSpec, Timing
from anabranch.store.contract import KEYS_ASKED_FOR, LinkRecord, StoreBusy, StoreError
from anabranch.store.opening import AnyStore, open_store
from anabranch.wire import frames, messages
from anabranch.wire.opened import Together
from anabranch.wire.session import KEY_LOST, KEY_WANTED, Grant, Rules

log = logging.getLogger(__name__)

READER_THREADS = 3
NAMES_AT_ONCE = 64  # looked up: one that nobody answers for takes long, and keeps no other from its turn
SWEEP_SECONDS = 2.0
LINKS_SECONDS = 12.0  # enough for a checker that hangs to be replaced
DRAIN_SECONDS = 10.0
SOCKETS_TO_REFUSE = 64
_PORT_IS_NOT_OURS = (errno.EADDRINUSE, errno.EACCES)


class CannotStart(Exception):
    """The system refuses a node what it needs; the text says what and why."""


class Node:
    """A running node. `start` makes it ready, `stop` drains it: what was taken is answered, then all is closed.

    One that could not start is stopped too.
    """

    def __init__(self, settings: Settings, store: AnyStore) -> None:
        self.settings = settings
        self.store = store
        self.ready = False
        self.metrics = Metrics()
        self.sessions: dict[Connection, None] = {}
        self._sockets: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises `StoreError` and `CannotStart`."""
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop)
        self._identity = self.store.writer.log()  # from now on the writer is its thread's
        self._equip()
        settings, limits = self.settings, self.settings.limits
        self._announced = self._identity.tip
        self.hub = Hub(self._identity.tip, limits.send_buffer_bytes)
        self.gate = Gate(limits.bytes_in_flight_total, self.sessions)
        self.outgoing = Allowance(
            limits.send_buffer_bytes_total, self._sockets, lambda one: one.outlet.waiting, Connection.give_up
        )
        self.incoming = Allowance(
            limits.receive_buffer_bytes_total, self._sockets, lambda one: one.unread, Connection.give_up
        )
        await self.readers.start()
        with _needed("start a process that checks signatures"):
            await self.prover.start()
        self.reconciliation = Reconciliation(
            self.metrics,
            limits.reconcile_items,
            limits.reconcile_bytes,
            limits.reconcile_seconds,
            limits.message_bytes,
        )
        self.admission = Admission(
            self.prover,
            self.writer,
            self.hub,
            self.reconciliation.sets,
            self.metrics,
            self.gate,
            limits.send_buffer_bytes,
            lambda: self.retention.soon(),  # both are made below
            lambda: self.links.published(),
            self.turns.end,
        )
        self.links = Links(
            NodeHost(self),
            clock=now.monotonic,
            wall=now.seconds,
            share=self.share,
            timing=self.timing,
            measures=Measures(self.metrics.registry),
            follow=self.follow,
        )
        self.replay = Replay(
            self.hub,
            self.metrics,
            limits.query_limit,
            limits.send_buffer_bytes,
            limits.bootstrap_seconds,
            settings.private,
        )
        self.retention = Retention(
            self.store,
            self._identity.floor,
            self.readers,
            self.writer,
            self.hub,
            self.metrics,
            settings.retention.policy(),
            settings.retention.interval_seconds,
            settings.retention.window(),
        )
        await self.retention.start()
        keys, asked_for = await self.readers.run(lambda r: (r.access_keys(), r.setting(KEYS_ASKED_FOR) == b"true"))
        self.access = Access(keys, asked_for, self.writer, self._access_changed, self._access_lost)
        self.rules = Rules(
            limits=settings.event_limits(),
            kinds=settings.kind_policy(),
            private=settings.private,
            relay_url=settings.relay_url,
            own_revisions_only=settings.revision_writes == "recipient",
            allowed=frozenset(settings.allowed_pubkeys) or None,
            subscriptions=limits.subscriptions,
            subscription_id_characters=limits.subscription_id_characters,
            filters=limits.filters,
            filter_values=limits.filter_values,
            open_values=limits.open_filter_values,
            open_together=Together(limits.open_filter_values_total),
            reconciliations=limits.reconciliations,
            bad_messages=limits.bad_messages,
            grants=self.access.grants,
        )
        self.http = Http(self)
        self.admin = Admin(self)
        self._measure()
        self._server = await self._listen()
        self._compacting = self.loop.create_task(self.retention.keep_running())
        self._sweeping = self.loop.create_task(self._sweep())
        with _needed("write the lock file"):
            await self.writer.run(lambda _: self.store.announce(self.http_url))
        await self.links.start(link_specs(settings))
        self.ready = True

    def _equip(self) -> None:
        """The threads and processes that do the heavy work. The simulated world has stand-ins for them."""
        self.writer = WriterThread(self.store.writer, self.loop, self._removed)
        self.readers = Readers(self.store, READER_THREADS, self.settings.limits.query_seconds)
        self.share = random.random
        self.timing = Timing()
        self.follow: Callable[[World, LinkSpec, LinkRecord], Following] = Following
        workers = self.settings.verify_workers
        self.prover: Checkers = Prover(max(1, min(4, os.cpu_count() or 1) if workers is None else workers))

    async def _listen(self) -> asyncio.Server:
        host, port = self.settings.host, self.settings.port
        try:
            return await self.loop.create_server(lambda: Connection(self), host, port, backlog=4096, reuse_address=True)
        except UnicodeError as error:
            raise CannotStart(f"cannot listen on {host}: it is no name of a host; another goes with --host") from error
        except OSError as error:
            other = "port goes with --port" if error.errno in _PORT_IS_NOT_OURS else "address goes with --host"
            # What asyncio adds is about its own calls; a name that is not found has words of its own.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise CannotStart(f"cannot listen on {host}:{port}: {why}; another {other}") from error

    def _measure(self) -> None:
        gauge = self.metrics.gauge
        gauge("connections", "Open websocket connections", lambda: len(self.sessions))
        gauge("subscriptions", "Live subscriptions", lambda: self.hub.subscriptions)
        gauge("reconciliations", "Negentropy sessions under way", lambda: self.reconciliation.sessions)
        gauge("log_tip", "The last position published", lambda: self.hub.tip)
        gauge("operations_in_flight", "Operations taken and not yet answered", lambda: self.admission.in_flight)
        gauge("bytes_in_flight", "Memory that these take, roughly", lambda: self.gate.bytes)
        gauge("bytes_to_send", "Bytes that wait for readers", lambda: self.outgoing.bytes)
        gauge("bytes_unread", "Bytes of messages and requests that are not whole yet", lambda: self.incoming.bytes)

    def _removed(self, removals: Sequence[Removal]) -> None:
        self.admission.publish([], removals)

    @property
    def log(self) -> Log:
        """The log as it is published; from memory, so that it can be told however busy the store is."""
        return Log(self._identity.stream, self._identity.epoch, self.retention.floor, self.hub.tip)

    @property
    def address(self) -> str:
        """Host and port as they are."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.address}"

    @property
    def introduction(self) -> dict[str, Any]:
        """Where it listens and what log it has; every value is JSON."""
        log_ = self.log
        return {
            "url": f"ws://{self.address}/",
            "http": self.http_url,
            "store": self.store.place,
            "stream": log_.stream,
            "epoch": log_.epoch,
            "epoch_is_new": self.store.renewed,
            "floor": log_.floor,
            "tip": log_.tip,
            "pid": os.getpid(),
        }

    async def stop(self) -> None:
        """Take nothing new, answer what was taken, say goodbye, close the store."""
        self.ready = False
        try:
            if self._server is not None:
                await self._drain(self._server)
        finally:
            await self.writer.stop()
            self.prover.close()
            self.readers.close()
            self.store.close()

    async def _drain(self, server: asyncio.Server) -> None:
        server.close()
        self._compacting.cancel()
        try:
            async with asyncio.timeout(LINKS_SECONDS):
                await self.links.stop()
        except TimeoutError:  # what they had under way comes again
            log.warning("stopping with pages of links not stored")
        await self.retention.stop()
        for connection in self._sockets:
            connection.stop_reading()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.admission.drain()
        except TimeoutError:
            log.warning("stopping with operations unanswered", extra={"count": self.admission.in_flight})
        self._sweeping.cancel()  # not before: what is under way may wait for a checker that hangs
        for connection in list(self._sockets):
            connection.part(frames.GOING_AWAY, "the relay is stopping")
        for _ in range(40):
            if not self._sockets:
                break
            await asyncio.sleep(0.05)

    # --- connections ---

    def has_room(self) -> bool:
        return bool(len(self._sockets) <= self.settings.limits.connections)

    def opened(self, connection: Connection) -> bool:
        """Whether there is room for it at all; a few more than can be served get to hear that there is none."""
        self._sockets[connection] = None
        return bool(len(self._sockets) <= self.settings.limits.connections + SOCKETS_TO_REFUSE)

    def upgraded(self, connection: Connection) -> None:
        self.sessions[connection] = None
        self.metrics.connections_total.inc()
        if self.gate.closed:
            connection.pause_reading()

    def closed(self, connection: Connection) -> None:
        self._sockets.pop(connection, None)
        self.sessions.pop(connection, None)

    async def prove(self, event: nostr.Event) -> bool | None:
        held = await self.prover.check(nostr.proof(event))
        return None if held is None else bool(held[0])

    def _access_changed(self, grant: Grant) -> None:
        for connection in self.sessions:
            session = connection.session
            if session is not None and session.grant is not None and session.grant.key == grant.key:
                session.grant = grant

    def _access_lost(self, keys: Collection[str] | None) -> None:
        """End the sessions that have shown one of these keys; None: those that have got in without one."""
        text, reason = (KEY_WANTED, "access key required") if keys is None else (KEY_LOST, "access key rejected")
        for connection in list(self.sessions):
            if (session := connection.session) is None:
                continue
            without = session.grant is None and bool(session.authors)
            if without if keys is None else session.grant is not None and session.grant.key in keys:
                connection.send(frames.text(messages.notice(text)))
                connection.hang_up(frames.POLICY, reason)

    async def _sweep(self) -> None:
        """Look after the node every few seconds, for ever: what fails in one turn is not the end of the next."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self._look_after()
                await self._announce()
            except Exception:
                log.exception("looking after the node failed; it is tried again")

    def _look_after(self) -> None:
        """Ping the silent, let go of the dead, and of those who never finish a request."""
        limits = self.settings.limits
        self.prover.replace_hung()
        self.access.sweep()
        self.hub.tell_passed()
        time = now.monotonic()
        for connection in list(self._sockets):
            silent = time - connection.seen
            if connection.waits_for_us:
                continue
            if connection.session is None:
                if time - connection.began > limits.handshake_seconds:
                    connection.out_of_time()
            elif connection.pinged is not None:
                if time - connection.pinged > limits.idle_seconds:
                    connection.hang_up(frames.GOING_AWAY, "silent for too long")
            elif silent > limits.idle_seconds:
                connection.ping(time)

    async def _announce(self) -> None:
        """Tell in the lock file how far the log has come."""
        if (tip := self.hub.tip) == self._announced:
            return
        try:
            await self.writer.run(lambda _: self.store.announce())
            self._announced = tip
        except (OSError, StoreError) as error:
            log.error("the lock file could not be written; it is tried again", extra={"cause": str(error)})


def serve(
    settings: Settings,
    reload: Callable[[], Settings] | None,
    remarks: Sequence[str] = (),
    started: Callable[[], None] = lambda: None,
    as_json: bool = False,
    hung_up: Callable[[], bool] = lambda: False,
) -> int:
    """Run a node until SIGINT or SIGTERM. The exit code.

    SIGHUP reads the links of the settings anew, once the node is started (`hung_up`: whether it came before); where
    there is no `reload`, it ends the node like the other two. `remarks` are told with the greeting, and `started` is
    called after it. With `as_json` one object on stdout says where it listens, or why it does not.
    """
    logs.set_up(settings.log_format, settings.log_level)
    try:
        link_specs(settings)
    except LinkError as error:
        return _refuse(str(error), 2, as_json)
    try:
        store = open_store(Path(settings.data), settings.store, settings.durability)
    except StoreBusy as error:
        other = "database with --store" if settings.store else "folder with --data"
        return _refuse(f"{error}; stop it first, or take another {other}", _code(error), as_json)
    except StoreError as error:
        return _refuse(str(error), _code(error), as_json)
    _raise_file_limit()
    _calm_collector()
    os.environ.setdefault("UV_THREADPOOL_SIZE", str(NAMES_AT_ONCE))
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run  # type: ignore[assignment]
    return run(_serve(settings, store, reload, remarks, started, as_json, hung_up))


async def _serve(
    settings: Settings,
    store: AnyStore,
    reload: Callable[[], Settings] | None,
    remarks: Sequence[str],
    started: Callable[[], None],
    as_json: bool,
    hung_up: Callable[[], bool],
) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if reload is None and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        loop.add_signal_handler(signal.SIGHUP, stopping.set)
    node = Node(settings, store)
    starting, signalled = loop.create_task(node.start()), loop.create_task(stopping.wait())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return await _stop(node)
    except (CannotStart, StoreError, LinkError) as error:
        code = _refuse(str(error), _code(error), as_json)
        try:
            await node.stop()
        except (OSError, StoreError) as another:
            log.error("what had been started could not be stopped in order", extra={"cause": str(another)})
        return code
    if reload is not None:
        reloading = Reloading(node, reload)
        loop.add_signal_handler(signal.SIGHUP, reloading.begin)
        if hung_up():
            reloading.begin()
    if as_json:
        _say(node.introduction)
    else:
        _greet(node, remarks)
    started()
    await signalled
    return await _stop(node)


async def _stop(node: Node) -> int:
    _tell("stopping …")
    await node.stop()
    _tell("stopped; everything acknowledged is on disk")
    return 0


@contextlib.contextmanager
def _needed(what: str) -> Iterator[None]:
    """Without this there is no node: says in words which of all that the system may refuse it was."""
    try:
        yield
    except OSError as error:
        raise CannotStart(f"cannot {what}: {error.strerror or error}") from error


def _code(error: Exception) -> int:
    return 4 if isinstance(error, StoreBusy) else 2 if isinstance(error, LinkError) else 1


def _refuse(text: str, code: int, as_json: bool) -> int:
    _tell(f"anabranch: {text}")
    if as_json:
        _say({"error": text, "exit_code": code})
    return code


def _say(what: dict[str, Any]) -> None:
    """For a program that reads our stdout."""
    with contextlib.suppress(OSError):
        print(msgspec.json.encode(what).decode(), flush=True)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def _greet(node: Node, remarks: Sequence[str]) -> None:
    log_ = node.log
    lines = [
        f"Anabranch listens on ws://{node.address}/",
        f"  data       {node.store.place} (stream {log_.stream[:8]}…, log at {log_.tip})",
        f"  about it   curl -s -H 'Accept: application/nostr+json' {node.http_url}/",
        f"  health     {node.http_url}/readyz   metrics  {node.http_url}/metrics",
        "  try next   anabranch demo: two devices, one note, a conflict and its end (make demo)",
        "             anabranch notes: encrypted notes of your own on this relay (anabranch notes --help)",
        *remarks,
        "  stop       Ctrl-C",
    ]
    if node.store.renewed:
        lines.insert(1, "  the database is older than it was: a backup was restored, and a new epoch is open")
    _tell("\n".join(lines))


def _calm_collector() -> None:
    """Look for cycles rarely: events hold none, and a full search of a busy node's memory is felt as a pause."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _raise_file_limit() -> None:
    """Every connection is a file; take as many as the system gives."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            pass
