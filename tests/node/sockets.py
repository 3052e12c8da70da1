"""A client of the relay for tests: typed helpers over the `websockets` library.

It reads all the time and sorts what arrives by whom it concerns, so that a test can ask for «the next frame of this
subscription» whatever else is going on.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from authors import NOTE, Author, Event
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Frame = list[Any]
Filter = dict[str, Any]
PATIENCE = 10.0
"""How long an answer may take before the test fails, in seconds."""

_END = object()


class ConnectionEnded(Exception):
    """The relay closed the connection while an answer was awaited."""


@dataclass(frozen=True, slots=True)
class Ok:
    id: str
    accepted: bool
    message: str


@dataclass(slots=True)
class Answer:
    """What a REQ got, up to EOSE or CLOSED."""

    sub: str
    events: list[Event] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    eose: bool = False
    closed: str | None = None

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]


@dataclass(slots=True)
class Feed:
    """What a CHANGES request got, up to EOSE, ERR or CLOSED."""

    sub: str
    frames: list[Frame] = field(default_factory=list)
    eose: int | None = None
    error: str | None = None

    @property
    def events(self) -> list[tuple[int, Event]]:
        return [(frame[3], frame[4]) for frame in self.frames if frame[0] == "CHANGES" and frame[2] == "EVENT"]

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _ in self.events]

    @property
    def ids(self) -> list[str]:
        return [event["id"] for _, event in self.events]

    @property
    def snapshots(self) -> list[Event]:
        return [frame[3] for frame in self.frames if frame[0] == "CHANGES" and frame[2] == "SNAPSHOT"]

    @property
    def compacted(self) -> list[Frame]:
        return [frame for frame in self.frames if "EVENT-STATUS" in frame]


class RelayClient:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.names = (f"s{n}" for n in itertools.count(1))
        self._inbox: dict[Any, asyncio.Queue[Any]] = {}
        self._anything: asyncio.Queue[Any] = asyncio.Queue()
        self._ended = False
        self._reader = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, **options: Any) -> AsyncIterator["RelayClient"]:
        settings: dict[str, Any] = {
            "compression": None,
            "max_size": None,
            "max_queue": None,
            "ping_interval": None,
            "proxy": None,
            "close_timeout": 2,
        }
        async with connect(url, **{**settings, **options}) as connection:
            client = cls(connection)
            try:
                yield client
            finally:
                client._reader.cancel()

    async def _read(self) -> None:
        try:
            async for message in self.connection:
                frame = json.loads(message)
                self._queue(self._whom(frame)).put_nowait(frame)
                self._anything.put_nowait(frame)
        except ConnectionClosed:
            pass
        finally:
            self._ended = True
            for queue in (*self._inbox.values(), self._anything):
                queue.put_nowait(_END)

    @staticmethod
    def _whom(frame: Frame) -> Any:
        match frame[0]:
            case "OK":
                return ("OK", frame[1])
            case "NOTICE" | "AUTH" | "TOKEN":
                return frame[0]
            case _:
                return ("SUB", frame[1])

    def _queue(self, whom: Any) -> asyncio.Queue[Any]:
        if whom not in self._inbox:
            self._inbox[whom] = asyncio.Queue()
            if self._ended:
                self._inbox[whom].put_nowait(_END)
        return self._inbox[whom]

    async def next(self, whom: Any, patience: float = PATIENCE) -> Frame:
        queue = self._queue(whom)
        frame = await asyncio.wait_for(queue.get(), patience)
        if frame is _END:
            queue.put_nowait(_END)
            raise ConnectionEnded(
                f"while waiting for {whom}: {self.connection.close_code} {self.connection.close_reason}"
            )
        return frame

    async def next_of(self, sub: str, patience: float = PATIENCE) -> Frame:
        return await self.next(("SUB", sub), patience)

    def waiting(self, sub: str) -> list[Frame]:
        """What has arrived for a subscription and was not asked for yet."""
        queue = self._queue(("SUB", sub))
        return [queue.get_nowait() for _ in range(queue.qsize())]

    async def wait_ended(self, patience: float = PATIENCE) -> None:
        await asyncio.wait_for(asyncio.shield(self._reader), patience)

    async def send(self, *frame: Any) -> None:
        await self.connection.send(json.dumps(list(frame)))

    def send_together(self, *sent: Frame) -> None:
        """Several frames in one write, so that they also arrive together."""
        protocol = self.connection.protocol
        for frame in sent:
            protocol.send_text(json.dumps(list(frame)).encode())
        self.connection.transport.write(b"".join(protocol.data_to_send()))

    async def send_raw(self, message: str | bytes) -> None:
        await self.connection.send(message)

    async def exchange(self, message: str | bytes, patience: float = PATIENCE) -> Frame:
        """Send anything; the first frame that comes back, whomever it concerns."""
        self._anything = asyncio.Queue()
        await self.send_raw(message)
        frame = await asyncio.wait_for(self._anything.get(), patience)
        if frame is _END:
            raise ConnectionEnded(f"after {message[:80]!r}")
        return frame

    async def refusal(self, message: str | bytes) -> str:
        """Send what the relay must refuse; the reason it gives, in whichever frame."""
        frame = await self.exchange(message)
        match frame:
            case ["OK", _, False, reason] | ["NOTICE", reason] | ["CLOSED", _, reason] | ["CHANGES", _, "ERR", reason]:
                return reason
        raise AssertionError(f"not a refusal: {frame}")

    async def notice(self, patience: float = PATIENCE) -> str:
        return (await self.next("NOTICE", patience))[1]

    async def publish(self, event: Event, patience: float = PATIENCE) -> Ok:
        await self.send("EVENT", event)
        _, identity, accepted, message = await self.next(("OK", event["id"]), patience)
        return Ok(identity, accepted, message)

    async def store(self, *events: Event) -> None:
        """Publish in one go; each must be taken."""
        for event in events:
            await self.send("EVENT", event)
        for event in events:
            _, _, accepted, message = await self.next(("OK", event["id"]))
            assert accepted, message

    async def req(self, *filters: Filter, sub: str | None = None, live: bool = False, verb: str = "REQ") -> Answer:
        """Ask, and read up to EOSE or CLOSED; the subscription is closed after it unless `live`."""
        answer = Answer(sub or next(self.names))
        await self.send(verb, answer.sub, *filters)
        while not answer.eose and answer.closed is None:
            frame = await self.next_of(answer.sub)
            answer.frames.append(frame)
            match frame:
                case ["EVENT", _, event]:
                    answer.events.append(event)
                case ["EVENTS", _, events]:
                    answer.events.extend(events)
                case ["EVENT-STATUS", _, status]:
                    answer.statuses.append(status)
                case ["EOSE", _]:
                    answer.eose = True
                case ["CLOSED", _, message]:
                    answer.closed = message
                case _:
                    raise AssertionError(f"unexpected in a REQ: {frame}")
        if answer.eose and not live:
            await self.send("CLOSE", answer.sub)
        return answer

    async def fetch(self, *identities: str) -> list[str]:
        """Which of these ids the relay serves."""
        return (await self.req({"ids": list(identities)})).ids

    async def count(self, *filters: Filter) -> int:
        sub = next(self.names)
        await self.send("COUNT", sub, *filters)
        verb, _, result = await self.next_of(sub)
        assert verb == "COUNT", result
        return result["count"]

    async def changes(self, filter: Filter, sub: str | None = None) -> Feed:
        """Ask for changes, and read up to EOSE, ERR or CLOSED."""
        feed = Feed(sub or next(self.names))
        await self.send("CHANGES", feed.sub, filter)
        while feed.eose is None and feed.error is None:
            frame = await self.next_of(feed.sub)
            feed.frames.append(frame)
            match frame:
                case ["CHANGES", _, "EOSE", seq]:
                    feed.eose = seq
                case ["CHANGES", _, "ERR", message, *_] | ["CLOSED", _, message]:
                    feed.error = message
        return feed

    async def tail(self, author: Author, sub: str | None = None, **rest: Any) -> Feed:
        kinds = {"kinds": [NOTE]}
        return await self.changes({"mode": "tail", "authors": [author.pubkey], **kinds, **rest}, sub)

    async def bootstrap(self, author: Author, sub: str | None = None, **rest: Any) -> Feed:
        kinds = {"kinds": [NOTE]}
        return await self.changes({"mode": "bootstrap", "authors": [author.pubkey], **kinds, **rest}, sub)

    async def next_change(self, sub: str, patience: float = PATIENCE) -> tuple[int, Event]:
        """The next live event of a CHANGES subscription."""
        frame = await self.next_of(sub, patience)
        assert frame[0] == "CHANGES" and frame[2] == "EVENT", frame
        return frame[3], frame[4]

    async def close_sub(self, sub: str) -> str:
        """CLOSE, and what CLOSED says."""
        await self.send("CLOSE", sub)
        while True:
            frame = await self.next_of(sub)
            if frame[0] == "CLOSED":
                return frame[2]

    async def still_answers(self) -> None:
        """The connection is open and the relay works on it."""
        answer = await self.req({"ids": ["0" * 64], "limit": 1})
        assert answer.eose, answer.frames

    async def authenticate(self, author: Author, challenge: str, url: str) -> Ok:
        event = author.auth(challenge, url)
        await self.send("AUTH", event)
        _, identity, accepted, message = await self.next(("OK", event["id"]))
        return Ok(identity, accepted, message)

    async def challenge(self) -> str:
        return (await self.next("AUTH"))[1]
