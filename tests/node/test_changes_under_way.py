"""A long answer and what happens meanwhile: writes, compaction, CLOSE, another request under the same id.

The reader here is slow on purpose, so that the answer is still being sent while the world moves on.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from authors import EPOCH, NOTE, Author, Event, ids, snapshot
from bare_sockets import BareSocket
from processes import ADMIN_TOKEN, Node
from sockets import Frame, RelayClient

BULK = "x" * 20_000
COUNT = 400


@pytest.fixture(scope="module")
def busy_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    env = {"ADMIN_TOKEN": ADMIN_TOKEN, "RETENTION_REPLAY_COUNT": "50", "RETENTION_INTERVAL_SECONDS": "100000"}
    own = Node(tmp_path_factory.mktemp("busy"), env=env, token=ADMIN_TOKEN)
    own.start()
    yield own
    own.end()


@pytest.fixture
def slow(busy_node: Node) -> Iterator[BareSocket]:
    with BareSocket(busy_node.port, rcvbuf=4096) as bare:
        bare.handshake()
        yield bare


@pytest.fixture
async def writer(busy_node: Node, connect: Callable) -> RelayClient:
    return await connect(busy_node)


def documents(author: Author, counter: int = 1, start: int = EPOCH) -> list[Event]:
    return [snapshot(author, f"d{n:03}", {"x": counter}, content=BULK, created_at=start + n) for n in range(COUNT)]


def ask(bare: BareSocket, sub: str, mode: str, author: Author, **rest: Any) -> None:
    bare.send(json.dumps(["CHANGES", sub, {"mode": mode, "authors": [author.pubkey], "kinds": [NOTE], **rest}]))


async def read_to_the_end(bare: BareSocket, sub: str) -> list[Frame]:
    """The frames of one subscription up to EOSE, ERR or CLOSED."""

    def read() -> list[Frame]:
        frames: list[Frame] = []
        while not frames or (frames[-1][0] == "CHANGES" and frames[-1][2] not in ("EOSE", "ERR")):
            frame = bare.read_message()
            if frame[1] == sub:
                frames.append(frame)
        return frames

    return await asyncio.to_thread(read)


async def test_a_bootstrap_shows_its_position_whatever_is_written_meanwhile(
    slow: BareSocket, writer: RelayClient, author: Author
) -> None:
    old, new = documents(author), documents(author, 2, EPOCH - 1000)
    await writer.store(*old)
    ask(slow, "b", "bootstrap", author)
    await writer.still_answers()
    await writer.store(*new)
    status, *snapshots, eose = await read_to_the_end(slow, "b")
    assert status[3]["snapshot_seq"] == eose[3]
    assert ids([frame[3] for frame in snapshots]) == ids(old)
    tail = await writer.tail(author, since=eose[3])
    assert tail.ids == ids(new)


async def test_a_tail_has_no_silent_gap_when_the_floor_moves_meanwhile(
    busy_node: Node, slow: BareSocket, writer: RelayClient, author: Author
) -> None:
    tip = busy_node.max_seq()
    events = documents(author)
    await writer.store(*events)
    ask(slow, "t", "tail", author, since=tip)
    await writer.still_answers()
    busy_node.compact(None)
    assert busy_node.min_seq() > tip + COUNT // 2
    *changes, last = await read_to_the_end(slow, "t")
    seqs = [frame[3] for frame in changes]
    assert seqs == list(range(tip + 1, tip + 1 + len(seqs)))
    if len(seqs) < COUNT:
        assert last[2] == "ERR" and last[3] == f"checkpoint too old: min_seq is {busy_node.min_seq()}", last
    else:
        assert last[2:] == ["EOSE", tip + COUNT]


async def test_a_live_tail_that_lags_in_its_replay_loses_nothing(
    busy_node: Node, slow: BareSocket, writer: RelayClient, author: Author
) -> None:
    tip = busy_node.max_seq()
    events = documents(author)
    await writer.store(*events[: COUNT // 2])
    ask(slow, "t", "tail", author, since=tip, live=True)
    await writer.still_answers()
    await writer.store(*events[COUNT // 2 :])
    replay = await read_to_the_end(slow, "t")
    assert replay[-1][2] == "EOSE"
    found = [(frame[3], frame[4]["id"]) for frame in replay[:-1]]
    while len(found) < COUNT:
        frame = await asyncio.to_thread(slow.read_message)
        assert frame[2] == "EVENT" and frame[3] > replay[-1][3]
        found.append((frame[3], frame[4]["id"]))
    assert found == list(zip(range(tip + 1, tip + 1 + COUNT), ids(events), strict=True))


async def test_a_live_query_that_lags_in_its_replay_loses_nothing(
    slow: BareSocket, writer: RelayClient, author: Author
) -> None:
    """What came meanwhile is more than the hub remembers, and some of it is for others."""
    events = documents(author)
    await writer.store(*events[: COUNT // 2])
    slow.send(json.dumps(["REQ", "q", {"authors": [author.pubkey], "kinds": [NOTE]}]))
    await writer.still_answers()
    await writer.store(*documents(Author.random())[:20], *events[COUNT // 2 :])
    last = snapshot(author, "last", {"x": 1})
    await writer.store(last)

    def read() -> list[Frame]:
        frames = [slow.read_message()]
        while frames[-1][0] != "EVENT" or frames[-1][2] != last:
            frames.append(slow.read_message())
        return frames

    frames = await asyncio.to_thread(read)
    end = frames.index(["EOSE", "q"])
    assert sorted(frame[2]["id"] for frame in frames[:end]) == sorted(ids(events[:end]))
    assert [frame[2] for frame in frames[end + 1 :]] == [*events[end:], last]


@pytest.mark.parametrize("mode", ["tail", "bootstrap"])
async def test_nothing_follows_the_answer_to_a_close(
    busy_node: Node, slow: BareSocket, writer: RelayClient, author: Author, mode: str
) -> None:
    tip = busy_node.max_seq()
    await writer.store(*documents(author))
    ask(slow, "c", mode, author, **({"since": tip} if mode == "tail" else {}))
    slow.send('["CLOSE","c"]')
    slow.send('["REQ","after",{"ids":["' + "0" * 64 + '"]}]')

    def read() -> list[Frame]:
        frames = [slow.read_message()]
        while frames[-1] != ["EOSE", "after"]:
            frames.append(slow.read_message())
        return frames

    frames = await asyncio.to_thread(read)
    assert ["CLOSED", "c", "closed"] in frames
    rest = frames[frames.index(["CLOSED", "c", "closed"]) + 1 :]
    assert [frame for frame in rest if frame[1] == "c"] == []


async def test_a_request_with_the_same_id_is_not_mixed_with_the_one_it_replaces(
    slow: BareSocket, writer: RelayClient, author: Author
) -> None:
    other = Author.random()
    await writer.store(*documents(author))
    mine = [snapshot(other, f"d{n}", {"x": 1}, created_at=EPOCH + n) for n in range(20)]
    await writer.store(*mine)
    ask(slow, "same", "bootstrap", author)
    ask(slow, "same", "bootstrap", other)

    def read() -> list[Frame]:
        frames: list[Frame] = []
        while True:
            frames.append(slow.read_message())
            if frames[-1][2] == "EOSE" and any(frame[2] == "SNAPSHOT" and frame[3] in mine for frame in frames):
                return frames

    frames = await asyncio.to_thread(read)
    begin = max(n for n, frame in enumerate(frames) if frame[2] == "STATUS")
    assert [frame[3] for frame in frames[begin + 1 : -1]] == mine


async def test_a_reader_that_leaves_in_the_middle_leaves_nothing_behind(
    busy_node: Node, writer: RelayClient, author: Author
) -> None:
    await writer.store(*documents(author))
    for mode in ("bootstrap", "tail") * 5:
        with BareSocket(busy_node.port, rcvbuf=4096) as gone:
            gone.handshake()
            ask(gone, "g", mode, author, since=busy_node.max_seq() - 40)
            gone.read_message()
    assert len((await writer.bootstrap(author)).snapshots) == COUNT
    listed = busy_node.admin("GET", "connections").json()
    assert "'g'" not in str(listed)
