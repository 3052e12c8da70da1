"""An event loop in virtual time: asyncio as the node runs on it, in one thread, and the same every time.

Time stands still while anything can run, and then goes to the next thing that is due: a day passes in the time that
its work takes. What runs belongs to a process, told by its context; a process that is killed never runs again, and
what it had begun ends where it stands, as after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.sim.network import Network


STEPS_MAX = 500_000  # ten times what the busiest world takes


class NoEnd(Exception):
    """The world runs and runs: something goes round in circles."""


class Process:
    """Whatever dies together. `name` is for the trace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[], None]] = []

    def kill(self) -> None:
        """End everything of it at once: nothing of it runs on, and nothing it says is heard."""
        if not self.alive:
            return
        self.alive = False
        for told in self.on_death:
            told()

    def bury(self) -> None:
        """Let go of what it had begun. Not from within: a coroutine that runs cannot be closed."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                with contextlib.suppress(RuntimeError):
                    task.get_coro().close()  # type: ignore[union-attr]


WORLD = Process("world")
process: ContextVar[Process] = ContextVar("process", default=WORLD)


class VirtualLoop(asyncio.BaseEventLoop):
    """`network` is where connections are made; what goes wrong in a callback is told to `failed`."""

    def __init__(self, network: Network, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._now = 0.0
        self._network = network
        self._failed = failed
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self.steps = 0
        self.set_exception_handler(self._report)

    def time(self) -> float:
        return self._now

    # --- what is to run ---

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is left out when its time comes

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "", context=context)
        own = process.get() if context is None else context.get(process, WORLD)
        tasks = own.tasks
        tasks.append(task)
        if len(tasks) > 64 and len(tasks) & (len(tasks) - 1) == 0:
            own.tasks = [one for one in tasks if not one.done()]
        return task

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(timers)
            if not timers:
                raise RuntimeError("nothing is left to happen, and something is still awaited")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        self.steps += len(ready)
        if self.steps > STEPS_MAX:
            raise NoEnd(f"after {STEPS_MAX} steps, at {self._now:.3f}, there is no end in sight")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and handle._context.get(process, WORLD).alive:
                handle._run()

    # --- what asyncio asks of a loop beside that ---

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """At once, and in line: there are no threads here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._network.connect(protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self._network.listen(protocol_factory, str(host), int(port))

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if process.get().alive:
            self._failed(f"{context.get('message')}: {error!r}")
