"""Much more than a socket takes at once: whoever reads promptly gets all of it, however large the events are."""

from collections.abc import Callable, Iterator

import pytest
from authors import EPOCH, NOTE, Author, Event, ids, snapshot
from processes import Node
from sockets import RelayClient

COUNT, SIZE = 180, 95_000


@pytest.fixture(scope="module")
def writer() -> Author:
    return Author.random()


@pytest.fixture(scope="module")
def events(writer: Author) -> list[Event]:
    """Seventeen megabytes: twice what may wait for a reader of live events."""
    return [
        snapshot(writer, f"d{n}", {"x": 1}, content=f"{n} " + "x" * SIZE, created_at=EPOCH + n) for n in range(COUNT)
    ]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("heavy"))
    own.start()
    yield own
    own.end()


@pytest.fixture
async def reader(heavy: Node, connect: Callable, events: list[Event]) -> RelayClient:
    client: RelayClient = await connect(heavy)
    if heavy.max_seq() < COUNT:
        await client.store(*events)
    return await connect(heavy)


@pytest.mark.parametrize("verb", ["REQ", "REQ-BATCH"])
async def test_large_events_are_all_read_by_a_query(
    reader: RelayClient, writer: Author, events: list[Event], verb: str
) -> None:
    answer = await reader.req({"authors": [writer.pubkey], "kinds": [NOTE]}, verb=verb)
    assert answer.eose and answer.ids == ids(events)
    assert answer.events[-1] == events[-1]
    await reader.still_answers()


@pytest.mark.parametrize("live", [False, True])
async def test_large_events_are_all_read_by_a_tail(
    reader: RelayClient, writer: Author, events: list[Event], live: bool
) -> None:
    feed = await reader.tail(writer, live=live)
    assert feed.error is None and feed.eose >= COUNT
    assert feed.ids == ids(events)
    await reader.still_answers()


async def test_large_events_are_all_read_by_a_bootstrap(
    reader: RelayClient, writer: Author, events: list[Event]
) -> None:
    feed = await reader.bootstrap(writer)
    assert feed.error is None and feed.eose >= COUNT
    assert ids(feed.snapshots) == ids(events)
    await reader.still_answers()
