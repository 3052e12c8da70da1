"""Sets are reconciled across implementations, in every pairing and in both directions.

Our client with nostr-sdk's LocalRelay (Rust, NIP-77), with nostr-relay (Python, no NIP-77: the fall-back) and with our
own node; nostr-sdk's client and nostr-tools' NegentropySync with our own node.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import node_peers
import nostr_sdk
import pytest
from authors import Author
from nostr_sdk import (
    Filter,
    LocalRelayBuilderNip42,
    LocalRelayBuilderNip42Mode,
    NegentropyItem,
    PublicKey,
    RelayUrl,
    SyncDirection,
    SyncOptions,
    Timestamp,
)
from processes import Node
from relay_model import items
from sdk_peers import Database, running_relay, sdk_client

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
from bench import events as corpus

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
    """A factory of LocalRelays that end with the test."""
    async with contextlib.AsyncExitStack() as started:

        async def start(nip42: LocalRelayBuilderNip42 | None = None) -> str:
            return await started.enter_async_context(running_relay(nip42))

        yield start


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


def theirs(events: Sequence[Event]) -> list[nostr_sdk.Event]:
    return [nostr_sdk.Event.from_json(nostr.serialise(event).decode()) for event in events]


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


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nostr_sdk_and_ours_agree_on_a_hundred_thousand(start_node: Callable[..., Node]) -> None:
    """It begins with a hundred thousand items, of which a thousand differ either way."""
    notes, node = Corpus(101_000), start_node()
    ids = list(notes.events)
    notes.theirs, mine = ids[1_000:], ids[:-1_000]
    await notes.fill(node.url)
    held = [
        NegentropyItem(id=nostr_sdk.EventId.parse(id), timestamp=Timestamp.from_secs(notes.events[id].created_at))
        for id in mine
    ]
    async with sdk_client(node.url, Database()) as client:
        relay = await client.relay(RelayUrl.parse(node.url))
        author = Filter().author(PublicKey.parse(notes.keys.pubkey))
        found = await relay.sync(author, items=held, opts=SyncOptions().dry_run())
    assert {id.to_hex() for id in found.local} == set(ids[:1_000])
    assert {id.to_hex() for id in found.remote} == set(ids[-1_000:])


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ours_and_the_relay_of_nostr_sdk_agree_on_as_many_as_it_keeps(local_relay: Callable[..., Any]) -> None:
    """It keeps at most 75,000 events in memory, the newest; of these all are found, in windows of time if need be."""
    notes, url = Corpus(70_000), await local_relay()
    ids = list(notes.events)
    notes.theirs, notes.shelf = ids[1_000:], dict.fromkeys(ids[:-1_000])
    for start in range(0, len(notes.theirs), 5_000):  # it stops answering after 6,000 messages on one connection
        await publish(url, await notes.load(notes.theirs[start : start + 5_000]))
    found = await notes.difference(url, timeout=30.0)
    assert (set(found.have), set(found.need)) == (set(ids[:1_000]), set(ids[-1_000:]))
    assert found.method is Method.NEGENTROPY
