"""Following one relay: the asyncio shell around the follower, which decides everything.

One task carries out effects in order. A connection is a reader and a writer of its own, so that a relay which reads
slowly never keeps us from hearing it. Whatever fails on the way (the network, the file) is told to the follower, and
the task goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from socket import gaierror
from typing import Any, Protocol, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.frames import CloseCode

from anabranch.client import effects as do
from anabranch.client import information, proving
from anabranch.client.document import Change, ChangeKind
from anabranch.client.effects import Effect
from anabranch.client.errors import NoSuchRelay, ReplicaError
from anabranch.client.file import Arrival, Checkpoint, ReplicaFile
from anabranch.client.follower import Follower, State, Timing
from anabranch.client.inbox import Inbox
from anabranch.client.ledger import KnownRelay, Ledger
from anabranch.client.now import World
from anabranch.client.sealing import Sealer
from anabranch.client.staging import Staging
from anabranch.core.nostr import serialise
from anabranch.wire import authentication, dialogue

CONNECT_SECONDS = 15.0
MESSAGE_BYTES_MAX = 4 << 20
QUEUE_COUNT = 32  # messages that the socket reads ahead of the inbox: memory is at most this many of the largest
TURN_COUNT = 500  # messages taken in before what they brought is applied

T = TypeVar("T")


class Host(Protocol):
    """What a replica gives to those who follow relays for it."""

    file: ReplicaFile
    ledger: Ledger
    sealer: Sealer
    world: World

    async def in_file(self, work: Callable[..., T], *arguments: Any) -> T: ...
    def in_prover(self, work: Callable[..., T], *arguments: Any) -> Coroutine[Any, Any, T]: ...
    def tell(self, changes: list[Change]) -> None: ...
    def stir_others(self, url: str) -> None: ...


class Following:
    def __init__(self, host: Host, known: KnownRelay, timing: Timing) -> None:
        self.url = known.url
        self.relay = known.relay
        self.settled = asyncio.Event()
        """Set while the relay is caught up with."""
        self._host = host
        self._timing = timing
        self._world = host.world
        self.follower = Follower(
            host.file.family,
            host.file.owner,
            known.access_key,
            known.checkpoint,
            timing,
            host.world.share,
        )
        self._connection: _Connection | None = None
        self._inbox: Inbox[_Connection] = Inbox()
        self._stirred = asyncio.Event()
        self._pending: deque[Effect] = deque()
        self._staging = Staging()
        self._owed_after = 0
        self._gone = False  # the replica knows this relay no more: there is nothing to wait for
        self._task = asyncio.create_task(self._run(), name=f"follow {known.url}")

    # --- what the replica asks ---

    def stir(self, anew: bool = False) -> None:
        """Something may be owed now."""
        self._pending.extend(self.follower.wake(anew))
        self._note()
        self._stirred.set()

    def try_now(self) -> None:
        self.follower.try_now()
        self._stirred.set()

    async def stop(self) -> None:
        self.follower.stop()
        self._task.cancel()
        await asyncio.wait([self._task])
        self._staging.discard()
        if self._connection is not None:
            await self._connection.close()
        self._note()

    def _note(self) -> None:
        if self._gone or (self.follower.caught_up and not self._pending):
            self.settled.set()
        else:
            self.settled.clear()

    # --- the task ---

    async def _run(self) -> None:
        while self.follower.state is not State.STOPPED:
            await self._guarded(self._turn())
            self._note()
            due = self.follower.deadline
            wait = None if due is None else max(0.0, due - self._world.monotonic())
            if not (self._pending or self._inbox or self._gone):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._stirred.wait()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever could not be carried out ends the connection, and is tried again from the checkpoint on disk."""
        try:
            await work
        except NoSuchRelay:
            await self._let_go()
        except Exception as error:  # also of our own making: the following must not end by it
            why = str(error) if isinstance(error, (ReplicaError, OSError)) else f"{type(error).__name__}: {error}"
            self._pending.clear()
            self._pending.extend(self.follower.lost(why, self._world.monotonic()))
            self.follower.checkpoint = await self._checkpoint_on_disk()

    async def _let_go(self) -> None:
        """Another process has removed the relay: nothing is to be noted of it, so it is not followed either."""
        self._gone = True
        self._pending.clear()
        self.follower.last_error = "removed from the replica by another process"
        await self._perform(self.follower.stop())

    async def _checkpoint_on_disk(self) -> Checkpoint | None:
        """The follower may be ahead of what could be written. Where even that cannot be read: none, and a bootstrap."""
        try:
            return (await self._host.in_file(self._host.ledger.relay, self.relay)).checkpoint
        except Exception:
            return None

    async def _turn(self) -> None:
        self._stirred.clear()
        now = self._world.monotonic
        await self._perform(self.follower.tick(now()))
        for _ in range(TURN_COUNT):
            if (taken := self._inbox.take()) is None:
                break
            connection, said = taken
            if connection is not self._connection:
                continue  # of a connection that is over
            if isinstance(said, dict):
                await self._perform(self.follower.opened(said, now()))
            elif isinstance(said, Exception):
                await self._perform(self.follower.lost(_in_words(said), now()))
            elif more := self.follower.receive(said, now()):
                await self._perform(more)
        await self._perform(self.follower.flush())

    async def _perform(self, effects: list[Effect]) -> None:
        self._pending.extend(effects)
        while self._pending:
            # What an effect brings up goes before what was to come after it: the order is that of the machine.
            self._pending.extendleft(reversed(await self._do(self._pending.popleft())))

    async def _do(self, effect: Effect) -> list[Effect]:
        host, follower, now = self._host, self.follower, self._world.monotonic
        match effect:
            case do.Send():
                if self._connection is not None:
                    self._connection.send(effect.message)
            case do.Stage():
                await self._staging.add(host.in_prover(proving.prove, effect.events, host.sealer))
            case do.Apply():
                await self._apply(effect)
            case do.Discard():
                self._staging.discard()
            case do.Dial():
                if self._connection is not None:
                    self._connection.abandon()
                self._connection = _Connection(self.url, self._inbox, self._stirred, self._timing)
            case do.HangUp():
                if self._connection is not None:
                    self._connection.abandon()
                    self._connection = None
            case do.Told():
                host.tell([Change(ChangeKind.RELAY, None, self.url, f"{effect.state}: {effect.why}".rstrip(": "))])
            case do.Authenticate():
                event = authentication.answer(host.sealer.keys, self.url, effect.challenge, self._world.seconds())
                return [*follower.answering(event.id), do.Send(dialogue.auth(serialise(event)))]
            case do.LoadOwed():
                return await self._load_owed(effect)
            case do.Acknowledge():
                await host.in_file(host.ledger.acknowledge, self.relay, effect.taken)
            case do.Refuse():
                await host.in_file(host.ledger.refuse, self.relay, effect.version, effect.reason)
                host.tell([Change(ChangeKind.REFUSED, None, self.url, effect.reason)])
            case do.NewLog():
                await host.in_file(host.ledger.forget_log, self.relay)
                host.tell([Change(ChangeKind.NEW_LOG, None, self.url, effect.why)])
            case do.LoadItems():
                return follower.items(await host.in_file(host.ledger.items))
            case do.LoadUnknown():
                return follower.unknown(await host.in_file(host.ledger.unknown, effect.revisions), now())
            case do.LoadWanted():
                return follower.wanted(await host.in_file(host.ledger.wanted, self.relay, effect.limit), now())
            case do.Absent():
                refused = await host.in_file(host.ledger.absent, self.relay, effect.revisions)
                host.tell([Change(ChangeKind.REFUSED, one.d, self.url, one.reason) for one in refused])
        return []

    async def _apply(self, effect: do.Apply) -> None:
        host = self._host
        batch = await self._staging.take()
        checkpoint = None if effect.position is None else Checkpoint(effect.stream, effect.epoch, effect.position)
        arrival = Arrival(
            self.relay,
            batch.proven,
            batch.dropped,
            [*batch.hinted, *effect.hinted],
            effect.seen,
            checkpoint,
            effect.removed,
        )
        changes = await host.in_file(host.file.apply, arrival, self.url)
        host.tell(changes)
        if arrival.versions:
            host.stir_others(self.url)

    async def _load_owed(self, effect: do.LoadOwed) -> list[Effect]:
        if effect.anew:
            self._owed_after = 0
        owed = await self._host.in_file(self._host.ledger.owed, self.relay, self._owed_after, effect.limit)
        # What was handed over is the publisher's until it is answered or the connection ends.
        self._owed_after = max((one.number for one in owed), default=self._owed_after)
        return self.follower.owed(owed, effect.limit, self._world.monotonic())


class _Connection:
    """One socket: first the information document, then messages, in the end the reason why it ended."""

    def __init__(self, url: str, inbox: Inbox[_Connection], stirred: asyncio.Event, timing: Timing) -> None:
        self._url = url
        self._inbox = inbox
        self._stirred = stirred
        self._timing = timing
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"connection to {url}")

    def send(self, message: bytes) -> None:
        self._outbox.put_nowait(message)

    def abandon(self) -> None:
        """Close, and wait for nothing."""
        self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await connect(
                    self._url,
                    compression=None,
                    proxy=None,
                    max_size=MESSAGE_BYTES_MAX,
                    max_queue=QUEUE_COUNT,
                    ping_interval=self._timing.ping,
                    ping_timeout=self._timing.ping,
                    close_timeout=1,
                )
        except (OSError, TimeoutError, WebSocketException) as error:
            await self._say(error)
            return
        async with socket:
            writer = asyncio.create_task(self._write(socket))
            try:
                # Only now: a relay that starts anew between the two has closed the socket.
                await self._say(await information.fetch(self._url, CONNECT_SECONDS))
                while True:
                    await self._say(await socket.recv(decode=False))
            except (OSError, WebSocketException) as error:
                await self._say(error)
            finally:
                writer.cancel()

    async def _say(self, what: Any) -> None:
        await self._inbox.put(self, what)
        self._stirred.set()

    async def _write(self, socket: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):  # the reader says so
            while True:
                await socket.send(await self._outbox.get(), text=True)


def _in_words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"no connection within {CONNECT_SECONDS:g} s"
        case ConnectionClosed(sent=sent) if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            return f"the relay sent a message of more than {MESSAGE_BYTES_MAX >> 20} MiB"
        case ConnectionClosed():
            said = error.rcvd
            return f"the relay closed the connection: {said.code} {said.reason}".rstrip() if said else "it broke off"
        case ConnectionRefusedError():
            return "nothing answers at this address"
        case gaierror():
            return "the name of the host is unknown"
    return str(error) or type(error).__name__
