"""A TCP proxy in a thread of its own: it counts bytes, cuts, stalls, strands, repeats and refuses."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

REPEATED = 8  # messages of a connection, or what arrives of them at once


class Proxy:
    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.down = 0
        """Bytes from the target to whoever dials."""
        self.up = 0
        self.connections = 0
        self.repeated = 0
        """Connections whose first bytes reached the target a second time."""
        self._refusing = False
        self._repeating = False
        self._stranded: set[str] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._talks: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        ready = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            with contextlib.suppress(asyncio.CancelledError):
                await server.serve_forever()
            for writer in list(self._writers):
                writer.transport.abort()
            self._flowing.set()
            for talk in self._talks:
                talk.cancel()
            await asyncio.gather(*self._talks, return_exceptions=True)

        def work() -> None:
            asyncio.set_event_loop(self._loop)
            self._serving = self._loop.create_task(serve())
            self._loop.run_until_complete(self._serving)
            self._loop.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        ready.wait(5)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._serving.cancel)
            thread.join(5)

    def cut(self) -> None:
        """Every connection there is, at once."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in list(self._writers)])

    def refuse(self, refusing: bool = True) -> None:
        self._refusing = refusing
        if refusing:
            self.cut()

    def stall(self, stalling: bool = True) -> None:
        """Nothing passes, and nobody is told."""
        (self._flowing.clear if stalling else self._flowing.set)()

    def strand(self, *ways: str) -> None:
        """Half-open from now on: what goes «up» or «down» is taken and passed to nobody, and nothing is ever closed."""
        self._stranded = set(ways)

    def repeat(self, repeating: bool = True) -> None:
        """The first messages of every new connection reach the target again, on a connection of their own."""
        self._repeating = repeating

    async def _say_again(self, said: asyncio.Queue[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers[writer] = None
        self.repeated += 1
        with contextlib.suppress(OSError):
            for _ in range(REPEATED):
                writer.write(await said.get())
                await reader.read(65_536)  # whatever it answers, nobody hears it

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._talks.append(task)
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer: None, far_writer: None}
        await asyncio.gather(self._pass(reader, far_writer, "up"), self._pass(far_reader, writer, "down"))
        for one in (writer, far_writer):
            self._writers.pop(one, None)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        again: asyncio.Queue[bytes] | None = None
        try:
            while data := await reader.read(65_536):
                if way == "up" and self._repeating:
                    if again is None:
                        again = asyncio.Queue()
                        self._talks.append(asyncio.create_task(self._say_again(again)))
                    again.put_nowait(data)
                if way in self._stranded:
                    continue
                while not self._flowing.is_set():  # noqa: ASYNC110 -- it is set from another thread
                    await asyncio.sleep(0.01)
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            if not self._stranded:
                writer.transport.abort()
