"""A subscriber that stops reading is dropped, can resume by its checkpoint, and never slows anybody else."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from authors import NOTE, Author, Event, snapshot
from bare_sockets import BareSocket
from processes import Node
from sockets import RelayClient

from anabranch.wire.messages import LAGGING

BULK = "x" * 60_000


@pytest.fixture(scope="module")
def tight_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that lets little wait for a reader."""
    own = Node(tmp_path_factory.mktemp("tight"), env={"LIMITS_SEND_BUFFER_BYTES": "1000000"})
    own.start()
    yield own
    own.end()


def stalled(node: Node, request: list) -> BareSocket:
    """A subscriber that has read its EOSE and reads no more."""
    bare = BareSocket(node.port, rcvbuf=4096)
    bare.handshake()
    bare.send(json.dumps(request))
    while "EOSE" not in bare.read_message():
        pass
    return bare


def dropped(node: Node) -> int:
    lines = node.http("GET", "/metrics").text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("anabranch_slow_consumers_dropped"))))


async def until_dropped(node: Node, before: int) -> None:
    for _ in range(100):
        if dropped(node) > before:
            return
        await asyncio.sleep(0.1)
    pytest.fail("it was not dropped")


def live_changes(author: Author) -> list:
    return ["CHANGES", "slow", {"mode": "tail", "since": 0, "authors": [author.pubkey], "kinds": [NOTE], "live": True}]


def bulk(author: Author, count: int) -> list[Event]:
    return [snapshot(author, f"d{n}", {"x": 1}, content=BULK) for n in range(count)]


@pytest.mark.parametrize("verb", ["CHANGES", "REQ"])
async def test_a_subscriber_that_stops_reading_is_dropped_and_others_are_not(
    tight_node: Node, connect: Callable, author: Author, verb: str
) -> None:
    request = live_changes(author) if verb == "CHANGES" else ["REQ", "slow", {"authors": [author.pubkey]}]
    before = dropped(tight_node)
    slow = await asyncio.to_thread(stalled, tight_node, request)
    writer, reader = await connect(tight_node), await connect(tight_node)
    feed = await reader.tail(author, live=True)
    events = bulk(author, 200)
    for event in events:
        await writer.store(event)
        assert (await reader.next_change(feed.sub))[1]["id"] == event["id"]
    await until_dropped(tight_node, before)
    with slow:
        messages = await asyncio.to_thread(slow.read_until_end)
    assert LAGGING in messages[-1].decode(), messages[-1][:200]
    await reader.still_answers()


async def test_a_dropped_subscriber_resumes_by_its_checkpoint(
    tight_node: Node, connect: Callable, author: Author
) -> None:
    before = dropped(tight_node)
    slow = await asyncio.to_thread(stalled, tight_node, live_changes(author))
    writer = await connect(tight_node)
    events = bulk(author, 150)
    await writer.store(*events)
    await until_dropped(tight_node, before)
    with slow:
        messages = await asyncio.to_thread(slow.read_until_end)
    frames = [json.loads(message) for message in messages]
    got = [(frame[3], frame[4]["id"]) for frame in frames if frame[0] == "CHANGES" and frame[2] == "EVENT"]
    seqs = [seq for seq, _ in got]
    assert seqs == sorted(set(seqs))
    rest = await writer.tail(author, since=seqs[-1] if seqs else 0)
    assert [identity for _, identity in got] + rest.ids == [event["id"] for event in events]


async def test_a_long_replay_waits_for_its_reader(tight_node: Node, connect: Callable, author: Author) -> None:
    """A replay is larger than the buffer: a reader that pauses is waited for, since nothing live is at stake."""
    writer = await connect(tight_node)
    events = bulk(author, 60)
    await writer.store(*events)

    def replay() -> list[list]:
        with BareSocket(tight_node.port, rcvbuf=4096) as bare:
            bare.handshake()
            request = ["CHANGES", "slow", {"mode": "tail", "since": 0, "authors": [author.pubkey], "kinds": [NOTE]}]
            bare.send(json.dumps(request))
            time.sleep(1)
            frames = [bare.read_message()]
            while frames[-1][2] != "EOSE":
                frames.append(bare.read_message())
            return frames

    frames = await asyncio.to_thread(replay)
    assert [frame[4]["id"] for frame in frames[:-1]] == [event["id"] for event in events]


async def test_many_replays_on_one_connection_take_turns_and_all_come(
    tight_node: Node, connect: Callable, author: Author
) -> None:
    """Each is larger than what may wait for a reader, and there are more of them than the reader can take at once."""
    writer = await connect(tight_node)
    events = bulk(author, 20)
    await writer.store(*events)
    feed = {"mode": "tail", "since": 0, "authors": [author.pubkey], "kinds": [NOTE]}
    requests = [["REQ", f"q{n}", {"authors": [author.pubkey]}] for n in range(10)]
    requests += [["CHANGES", f"c{n}", feed] for n in range(10)]
    requests += [["CHANGES", f"b{n}", {**feed, "mode": "bootstrap"}] for n in range(10)]

    def replay() -> dict[str, int]:
        with BareSocket(tight_node.port, rcvbuf=65536) as bare:
            bare.handshake()
            for request in requests:
                bare.send(json.dumps(request))
            time.sleep(0.5)
            got = dict.fromkeys((request[1] for request in requests), 0)
            ended: set[str] = set()
            while len(ended) < len(requests):
                frame = bare.read_message()
                assert "closed" not in frame[0].lower() and "ERR" not in frame[:3], frame
                if "EOSE" in (frame[0], frame[2] if frame[0] == "CHANGES" else ""):
                    ended.add(frame[1])
                elif "STATUS" not in frame:
                    got[frame[1]] += 1
            return got

    assert await asyncio.to_thread(replay) == {request[1]: len(events) for request in requests}


@pytest.mark.parametrize("verb", ["CHANGES", "REQ"])
async def test_a_subscriber_that_reads_too_slowly_is_told_before_it_is_dropped(
    start_node: Callable[..., Node], connect: Callable, author: Author, verb: str
) -> None:
    own = start_node(env={"LIMITS_SEND_BUFFER_BYTES": "4000000"})
    request = live_changes(author) if verb == "CHANGES" else ["REQ", "slow", {"authors": [author.pubkey]}]
    slow = await asyncio.to_thread(stalled, own, request)

    def read() -> list[bytes]:
        """A megabyte in a second: what waits takes longer than a peer is waited for that reads nothing."""
        slow.sock.settimeout(10)
        while chunk := slow.sock.recv(65_536):
            slow.buffer += chunk
            time.sleep(len(chunk) / 1_000_000)
        return slow.read_until_end()

    with slow:
        reading = asyncio.create_task(asyncio.to_thread(read))
        await (await connect(own)).store(*bulk(author, 200))
        messages = await reading
    assert LAGGING in messages[-1].decode(), messages[-1][:200]


async def test_a_subscriber_that_reads_all_the_time_outlives_every_burst(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    publishers = [await connect(own) for _ in range(8)]
    events = [snapshot(author, f"d{n}", {"x": 1}, content="x" * 95_000) for n in range(480)]
    slow = await asyncio.to_thread(stalled, own, live_changes(author))
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    def read() -> tuple[int, bytes]:
        """As fast as can be; how much came, and the last of it."""
        slow.sock.settimeout(3)
        size, last, buffer = 0, b"", bytearray(1 << 20)
        try:
            while count := slow.sock.recv_into(buffer):
                size += count
                last = (last + buffer[:count])[-200:]
        except TimeoutError:
            pass
        return size, last

    with slow:
        reading = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.gather(*(one.store(*events[n::8]) for n, one in enumerate(publishers)))
        size, last = await reading
    assert LAGGING.encode() not in last and b"too slow" not in last
    assert size > 480 * 95_000


async def test_a_subscriber_that_is_stuck_after_a_burst_is_dropped_though_nothing_more_comes(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(env={"LIMITS_SEND_BUFFER_BYTES": "4000000"})
    slow = await asyncio.to_thread(stalled, own, live_changes(author))
    await (await connect(own)).store(*bulk(author, 170))
    with slow:
        await until_dropped(own, 0)


async def test_many_stalled_subscribers_do_not_slow_a_publisher(
    tight_node: Node, connect: Callable, author: Author
) -> None:
    stalled_ones = [await asyncio.to_thread(stalled, tight_node, live_changes(author)) for _ in range(10)]
    writer = await connect(tight_node)
    latencies = []
    for event in bulk(author, 60):
        began = time.perf_counter()
        await writer.store(event)
        latencies.append(time.perf_counter() - began)
    for bare in stalled_ones:
        bare.sock.close()
    assert sorted(latencies)[len(latencies) // 2] < 0.5
    await writer.still_answers()


async def test_a_client_that_asks_and_never_reads_holds_nobody_up(
    tight_node: Node, connect: Callable, author: Author
) -> None:
    writer: RelayClient = await connect(tight_node)
    await writer.store(*bulk(author, 30))
    greedy = BareSocket(tight_node.port, rcvbuf=4096)
    greedy.handshake()
    for n in range(40):
        greedy.send(json.dumps(["REQ", f"g{n}", {"authors": [author.pubkey]}]))
    began = time.perf_counter()
    for _ in range(20):
        await writer.still_answers()
    assert time.perf_counter() - began < 5
    greedy.sock.close()
    await writer.still_answers()
