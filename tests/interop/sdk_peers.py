"""nostr-sdk (Rust) as a peer: its client, and its relay in memory, for tests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import nostr_sdk
from nostr_sdk import (
    ClientBuilder,
    DatabaseEventStatus,
    Filter,
    LocalRelayBuilder,
    LocalRelayBuilderNip42,
    NostrDatabase,
    NostrDatabaseFeatures,
    RateLimit,
    RelayUrl,
    SaveEventStatus,
)
from nostr_sdk.nostr_sdk import uniffi_set_event_loop

WAIT = timedelta(seconds=10)
UNLIMITED = RateLimit(max_reqs=1_000_000, notes_per_minute=1_000_000_000)
"""Else a connection may publish 60 notes a minute."""


@contextlib.asynccontextmanager
async def running_relay(nip42: LocalRelayBuilderNip42 | None = None) -> AsyncIterator[str]:
    """A LocalRelay; its url."""
    uniffi_set_event_loop(asyncio.get_running_loop())
    builder = LocalRelayBuilder().addr("127.0.0.1").rate_limit(UNLIMITED)
    relay = (builder if nip42 is None else builder.nip42(nip42)).build()
    await relay.run()
    try:
        yield str(await relay.url())
    finally:
        relay.shutdown()


class Database(NostrDatabase):
    """Where nostr-sdk's client keeps its events. (What it brings itself remembers only ids.)"""

    def __init__(self, events: Sequence[nostr_sdk.Event] = ()) -> None:
        self.events = {event.id().to_hex(): event for event in events}

    def backend(self) -> str:
        return "memory"

    def features(self) -> NostrDatabaseFeatures:
        return NostrDatabaseFeatures(
            persistent=False, event_expiration=False, full_text_search=False, request_to_vanish=False
        )

    async def save_event(self, event: nostr_sdk.Event) -> SaveEventStatus:
        self.events[event.id().to_hex()] = event
        return SaveEventStatus.success()

    async def check_id(self, event_id: nostr_sdk.EventId) -> DatabaseEventStatus:
        return DatabaseEventStatus.SAVED if event_id.to_hex() in self.events else DatabaseEventStatus.NOT_EXISTENT

    async def event_by_id(self, event_id: nostr_sdk.EventId) -> nostr_sdk.Event | None:
        return self.events.get(event_id.to_hex())

    async def query(self, filter: Filter) -> list[nostr_sdk.Event]:
        return [event for event in self.events.values() if filter.match_event(event)]

    async def count(self, filter: Filter) -> int:
        return len(await self.query(filter))

    async def delete_events(self, filter: Filter) -> None:
        raise NotImplementedError

    async def wipe(self) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def sdk_client(url: str, database: Database) -> AsyncIterator[nostr_sdk.Client]:
    uniffi_set_event_loop(asyncio.get_running_loop())
    client = ClientBuilder().database(database).build()
    await client.add_relay(RelayUrl.parse(url))
    await client.connect(and_wait=WAIT)
    try:
        yield client
    finally:
        await client.shutdown()
