"""A wire between a replica and a relay: it carries bytes, loses them, breaks, goes down and comes up."""

import asyncio
import contextlib
from collections.abc import Awaitable


class Wire:
    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.up = True
        self.swallows = False
        """What the replica sends gets lost, and nobody is told."""
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    def cut(self) -> None:
        """Break every connection, whatever is under way."""
        self.swallows = False
        for end in self._ends:
            end.transport.abort()

    def down(self) -> None:
        self.up = False
        self.cut()

    async def close(self) -> None:
        self.down()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        try:
            if not self.up:
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._ends.add(back)
            try:
                await _either(self._pump(reader, back, True), self._pump(there, writer, False))
            finally:
                self._ends.discard(back)
                back.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._ends.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, outwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if not (outwards and self.swallows):
                    writer.write(data)
                    await writer.drain()
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()


async def _either(*pumps: Awaitable[None]) -> None:
    """Until both directions have ended."""
    await asyncio.gather(*pumps)
