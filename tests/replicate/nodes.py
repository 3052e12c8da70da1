"""Real nodes with links between them, and what the tests ask of both."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from processes import Node
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from anabranch.core.changes import LogQuery
from anabranch.core.token import Position
from anabranch.store.sqlite import SqliteStore

SECONDS_MAX = 30.0


def link(node: Node, peer: str, name: str = "up", **rest: Any) -> dict[str, Any]:
    answer = node.admin("POST", "links", {"peer": peer, "name": name, **rest})
    assert answer.status == 201, answer.text
    return answer.json()


def shown(node: Node, name: str = "up") -> dict[str, Any]:
    return node.admin("GET", f"links/{name}").json()


def explained(node: Node, name: str = "up") -> str:
    return " ".join(node.admin("GET", f"links/{name}/explain").json()["explanation"])


def until(condition: Any, what: str, seconds: float = SECONDS_MAX) -> Any:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.03)
    raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")


def caught_up(node: Node, name: str = "up", seconds: float = SECONDS_MAX) -> dict[str, Any]:
    return until(
        lambda: one if (one := shown(node, name))["caught_up"] else None,
        lambda: f"{name} caught up: {explained(node, name)} {node.log_tail()}",
        seconds,
    )


def ids(node: Node) -> set[str]:
    """What a node holds, read beside it."""
    store = SqliteStore.inspect(node.data)
    try:
        with store.reader() as reader:
            page = reader.changes(LogQuery(), Position(0), None, 1_000_000)
            return {entry.id for entry in page.entries if entry.raw is not None}
    finally:
        store.close()


def fill_disk(node: Node) -> None:
    """From now on none of its files takes much beyond what the database has: of the log, which is laid out longer, no
    more may be written either."""
    assert node.process is not None
    most = max(file.stat().st_size for file in node.data.iterdir() if not file.name.endswith("-wal")) + 20_000
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def free_disk(node: Node) -> None:
    assert node.process is not None
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@asynccontextmanager
async def serving(peer: Any) -> AsyncIterator[str]:
    """A model of a relay at a real address, with what it says of itself."""

    async def talk(socket: Any) -> None:
        for frame in peer.greet():
            await socket.send(json.dumps(frame))
        async for message in socket:
            for frame in peer.answer(message):
                await socket.send(json.dumps(frame))

    def inform(connection: Any, request: Any) -> Response | None:
        if request.headers.get("Accept") != "application/nostr+json":
            return None
        body = json.dumps(peer.information).encode()
        return Response(HTTPStatus.OK, "OK", Headers([("Content-Length", str(len(body)))]), body)

    async with serve(talk, "127.0.0.1", 0, process_request=inform, close_timeout=0.1) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def named(node: Node, words: str, seconds: float = 20) -> str:
    """Wait until a link is explained with these words."""
    said = ""
    for _ in range(int(seconds / 0.1)):
        said = await asyncio.to_thread(explained, node)
        if words in said:
            return said
        await asyncio.sleep(0.1)
    raise AssertionError(said)
