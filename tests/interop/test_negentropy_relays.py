"""Sets are reconciled across implementations, in every pairing and in both directions.

Our client with nostr-sdk's LocalRelay (Rust, NIP-77), with nostr-relay (Python, no NIP-77: the fall-back) and with our
own node; nostr-sdk's client and nostr-tools' NegentropySync with our own node.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import node_peers
import nostr_sdk
import pytest
from authors import Author
from nostr_sdk import (
    ClientBuilder,
    DatabaseEventStatus,
    Filter,
    LocalRelay,
    LocalRelayBuilder,
    LocalRelayBuilderNip42,
    LocalRelayBuilderNip42Mode,
    NegentropyItem,
    NostrDatabase,
    NostrDatabaseFeatures,
    PublicKey,
    RateLimit,
    RelayUrl,
    SaveEventStatus,
    SyncDirection,
    SyncOptions,
    Timestamp,
)
from nostr_sdk.nostr_sdk import uniffi_set_event_loop
from processes import Node
from relay_model import items

from anabranch.client.reconcile import (
    Bounds,
    Difference,
    Direction,
    Found,
    Method,
    Refused,
    Synced,
    difference,
    fetch,
    publish,
    sync,
)
from anabranch.core import nostr
from anabranch.core.nostr import Event, Keys

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks know how to install and start other relays
from bench import events as corpus
from bench import peers

WAIT = timedelta(seconds=10)
UNLIMITED = RateLimit(max_reqs=1_000_000, notes_per_minute=1_000_000_000)
NIP77 = node_peers.PEERS / "node_modules" / "nostr-tools" / "lib" / "esm" / "nip77.js"
COUNT = 1_500
PARSING = nostr.Limits(event_bytes=1 << 20)


class Corpus:
    """One author's notes, signed quickly: the first two thirds are ours, the last two thirds the relay's."""

    def __init__(self, count: int = COUNT) -> None:
        self.batch = corpus.Batch(count, authors=1)
        self.keys = Keys(self.batch.secret(0))
        self.filter = {"authors": [self.keys.pubkey]}
        self.events = {event.id: event for event in map(self.parsed, corpus.sign(self.batch))}
        ids = list(self.events)
        self.ours, self.theirs = ids[: 2 * count // 3], ids[count // 3 :]
        self.have, self.need = set(ids[: count // 3]), set(ids[2 * count // 3 :])
        self.shelf = dict.fromkeys(self.ours)

    @staticmethod
    def parsed(raw: bytes) -> Event:
        return nostr.parse(raw, PARSING)[0]

    @property
    def items(self) -> Any:
        return items(self.events[id] for id in self.shelf)

    async def load(self, ids: Sequence[str]) -> list[bytes]:
        return [nostr.serialise(self.events[id]) for id in ids]

    async def save(self, found: Sequence[Found]) -> None:
        for one in found:
            assert one.event == self.events[one.event.id]
            self.shelf[one.event.id] = None

    async def fill(self, url: str, keys: Keys | None = None) -> None:
        """Give the relay its part."""
        done = await publish(url, await self.load(self.theirs), keys=keys)
        assert len(done.accepted) == len(self.theirs), list(done.refused.items())[:3]

    async def sync(self, url: str, direction: Direction = Direction.BOTH, **options: Any) -> Synced:
        return await sync(url, self.filter, self.items, self.load, self.save, direction, **options)

    async def difference(self, url: str, **options: Any) -> Difference:
        return await difference(url, self.filter, self.items, **options)


@pytest.fixture
def notes() -> Corpus:
    return Corpus()


async def check_both_directions(notes: Corpus, url: str, method: Method, **options: Any) -> Synced:
    """Down, then up, then both sides are equal; each step moves just what it should."""
    before = await notes.difference(url, **options)
    assert (set(before.have), set(before.need)) == (notes.have, notes.need)
    assert before.method is method and not before.unsure
    down = await notes.sync(url, Direction.DOWN, **options)
    assert (down.received, down.missing, down.published.accepted) == (len(notes.need), [], [])
    assert set(notes.shelf) == set(notes.events)
    up = await notes.sync(url, Direction.UP, **options)
    assert set(up.published.accepted) == notes.have and not up.published.refused and up.received == 0
    after = await notes.sync(url, **options)
    assert (after.difference.have, after.difference.need) == ([], [])
    assert (after.received, after.published.accepted) == (0, [])
    return after


# --- our client with nostr-sdk's relay ----------------------------------------------------------------------------


@pytest.fixture
async def local_relay() -> AsyncIterator[Callable[..., Any]]:
    """A factory of LocalRelays; without its rate limit of 60 notes a minute."""
    uniffi_set_event_loop(asyncio.get_running_loop())
    started: list[LocalRelay] = []

    async def start(nip42: LocalRelayBuilderNip42 | None = None) -> str:
        builder = LocalRelayBuilder().addr("127.0.0.1").rate_limit(UNLIMITED)
        relay = (builder if nip42 is None else builder.nip42(nip42)).build()
        await relay.run()
        started.append(relay)
        return str(await relay.url())

    yield start
    for relay in started:
        relay.shutdown()


async def test_ours_syncs_with_the_relay_of_nostr_sdk(local_relay: Callable[..., Any], notes: Corpus) -> None:
    url = await local_relay()
    await notes.fill(url)
    after = await check_both_directions(notes, url, Method.NEGENTROPY)
    assert after.difference.rounds == 1


async def test_ours_reads_the_relay_of_nostr_sdk_past_its_limit_of_500(
    local_relay: Callable[..., Any], notes: Corpus
) -> None:
    url = await local_relay()
    await notes.fill(url)
    pages = fetch(url, notes.filter)
    found = [one.event.id async for one in pages]
    assert len(found) == len(set(found)) and set(found) == set(notes.theirs) and not pages.unsure


async def test_ours_authenticates_to_the_relay_of_nostr_sdk(local_relay: Callable[..., Any], notes: Corpus) -> None:
    url = await local_relay(LocalRelayBuilderNip42(mode=LocalRelayBuilderNip42Mode.BOTH))
    await notes.fill(url, notes.keys)
    done = await notes.sync(url, keys=notes.keys)
    assert set(done.published.accepted) == notes.have and done.received == len(notes.need)
    with pytest.raises(Refused, match="auth-required"):
        _ = [one async for one in fetch(url, notes.filter)]


# --- our client with a relay that has no negentropy ---------------------------------------------------------------


@pytest.fixture
def plain_relay() -> Iterator[str]:
    relay = peers.NostrRelay()
    try:
        relay.version()
        with relay.start() as running:
            yield running.url
    except peers.Unavailable as reason:
        pytest.skip(str(reason))


async def test_ours_falls_back_to_pages_with_nostr_relay(plain_relay: str) -> None:
    notes = Corpus(300)
    await notes.fill(plain_relay)
    await check_both_directions(notes, plain_relay, Method.PAGES, timeout=1.5, bounds=Bounds(page=50))


# --- our client with our node -------------------------------------------------------------------------------------


async def test_ours_syncs_with_ours(node: Node, notes: Corpus) -> None:
    await notes.fill(node.url)
    await check_both_directions(notes, node.url, Method.NEGENTROPY)


async def test_ours_syncs_with_ours_in_windows_when_the_set_is_too_large(start_node: Callable[..., Node]) -> None:
    notes, node = Corpus(600), start_node(config="[limits]\nreconcile_items = 50\n")
    await notes.fill(node.url)
    after = await check_both_directions(notes, node.url, Method.NEGENTROPY)
    assert after.difference.windows > 12


async def test_ours_syncs_with_ours_in_private(start_node: Callable[..., Node]) -> None:
    notes, node = Corpus(300), start_node(env={"PRIVATE": "true"})
    await notes.fill(node.url, notes.keys)
    await check_both_directions(notes, node.url, Method.NEGENTROPY, keys=notes.keys)
    with pytest.raises(Refused, match="auth-required"):
        await notes.difference(node.url)
    with pytest.raises(Refused, match="restricted"):
        await notes.difference(node.url, keys=Keys(bytes.fromhex(Author.random().secret_hex)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_are_reconciled_and_moved(start_node: Callable[..., Node]) -> None:
    notes, node = Corpus(100_000), start_node()
    await notes.fill(node.url)
    await check_both_directions(notes, node.url, Method.NEGENTROPY, timeout=30.0)


# --- other clients with our node ----------------------------------------------------------------------------------


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


def theirs(events: Sequence[Event]) -> list[nostr_sdk.Event]:
    return [nostr_sdk.Event.from_json(nostr.serialise(event).decode()) for event in events]


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


async def test_nostr_sdk_syncs_with_ours_in_both_directions(node: Node, notes: Corpus) -> None:
    await notes.fill(node.url)
    database = Database(theirs([notes.events[id] for id in notes.ours]))
    mine = Filter().author(PublicKey.parse(notes.keys.pubkey))
    sent: set[str] = set()
    received: set[str] = set()
    async with sdk_client(node.url, database) as client:
        for _ in range(3):  # on a busy machine it may report before it has taken in everything
            done = await client.sync(mine, opts=SyncOptions().direction(SyncDirection.BOTH))
            assert not done.failed
            sent |= {id.to_hex() for id in done.report.sent}
            received |= {id.to_hex() for id in done.report.received}
            if received == notes.need:
                break
    assert sent == notes.have
    assert received == notes.need
    assert set(database.events) == set(notes.events)
    assert {one.event.id async for one in fetch(node.url, notes.filter)} == set(notes.events)


async def test_nostr_sdk_learns_the_difference_from_ours(node: Node, notes: Corpus) -> None:
    await notes.fill(node.url)
    mine = Filter().author(PublicKey.parse(notes.keys.pubkey))
    ours = [
        NegentropyItem(id=nostr_sdk.EventId.parse(id), timestamp=Timestamp.from_secs(notes.events[id].created_at))
        for id in notes.ours
    ]
    async with sdk_client(node.url, Database()) as client:
        relay = await client.relay(RelayUrl.parse(node.url))
        found = await relay.sync(mine, items=ours, opts=SyncOptions().dry_run())
    assert {id.to_hex() for id in found.local} == notes.have
    assert {id.to_hex() for id in found.remote} == notes.need


async def test_nostr_tools_learns_the_difference_from_ours(
    node: Node, notes: Corpus, javascript: Callable[..., dict[str, Any]]
) -> None:
    await notes.fill(node.url)
    told = {"filter": notes.filter, "items": [[notes.events[id].created_at, id] for id in notes.ours]}
    found = await asyncio.to_thread(javascript, "negentropy_sync.mjs", str(NIP77), node.url, told=told)
    assert (set(found["have"]), set(found["need"])) == (notes.have, notes.need)
    assert len(found["have"]) == len(notes.have) and len(found["need"]) == len(notes.need)
