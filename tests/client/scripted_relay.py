"""A relay that says what a test wants it to say, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Answer = Callable[["Talk", list[Any]], Awaitable[None]]


class Talk:
    """One connection."""

    def __init__(self, socket: ServerConnection, number: int) -> None:
        self._socket = socket
        self.number = number

    async def say(self, *frame: Any) -> None:
        await self._socket.send(json.dumps(frame))

    async def hang_up(self) -> None:
        await self._socket.close()


class ScriptedRelay:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.url = ""
        self.feed = {"min_seq": 1, "max_seq": 100, "stream_id": "scripted", "epoch": "1"}
        self.heard: list[list[Any]] = []
        self.connections = 0

    def asked(self, verb: str) -> list[list[Any]]:
        return [frame for frame in self.heard if frame[0] == verb]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ScriptedRelay"]:
        async with serve(self._talk, "127.0.0.1", 0, process_request=self._inform) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            yield self

    def _inform(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Accept") != "application/nostr+json":
            return None
        document = {
            "changes_feed": self.feed,
            "snapshot_sync": {"changes_feed": True},
            "revision_sync": {"changes_feed": True, "batch_fetch": True},
        }
        body = json.dumps(document).encode()
        return Response(HTTPStatus.OK, "OK", Headers([("Content-Length", str(len(body)))]), body)

    async def _talk(self, socket: ServerConnection) -> None:
        self.connections += 1
        talk = Talk(socket, self.connections)
        try:
            async for message in socket:
                frame = json.loads(message)
                self.heard.append(frame)
                await self._answer(talk, frame)
        except (ConnectionClosed, asyncio.CancelledError):
            pass


def serving(snapshots: list[Any], at: int = 10, live: list[tuple[int, Any]] | None = None) -> Answer:
    """A relay that serves these as its heads at a position, and these live; it takes whatever is published."""

    async def answer(talk: Talk, frame: list[Any]) -> None:
        match frame:
            case ["CHANGES", name, {"mode": "bootstrap"}]:
                await talk.say("CHANGES", name, "STATUS", {"mode": "bootstrap", "snapshot_seq": at})
                for event in snapshots:
                    await talk.say("CHANGES", name, "SNAPSHOT", event)
                await talk.say("CHANGES", name, "EOSE", at)
            case ["CHANGES", name, {"since": since}]:
                await talk.say("CHANGES", name, "EOSE", since)
                for seq, event in live or []:
                    await talk.say("CHANGES", name, "EVENT", seq, event)
            case ["EVENT", event]:
                await talk.say("OK", event["id"], True, "")

    return answer


async def reconciled(talk: Talk, frame: list[Any], position: int) -> bool:
    """Answer a reconciliation over heads as a relay that has what we have; whether the frame was of one."""
    match frame:
        case ["NEG-OPEN", name, _]:
            await talk.say("NEG-STATUS", name, {"strategy": "revision-sync.v1", "snapshot_seq": position})
        case ["NEG-MSG", name, _]:
            await talk.say("NEG-MSG", name, "61")
        case _:
            return False
    return True
