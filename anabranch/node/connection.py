"""One socket: first HTTP, then perhaps a websocket session.

Reading pauses while too much of what was read waits to be stored, here or in the whole node, and while an AUTH is being
proven; frames that came by then are held. A reader of live events that falls too far behind and does not catch up
(`outlet`) is told and dropped, and never slows anybody else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anabranch.core.changes import ChangesQuery
from anabranch.node import now
from anabranch.node.exchange import Exchange, Ready, Refusal, Upgrade, refusal
from anabranch.node.http import Answer, Request
from anabranch.node.hub import Style, Subscription
from anabranch.node.outlet import Outlet
from anabranch.node.reconciliation import Session as Reconciling
from anabranch.wire import frames, messages
from anabranch.wire.session import (
    Cancel,
    Changes,
    Count,
    Effect,
    Hangup,
    Prove,
    Publish,
    Query,
    Reconcile,
    ReconcileEnd,
    ReconcileOn,
    Send,
    Session,
)

if TYPE_CHECKING:
    from anabranch.node.main import Node
    from anabranch.store.contract import Reader

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0  # how long a peer that is let go may read nothing
FAREWELLS = 5  # so often it may read a part of what waits for it


class Connection(asyncio.Protocol):
    __slots__ = (
        "_closing",
        "_exchange",
        "_frames",
        "_held",
        "_held_bytes",
        "_in_flight",
        "_in_flight_bytes",
        "_live",
        "_node",
        "_paused_reading",
        "_proving",
        "_reading",
        "_reconciling",
        "_stopped",
        "_tasks",
        "_transport",
        "began",
        "id",
        "outlet",
        "peer",
        "pinged",
        "seen",
        "session",
    )

    def __init__(self, node: Node) -> None:
        limits = node.settings.limits
        self._node = node
        self._exchange: Exchange | None = None  # until it is a websocket
        self._frames: frames.FrameReader | None = None
        self.session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self.outlet = Outlet(node.turns, limits.send_buffer_bytes, node.outgoing.add, self._drop_lagging)
        self._closing = False
        self._live: dict[str, Subscription] | None = None
        self._reconciling: dict[str, Reconciling] | None = None
        self._tasks: dict[str, asyncio.Task[None]] | None = None
        self._held: Iterator[tuple[int, bytes]] | None = None  # frames that wait to be taken up
        self._held_bytes = 0
        self._in_flight = self._in_flight_bytes = 0
        self._reading = asyncio.Semaphore(limits.queries_at_once)
        self._paused_reading = self._proving = False
        self._stopped = False
        self.id = ""
        self.peer = ""
        self.seen = self.began = now.monotonic()
        self.pinged: float | None = None

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own do not inherit from it
        self.outlet.attach(self._transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else "local"
        self._exchange = Exchange(self.peer)
        if not self._node.opened(self):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.outlet.detach()
        self._let_go()
        self._tasks = None
        self._node.closed(self)

    def data_received(self, data: bytes) -> None:
        self.seen = now.monotonic()
        self.pinged = None
        if self._closing:
            return
        try:
            if self._frames is not None:
                self._receive_frames(self._frames, data)
            elif self._exchange is not None:
                if not self._exchange.begun:  # the time that a request has is its own
                    self.began = self.seen
                self._exchange.receive(data)
                self._next_http(self._exchange)
        except Exception:
            self._break()
        self._node.incoming.add(len(data))

    def eof_received(self) -> bool:
        return False

    # --- HTTP ---

    def _next_http(self, exchange: Exchange) -> None:
        """Take up the next request, if all of it is here. One at a time: while it is served nothing more is read."""
        step = exchange.next()
        while isinstance(step, Ready):
            self._write(step.data)
            step = exchange.next()
        match step:
            case Request():
                self.pause_reading()
                self._start("http", self._serve_http(exchange, step))
            case Upgrade():
                self._upgrade(exchange, step)
            case Refusal():
                self._refuse_http(exchange, step)

    async def _serve_http(self, exchange: Exchange, request: Request) -> None:
        try:
            answer = await self._node.http.answer(request)
        except Exception:
            # No more of the path than this: what follows may be an access key.
            log.exception("a request failed", extra={"target": "/".join(request.path.split("/")[:3])})
            answer = Answer(500, b'{"error":"internal error"}', "application/json")
        self._write(exchange.answer(answer, request.method))
        if exchange.over:
            self._finish()
            return
        try:
            await self.writable()
        except ConnectionError:  # it is gone, or was let go
            return
        exchange.again()
        self.began = now.monotonic()
        self._node.loop.call_soon(self._read_on, exchange)

    def _read_on(self, exchange: Exchange) -> None:
        """Take up the next request that is here already; read on only if there is none."""
        served = (self._tasks or {}).get("http")
        if not self._closing:
            self._next_http(exchange)
            if (self._tasks or {}).get("http") is served:
                self.resume_reading()

    def _refuse_http(self, exchange: Exchange, refused: Refusal) -> None:
        self._write(exchange.answer(refused.answer))
        self._finish()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _upgrade(self, exchange: Exchange, asked: Upgrade) -> None:
        if not self._node.has_room():
            self._refuse_http(exchange, refusal(503, "too many connections; try again later"))
            return
        self._write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % frames.accept_key(asked.key).encode()
        )
        self._exchange = None
        self._frames = frames.FrameReader(self._node.settings.limits.message_bytes)
        self.id = secrets.token_hex(8)
        self.session = Session(self._node.rules, secrets.token_hex(16))
        self._node.upgraded(self)
        self._carry_out(self.session.greeting())
        if asked.rest:
            self._receive_frames(self._frames, asked.rest)

    def out_of_time(self) -> None:
        """No request, or not the rest of one, has come for too long."""
        if self._closing:
            return
        if self._exchange is not None and self._exchange.begun:
            self._refuse_http(self._exchange, refusal(408, "the request took too long to arrive"))
        else:
            self._finish()

    # --- the websocket ---

    def _receive_frames(self, reader: frames.FrameReader, data: bytes) -> None:
        self._held_bytes += len(data)
        arrived = reader.feed(data)
        if self._held is not None:  # a transport may still have had something when it was told to read no further
            self._held = chain(self._held, arrived)
        elif self._node.gate.closed:
            self._held = arrived
            self.pause_reading()
        else:
            self._take(arrived)

    def _take(self, arrived: Iterator[tuple[int, bytes]]) -> None:
        """Take up frames in order. What follows an AUTH waits until that is proven, since it may depend on it."""
        session = self.session
        assert session is not None
        time, received = now.seconds(), 0
        events, size = self._in_flight, self._in_flight_bytes
        try:
            for opcode, payload in arrived:
                if opcode == frames.TEXT:
                    received += 1
                    self._carry_out(session.receive(payload, time))
                elif opcode == frames.BINARY:
                    self._carry_out(session.binary())
                elif opcode == frames.PING:
                    self.send(frames.control(frames.PONG, payload))
                elif opcode == frames.CLOSE:
                    self.send(frames.control(frames.CLOSE, payload[:2]))
                    self._finish()
                if self._closing:
                    break
                if self._proving:
                    self._held = arrived
                    self.pause_reading()
                    break
        except frames.ProtocolError as error:
            self.hang_up(error.code, error.reason)
        finally:
            if self._held is None:
                self._held_bytes = 0
            if self._in_flight > events:
                self._node.gate.took(self._in_flight - events, self._in_flight_bytes - size)
        if received:
            self._node.metrics.messages.inc(received)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    self._in_flight += 1
                    self._in_flight_bytes += len(effect.operation.raw)
                    self._node.admission.offer(self, effect.operation, effect.access_key)
                    limits = self._node.settings.limits
                    if self._in_flight >= limits.events_in_flight or self._in_flight_bytes >= limits.bytes_in_flight:
                        self.pause_reading()
                case Send():
                    self.send(frames.text(effect.message))
                case Query():
                    style = Style.EVENTS if effect.batched else Style.EVENT
                    selector = tuple(filter.live() for filter in effect.filters)
                    subscription = Subscription(self.outlet, effect.subscription, selector, style)
                    self._open(subscription, self._node.replay.query(self, effect, subscription))
                case Changes():
                    bootstrap = effect.request.mode == "bootstrap"
                    style = Style.SNAPSHOT if bootstrap else Style.CHANGE
                    subscription = Subscription(self.outlet, effect.subscription, effect.request.query, style)
                    self._open(subscription, self._node.replay.changes(self, effect, subscription))
                case Reconcile():
                    self._reconcile(effect)
                case ReconcileOn():
                    self._reconcile_on(effect)
                case ReconcileEnd():
                    self._end_reconciliation(effect.subscription)
                case Count():
                    self._start(f"count {id(effect)}", self._node.replay.count(self, effect))
                case Prove():
                    self._proving = True
                    self._start(f"auth {id(effect)}", self._prove(effect))
                case Cancel():
                    self._cancel(effect.subscription)
                case Hangup():
                    self.hang_up(frames.POLICY, effect.reason)

    async def _prove(self, asked: Prove) -> None:
        proven = await self._node.prove(asked.event)
        if self.session is None or self._closing:
            return
        self._proving = False  # what is held is taken up when this task is done
        self._carry_out(self.session.proven(asked.event, proven))

    # --- subscriptions ---

    async def read(self, read: Callable[[Reader], T]) -> T:
        """Read the store; of one connection only so many reads run at a time, so that others have their turn."""
        async with self._reading:
            return await self._node.readers.run(read, self.id)

    def _open(self, subscription: Subscription, replay: Coroutine[Any, Any, None]) -> None:
        if self._live is None:
            self._live = {}
        self._live[subscription.name] = subscription
        self._start(f"subscription {subscription.name}", replay)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something that takes time; of one name only one runs at a time."""
        if self._tasks is None:
            self._tasks = {}
        if (running := self._tasks.get(name)) is not None:
            running.cancel()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[name] = task
        if len(self._tasks) >= self._node.settings.limits.queries_waiting:
            self.pause_reading()
        task.add_done_callback(lambda task: self._task_done(name, task))

    def _task_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks is not None and self._tasks.get(name) is task:
            del self._tasks[name]
            if not self._tasks:
                self._tasks = None
            self.resume_reading()
        self._failed(task)

    def _failed(self, task: asyncio.Task[None]) -> None:
        """What went wrong in a task for a reason of ours costs the connection, and nobody else anything."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error, extra={"connection": self.id})
            self.hang_up(frames.TRY_LATER, "internal error")

    def _cancel(self, name: str) -> None:
        if (task := (self._tasks or {}).get(f"subscription {name}")) is not None:
            task.cancel()
        if self._live is not None and (subscription := self._live.pop(name, None)) is not None:
            self._node.hub.leave(subscription)

    def has(self, subscription: Subscription) -> bool:
        return self._live is not None and self._live.get(subscription.name) is subscription

    def subscription_ended(self, subscription: Subscription) -> None:
        if self._live is not None and self.has(subscription):
            del self._live[subscription.name]
            if self.session is not None:
                self.session.ended(subscription.name)

    @property
    def live_changes(self) -> list[str]:
        return sorted(name for name, sub in (self._live or {}).items() if sub.style is Style.CHANGE)

    # --- reconciliations ---

    def _reconcile(self, asked: Reconcile) -> None:
        if self._reconciling is None:
            self._reconciling = {}
        session = Reconciling(asked)
        self._reconciling[session.name] = session
        session.task = self._node.loop.create_task(self._node.reconciliation.run(self, session))
        session.task.add_done_callback(self._failed)

    def _reconcile_on(self, asked: ReconcileOn) -> None:
        session = (self._reconciling or {}).get(asked.subscription)
        if session is not None and not session.receive(asked.message):
            self.send(frames.text(messages.neg_error(session.name, messages.NO_ANSWER_AWAITED)))
            self._end_reconciliation(session.name)
            if self.session is not None:
                self.session.reconciled(session.name)

    def _end_reconciliation(self, name: str) -> None:
        if self._reconciling is not None and (session := self._reconciling.pop(name, None)) is not None:
            assert session.task is not None
            session.task.cancel()

    def reconciliation_ended(self, session: Reconciling) -> None:
        if self._reconciling is not None and self._reconciling.get(session.name) is session:
            del self._reconciling[session.name]
            if self.session is not None:
                self.session.reconciled(session.name)

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Queue frames; all of one turn go out together."""
        self.outlet.send(data)

    def acknowledge(self, answer: bytes, size: int, forged: bool = False) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        self.send(frames.text(answer))
        if self.session is not None:
            self._carry_out(self.session.settled(forged))
        if self._paused_reading:
            self.resume_reading()

    def _drop_lagging(self) -> None:
        self._node.metrics.dropped.inc()
        self._tell_lagging()
        self.hang_up(frames.TRY_LATER, "too slow")

    def _tell_lagging(self) -> None:
        for name, subscription in (self._live or {}).items():
            feed = isinstance(subscription.selector, ChangesQuery)
            tell = messages.changes_error if feed else messages.closed
            self.send(frames.text(tell(name, messages.LAGGING)))

    @property
    def congested(self) -> bool:
        return self.outlet.congested

    async def writable(self) -> None:
        """Wait until the socket takes more; a peer that takes nothing for too long is let go."""
        await self.outlet.writable(self._node.settings.limits.idle_seconds)

    def pause_writing(self) -> None:
        self.outlet.pause()

    def resume_writing(self) -> None:
        self.outlet.resume()

    # --- reading ---

    @property
    def unread(self) -> int:
        """Bytes of what was read and could not be taken up yet."""
        if self._exchange is not None:
            return self._exchange.held
        return self._held_bytes + (0 if self._frames is None else self._frames.held)

    def pause_reading(self) -> None:
        if not self._paused_reading and self._transport is not None:
            self._paused_reading = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, once half of what was too much is done, here and in the whole node."""
        limits = self._node.settings.limits
        if (
            self._paused_reading
            and not self._stopped
            and self._transport is not None
            and not self._closing
            and not self._proving
            and self._in_flight <= limits.events_in_flight // 2
            and self._in_flight_bytes <= limits.bytes_in_flight // 2
            and len(self._tasks or ()) <= limits.queries_waiting // 2
            and not (self.session is not None and self._node.gate.closed)
        ):
            self._paused_reading = False
            self._transport.resume_reading()
            held, self._held = self._held, None
            if held is not None:
                try:
                    self._take(held)
                except Exception:  # whoever made room for it has others to answer
                    self._break()

    @property
    def waits_for_us(self) -> bool:
        """Whether it is silent because we read nothing of it just now, or because we owe it an answer."""
        return self._paused_reading or bool(self._tasks)

    def stop_reading(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._stopped = True
        self.pause_reading()

    # --- ending ---

    def ping(self, time: float) -> None:
        self.pinged = time
        self.send(frames.control(frames.PING))

    def _break(self) -> None:
        """In an exception: a bug of ours must not take a neighbour's session with it."""
        log.exception("a message broke its session", extra={"connection": self.id})
        self.hang_up(frames.TRY_LATER, "internal error")

    def hang_up(self, code: int, reason: str) -> None:
        """Say why, and close. What waits to be sent still goes out, if the peer reads it soon."""
        if self._closing:
            return
        if self.session is not None:
            self.send(frames.close(code, reason))
        self._finish()

    def part(self, code: int, reason: str) -> None:
        """Say why, and leave it to the peer to close. While something it has sent is unread, the system would drop what
        is still on its way to it, answers too: so that is read, and thrown away."""
        transport = self._transport
        if self._closing or self.session is None or transport is None:
            self.hang_up(code, reason)
            return
        self.send(frames.close(code, reason))
        self.outlet.flush()
        self._let_go()
        transport.write_eof()
        if self._paused_reading:
            self._paused_reading = False
            transport.resume_reading()

    def give_up(self) -> None:
        """End it at once, and with it all that is kept for it."""
        self._node.metrics.dropped.inc()
        self._let_go()
        if self._transport is not None:
            self._transport.abort()

    def _finish(self) -> None:
        self.outlet.flush()
        self._let_go()
        if self._transport is not None:
            self._transport.close()
            self._see_off(self._transport.get_write_buffer_size(), FAREWELLS)

    def _let_go(self) -> None:
        """End what goes on for this connection."""
        self._closing = True
        for task in (self._tasks or {}).values():
            task.cancel()
        for subscription in (self._live or {}).values():
            self._node.hub.leave(subscription)
        for name in list(self._reconciling or ()):
            self._end_reconciliation(name)
        if self.session is not None:
            self.session.open.clear()
        self._live = self._held = None
        self._held_bytes = 0
        self.outlet.close()

    def _see_off(self, waiting: int, left: int) -> None:
        """The farewell lies behind all that was sent: a peer that reads is waited for, one that does not is not."""

        def look() -> None:
            if self._transport is not None:
                now_waiting = self._transport.get_write_buffer_size()
                if left and now_waiting < waiting:
                    self._see_off(now_waiting, left - 1)
                else:
                    self._transport.abort()

        self._node.loop.call_later(CLOSE_SECONDS, look)
