"""What a node gives to its links: its store, its rules, its provers, and a way into the log that admission shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from anabranch.config import ConfigError, Settings
from anabranch.core import nostr
from anabranch.core.filter import Filter
from anabranch.core.negentropy import Items
from anabranch.core.nostr import Event, Invalid
from anabranch.core.operation import Operation, classify
from anabranch.core.token import Log
from anabranch.node import now
from anabranch.replicate.links import LinkError, spec_of
from anabranch.replicate.spec import LinkSpec
from anabranch.store.contract import Advance, Offer, Outcome, Reader, StoreError, TooMany, TooSlow, Writer

if TYPE_CHECKING:
    from anabranch.node.main import Node

log = logging.getLogger(__name__)
T = TypeVar("T")


def link_specs(settings: Settings) -> list[LinkSpec]:
    """The links of a settings file; `LinkError` says what is wrong with one."""
    specs: dict[str, LinkSpec] = {}
    for number, link in enumerate(settings.links, 1):
        try:
            spec = spec_of(msgspec.to_builtins(link), "config")
        except LinkError as error:
            raise LinkError(f"links: number {number}: {error}") from None
        if spec.name in specs:
            raise LinkError(f"links: two are named {spec.name!r}; give each a name of its own")
        if twin := next((other for other in specs.values() if other.purpose == spec.purpose), None):
            raise LinkError(f"links: {twin.name!r} and {spec.name!r} have the same peer, scope and direction")
        specs[spec.name] = spec
    return list(specs.values())


class Reloading:
    """Reads the settings again when it is told to, and makes the links what they say, one time after the other."""

    def __init__(self, node: Node, read: Callable[[], Settings]) -> None:
        self._node = node
        self._read = read
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._again(self._task))

    async def _again(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            changes = await self._node.links.configure(link_specs(self._read()))
        except (ConfigError, LinkError, StoreError) as error:
            log.error("the settings were not read again", extra={"cause": str(error)})
        except Exception:  # the next time may be better
            log.exception("the settings were not read again")
        else:
            log.info("the links of the settings were read again", extra=changes)


class NodeHost:
    """The node, as its links see it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def log(self) -> Log:
        return self._node.log

    async def read(self, read: Callable[[Reader], T]) -> T:
        return await self._node.readers.run(read, "links")

    async def write(self, job: Callable[[Writer], T]) -> T:
        return await self._node.writer.run(job)

    async def items(self, filter: Filter) -> tuple[Items, Log]:
        """What we have of a filter, and our log as it was before that was read."""
        log, items_max = self._node.log, self._node.settings.limits.link_items
        try:
            return await self._node.reconciliation.sets.of(self.read, filter, items_max), log
        except TooMany:
            raise StoreError(
                f"more than {items_max} operations are in scope: raise limits.link_items, "
                "or have several links with narrower scopes"
            ) from None
        except TooSlow:
            raise StoreError(
                "reading what is in scope took too long: raise limits.query_seconds, or have several links with "
                "narrower scopes"
            ) from None

    async def prove(self, proofs: bytes) -> bytes | None:
        return await self._node.prover.check_beside(proofs)

    def operation(self, event: Event, raw: bytes) -> Operation:
        """The operation that an event is under the node's own rules: what a client may not publish, a link may not."""
        rules = self._node.rules
        if len(raw) > rules.limits.event_bytes:
            raise Invalid(f"event is larger than {rules.limits.event_bytes} bytes")
        nostr.within(event, rules.limits)
        nostr.timely(event, rules.limits, now.seconds())
        if event.kind == nostr.AUTH:
            raise Invalid("an AUTH event goes into an AUTH message")
        return classify(event, raw, rules.kinds)

    async def store(self, offers: Sequence[Offer], advance: Advance) -> list[Outcome]:
        """Append a proven group, and publish it. Raises `StoreError`."""
        done: asyncio.Future[list[Outcome] | None] = self._node.loop.create_future()
        self._node.admission.take(list(offers), advance, done)
        outcomes = await asyncio.shield(done)
        if outcomes is None:
            raise StoreError("it could not be stored; the log of this node says why")
        return outcomes
