"""Retention: payloads go by policy, facts stay, and retained, compacted and unknown are three different answers."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, Event, heads, ids, now, snapshot, versions
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Node
from sockets import Frame, RelayClient

UNKNOWN = "f" * 64


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node that is told to compact, again and again."""
    own = Node(tmp_path_factory.mktemp("forgetful"), env={"ADMIN_TOKEN": "t"}, token="t")
    own.start()
    yield own
    own.end()


@pytest.fixture
async def reader(forgetful: Node, connect: Callable) -> RelayClient:
    return await connect(forgetful)


async def retained(client: RelayClient, events: list[Event]) -> set[str]:
    """Which payloads are still there; the others must be known as compacted."""
    answer = await client.req({"ids": ids(events)})
    assert {status["status"] for status in answer.statuses} <= {"payload_compacted"}
    compacted = {status["id"] for status in answer.statuses}
    assert compacted.isdisjoint(answer.ids) and compacted | set(answer.ids) == set(ids(events))
    return set(answer.ids)


async def test_the_current_version_and_the_newest_up_to_four_stay(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    forgetful.compact(0)
    history = versions(author, "note", 10)
    for event in history:
        await reader.store(event)
    assert forgetful.compact(0)["compacted_snapshots"] == 6
    assert await retained(reader, history) == set(ids(history[-4:]))


async def test_nothing_goes_while_no_age_is_set(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    history = versions(author, "note", 10)
    await client.store(*history)
    assert own.compact(None)["compacted_snapshots"] == 0
    assert await retained(client, history) == set(ids(history))


async def test_what_is_younger_than_the_age_stays(forgetful: Node, reader: RelayClient, author: Author) -> None:
    history = [snapshot(author, "note", {"x": n + 1}) for n in range(8)]
    await reader.store(*history)
    forgetful.compact(30)
    assert await retained(reader, history) == set(ids(history))


async def test_every_current_version_stays_however_many(forgetful: Node, reader: RelayClient, author: Author) -> None:
    old = versions(author, "note", 3, device="base")
    rivals = [snapshot(author, "note", {"base": 3, f"d{n}": 1}, created_at=EPOCH + 10 + n) for n in range(7)]
    await reader.store(*old, *rivals)
    forgetful.compact(0)
    assert await retained(reader, old + rivals) == set(ids(rivals))
    assert (await reader.bootstrap(author)).snapshots == rivals


async def test_a_document_fills_up_to_four_in_total(forgetful: Node, reader: RelayClient, author: Author) -> None:
    old = versions(author, "note", 5, device="base")
    rivals = [snapshot(author, "note", {"base": 5, f"d{n}": 1}, created_at=EPOCH + 10 + n) for n in range(2)]
    for event in (*old, *rivals):
        await reader.store(event)
    forgetful.compact(0)
    assert await retained(reader, old + rivals) == set(ids(old[3:] + rivals))


async def test_each_document_has_its_own_four(forgetful: Node, reader: RelayClient, author: Author) -> None:
    documents = [versions(author, f"d{n}", 2 + n) for n in range(6)]
    for history in documents:
        await reader.store(*history)
    forgetful.compact(0)
    for history in documents:
        kept = await retained(reader, history)
        assert len(kept) == min(4, len(history)) and history[-1]["id"] in kept


async def test_retained_compacted_and_unknown_are_three_answers(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    history = versions(author, "note", 9)
    for event in history:
        await reader.store(event)
    forgetful.compact(0)
    gone, kept = history[:5], history[5:]
    answer = await reader.req({"ids": [kept[0]["id"], gone[0]["id"], UNKNOWN]})
    assert answer.frames == [
        ["EVENT", answer.sub, kept[0]],
        ["EVENT-STATUS", answer.sub, {"id": gone[0]["id"], "status": "payload_compacted"}],
        ["EOSE", answer.sub],
    ]
    every = await reader.req({"ids": [UNKNOWN, *ids(history)]})
    assert every.events == kept
    assert every.statuses == [{"id": id, "status": "payload_compacted"} for id in sorted(ids(gone))]
    assert [frame[0] for frame in every.frames] == ["EVENT"] * 4 + ["EVENT-STATUS"] * 5 + ["EOSE"]


async def test_a_status_is_told_only_where_the_event_would_have_been_given(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    somebody = Author.random()
    theirs, mine = versions(somebody, "note", 6), versions(author, "note", 6)
    for event in (*theirs, *mine):
        await reader.store(event)
    forgetful.compact(0)
    asked = {"ids": [theirs[0]["id"], mine[0]["id"]]}
    for verb in ("REQ", "REQ-BATCH"):
        for authors, told in (
            ({}, {theirs[0]["id"], mine[0]["id"]}),
            ({"authors": [author.pubkey]}, {mine[0]["id"]}),
            ({"authors": [somebody.pubkey, author.pubkey]}, {theirs[0]["id"], mine[0]["id"]}),
            ({"authors": [Author.random().pubkey]}, set()),
        ):
            answer = await reader.req(asked | authors, verb=verb)
            assert {status["id"] for status in answer.statuses} == told
            assert answer.eose and answer.events == []


async def test_a_query_that_names_no_ids_gets_no_statuses(forgetful: Node, reader: RelayClient, author: Author) -> None:
    history = versions(author, "note", 9)
    await reader.store(*history)
    forgetful.compact(0)
    answer = await reader.req({"authors": [author.pubkey], "kinds": [NOTE]})
    assert answer.statuses == [] and len(answer.events) == 4


async def test_counts_and_limits_are_of_what_is_served(forgetful: Node, reader: RelayClient, author: Author) -> None:
    older = versions(author, "older", 4, start=EPOCH)
    newer = versions(author, "newer", 10, start=EPOCH + 100)
    for event in (*older, *newer):
        await reader.store(event)
    forgetful.compact(0)
    asked = {"authors": [author.pubkey], "kinds": [NOTE]}
    assert (await reader.req(asked)).events == older + newer[6:]
    assert await reader.count(asked) == 8
    assert (await reader.req({**asked, "limit": 6})).events == older[2:] + newer[6:]
    cut = await reader.tail(author, limit=6)
    assert cut.ids == ids(older + newer[6:8]) and cut.eose == cut.seqs[-1]


async def test_req_batch_tells_compacted_ids_too(forgetful: Node, reader: RelayClient, author: Author) -> None:
    history = versions(author, "note", 6)
    for event in history:
        await reader.store(event)
    forgetful.compact(0)
    answer = await reader.req({"ids": ids(history)}, verb="REQ-BATCH")
    assert answer.events == history[2:]
    assert [status["id"] for status in answer.statuses] == sorted(ids(history[:2]))


async def test_a_compacted_snapshot_published_again_is_a_duplicate_and_stays_compacted(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    history = versions(author, "note", 8)
    for event in history:
        await reader.store(event)
    forgetful.compact(0)
    tip = forgetful.max_seq()
    ok = await reader.publish(history[0])
    assert (ok.accepted, ok.message) == (True, "duplicate: snapshot already exists")
    assert forgetful.max_seq() == tip
    assert await retained(reader, history) == set(ids(history[4:]))


async def test_compaction_keeps_positions_and_the_tail_complete(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    history = versions(author, "note", 9)
    for event in history:
        await reader.store(event)
    before = await reader.tail(author)
    forgetful.compact(0)
    after = await reader.tail(author)
    assert after.events == before.events[5:]
    assert after.eose >= before.eose
    assert all(frame[2] in ("EVENT", "EOSE") for frame in after.frames)


def status_of(frame: Frame) -> tuple[str, int]:
    """The id and the position that an EVENT-STATUS in a feed tells."""
    status = next(part for part in frame if isinstance(part, dict))
    assert status["status"] == "payload_compacted"
    position = status.get("seq", next((part for part in frame if isinstance(part, int)), None))
    assert isinstance(position, int), frame
    return status["id"], position


async def test_a_tail_tells_compacted_entries_on_request_in_their_place(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    history = versions(author, "note", 9)
    for event in history:
        await reader.store(event)
    seqs = (await reader.tail(author)).seqs
    forgetful.compact(0)
    feed = await reader.tail(author, include_compacted=True)
    told = [status_of(frame) for frame in feed.compacted]
    assert told == list(zip(ids(history[:5]), seqs[:5], strict=True))
    assert feed.seqs == seqs[5:]
    assert [("EVENT-STATUS" in frame) for frame in feed.frames] == [True] * 5 + [False] * 5
    limited = await reader.tail(author, include_compacted=True, limit=3)
    assert limited.eose == seqs[2] and limited.seqs == []


async def test_without_the_request_a_feed_has_no_frame_that_old_clients_do_not_know(
    forgetful: Node, reader: RelayClient, author: Author
) -> None:
    await reader.store(*versions(author, "note", 9))
    forgetful.compact(0)
    for feed in (await reader.tail(author), await reader.tail(author, include_compacted=False)):
        assert feed.compacted == [] and len(feed.events) == 4


async def test_compaction_survives_a_restart(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    history = versions(author, "note", 9)
    for event in history:
        await client.store(event)
    own.compact(0)
    own.restart()
    client = await connect(own)
    assert await retained(client, history) == set(ids(history[5:]))
    assert own.stop() == 0
    own.verify()


DEVICES = ("a", "b")
CLOCK = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 6), min_size=1)


@settings(max_examples=25)
@given(clocks=st.lists(CLOCK, min_size=1, max_size=12))
async def test_compaction_never_changes_the_heads(forgetful: Node, clocks: list[dict[str, int]]) -> None:
    author = Author.random()
    events = [snapshot(author, "note", c, content=f"{n}", created_at=EPOCH + n) for n, c in enumerate(clocks)]
    async with RelayClient.open(forgetful.url) as client:
        await client.store(*events)
        before = await client.bootstrap(author)
        forgetful.compact(0)
        after = await client.bootstrap(author)
        assert after.snapshots == before.snapshots == heads(events)
        assert await retained(client, events) >= set(ids(heads(events)))
        assert len(await retained(client, events)) == min(len(events), max(4, len(heads(events))))


async def test_the_policy_is_advertised(forgetful: Node) -> None:
    forgetful.compact(30)
    retention = forgetful.info()["snapshot_sync"]["retention"]["snapshot_retention"]
    assert retention["mode"] == "nondominated_plus_recent_history"
    assert retention["recent_count"] == 4
    assert 0 <= now() - 30 * 86_400 - retention["min_created_at"] < 30
    forgetful.compact(None)
    assert forgetful.info()["snapshot_sync"]["retention"]["snapshot_retention"]["min_created_at"] is None


def size(node: Node) -> int:
    """Of the database: its file, and what that will be once the write-ahead log is in it."""
    file = node.data / "anabranch.db"
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        ((pages,), (each,)) = (database.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    return max(file.stat().st_size, pages * each)


async def test_compaction_comes_by_itself_and_gives_the_space_back(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    env = {"RETENTION_INTERVAL_SECONDS": "1", "RETENTION_PAYLOAD_DAYS": "0", "LOG_FORMAT": "json"}
    own = start_node(env=env)
    client = await connect(own)
    history = versions(author, "note", 120, content="x" * 100_000)
    await client.store(*history)
    async with asyncio.timeout(15):
        while await client.count({"authors": [author.pubkey]}) > 4 or size(own) > 2_000_000:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await retained(client, history) == set(ids(history[-4:]))
    assert own.stop() == 0
    lines = [json.loads(line) for line in own.log.read_text().splitlines() if line.startswith("{")]
    compacted = [line for line in lines if line["message"] == "compacted"]
    assert compacted and {"time", "level", "logger", "message", "report"} <= compacted[0].keys()


@pytest.mark.parametrize(
    ("mode", "kept"), [("current_only", 1), ("nondominated_plus_recent_history", 3), ("full_retention", 9)]
)
async def test_every_mode_keeps_what_it_says(
    start_node: Callable[..., Node], connect: Callable, author: Author, mode: str, kept: int
) -> None:
    own = start_node(admin=True, config=f'[retention]\nmode = "{mode}"\nrecent_count = 3\npayload_days = 0\n')
    client = await connect(own)
    history = versions(author, "note", 9)
    for event in history:
        await client.store(event)
    own.compact(0)
    assert await retained(client, history) == set(ids(history[-kept:]))
    advertised = own.info()["snapshot_sync"]["retention"]["snapshot_retention"]
    assert (advertised["mode"], advertised["recent_count"]) == (mode, 3)


async def test_compact_says_what_would_go_and_then_lets_it_go(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(env={"RETENTION_PAYLOAD_DAYS": "0", "RETENTION_INTERVAL_SECONDS": "100000"})
    client = await connect(own)
    history = versions(author, "note", 9, content="x" * 20_000)
    for event in history:
        await client.store(event)
    await client.connection.close()
    assert own.stop() == 0
    dry = [own.cli("compact", "--dry-run", "--json") for _ in range(2)]
    assert [one.returncode for one in dry] == [0, 0], dry[0].stderr
    assert 5 in numbers(json.loads(dry[0].stdout)) and 5 in numbers(json.loads(dry[1].stdout))
    real = own.cli("compact", "--json")
    assert real.returncode == 0, real.stderr
    assert 5 in numbers(json.loads(real.stdout))
    own.verify()
    own.start()
    assert await retained(await connect(own), history) == set(ids(history[5:]))


def numbers(document: object) -> list[int]:
    """Every integer in a JSON document."""
    if isinstance(document, dict):
        return [number for part in document.values() for number in numbers(part)]
    if isinstance(document, list):
        return [number for part in document for number in numbers(part)]
    return [document] if isinstance(document, int) else []
