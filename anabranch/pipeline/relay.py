"""A talk with a relay, as a task has it: one socket, read to the end of what was asked for, and nothing kept.

`changes` reads a CHANGES feed, `pages` all that a filter matches, with the machine that the client uses too. A relay
that asks who we are is told: the access key first, where there is one (TOKEN), then a signature (NIP-42). Whatever the
relay does, waiting ends, and what it refuses is a `FeedError` in its own words.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from anabranch.client.messages import Frame, ProtocolError, encode
from anabranch.core import nostr
from anabranch.core.nostr import Keys
from anabranch.pipeline.feed import FeedError
from anabranch.wire import authentication, dialogue
from anabranch.wire.address import discreet
from anabranch.wire.dialogue import AUTH_REQUIRED, BOUNDS, Authenticate, Effect, Finish, Found, Odd, Reconnect, Send
from anabranch.wire.paging import Pages

log = logging.getLogger(__name__)

TIMEOUT = 30.0
_SUBSCRIPTION = "pipeline"


class Change(msgspec.Struct, frozen=True):
    """What a CHANGES feed says of a position: a signed line, or that an operation is removed for good.

    The lines of a bootstrap have no position.
    """

    position: int | None
    line: bytes | None = None
    removed: str | None = None


class Relay:
    """A connection to a relay. Use it as a context."""

    def __init__(self, url: str, keys: Keys | None = None, access_key: str | None = None) -> None:
        self._url, self._keys, self._access_key = url, keys, access_key
        self._socket: ClientConnection | None = None
        self._open = ExitStack()
        self._challenge: str | None = None

    def __enter__(self) -> Relay:
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disconnect()

    def changes(self, asked: Mapping[str, Any]) -> Iterator[Change]:
        """What the relay sends of a CHANGES feed until it says that this was all."""
        request = encode(("CHANGES", _SUBSCRIPTION, asked))
        self._send(request)
        known = False
        while True:
            frame = Frame(self._hear())
            if frame.verb != "CHANGES" or frame[1] != _SUBSCRIPTION:
                continue
            match frame[2]:
                case "EVENT":
                    yield Change(frame.position(3), line=frame.raw(4))
                case "SNAPSHOT":
                    yield Change(None, line=frame.raw(3))
                case "DELETED":
                    yield Change(frame.position(3), removed=frame.text(4))
                case "EOSE":
                    return
                case "ERR":
                    if known or not frame.text(3).startswith(AUTH_REQUIRED):
                        raise FeedError(f"{self._url} refused the feed: {frame.text(3)}")
                    self._authenticate(frame.text(3))
                    known = True
                    self._send(request)

    def pages(self, filter: Mapping[str, Any]) -> Iterator[Found]:
        """All that the relay has for a filter. Where it shows no more than a part, that is a `FeedError`."""
        machine = Pages(filter, has_keys=True)
        todo = deque(machine.start())
        while True:
            while todo:
                effect = todo.popleft()
                if isinstance(effect, Found):
                    yield effect
                elif isinstance(effect, Finish):
                    if machine.unsure:
                        raise FeedError(
                            f"{self._url} has more events of one second ({machine.unsure[0]}) than it gives at once, "
                            "so not all can be read; let it give more, or read a node that has a link to it"
                        )
                    return
                else:
                    todo.extend(self._perform(effect, machine))
            try:
                todo.extend(machine.hear(dialogue.read(self._hear())) or ())
            except WebSocketException:
                again = machine.lost(oversized=False)
                if again is None:
                    raise
                todo.extend(again)

    def _perform(self, effect: Effect, machine: Pages) -> list[Effect]:
        if isinstance(effect, Send):
            self._send(effect.message)
            return []
        if isinstance(effect, Odd):
            log.warning("%s has the event %s, which cannot be taken: %s", discreet(self._url), effect.id, effect.reason)
            return []
        if isinstance(effect, Authenticate):
            self._authenticate(effect.reason)
            return machine.again()
        if isinstance(effect, Reconnect):
            self._disconnect()
            self._connect()
            return machine.again()
        raise FeedError(f"{self._url} refused to be read: {getattr(effect, 'reason', effect)}")

    # --- who we are ---

    def _authenticate(self, reason: str) -> None:
        if self._keys is None:
            raise FeedError(f"{self._url} asks who we are ({reason}): give it a key (--key, or the option `key`)")
        while self._challenge is None:
            self._hear()
        if self._access_key is not None:
            self._send(dialogue.token(self._access_key))
            self._accepted("TOKEN", self._access_key)
        event = authentication.answer(self._keys, self._url, self._challenge, int(time.time()))
        self._send(dialogue.auth(nostr.serialise(event)))
        self._accepted("OK", event.id)

    def _accepted(self, verb: str, what: str) -> None:
        """Wait for the relay's yes to something; its no is an error."""
        while True:
            frame = Frame(self._hear())
            if frame.verb == verb and frame[1] == what:
                if frame[2] is True:
                    return
                said = frame.text(3)
                hint = "; give it an access key (--access-key)" if said.startswith("token-required") else ""
                raise FeedError(f"{self._url} does not let us in: {said}{hint}")

    # --- messages ---

    def _connect(self) -> None:
        self._challenge = None
        self._socket = self._open.enter_context(
            connect(self._url, open_timeout=TIMEOUT, close_timeout=1, max_size=BOUNDS.message_bytes, ping_interval=None)
        )

    def _disconnect(self) -> None:
        self._open.close()

    def _send(self, message: bytes) -> None:
        assert self._socket is not None, "not connected"
        self._socket.send(message, text=True)

    def _hear(self) -> str | bytes:
        assert self._socket is not None, "not connected"
        message = self._socket.recv(TIMEOUT)
        if len(message) < 1_000 and (frame := Frame(message)).verb == "AUTH":
            self._challenge = frame.text(1)
        return message


TALK_ERRORS = (OSError, WebSocketException, ProtocolError)
"""What may go wrong in a talk, beside `FeedError`."""
