"""Compare a set of events with a relay's, and close the difference, in a call each.

`difference` says who lacks what, `fetch` gets events, `publish` gives them, `sync` does all three over one connection.
With a relay that speaks NIP-77 the cost follows the difference and not the size; with any other relay the same calls
read it page by page, and the result says so. Nothing is handed out unproven: id, signature and filter are checked, and
a relay that lies is named (`Misbehaved`). Every call ends, whatever the relay does (`TimedOut`), and holds no more in
memory than a batch of events, the ids of the difference and a bounded number of messages.

    items = Items.build(created_ats, ids)                       # what we have of the filter
    done = await sync(url, {"authors": [me]}, items, load, save)
"""

# ruff: noqa: ASYNC109 -- this time-out is of silence, not of the call: asyncio.timeout cannot do it
from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.client.now import REAL, World
from anabranch.client.relay_connection import (
    TIMEOUT,
    Lost,
    Misbehaved,
    Refused,
    RelayConnection,
    RelayError,
    TimedOut,
    TooMuch,
    Unreachable,
)
from anabranch.core.negentropy import Items
from anabranch.core.nostr import Keys
from anabranch.wire.dialogue import BOUNDS, Bounds, Found
from anabranch.wire.paging import ByIds, Pages
from anabranch.wire.publication import Publication
from anabranch.wire.reconciliation import Difference, Method, Reconciliation

__all__ = [
    "Bounds",
    "Difference",
    "Direction",
    "Fetch",
    "Found",
    "Lost",
    "Method",
    "Misbehaved",
    "Published",
    "Refused",
    "RelayError",
    "Synced",
    "TimedOut",
    "TooMuch",
    "Unreachable",
    "difference",
    "fetch",
    "publish",
    "sync",
]

PUBLISH_AT_ONCE = 500

Load = Callable[[Sequence[str]], Awaitable[Iterable[bytes]]]
"""The events of these ids, as bytes. What is gone meanwhile is left out."""
Save = Callable[[Sequence[Found]], Awaitable[None]]
"""Keep these events. They are proven."""


class Direction(StrEnum):
    DOWN = "down"
    UP = "up"
    BOTH = "both"


class Published(msgspec.Struct, frozen=True):
    accepted: list[str]
    """Ids that the relay has now, new to it or not."""
    refused: dict[str, str]
    """Ids and the relay's reasons."""


class Synced(msgspec.Struct, frozen=True):
    difference: Difference
    """As it was before."""
    received: int
    missing: list[str]
    """Ids that the relay named and then did not give: deleted in between, or never there."""
    published: Published


async def difference(
    url: str,
    filter: Mapping[str, Any],
    items: Items,
    *,
    keys: Keys | None = None,
    access_key: str | None = None,
    timeout: float = TIMEOUT,
    negentropy: bool = True,
    bounds: Bounds = BOUNDS,
    world: World = REAL,
) -> Difference:
    """Which of `items`, all that we have of the filter, the relay lacks, and which of the relay's we lack.

    Where a relay is known not to speak NIP-77, `negentropy=False` saves the time it takes to find out.
    """
    machine = Reconciliation(
        filter, items, now=world.seconds(), bounds=bounds, has_keys=keys is not None, negentropy=negentropy
    )
    async with RelayConnection(
        url, keys=keys, access_key=access_key, timeout=timeout, bounds=bounds, world=world
    ) as relay:
        await relay.finish(machine)
    return machine.result


class Fetch:
    """Events as they arrive: `async for found in fetch(…)`. `missing` and `unsure` hold when it has ended."""

    def __init__(self, relay: RelayConnection, begin: Callable[[], Pages | ByIds]) -> None:
        self._relay = relay
        self._begin = begin
        self._machine = begin()

    async def __aiter__(self) -> AsyncIterator[Found]:
        self._machine = self._begin()
        async with self._relay as relay:
            async for batch in relay.run(self._machine):
                for found in batch:
                    yield found

    @property
    def missing(self) -> Sequence[str]:
        """Of the ids that were asked for, those the relay does not have."""
        return self._machine.missing if isinstance(self._machine, ByIds) else ()

    @property
    def unsure(self) -> Sequence[int]:
        """Seconds in which the relay may have more than it gives at once."""
        return self._machine.unsure if isinstance(self._machine, Pages) else ()


def fetch(
    url: str,
    filter: Mapping[str, Any],
    *,
    keys: Keys | None = None,
    access_key: str | None = None,
    timeout: float = TIMEOUT,
    bounds: Bounds = BOUNDS,
    world: World = REAL,
) -> Fetch:
    """All of a relay's events for a filter, newest first, or those of the filter's `ids`.

    A `limit` in the filter counts for nothing, and neither does the relay's own: it is read to the end. Raises
    `Invalid` for a filter that is none.
    """

    def begin() -> Pages | ByIds:
        if (ids := filter.get("ids")) is not None:
            return ByIds(ids, filter, bounds=bounds, has_keys=keys is not None)
        return Pages(filter, bounds=bounds, has_keys=keys is not None)

    return Fetch(
        RelayConnection(url, keys=keys, access_key=access_key, timeout=timeout, bounds=bounds, world=world), begin
    )


async def publish(
    url: str,
    events: Iterable[bytes],
    *,
    keys: Keys | None = None,
    access_key: str | None = None,
    timeout: float = TIMEOUT,
    bounds: Bounds = BOUNDS,
    world: World = REAL,
) -> Published:
    """Give events, as bytes, to a relay. That it has one already is a success."""
    async with RelayConnection(
        url, keys=keys, access_key=access_key, timeout=timeout, bounds=bounds, world=world
    ) as relay:
        return await _publish(relay, events)


async def sync(
    url: str,
    filter: Mapping[str, Any],
    items: Items,
    load: Load,
    save: Save,
    direction: Direction = Direction.BOTH,
    *,
    keys: Keys | None = None,
    access_key: str | None = None,
    timeout: float = TIMEOUT,
    negentropy: bool = True,
    bounds: Bounds = BOUNDS,
    world: World = REAL,
) -> Synced:
    """Close the difference in one direction or both: what we need is saved, what the relay lacks is loaded and given.

    A call that fails has saved what it had proven so far; the next one goes on from there.
    """
    has_keys = keys is not None
    machine = Reconciliation(
        filter, items, now=world.seconds(), bounds=bounds, has_keys=has_keys, negentropy=negentropy
    )
    saved: set[str] = set()
    missing: list[str] = []
    published = Published([], {})

    async def take(batch: list[Found]) -> None:
        await save(batch)
        saved.update(found.event.id for found in batch)

    async with RelayConnection(
        url, keys=keys, access_key=access_key, timeout=timeout, bounds=bounds, world=world
    ) as relay:
        async for batch in relay.run(machine):  # pages bring the events themselves
            if direction is not Direction.UP:
                await take(batch)
        result = machine.result
        if direction is not Direction.UP:
            wanted = (id for id in result.need if id not in saved)
            by_ids = ByIds(wanted, filter, bounds=bounds, has_keys=has_keys)
            async for batch in relay.run(by_ids):
                await take(batch)
            missing = by_ids.missing
        if direction is not Direction.DOWN:
            for start in range(0, len(result.have), PUBLISH_AT_ONCE):
                events = await load(result.have[start : start + PUBLISH_AT_ONCE])
                done = await _publish(relay, events)
                published.accepted.extend(done.accepted)
                published.refused.update(done.refused)
    return Synced(result, len(saved), missing, published)


class _Identity(msgspec.Struct):
    id: str


_identity = msgspec.json.Decoder(_Identity).decode


async def _publish(relay: RelayConnection, events: Iterable[bytes]) -> Published:
    """In portions, so that a connection can be renewed in between."""
    published = Published([], {})
    pairs = ((_identity(raw).id, raw) for raw in events)
    while portion := list(itertools.islice(pairs, PUBLISH_AT_ONCE)):
        machine = Publication(portion, has_keys=relay.keys is not None)
        await relay.finish(machine)
        published.accepted.extend(machine.accepted)
        published.refused.update(machine.refused)
    return published
