"""Who means harm: fuzzed reconciliations, floods, crowds of parents and deletions. The node lives, and so do others."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import histories
import pytest
from authors import EPOCH, Author
from processes import Node, memory
from revision_histories import revision, vanishing
from sockets import RelayClient
from wraps import GIFT_WRAP, MTIME, check_store, heads_of, opening, reconcile_events, rid, wrap

from anabranch.core import revisions
from anabranch.store.contract import Offer
from anabranch.store.sql_writer import VANISH_AT_ONCE
from anabranch.store.sqlite import SqliteStore
from anabranch.wire import messages

SOMEONE = Author.of(b"\x0b" * 32)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("attacked"))
    own.start()
    yield own
    assert own.stop() == 0
    check_store(own)


class Neighbour:
    """Somebody who asks all the time, and how long the longest answer took."""

    def __init__(self, client: RelayClient) -> None:
        self.client = client
        self.slowest = 0.0

    async def __aenter__(self) -> "Neighbour":
        self._task = asyncio.create_task(self._ask())
        return self

    async def _ask(self) -> None:
        while True:
            started = asyncio.get_running_loop().time()
            await self.client.still_answers()
            self.slowest = max(self.slowest, asyncio.get_running_loop().time() - started)
            await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        assert self.slowest < 3, "a neighbour waited"


def mutated(chance: random.Random) -> str:
    """A reconciliation's frame with something wrong in it, or nothing."""
    message = bytearray.fromhex(opening((MTIME + n, rid(n)) for n in range(chance.randrange(80))))
    for _ in range(chance.randrange(4)):
        match chance.randrange(4):
            case 0:
                message[chance.randrange(len(message))] = chance.randrange(256)
            case 1:
                del message[chance.randrange(len(message)) :]
                message = message or bytearray(b"\x61")
            case 2:
                at = chance.randrange(len(message))
                message[at:at] = chance.randbytes(chance.randrange(12))
            case _:
                message += bytes(message)
    text = message.hex()
    junk: list[Any] = [
        None,
        1,
        1.5,
        [],
        {},
        "",
        "x",
        "\u0000",
        [{}],
        -1,
        2**64,
        {"#p": [SOMEONE.pubkey]},
        text,
        "6" * 9,
    ]
    filters: list[Any] = [
        {},
        {"kinds": [1059], "#p": [SOMEONE.pubkey]},
        [{"kinds": [1059]}],
        {"limit": chance.randrange(5)},
        {"since": chance.randrange(2**53)},
        {"#p": [SOMEONE.pubkey], "#d": ["x"], "#r": [rid(1), "x"]},
        *junk,
    ]
    name = chance.choice(["a", "b", "c", "d", *map(str, range(30)), "x" * 64, "x" * 65, ""])
    frame: list[Any] = chance.choice(
        [
            ["NEG-OPEN", name, chance.choice(filters)],
            ["NEG-OPEN", name, chance.choice(filters), text],
            ["NEG-MSG", name, text],
            ["NEG-MSG", name, text],
            ["NEG-CLOSE", name],
            ["NEG-OPEN", chance.choice(junk), chance.choice(filters), chance.choice(junk)],
            ["NEG-MSG", chance.choice(junk), chance.choice(junk)],
            ["NEG-STATUS", name, {}],
            ["NEG-ERR", name, "blocked: x"],
        ]
    )
    if chance.random() < 0.1:
        frame = frame[: chance.randrange(len(frame)) + 1] + [chance.choice(junk)] * chance.randrange(3)
    return json.dumps(frame)


async def test_thousands_of_odd_reconciliations_end_neither_the_process_nor_a_neighbour(
    attacked: Node, connect: Callable
) -> None:
    chance = random.Random(7)
    writer = await connect(attacked)
    await writer.store(*(wrap(SOMEONE, f"{n}", rid(n), m=MTIME + n) for n in range(100)))
    async with Neighbour(await connect(attacked)):
        for _ in range(4):
            async with RelayClient.open(attacked.url) as client:
                for _ in range(500):
                    await client.send_raw(mutated(chance))
                await client.send("REQ", "end", {"ids": ["0" * 64]})
                assert (await client.next_of("end"))[0] == "EOSE", "nonsense costs no connection"
    assert len(await heads_of(writer, SOMEONE)) == 100
    assert "Traceback" not in attacked.log.read_text()


async def test_opening_and_closing_without_end_leaves_nothing_behind(attacked: Node, connect: Callable) -> None:
    client = await connect(attacked)
    author = Author.random()
    await client.store(*(author.event(1, str(n), created_at=EPOCH + n) for n in range(500)))

    async def rounds(count: int) -> None:
        for n in range(count):
            await client.send("NEG-OPEN", f"n{n % 20}", {"authors": [author.pubkey], "since": n % 100}, opening())
            await client.send("NEG-OPEN", f"h{n % 20}", {"#p": [author.pubkey]})
            if n % 2:
                await client.send("NEG-CLOSE", f"n{n % 20}")
                await client.send("NEG-CLOSE", f"h{n % 20}")
            if n % 10 == 9:
                await client.still_answers()  # some are cut off before they begin, some are served
        for n in range(20):
            await client.send("NEG-CLOSE", f"n{n}")
            await client.send("NEG-CLOSE", f"h{n}")
        await client.send("REQ", "end", {"ids": ["0" * 64]})
        assert (await client.next_of("end"))[0] == "EOSE"

    async with Neighbour(await connect(attacked)):
        for _ in range(5):  # buffers fill up, once
            await rounds(300)
        before = memory(attacked.process.pid)
        await rounds(600)
        await rounds(600)
    assert memory(attacked.process.pid) - before < 10 << 20
    assert len((await reconcile_events(client, {"authors": [author.pubkey]}, sub="last")).need) == 500


async def test_sixteen_large_sessions_stay_within_the_memory_for_them(
    start_node: Callable[..., Node], connect: Callable
) -> None:
    own = start_node(config="[limits]\nreconcile_bytes = 1000000\n")
    client, author = await connect(own), Author.random()
    for at in range(0, 3_000, 500):
        await client.store(*(author.event(1, str(n), created_at=EPOCH + n) for n in range(at, at + 500)))
    got = []
    for n in range(16):
        await client.send("NEG-OPEN", f"n{n}", {"kinds": [1], "since": n}, opening())
        got.append(await client.next_of(f"n{n}"))
    opened = [frame for frame in got if frame[0] == "NEG-MSG"]
    refused = [frame for frame in got if frame[0] == "NEG-ERR"]
    assert len(opened) == 4 and len(refused) == 12, "3,000 items take 216 kB"
    assert {frame[2] for frame in refused} == {messages.NO_ROOM}
    for n in range(4):
        await client.send("NEG-CLOSE", f"n{n}")
    await client.send("NEG-OPEN", "again", {"kinds": [1]}, opening())
    assert (await client.next_of("again"))[0] == "NEG-MSG", "what is closed makes room"


async def test_a_thousand_parents_and_a_crowd_of_heads_hold_nobody_up(attacked: Node, connect: Callable) -> None:
    client, author = await connect(attacked), Author.random()
    heads = [rid(n) for n in range(1_000)]
    for at in range(0, 1_000, 250):
        await client.store(*(wrap(author, "x", r) for r in heads[at : at + 250]))
    crowds = [wrap(author, "x", rid(f"crowd {n}"), [rid((n, k)) for k in range(1_000)]) for n in range(20)]
    async with Neighbour(await connect(attacked)):
        for event in crowds:
            await client.send("EVENT", event)
        answers = [await client.next(("OK", event["id"])) for event in crowds]
        assert {answer[2] for answer in answers} == {False}
        assert all(answer[3].startswith("restricted: the document has 1000 concurrent versions") for answer in answers)
        assert (await client.publish(wrap(author, "x", rid("merge"), heads))).accepted
    assert await heads_of(client, author) == [rid("merge")]
    ok = await client.publish(wrap(author, "x", rid("too many"), [rid(("p", n)) for n in range(1_001)]))
    assert ok.message == "invalid: missing or malformed revision metadata"


def test_what_a_revision_costs_does_not_multiply_heads_by_parents() -> None:
    """A thousand heads and a thousand parents are two thousand things to look at, and not a million."""
    looked_at = 0

    class Parents(tuple):
        def __contains__(self, item: object) -> bool:
            nonlocal looked_at
            looked_at += len(self)
            return super().__contains__(item)

    class Head:
        def __init__(self, revision: str) -> None:
            self.revision = revision

    current = [Head(f"{n:064x}") for n in range(1_000)]
    parents = Parents(f"{n:064x}" for n in range(500, 1_500))
    assert len(revisions.advance(current, Head("ff" * 32), parents, False)) == 501
    assert looked_at <= 2_000


async def test_events_and_their_deletions_in_one_burst_end_as_they_should(attacked: Node, connect: Callable) -> None:
    """Five hundred revisions and five hundred deletions of them, on many sockets and in any order."""
    author = Author.random()
    made = [wrap(author, f"{n}", rid(n)) for n in range(500)]
    gone = [author.event(5, tags=[["e", event["id"]]]) for event in made]
    burst = [*made, *gone]
    random.Random(5).shuffle(burst)
    clients = [await connect(attacked) for _ in range(5)]

    async def send(client: RelayClient, events: list) -> None:
        for event in events:
            await client.send("EVENT", event)
        for event in events:
            await client.next(("OK", event["id"]), 30)

    async with Neighbour(await connect(attacked)):
        await asyncio.gather(*(send(client, burst[n::5]) for n, client in enumerate(clients)))
    client = clients[0]
    assert (await client.req({"kinds": [GIFT_WRAP], "#p": [author.pubkey]})).events == []
    assert await heads_of(client, author) == []
    feed = await client.changes({"#p": [author.pubkey]})
    told = [frame[4] for frame in feed.frames if frame[2] == "DELETED"]
    assert feed.events == [] and len(told) == len(set(told))
    stored_first = {frame[4] for frame in feed.frames if frame[2] == "DELETED"}
    assert stored_first <= {event["id"] for event in made}
    await client.store(wrap(author, "after", rid("after")))
    assert await heads_of(client, author) == [rid("after")]


async def test_deletions_of_everything_hold_nobody_up(attacked: Node, connect: Callable) -> None:
    client, author = await connect(attacked), Author.random()
    deletions = [author.event(5, tags=[["e", rid((n, k))] for k in range(1_700)], created_at=EPOCH) for n in range(20)]
    async with Neighbour(await connect(attacked)):
        for event in deletions:
            await client.send("EVENT", event)
        for event in deletions:
            assert (await client.next(("OK", event["id"])))[2] is True


async def test_many_who_vanish_at_once_hold_nobody_up(start_node: Callable[..., Node], connect: Callable) -> None:
    """One of them wrote much: that is not removed all in one go because others ask too."""
    own = start_node()
    client, crowd = await connect(own), Author.random()
    for at in range(0, 4_000, 1_000):
        await client.store(*(crowd.event(1, str(n), created_at=EPOCH) for n in range(at, at + 1_000)))
    requests = [who.event(62, "", [["relay", "ALL_RELAYS"]]) for who in (crowd, *(Author.random() for _ in range(200)))]
    async with Neighbour(await connect(own)):
        for event in requests:
            await client.send("EVENT", event)
        for event in requests:
            assert (await client.next(("OK", event["id"])))[2] is True
        for _ in range(100):
            if await client.count({"authors": [crowd.pubkey], "kinds": [1]}) == 0:
                break
            await asyncio.sleep(0.05)
    assert await client.count({"authors": [crowd.pubkey], "kinds": [1]}) == 0
    check_store(own)


def test_a_group_removes_so_much_of_the_vanished_and_no_more(tmp_path: Path) -> None:
    """The bound is for the whole transaction, however many ask in it."""
    store = SqliteStore.open(tmp_path / "data", "OFF")
    try:
        for at in range(0, 3 * VANISH_AT_ONCE, 1_000):
            made = [histories.event(1, content=str(n), author="ab" * 32) for n in range(at, at + 1_000)]
            store.writer.append([Offer(histories.operation(e)) for e in made], 0)
        asked = [vanishing("ab" * 32), *(vanishing(f"{n:064x}") for n in range(5)), revision()]
        store.writer.append([Offer(histories.operation(e)) for e in asked], 0)
        assert len(store.writer.take_removals()) <= VANISH_AT_ONCE
    finally:
        store.close()
