"""One link at work: the asyncio shell around the machine, which decides everything.

One task carries out effects in order. A connection has a reader of its own, which stops reading while too much waits:
in this link, or in all of them together. Pages are proven while others are stored, and stored in order. Whatever fails
on the way (the network, the store) is told to the machine, and the task goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any, NamedTuple, Protocol

import msgspec

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.filter import parse as parse_filter
from anabranch.core.scope import FILTER_VALUES_MAX
from anabranch.replicate import dialling, lookups
from anabranch.replicate import effects as do
from anabranch.replicate.applying import Host, Page
from anabranch.replicate.budget import Budget, weight, weight_of_operations
from anabranch.replicate.dialling import Unreachable
from anabranch.replicate.effects import Applied, Effect
from anabranch.replicate.identity import Identity, NoIdentity
from anabranch.replicate.link import Link
from anabranch.replicate.room import Room
from anabranch.replicate.socket import Ended, Socket
from anabranch.replicate.spec import LinkSpec, Timing
from anabranch.replicate.states import LinkState
from anabranch.store.contract import DeadLetter, LinkChange, LinkRecord, StoreError, Transition, Writer
from anabranch.wire.address import discreet

log = logging.getLogger(__name__)

PAGES_AHEAD = 4
LETTERS_AT_ONCE = 500
TURN_COUNT = 500  # messages taken in before what they brought is applied
TURN_BYTES = 1 << 20  # of them
FAILURES_NOTED_SECONDS = 60  # between two writes that would only say that it failed once more
SUCCESS_NOTED_SECONDS = 60  # between two writes that would only say that the two are equal still
STOPPING_SECONDS = 2.0  # for that at the end
WRITE_AGAIN_SECONDS = 5.0  # after there was no room for it


class _Dialled(NamedTuple):
    information: dict[str, Any]
    socket: Socket
    identity: Identity | None


class _Written(NamedTuple):
    """Somebody waits until all that was to be done before this is done, and written down."""

    reached: asyncio.Future[StoreError | None]


class World(Protocol):
    """What all links of a node share."""

    @property
    def host(self) -> Host: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def room(self) -> Room: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def wall(self) -> Callable[[], int]: ...
    @property
    def share(self) -> Callable[[], float]: ...
    @property
    def timing(self) -> Timing: ...
    @property
    def giving_bytes(self) -> int: ...
    def feeding(self, peer: str) -> tuple[str, ...]:
        """The links that push to a peer."""
        ...

    def repaired(self, reason: str) -> None: ...
    def blocked(self, kind: str) -> None: ...
    def took(self, milliseconds: float) -> None: ...


class Following:
    def __init__(self, world: World, spec: LinkSpec, record: LinkRecord) -> None:
        self.spec = spec
        self.record = self._written = record
        self.link = Link(spec, record, world.timing, world.share, world.wall, room=world.room)
        self.caught_up_at: float | None = None
        """When it was last seen to be caught up."""
        self.since: int | None = None if self.link.state is LinkState.PAUSED else world.wall()
        """When it came into its state; None: before the node started."""
        self._moved = False  # a checkpoint, or a comparison found the two equal
        self._verified_at: float | None = None
        self._world = world
        self._host = world.host
        self._todo: deque[Effect | _Written] = deque()
        self._unwritten: deque[Effect] = deque()  # found no room on the disk, and nobody would say it again
        self._write_at = 0.0
        self._stirred = asyncio.Event()
        self._socket: Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._inbox: deque[bytes | Exception | _Dialled] = deque()
        self._to_hear_first: int | None = None  # messages that had come when a deadline passed
        self._filled = False  # the last turn took in as much as one may
        self._held = 0  # bytes in the inbox, in what is gathered and in pages that are not on disk yet
        self._gathered = 0
        self._room = asyncio.Event()
        self._pages: deque[tuple[asyncio.Task[Applied], int, float]] = deque()
        self._pull = record.pull  # as it is on disk
        self._task = asyncio.create_task(self._run(), name=f"link {spec.name}")

    # --- what others ask ---

    def call(self, step: Callable[[Link, float], list[Effect]]) -> None:
        """Something happened that concerns the machine."""
        self._mark()
        self._tell(step(self.link, self._now))
        self._stirred.set()

    async def command(self, step: Callable[[Link, float], list[Effect]]) -> None:
        """The same for somebody who is to be told once it is on disk. `StoreError`: it holds, and is not there yet."""
        before = len(self._todo)
        self.call(step)
        if do.HangUp() in islice(self._todo, before, None) and self._socket is not None:
            self._socket.abort()  # what is still to be sent waits for nobody
        reached: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._todo.append(_Written(reached))
        await asyncio.wait((reached, self._task), return_when=asyncio.FIRST_COMPLETED)
        failure = reached.result() if reached.done() else StoreError("the link was stopped meanwhile")
        if failure is not None:
            raise failure

    def stir(self) -> None:
        """Our own log has grown."""
        if self.link.pusher is not None:
            self.call(lambda link, now: link.wake(now))

    async def stop(self) -> None:
        """Let go of the peer; what is being stored is stored."""
        self._mark()
        self._task.cancel()
        await _ended(self._task)
        await self._hang_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPPING_SECONDS):
                await self._note_success(after=1)
        self.link.release()
        self._weigh()

    # --- the loop ---

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except asyncio.CancelledError:
                raise
            except StoreError as error:
                self._tell(self.link.not_applied(str(error), self._now))
            except Exception as error:
                log.exception("a link stumbled", extra=self._fields())
                self._tell(self.link.lost(f"a fault of ours: {error!r}", self._now))

    async def _turn(self) -> None:
        """Carry out what is to be done, take in what has come, wait for more."""
        self._mark()
        while self._todo:
            await self._perform(self._todo.popleft())
        self._stirred.clear()  # whatever comes from here on, also while something is written down, is not waited past
        busy = self._collect() or self._take_in() or self._flush()
        if self._filled:
            await asyncio.sleep(0)  # much that asks for nothing is taken in without a wait: others have their turn
        if busy and not self._is_late():
            return
        if self._unwritten and self._write_at <= self._now:
            await self._write_unwritten()
        if self._moved:
            await self._note_success(SUCCESS_NOTED_SECONDS)
        due = self.link.deadline
        if due is not None and due <= self._world.clock():
            self._tell(self.link.tick(self._now))
            await asyncio.sleep(0)
            return
        if self._unwritten:
            due = self._write_at if due is None else min(due, self._write_at)
        loop = asyncio.get_running_loop()
        timer = None if due is None else loop.call_later(due - self._world.clock(), self._stirred.set)
        try:
            await self._stirred.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _note_success(self, after: float) -> None:
        """Write down when the two were last known to be equal, where so many seconds more have passed since."""
        self._moved = False
        if self.caught_up_at is None:
            return
        at = self._world.wall() - round(self._now - self.caught_up_at)
        if at - (self.record.last_success_at or 0) < after:
            return
        with contextlib.suppress(StoreError):  # it is told again the next time
            await self._save(last_success_at=at)

    def _is_late(self) -> bool:
        """Whether a deadline has passed, and all that had come by then is heard: also who never rests has deadlines."""
        due = self.link.deadline
        if due is None or due > self._now:
            self._to_hear_first = None
            return False
        if self._to_hear_first is None:
            self._to_hear_first = len(self._inbox)
        return self._to_hear_first <= 0

    def _mark(self) -> None:
        """Before anything changes: until now it was caught up, or it was not."""
        if self.link.caught_up:
            self.caught_up_at = self._now
        elif (equal_at := self.link.known_equal_at) is not None:
            self.caught_up_at = max(self.caught_up_at or 0.0, equal_at)
        if self.link.verified_at != self._verified_at:
            self._verified_at, self._moved = self.link.verified_at, True

    @property
    def _now(self) -> float:
        return self._world.clock()

    def _tell(self, effects: list[Effect]) -> None:
        """The machine was told something, and this is what it asks for."""
        self._todo.extend(effects)
        self._weigh()

    def _weigh(self) -> None:
        """What the machine has gathered is held, too."""
        gathered = weight_of_operations(*self.link.gathered)
        if gathered != self._gathered:
            self._hold(gathered - self._gathered)
            self._gathered = gathered

    def _take_in(self) -> bool:
        """Hand what has come to the machine; not while too many pages wait for the disk, or it wants to hold back."""
        inbox, now, taken, size = self._inbox, self._now, 0, 0
        self._filled = False
        if self.link.holds_back(now):
            return False
        try:
            while inbox and not self._filled and len(self._pages) < PAGES_AHEAD and not self._todo:
                said = inbox.popleft()
                taken += 1
                if isinstance(said, bytes):
                    size += weight((said,))
                    self._filled = taken >= TURN_COUNT or size >= TURN_BYTES
                    self._tell(self.link.heard(said, now, more=bool(inbox) and not self._filled))
                elif isinstance(said, _Dialled):
                    self._connected(*said)
                else:
                    self._tell(self.link.lost(str(said), now))
        finally:
            self._hold(-size)
            if self._to_hear_first is not None:
                self._to_hear_first -= taken
        return taken > 0

    def _flush(self) -> bool:
        """Nothing more has come for now: what is gathered is applied. While other pages are on their way to the disk it
        gathers on: a commit costs the same for one operation as for many."""
        if (self._inbox or self._pages) and not self.link.holds_back(self._now):
            return False
        self._tell(self.link.flush(self._now))
        return bool(self._todo)

    def _collect(self) -> bool:
        """Tell the machine of pages that are on disk, in order."""
        collected = False
        while self._pages and self._pages[0][0].done():
            self._moved = True
            task, size, began = self._pages.popleft()
            self._hold(-size)
            collected = True
            self._world.took((self._world.clock() - began) * 1_000)
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                self._drop_pages()
                if isinstance(error, StoreError):
                    self._tell(self.link.not_applied(str(error), self._now))
                else:
                    log.error("a link stumbled", exc_info=error, extra=self._fields())
                    self._tell(self.link.lost(f"a fault of ours: {error!r}", self._now))
                continue
            result = task.result()
            for blocked in result.blocked:
                self._world.blocked(blocked.dependency)
            self._tell(self.link.applied(result, self._now))
        return collected

    # --- effects ---

    async def _perform(self, effect: Effect | _Written) -> None:
        match effect:
            case _Written(reached):
                try:
                    await self._write_unwritten()
                    reached.set_result(None)
                except StoreError as error:
                    reached.set_result(error)
                except Exception as error:
                    reached.set_result(StoreError(f"a fault of ours: {error!r}"))
                    raise
            case do.Send(message):
                await self._send(message)
            case do.Apply():
                await self._write_unwritten()
                await self._apply(effect)
            case do.Dial():
                self._dialling = asyncio.create_task(self._dial())
            case do.HangUp():
                await self._hang_up()
            case do.LoadItems(filter):
                items, own = await self._host.items(parse_filter(dict(filter), FILTER_VALUES_MAX))
                self._tell(self.link.items(items, own, self._now))
            case do.LoadUnknown(ids):
                unknown = await lookups.unknown(self._host, ids)
                self._tell(self.link.loaded(lambda running: running.unknown(unknown), self._now))
            case do.LoadPayloads(ids):
                found, done = await lookups.payloads(self._host, ids, self._world.giving_bytes)
                self._tell(self.link.loaded(lambda running: running.payloads(found, done), self._now))
            case do.LoadMissing(after, also):
                looked, names = await lookups.missing(self._host, after, also)
                self._tell(self.link.loaded(lambda running: running.lacking(looked, names), self._now))
            case do.LoadOwed(after, limit):
                owed = await lookups.owed(
                    self._host, self.spec, after, limit, self._world.wall(), self._world.giving_bytes
                )
                self._tell(self.link.owed(owed, self._now))
            case do.SavePull() | do.SavePush() | do.Tell():
                await self._write_unwritten()
                await self._write_down(effect)
            case _:
                self._announce(effect)
                if isinstance(effect, do.Noted) and self._unwritten:  # the last one says all that is to be kept
                    self._unwritten = deque(one for one in self._unwritten if not isinstance(one, do.Noted))
                self._unwritten.append(effect)
                if isinstance(effect, do.Bury) and self._todo and isinstance(self._todo[0], do.Bury):
                    return  # one write for all that are buried together
                await self._write_unwritten()

    def _announce(self, effect: Effect) -> None:
        """Once, however often it has to be written down."""
        match effect:
            case do.Bury(id, reason):
                log.warning("an operation is refused for good", extra=self._fields(id=id, reason=reason))
            case do.Noted(code, why):
                if code in ("gap", "overflow", "closure", "disorder", "diverged"):
                    self._world.repaired(code)
                if why != self.record.last_error or code != "stream_lost":
                    log.info("a link was interrupted", extra=self._fields(errorCode=code, reason=why))
            case do.Told(before, after, cue, why):
                if before is not after:
                    self.since = self._world.wall()
                fields = self._fields(stateFrom=before, stateTo=after, errorCode=cue, reason=why)
                log.info("a link is in another state", extra=fields)

    async def _write_unwritten(self) -> None:
        """In order: no checkpoint passes what is to be known of an operation before it."""
        while self._unwritten:
            self._write_at = self._now + WRITE_AGAIN_SECONDS
            buried = list(islice(takewhile(lambda one: isinstance(one, do.Bury), self._unwritten), LETTERS_AT_ONCE))
            await (self._write_letters(buried) if buried else self._write_down(self._unwritten[0]))
            for _ in range(max(1, len(buried))):
                self._unwritten.popleft()

    async def _write_letters(self, buried: list[Effect]) -> None:
        wall = self._world.wall()
        dead = tuple(DeadLetter(one.direction, one.id, one.reason, wall) for one in buried if isinstance(one, do.Bury))
        await self._write(lambda w: w.note_link(LinkChange(self.spec.name, dead=dead)))

    async def _write_down(self, effect: Effect) -> None:
        name, wall = self.spec.name, self._world.wall()
        match effect:
            case do.SavePull(checkpoint):
                await self._write(lambda w: w.note_link(LinkChange(name, pull=checkpoint)))
                self._pull = checkpoint
            case do.SavePush(checkpoint):
                await self._write(lambda w: w.note_link(LinkChange(name, push=checkpoint)))
                self._moved = True
            case do.Tell(ancestors):
                await self._write(lambda w: w.tell(ancestors))
            case do.Forget():
                await self._write(lambda w: w.forget_link(name))
                self._pull = Checkpoint()
            case do.Remember():
                await self._save()
            case do.Noted(_, why):
                await self._save(last_failure_at=wall, last_error=why)
            case do.Told(before, after, cue, why):
                live = {"last_success_at": wall, "last_error": None} if after == "live" else {}
                await self._save(**live)
                transition = Transition(wall, before, after, cue, why)
                await self._write(lambda w: w.note_link(LinkChange(name, transition=transition)))

    async def _write(self, job: Callable[[Writer], None]) -> None:
        await self._host.write(job)

    async def _save(self, **changes: Any) -> None:
        """Write the record, unless it would only say once more that the peer is away: links may be many."""
        link, before = self.link, self.record
        self.record = msgspec.structs.replace(
            before, state=link.state, unsure=link.unsure, crowded=link.crowded, failures=link.failures, **changes
        )
        record, written = self.record, self._written
        if (
            _news(record) != _news(written)
            or record.last_success_at != written.last_success_at
            or self._world.wall() - (written.last_failure_at or 0) >= FAILURES_NOTED_SECONDS
        ):
            await self._write(lambda w: w.save_link(record))
            self._written = record

    # --- pages ---

    async def _apply(self, asked: do.Apply) -> None:
        echo_for = self._world.feeding(self.spec.peer)
        page = Page(self._host, self.spec.name, echo_for, self._world.wall(), asked)
        before = self._pages[-1][0] if self._pages else None
        size = weight_of_operations(sum(len(arrival.raw) for arrival in asked.arrivals), len(asked.arrivals))
        self._hold(size)
        work = asyncio.create_task(self._bring_to_disk(page, before))
        work.add_done_callback(self._brought)
        self._pages.append((work, size, self._world.clock()))

    def _brought(self, work: asyncio.Task[Applied]) -> None:
        _forget(work)  # whoever collects it looks; when the node stops, nobody may
        self._stirred.set()

    async def _bring_to_disk(self, page: Page, before: asyncio.Task[Applied] | None) -> Applied:
        await page.prove()
        if before is not None and (await asyncio.shield(before)).forged:
            raise StoreError("what came before it was forged")
        result = await page.store(self._pull)
        self._pull = result.checkpoint or self._pull
        return result

    def _drop_pages(self) -> None:
        for task, size, _ in self._pages:
            task.cancel()
            self._hold(-size)
        self._pages.clear()

    def _hold(self, size: int) -> None:
        self._held += size
        self._world.budget.hold(size)
        self._room.set()

    # --- the connection ---

    async def _dial(self) -> None:
        try:
            identity = self.spec.files.read()
            self._inbox.append(_Dialled(*await dialling.dial(self.spec.peer), identity))
        except (Unreachable, NoIdentity) as error:
            self._inbox.append(error)
        except Exception as error:
            self._inbox.append(Unreachable(f"no connection: {error}"))
        self._stirred.set()

    def _connected(self, information: dict[str, Any], socket: Socket, identity: Identity | None) -> None:
        own, feed = self._host.log, information.get("changes_feed")
        self._socket = socket
        if isinstance(feed, dict) and feed.get("stream_id") == own.stream and feed.get("epoch") == own.epoch:
            why = "this address leads to this very node, or to a copy of its log"
            self._tell(self.link.lost(why, self._now))
            return
        self._reader = asyncio.create_task(self._read(socket))
        self._tell(self.link.opened(information, self._now, identity))

    async def _read(self, socket: Socket) -> None:
        """Take messages off the socket as long as there is room for them, and for what has come of the next one."""
        unfinished = 0
        try:
            while True:
                while self._held >= self._world.budget.share_of_one():
                    self._room.clear()
                    await self._world.budget.wait(self._room)
                messages = await socket.receive()
                self._hold(weight(messages) + socket.unfinished - unfinished)
                unfinished = socket.unfinished
                if messages:
                    self._inbox.extend(messages)
                    self._stirred.set()
        except Ended as ended:
            self._inbox.append(ended)
            self._stirred.set()
        finally:
            self._hold(-unfinished)

    async def _send(self, message: bytes) -> None:
        """This, and what is to be sent after it, in one go. A peer that does not read is given up once our patience
        ends: the machine notices that no answer comes."""
        messages = [message]
        while self._todo and isinstance(next := self._todo[0], do.Send):
            messages.append(next.message)
            self._todo.popleft()
        if self._socket is not None:
            with contextlib.suppress(Ended, TimeoutError):
                async with asyncio.timeout(self._world.timing.patience):
                    await self._socket.send(messages)

    async def _hang_up(self) -> None:
        for task in (self._dialling, self._reader):
            if task is not None:
                task.cancel()
                await _ended(task)
        self._dialling = self._reader = None
        await self._settle_pages()
        for said in self._inbox:
            if isinstance(said, bytes):
                self._hold(-weight((said,)))
            elif isinstance(said, _Dialled):
                said.socket.abort()
        self._inbox.clear()
        if self._socket is not None:
            self._socket.abort()
            self._socket = None

    async def _settle_pages(self) -> None:
        """The page that is being stored is waited for, so that nothing is written behind our back; the rest goes."""
        under_way = [task for task, _, _ in self._pages if not task.done()]
        for task in under_way[1:]:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way[:1])
        for task, _, _ in self._pages:
            if task.done() and not task.cancelled() and task.exception() is None:
                self._tell(self.link.applied(task.result(), self._now))
        self._drop_pages()

    def _fields(self, **more: Any) -> dict[str, Any]:
        """What a line of the log says of a link, in the seed's words. The tokens are those of what it pulls, and of a
        link that only pushes those of our own log."""
        checkpoint = self.link.pull if self.spec.pulls else self.link.push
        received, contiguous = checkpoint.received, checkpoint.contiguous
        return {
            "link": self.spec.name,
            "tenantDid": self._host.log.stream,
            "remoteEndpoint": discreet(self.spec.peer),
            "scopeId": self.spec.scope.id,
            "direction": str(self.spec.direction),
            "token": received.position if received is not None else None,
            "contiguousToken": contiguous.position if contiguous is not None else None,
            **more,
        }


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for a task that was cancelled. Who waits may be cancelled too meanwhile: that goes on to whoever did it."""
    try:
        await task
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            raise


def _news(record: LinkRecord) -> tuple[Any, ...]:
    """What of a record is worth a write."""
    return record.state, record.unsure, record.crowded, record.last_error


def _forget(task: asyncio.Task[Applied]) -> None:
    """Nobody waits for it any more: what became of it is no news."""
    if not task.cancelled():
        task.exception()
