"""A connection to a relay that carries out what machines ask, within time and memory that are set beforehand.

`run` drives one machine to its end and yields the events that it found, with their signatures checked. Whatever the
relay does, a call ends: nothing that mattered within `timeout` seconds is `TimedOut`, a message is at most so large,
and a peer that lies is named. Every error says what happened, whether it is worth trying again (`retry`), and with
whom.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from anabranch.client.now import REAL, World
from anabranch.core import nostr
from anabranch.core.nostr import Keys
from anabranch.wire import authentication, dialogue
from anabranch.wire.dialogue import (
    BOUNDS,
    Accuse,
    Answer,
    Authenticate,
    Bounds,
    Challenge,
    Effect,
    Finish,
    Found,
    Hurry,
    Machine,
    Notice,
    Odd,
    Ok,
    Overflow,
    Reconnect,
    Refuse,
    Send,
    TokenAnswer,
)

TIMEOUT = 10.0
HURRY = 1.0
CLOSE_SECONDS = 1.0
MESSAGES_AHEAD = 16  # read from the socket before they are asked for: memory is at most this many messages
BATCH = 256  # events whose signatures are checked at once
log = logging.getLogger(__name__)

RENEW_AFTER = 5_000
"""Messages sent on one connection, after which a task begins on a new one: some relays answer only so many."""
MESSAGE_TOO_BIG = 1009
PASSING = ("rate-limited:", "error:")
"""Refusals that mean «not now» (NIP-01)."""


class RelayError(Exception):
    """A relay could not be worked with. `retry` says whether the same call may go well later."""

    retry = True

    def __init__(self, url: str, text: str) -> None:
        super().__init__(f"{url}: {text}")
        self.url = url


class Unreachable(RelayError):
    """No connection came about."""


class TimedOut(RelayError):
    """The relay did not get on with it in time."""


class Lost(RelayError):
    """The relay ended the connection, more than once."""


class Refused(RelayError):
    """The relay will not do it for us; the text has its reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, f"refused: {reason}")
        self.reason = reason
        self.retry = reason.startswith(PASSING)


class Misbehaved(RelayError):
    """What the relay sent is not true. Nothing of it was kept; do not trust it without looking into it."""

    retry = False


class TooMuch(RelayError):
    """More than the caller allowed for."""

    retry = False


class RelayConnection:
    """One relay, over one connection after the other. Use it as an async context."""

    def __init__(
        self,
        url: str,
        *,
        keys: Keys | None = None,
        access_key: str | None = None,
        timeout: float = TIMEOUT,
        bounds: Bounds = BOUNDS,
        world: World = REAL,
    ) -> None:
        self.url = url
        self.keys = keys
        self._access_key = access_key
        self.world = world
        self._timeout = timeout
        self._bounds = bounds
        self._socket: ClientConnection | None = None
        self._challenge: str | None = None
        self._notice: str | None = None  # the last one, for whoever wonders why nothing else came
        self._sent = 0

    async def __aenter__(self) -> RelayConnection:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._disconnect(abruptly=error is not None)

    async def _connect(self) -> None:
        try:
            self._socket = await connect(
                self.url,
                open_timeout=self._timeout,
                close_timeout=CLOSE_SECONDS,
                ping_interval=None,  # our own clock is stricter
                max_size=self._bounds.message_bytes,
                max_queue=MESSAGES_AHEAD,
            )
        except (InvalidURI, ValueError) as error:
            raise ValueError(f"{self.url!r} is no address of a relay: {error}") from None
        except (OSError, InvalidHandshake, EOFError) as error:  # TimeoutError is an OSError
            raise Unreachable(self.url, f"cannot be reached ({error or type(error).__name__})") from None
        self._challenge = None
        self._sent = 0

    async def _disconnect(self, abruptly: bool) -> None:
        """With a farewell, or, where the relay is at fault or has fallen silent, without waiting for its own."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        if abruptly:
            socket.transport.abort()
            await socket.wait_closed()
        else:
            await socket.close()

    async def _renew(self) -> None:
        await self._disconnect(abruptly=True)
        await self._connect()

    # --- machines ---

    async def run(self, machine: Machine) -> AsyncIterator[list[Found]]:
        """Drive a machine to its end, and yield what it finds, proven, in batches."""
        if self._sent >= RENEW_AFTER:
            await self._renew()
        unproven: list[Found] = []
        effects: list[Effect] | None = machine.start()
        finished = False
        while not finished:
            deadline = self.world.monotonic() + self._timeout
            try:
                todo = deque(effects or ())
                while todo:
                    effect = todo.popleft()
                    if isinstance(effect, Found):
                        unproven.append(effect)
                    elif isinstance(effect, Hurry):
                        deadline = min(deadline, self.world.monotonic() + HURRY)
                    elif isinstance(effect, Finish):
                        finished = True
                    else:
                        todo.extend(await self._perform(effect, machine))
                effects = None
                while effects is None and not finished and len(unproven) < BATCH:
                    effects = await self._next(machine, deadline)
            except ConnectionClosed as ended:
                effects = machine.lost(_was_too_big(ended))
                if effects is None:
                    raise self._given_up(ended) from None
            if unproven and (finished or len(unproven) >= BATCH):
                yield await self._proven(unproven)
                unproven = []

    async def finish(self, machine: Machine) -> None:
        """Drive a machine to its end, and keep nothing of what it finds; its proofs are checked all the same."""
        async for _ in self.run(machine):
            pass

    async def _perform(self, effect: Effect, machine: Machine) -> list[Effect]:
        if isinstance(effect, Send):
            await self._send(effect.message)
            return []
        if isinstance(effect, Odd):
            log.warning("a relay has an event that cannot be taken", extra={"id": effect.id, "reason": effect.reason})
            return []
        if isinstance(effect, Authenticate):
            await self._authenticate(effect.reason)
            return machine.again()
        if isinstance(effect, Reconnect):
            await self._renew()
            return machine.again()
        if isinstance(effect, Refuse):
            raise Refused(self.url, effect.reason)
        if isinstance(effect, Accuse):
            raise Misbehaved(self.url, effect.reason)
        if isinstance(effect, Overflow):
            raise TooMuch(self.url, effect.reason)
        raise AssertionError(effect)

    async def _next(self, machine: Machine, deadline: float) -> list[Effect] | None:
        """What the machine makes of the next answer, or of there being none."""
        try:
            answer = await self._hear(deadline)
        except TimeoutError:
            effects = machine.silence()
            if effects is None:
                raise self._timed_out() from None
            return effects
        return machine.hear(answer)

    async def _proven(self, found: list[Found]) -> list[Found]:
        held = await asyncio.to_thread(nostr.verify, [one.event for one in found])
        for one, holds in zip(found, held, strict=True):
            if not holds:
                raise Misbehaved(self.url, f"sent the event {one.event.id}, whose signature does not hold")
        return found

    # --- messages ---

    async def _send(self, message: bytes) -> None:
        assert self._socket is not None, "not connected"
        self._sent += 1
        try:
            async with asyncio.timeout(self._timeout):
                await self._socket.send(message, text=True)
        except TimeoutError:
            raise self._timed_out() from None

    async def _hear(self, deadline: float) -> Answer:
        """The next answer. Raises TimeoutError, and ConnectionClosed."""
        assert self._socket is not None, "not connected"
        async with asyncio.timeout(max(0.0, deadline - self.world.monotonic())):
            message = await self._socket.recv()
        answer = dialogue.read(message)
        if isinstance(answer, Challenge):
            self._challenge = answer.text
        elif isinstance(answer, Notice):
            self._notice = answer.text
        return answer

    def _timed_out(self) -> TimedOut:
        said = f"; the last thing it said was: {self._notice}" if self._notice else ""
        return TimedOut(self.url, f"did not answer within {self._timeout:g} s{said}; try again later")

    def _given_up(self, ended: ConnectionClosed) -> RelayError:
        if _was_too_big(ended):
            most = self._bounds.message_bytes
            return TooMuch(self.url, f"sent a message of more than {most} bytes; raise the bound if that is right")
        return Lost(self.url, f"ended the connection ({ended}); try again later")

    async def _authenticate(self, reason: str) -> None:
        """NIP-42: show our access key where there is one, sign the relay's challenge, and wait until it is satisfied.

        A relay may give a new challenge with every refusal, and take only the last: then we sign that one.
        """
        deadline = self.world.monotonic() + self._timeout
        try:
            while self._challenge is None:
                await self._hear(deadline)
            if self._access_key is not None:
                await self._show(self._access_key, deadline)
            signed = self._challenge
            answer = await self._sign(signed, deadline)
            while not answer.accepted and signed != self._challenge:
                signed = self._challenge
                answer = await self._sign(signed, deadline)
        except TimeoutError:
            raise Refused(self.url, f"{reason}; and it did not take our authentication in time") from None
        if not answer.accepted:
            raise Refused(self.url, f"our authentication: {answer.reason or reason}")

    async def _show(self, access_key: str, deadline: float) -> None:
        """Have the relay take our access key."""
        await self._send(dialogue.token(access_key))
        while not isinstance(answer := await self._hear(deadline), TokenAnswer):
            pass
        if not answer.accepted:
            raise Refused(self.url, f"our access key: {answer.reason}")

    async def _sign(self, challenge: str, deadline: float) -> Ok:
        if self.keys is None:
            raise Refused(self.url, "auth-required: it asks who we are, and no keys were given")
        event = authentication.answer(self.keys, self.url, challenge, self.world.seconds())
        await self._send(dialogue.auth(nostr.serialise(event)))
        while True:
            answer = await self._hear(deadline)
            if isinstance(answer, Ok) and answer.id == event.id:
                return answer


def _was_too_big(ended: ConnectionClosed) -> bool:
    return ended.sent is not None and ended.sent.code == MESSAGE_TOO_BIG
