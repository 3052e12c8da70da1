"""A relay in a few lines, without I/O, with limits that can be set and vices that can be given to it.

It speaks NIP-01 and NIP-77 and keeps what it heard, so that tests can look at what a client asked for. Subclasses
misbehave, one way each. `serving` puts it behind a real websocket; the machines' tests call `answer` directly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from anabranch.core import filter as filters
from anabranch.core import nostr
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.nostr import Event, Limits

Message = list[Any]
HANG_UP = object()
SAY = object()  # [SAY, text]: the text as it is, which may be no message at all


def items(events: Iterable[Event]) -> Items:
    events = list(events)
    return Items.build([event.created_at for event in events], b"".join(bytes.fromhex(event.id) for event in events))


class RelayModel:
    """`cap`: events of one REQ; `set_max`: items of one reconciliation; `frame`: bytes of one of its messages."""

    def __init__(
        self, events: Iterable[Event] = (), *, cap: int = 500, set_max: int | None = None, frame: int = 0
    ) -> None:
        self.events = {event.id: event for event in events}
        self.cap = cap
        self.set_max = set_max
        self.frame = frame
        self.tells_set_max = True
        self.heard: list[Message] = []
        self.connections = 0
        self._sessions: dict[str, Reconciler] = {}

    def verbs(self) -> list[str]:
        return [message[0] for message in self.heard]

    def greet(self) -> list[Message]:
        """A new connection."""
        self.connections += 1
        self._sessions = {}
        return []

    def answer(self, message: str | bytes) -> list[Any]:
        said = json.loads(message)
        self.heard.append(said)
        handler = getattr(self, "on_" + said[0].lower().replace("-", "_"), None)
        return [["NOTICE", "unknown message"]] if handler is None else handler(*said[1:])

    def matching(self, filter: dict[str, Any]) -> list[Event]:
        """Newest first."""
        wanted = filters.parse({k: v for k, v in filter.items() if k != "limit"}, 1 << 20)
        found = [event for event in self.events.values() if filters.matches(wanted, event)]
        return sorted(found, key=lambda event: (-event.created_at, event.id))

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Message]:
        found: dict[str, Event] = {}
        for filter in filters:
            some = self.matching(filter)[: min(self.cap, filter.get("limit", self.cap))]
            found |= {event.id: event for event in some}
        return [*(["EVENT", name, self.spelt(event)] for event in found.values()), ["EOSE", name]]

    def spelt(self, event: Event) -> Any:
        return json.loads(nostr.serialise(event))

    def on_close(self, name: str) -> list[Message]:
        return []

    def on_event(self, event: dict[str, Any]) -> list[Message]:
        parsed, _ = nostr.parse(json.dumps(event).encode(), Limits(created_at_ahead=None))
        if parsed.id in self.events:
            return [["OK", parsed.id, False, "duplicate: already have this event"]]
        self.events[parsed.id] = parsed
        return [["OK", parsed.id, True, ""]]

    def on_neg_open(self, name: str, filter: dict[str, Any], message: str) -> list[Message]:
        found = self.matching(filter)
        if self.set_max is not None and len(found) > self.set_max:
            return [["NEG-ERR", name, "blocked: too many", *([self.set_max] if self.tells_set_max else [])]]
        self._sessions[name] = Reconciler(items(found), self.frame)
        return self.on_neg_msg(name, message)

    def on_neg_msg(self, name: str, message: str) -> list[Message]:
        if name not in self._sessions:
            return [["NEG-ERR", name, "closed: unknown subscription"]]
        return [["NEG-MSG", name, self._sessions[name].respond(bytes.fromhex(message)).hex()]]

    def on_neg_close(self, name: str) -> list[Message]:
        self._sessions.pop(name, None)
        return []


class Private(RelayModel):
    """Asks everybody to authenticate, for everything; tells the challenge first, or only with the refusal."""

    challenge = "who are you"

    def __init__(self, *args: Any, members: Iterable[str] = (), greets: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.members = set(members)
        self.greets = greets
        self.known = False

    def greet(self) -> list[Message]:
        super().greet()
        self.known = False
        return [["AUTH", self.challenge]] if self.greets else []

    def _challenged(self, refusal: Message) -> list[Message]:
        return [refusal] if self.greets else [refusal, ["AUTH", self.challenge]]

    def on_req(self, name: str, *filters: dict[str, Any]) -> list[Message]:
        refusal = ["CLOSED", name, "auth-required: who are you?"]
        return super().on_req(name, *filters) if self.known else self._challenged(refusal)

    def on_neg_open(self, name: str, filter: dict[str, Any], message: str) -> list[Message]:
        refusal = ["NEG-ERR", name, "auth-required: who are you?"]
        return super().on_neg_open(name, filter, message) if self.known else self._challenged(refusal)

    def on_event(self, event: dict[str, Any]) -> list[Message]:
        refusal = ["OK", event["id"], False, "auth-required: who are you?"]
        return super().on_event(event) if self.known else self._challenged(refusal)

    def on_auth(self, event: dict[str, Any]) -> list[Message]:
        parsed, _ = nostr.parse(json.dumps(event).encode(), Limits())
        right = nostr.verify([parsed]) == [True] and parsed.first("challenge") == self.challenge
        self.known = right and parsed.kind == nostr.AUTH and parsed.pubkey in self.members
        return [["OK", parsed.id, self.known, "" if self.known else "restricted: not a member"]]


@asynccontextmanager
async def serving(relay: RelayModel) -> AsyncIterator[str]:
    """The relay's address, for as long as it is served."""

    async def session(socket: ServerConnection) -> None:
        await say(socket, relay.greet())
        async for message in socket:
            if await say(socket, relay.answer(message)):
                return

    async def say(socket: ServerConnection, answers: list[Any]) -> bool:
        for answer in answers:
            if answer is HANG_UP:
                return True
            if isinstance(answer, float):
                await asyncio.sleep(answer)
            else:
                await socket.send(answer[1] if answer[0] is SAY else json.dumps(answer))
        return False

    async with serve(session, "127.0.0.1", 0, max_size=None, ping_interval=None, close_timeout=0.1) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}"
