"""A real client from PyPI, nostr-sdk (Rust inside), publishes, queries, subscribes and authenticates."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from authors import Author, snapshot
from nostr_sdk import (
    Client,
    ClientBuilder,
    Event,
    EventBuilder,
    EventId,
    Filter,
    Keys,
    Kind,
    NostrSdkError,
    RelayInformationDocument,
    RelayUrl,
    ReqTarget,
    SignerAuthenticator,
    SingleLetterTag,
    Tag,
    Timestamp,
)
from nostr_sdk.nostr_sdk import uniffi_set_event_loop
from processes import Node

WAIT = timedelta(seconds=10)
UNKNOWN_LIMITS = {"max_filters", "max_event_bytes", "max_filter_values"}
"""Of the information document: it has no place for them, and reads past them, as past all that our feeds add."""


@asynccontextmanager
async def connected(node: Node, keys: Keys | None = None) -> AsyncIterator[Client]:
    """A client on one relay; with keys it answers NIP-42 challenges."""
    uniffi_set_event_loop(asyncio.get_running_loop())
    builder = ClientBuilder()
    if keys is not None:
        builder = builder.authenticator(SignerAuthenticator(keys))
    client = builder.build()
    await client.add_relay(RelayUrl.parse(node.url))
    await client.connect(and_wait=WAIT)
    try:
        yield client
    finally:
        await client.shutdown()


def note(
    keys: Keys, text: str, kind: int = 1, tags: list[list[str]] | None = None, created_at: int | None = None
) -> Event:
    builder = EventBuilder(Kind(kind), text).tags([Tag.parse(tag) for tag in tags or []])
    if created_at is not None:
        builder = builder.custom_created_at(Timestamp.from_secs(created_at))
    return builder.finalize(keys)


async def publish(client: Client, *events: Event) -> None:
    for event in events:
        output = await client.send_event(event, ok_timeout=WAIT)
        assert output.success and not output.failed, output.failed


async def query(client: Client, *filters: Filter) -> list[str]:
    events = await client.fetch_events(ReqTarget.auto(list(filters)), timeout=WAIT)
    assert all(event.verify() for event in events)
    return [event.as_json() for event in events]


def texts(found: list[str]) -> list[str]:
    return [json.loads(event)["content"] for event in found]


async def test_it_publishes_and_queries(node: Node) -> None:
    keys = Keys.generate()
    events = [note(keys, f"note {n} é😀", tags=[["t", "ab"[n % 2]]], created_at=1_700_000_000 + n) for n in range(6)]
    async with connected(node) as client:
        await publish(client, *events)
        mine = Filter().author(keys.public_key())
        assert texts(await query(client, mine)) == [f"note {n} é😀" for n in reversed(range(6))]
        assert texts(await query(client, mine.limit(2))) == ["note 5 é😀", "note 4 é😀"]
        assert texts(await query(client, mine.hashtag("a"))) == ["note 4 é😀", "note 2 é😀", "note 0 é😀"]
        assert texts(await query(client, Filter().id(events[3].id()))) == ["note 3 é😀"]
        since = mine.since(Timestamp.from_secs(1_700_000_004))
        assert texts(await query(client, since)) == ["note 5 é😀", "note 4 é😀"]
        assert await query(client, Filter().author(Keys.generate().public_key())) == []


async def test_it_publishes_again_and_is_told_of_a_success(node: Node) -> None:
    keys = Keys.generate()
    event = note(keys, "once")
    async with connected(node) as client:
        await publish(client, event, event)
    async with connected(node) as other:
        await publish(other, event)
        assert texts(await query(other, Filter().author(keys.public_key()))) == ["once"]


async def test_it_counts(node: Node) -> None:
    keys = Keys.generate()
    async with connected(node) as client:
        await publish(client, *(note(keys, f"{n}") for n in range(4)))
        relay = await client.relay(RelayUrl.parse(node.url))
        assert await relay.count_events(Filter().author(keys.public_key()), WAIT) == 4


async def test_it_replaces_and_deletes(node: Node) -> None:
    keys = Keys.generate()
    profile = [note(keys, name, kind=0, created_at=1_700_000_000 + n) for n, name in enumerate(("old", "new"))]
    gone = note(keys, "gone", created_at=1_700_000_000)
    async with connected(node) as client:
        await publish(client, *profile, gone)
        assert texts(await query(client, Filter().author(keys.public_key()).kind(Kind(0)))) == ["new"]
        await publish(client, note(keys, "", kind=5, tags=[["e", gone.id().to_hex()]]))
        assert await query(client, Filter().id(gone.id())) == []


async def test_it_subscribes_live(node: Node) -> None:
    keys = Keys.generate()
    async with connected(node) as reader, connected(node) as writer:
        notifications = reader.notifications()
        await reader.subscribe(ReqTarget.auto([Filter().author(keys.public_key()).kind(Kind(1))]), id="live")
        events = [note(keys, f"live {n}") for n in range(5)]
        await publish(writer, note(keys, "another kind", kind=7), *events)
        heard: list[str] = []
        async with asyncio.timeout(10):
            while len(heard) < len(events):
                notification = await notifications.next()
                assert notification is not None
                if notification.is_new_event():
                    heard.append(notification.event.content())
    assert heard == [f"live {n}" for n in range(5)]


async def test_it_carries_snapshots(node: Node, author: Author) -> None:
    keys = Keys.parse(author.secret_hex)
    tags = [["d", "note"], ["o", "put"], ["vc", "laptop", "1"]]
    async with connected(node) as client:
        event = note(keys, "sealed", kind=42061, tags=tags)
        await publish(client, event)
        await publish(client, Event.from_json(json.dumps(snapshot(author, "other", {"phone": 1}))))
        by_document = Filter().author(keys.public_key()).custom_tag(SingleLetterTag.from_byte(ord("d")), "note")
        assert texts(await query(client, by_document)) == ["sealed"]
        bad = note(keys, "sealed", kind=42061, tags=tags[:2])
        output = await client.send_event(bad, ok_timeout=WAIT)
        assert "missing or malformed snapshot metadata" in str(output.failed)


async def test_it_reads_what_a_node_says_of_itself_only_without_the_names_of_drafts(start_node: Callable) -> None:
    told = start_node(config='contact = "mailto:me@example.com"\n').info()
    with pytest.raises(NostrSdkError, match='invalid type: string "CF", expected u16'):
        RelayInformationDocument.from_json(json.dumps(told))
    numbers = [nip for nip in told["supported_nips"] if isinstance(nip, int)]
    assert [nip for nip in told["supported_nips"] if nip not in numbers] == ["CF", "NEG-REV"]
    read = RelayInformationDocument.from_json(json.dumps({**told, "supported_nips": numbers}))
    assert read.supported_nips() == numbers
    for name in ("name", "description", "software", "version", "contact"):
        assert getattr(read, name)() == told[name]
    limits = vars(read.limitation())
    at_most = limits.pop("created_at_upper_limit").as_secs()
    known = {name: value for name, value in limits.items() if value is not None}
    assert known | {"created_at_upper_limit": at_most} == {
        name: value for name, value in told["limitation"].items() if name not in UNKNOWN_LIMITS
    }


@pytest.fixture
def private_node(start_node: Callable[..., Node]) -> Node:
    return start_node(env={"PRIVATE": "true"})


async def test_it_authenticates_to_write_and_to_read(private_node: Node) -> None:
    keys, stranger = Keys.generate(), Keys.generate()
    tags = [["d", "note"], ["o", "put"], ["vc", "laptop", "1"]]
    event = note(keys, "private", kind=42061, tags=tags)
    mine = Filter().author(keys.public_key())
    async with connected(private_node, keys) as client:
        await publish(client, event)
        assert texts(await query(client, mine)) == ["private"]
    async with connected(private_node, keys) as client:
        assert texts(await query(client, mine)) == ["private"]
    async with connected(private_node, stranger) as client:
        assert await try_query(client, mine) == []
        output = await client.send_event(note(keys, "forbidden"), ok_timeout=WAIT)
        assert output.failed and not output.success


async def test_without_keys_a_private_node_tells_it_nothing(private_node: Node) -> None:
    keys = Keys.generate()
    event = note(keys, "private")
    async with connected(private_node) as client:
        output = await client.send_event(
            event, ok_timeout=timedelta(seconds=3), authentication_timeout=timedelta(seconds=1)
        )
        assert output.failed and not output.success
        assert await try_query(client, Filter().id(EventId.parse(event.id().to_hex()))) == []


async def try_query(client: Client, filter: Filter) -> list[str]:
    """What a refused query gives: nothing, or an error of the client's own."""
    try:
        events = await client.fetch_events(ReqTarget.auto([filter]), timeout=timedelta(seconds=2))
    except Exception:
        return []
    return [event.as_json() for event in events]
