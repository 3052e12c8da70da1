"""kill -9 at any moment: what was acknowledged is there, no position is ever reused, and the store verifies."""

import asyncio
import contextlib
import http.client
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from authors import EPOCH, Author, Event, ids, snapshot, versions
from bare_sockets import BareSocket
from nodes import until
from processes import ANABRANCH, Node
from sockets import ConnectionEnded, RelayClient
from websockets.exceptions import ConnectionClosed

from anabranch.store.contract import Statistics
from anabranch.store.sqlite import SqliteStore
from anabranch.store.transfer import GROUP

GONE = (ConnectionEnded, ConnectionClosed, OSError)
ROUNDS = [
    pytest.param(5, id="5 rounds"),
    pytest.param(30, id="30 rounds", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
]


class Witness:
    """What the outside world was told: the ids that were acknowledged, and the id seen at each position."""

    def __init__(self, author: Author) -> None:
        self.author = author
        self.acknowledged: set[str] = set()
        self.positions: dict[int, str] = {}

    def saw(self, seq: int, identity: str) -> None:
        assert self.positions.setdefault(seq, identity) == identity, f"position {seq} was given twice"

    async def publish(self, client: RelayClient, batches: list[list[Event]]) -> None:
        try:
            for batch in batches:
                for event in batch:
                    await client.send("EVENT", event)
                for event in batch:
                    _, identity, accepted, message = await client.next(("OK", event["id"]))
                    assert accepted, message
                    self.acknowledged.add(identity)
        except GONE:
            pass

    async def follow(self, client: RelayClient, since: int) -> None:
        try:
            feed = await client.tail(self.author, since=since, live=True)
            for seq, event in feed.events:
                self.saw(seq, event["id"])
            while True:
                seq, event = await client.next_change(feed.sub, patience=60)
                self.saw(seq, event["id"])
        except GONE:
            pass

    async def check(self, client: RelayClient) -> None:
        """A replay agrees with everything that was ever told."""
        feed = await client.tail(self.author, since=0)
        assert feed.error is None
        replay = dict(zip(feed.seqs, feed.ids, strict=True))
        assert len(set(feed.ids)) == len(feed.ids)
        assert self.acknowledged <= set(feed.ids), "an acknowledged event is lost"
        for seq, identity in self.positions.items():
            assert replay.get(seq) == identity, f"position {seq} was told as another event, or is gone"
        for seq, identity in replay.items():
            self.saw(seq, identity)


async def killed_while_publishing(own: Node, witness: Witness, rounds: int, clients: int, batches: int) -> None:
    """Kill a node in the middle of a burst, again and again: nothing that it has told is ever gone or another."""
    for number in range(rounds):
        tip = own.max_seq()
        assert tip >= max(witness.positions, default=0)
        async with RelayClient.open(own.url) as follower, AsyncExitStack() as stack:
            publishers = [await stack.enter_async_context(RelayClient.open(own.url)) for _ in range(clients)]
            await witness.check(publishers[0])
            tasks = [asyncio.create_task(witness.follow(follower, tip))]
            for client, publisher in enumerate(publishers):
                work = [
                    [snapshot(witness.author, f"{number}-{client}-{batch}-{n}", {"x": 1}) for n in range(10)]
                    for batch in range(batches)
                ]
                tasks.append(asyncio.create_task(witness.publish(publisher, work)))
            await asyncio.sleep(0.02 + random.random() * 0.3)
            own.kill9()
            await asyncio.gather(*tasks)
        own.verify()
        own.start()
    async with RelayClient.open(own.url) as client:
        await witness.check(client)
    assert witness.acknowledged


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_a_kill_during_ingest_loses_nothing_acknowledged(
    start_node: Callable[..., Node], author: Author, rounds: int
) -> None:
    await killed_while_publishing(start_node(), Witness(author), rounds, clients=3, batches=30)


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_a_kill_during_compaction_leaves_a_correct_node(start_node: Callable[..., Node], rounds: int) -> None:
    """At any moment, and every other time as soon as something has gone; at least once it went in part."""
    own = start_node(admin=True, env={"RETENTION_RECENT_COUNT": "1"})
    parts = 0
    for number in range(rounds + 20):
        author = Author.random()
        documents = [versions(author, f"d{n}", 2, content="x" * 500) for n in range(500)]  # eight steps
        async with RelayClient.open(own.url) as client:
            await client.store(*(event for history in documents for event in history))
        before = statistics(own).compacted
        compacting = asyncio.create_task(asyncio.to_thread(try_to_compact, own))
        if number % 2 == 0:
            while statistics(own).compacted == before:  # noqa: ASYNC110 -- a step is over soon, and tells nobody
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(random.random() * 0.08)
        own.kill9()
        await compacting
        own.verify()
        own.start()
        async with RelayClient.open(own.url) as client:
            gone = await check_compacted(client, author, documents)
        parts += 0 < gone < len(documents)
        if parts and number + 1 >= rounds:
            break
    assert parts, "no kill fell in the middle"
    own.compact(0)
    assert own.compact(0)["compacted_snapshots"] == 0
    assert own.stop() == 0
    own.verify()


async def check_compacted(client: RelayClient, author: Author, documents: list[list[Event]]) -> int:
    """All is known, and of each document the newest version is there; how many payloads have gone."""
    current = {history[-1]["id"] for history in documents}
    assert set(ids((await client.bootstrap(author)).snapshots)) == current
    gone: set[str] = set()
    for at in range(0, len(documents), 100):
        asked = {identity for history in documents[at : at + 100] for identity in ids(history)}
        answer = await client.req({"ids": sorted(asked)})
        told = {status["id"] for status in answer.statuses}
        assert told | set(answer.ids) == asked, "a compacted snapshot became unknown"
        gone |= asked - set(answer.ids)
    assert not gone & current, "a retained snapshot lost its payload"
    return len(gone)


def statistics(node: Node) -> Statistics:
    """Of its store, read beside it."""
    with contextlib.closing(SqliteStore.inspect(node.data)) as store, store.reader() as reader:
        return reader.statistics()


def kill_after(seconds: float, command: list[str], env: dict[str, str]) -> None:
    """Start a command and kill it, unless it ends before."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def try_to_compact(node: Node) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        node.admin("PATCH", "retention", {"payload_retention_days": 0})


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_a_kill_during_import_leaves_a_store_that_verifies_and_an_import_that_can_be_repeated(
    start_node: Callable[..., Node], tmp_path: Path, author: Author, rounds: int
) -> None:
    """The first kill falls in the middle: a group is stored, and the input has not ended."""
    own = start_node()
    assert own.stop() == 0
    file = tmp_path / "events.jsonl"
    events = [snapshot(author, f"d{n}", {"x": 1}, created_at=EPOCH + n) for n in range(2 * GROUP + 100)]
    lines = [json.dumps(event) + "\n" for event in events]
    file.write_text("".join(lines))
    await killed_in_the_middle_of_an_import(own, "".join(lines[: 2 * GROUP]))
    own.verify()
    command = [ANABRANCH, "import", str(file), "--data", str(own.data), "--json"]
    for _ in range(rounds - 1):
        kill_after(0.15 + random.random() * 0.6, command, own.env)
        own.verify()
    done = own.cli("import", str(file), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["duplicate"] >= GROUP
    assert report["stored"] + report["duplicate"] == len(events)
    own.verify()
    own.start()
    async with RelayClient.open(own.url) as client:
        feed = await client.tail(author)
    assert sorted(feed.ids) == sorted(ids(events))


async def killed_in_the_middle_of_an_import(own: Node, lines: str) -> None:
    """Give two groups to an import and no end, and kill it once the first is stored: the second waits for more."""
    command = [ANABRANCH, "import", "-", "--data", str(own.data)]
    importing = await asyncio.create_subprocess_exec(
        *command, env=own.env, stdin=asyncio.subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert importing.stdin is not None
    importing.stdin.write(lines.encode())
    await asyncio.to_thread(until, lambda: statistics(own).operations, "a group to be stored")
    assert importing.returncode is None
    importing.kill()
    await importing.wait()
    assert 0 < statistics(own).operations < lines.count("\n")


async def test_a_kill_while_a_restart_is_under_way_does_no_harm(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    events = versions(author, "note", 50)
    await (await connect(own)).store(*events)
    own.kill9()
    for delay in (0.05, 0.2, 0.4):
        command = [ANABRANCH, "serve", "--host", "127.0.0.1", "--port", str(own.port), "--data", str(own.data)]
        kill_after(delay, command, own.env)
    own.verify()
    own.start()
    assert (await (await connect(own)).tail(author)).ids == ids(events)


async def test_sigterm_drains_what_was_sent_and_exits_with_zero(
    start_node: Callable[..., Node], author: Author
) -> None:
    own, witness = start_node(), Witness(author)
    async with RelayClient.open(own.url) as client, RelayClient.open(own.url) as idle:
        await idle.req({"authors": [author.pubkey]}, live=True)
        batches = [[snapshot(author, f"{b}-{n}", {"x": 1}) for n in range(20)] for b in range(20)]
        publishing = asyncio.create_task(witness.publish(client, batches))
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(asyncio.to_thread(own.stop))
        assert await stopping == 0
        await publishing
        await idle.wait_ended()
    own.verify()
    own.start()
    async with RelayClient.open(own.url) as client:
        await witness.check(client)


@pytest.mark.parametrize("room", [1 << 20, 4_096], ids=["for all answers", "for few of them"])
def test_sigterm_leaves_nothing_stored_and_unanswered(
    start_node: Callable[..., Node], author: Author, room: int
) -> None:
    """Nobody waits for an OK, and it comes in the middle of what was sent at once, while some of that is unread."""
    own = start_node()
    events = [author.event(1, str(n), created_at=EPOCH) for n in range(3_000)]
    sent = b"".join(BareSocket.frame(json.dumps(["EVENT", event])) for event in events)

    def send(to: BareSocket) -> None:
        with contextlib.suppress(OSError):  # it stops reading
            to.sock.sendall(sent)

    with BareSocket(own.port, rcvbuf=room) as client:
        client.handshake()
        sending = threading.Thread(target=send, args=(client,))
        sending.start()
        answers = [client.read_message()]
        assert own.process is not None
        own.process.terminate()
        answers += map(json.loads, client.read_until_end())
        sending.join()
        assert own.process.wait(10) == 0
    assert all(answer[0] == "OK" and answer[2] for answer in answers)
    with contextlib.closing(SqliteStore.inspect(own.data)) as store, store.reader() as reader:
        stored = {facts.id for facts in reader.facts(limit=len(events))}
    assert stored == {answer[1] for answer in answers}


async def test_sigterm_ends_a_node_that_is_being_written_to_and_loses_nothing_acknowledged(
    start_node: Callable[..., Node], author: Author
) -> None:
    """Nobody waits for an OK before sending the next: there is always more on its way."""
    own, witness = start_node(), Witness(author)
    work = [[snapshot(author, f"{w}-{n}", {"x": 1}, created_at=EPOCH) for n in range(1_000)] for w in range(3)]

    async def stream(client: RelayClient, events: list[Event]) -> int:
        sent = 0
        with contextlib.suppress(*GONE):
            for event in events:
                await client.send("EVENT", event)
                sent += 1
                if sent % 20 == 0:
                    await asyncio.sleep(0.01)
        return sent

    async def count(client: RelayClient, events: list[Event]) -> None:
        with contextlib.suppress(*GONE):
            for event in events:
                _, identity, accepted, message = await client.next(("OK", event["id"]))
                assert accepted, message
                witness.acknowledged.add(identity)

    async with (
        RelayClient.open(own.url) as one,
        RelayClient.open(own.url) as two,
        RelayClient.open(own.url) as three,
    ):
        pairs = list(zip((one, two, three), work, strict=True))
        sending = [asyncio.create_task(stream(client, events)) for client, events in pairs]
        counting = [asyncio.create_task(count(client, events)) for client, events in pairs]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        assert await asyncio.to_thread(own.stop) == 0
        assert time.monotonic() - began < 5
        sent = sum(await asyncio.gather(*sending))
        await asyncio.gather(*counting)
    assert 0 < len(witness.acknowledged) <= sent
    assert sent < 3_000, "it was stopped in the middle"
    own.start()
    async with RelayClient.open(own.url) as client:
        await witness.check(client)
    own.verify()
