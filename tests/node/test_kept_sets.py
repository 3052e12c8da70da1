"""Kept sets: the set of a filter that comes again follows the log, and is always what a REQ would get."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from authors import EPOCH, Author, Event, now, snapshot
from histories import event, operation
from processes import Node, memory
from sockets import RelayClient
from wraps import check_store, opening, reconcile_events, rid, wrap

from anabranch.core.filter import Filter
from anabranch.core.operation import Removal
from anabranch.node import reconciliation
from anabranch.node.reconciliation import Sets
from anabranch.store.contract import ItemRows, Reader, TooMany


async def agrees(client: RelayClient, *filters: dict) -> None:
    """By negentropy and by REQ, each filter has the same events."""
    for filter in filters:
        by_req = sorted((await client.req(filter)).ids)
        by_negentropy = sorted((await reconcile_events(client, filter)).need)
        assert by_negentropy == by_req, filter


# --- on a node -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_set_of_a_filter_is_always_what_a_query_gets(
    start_node: Callable[..., Node], connect: Callable, seed: int
) -> None:
    """A long random run: publish, replace, delete, merge, compact, forget, remove, vanish; and again, and again."""
    chance = random.Random(seed)
    own = start_node(admin=True, config="[retention]\ndeleted_documents = 2\n")
    client = await connect(own)
    people = [Author.random() for _ in range(3)]
    filters = [
        {},
        {"kinds": [1]},
        {"kinds": [0, 1, 30023], "authors": [people[0].pubkey, people[1].pubkey]},
        {"kinds": [42061]},
        {"kinds": [1059], "#p": [people[0].pubkey]},
        {"#t": ["x"]},
        {"since": EPOCH + 20, "until": EPOCH + 60},
        {"authors": [people[2].pubkey]},
    ]
    published: list[Event] = []
    revisions = [rid(n) for n in range(12)]

    def one() -> Event:
        who, at = chance.choice(people), EPOCH + chance.randrange(100)
        match chance.randrange(8):
            case 0 | 1:
                return who.event(1, str(chance.random()), [["t", chance.choice("xy")]], at)
            case 2:
                return who.event(0, str(chance.random()), created_at=at)
            case 3:
                return who.event(30023, "", [["d", chance.choice("ab")]], at)
            case 4:
                clock, o = {"a": chance.randrange(1, 9), "b": 1}, chance.choice(["put", "del"])
                return snapshot(who, chance.choice("abcde"), clock, o, created_at=at)
            case 5 | 6:
                own_r = chance.choice(revisions)
                parents = [r for r in chance.sample(revisions, 2) if r != own_r]
                return wrap(who, chance.choice("ab"), own_r, parents, m=at, created_at=at)
            case _:
                return who.event(5, tags=[["e", e["id"]] for e in chance.sample(published, min(3, len(published)))])

    for _ in range(25):
        for _ in range(chance.randrange(1, 16)):
            made = chance.choice(published) if published and chance.random() < 0.15 else one()
            published.append(made)
            await client.publish(made)
        match chance.randrange(12):
            case 0:
                own.compact(0)
            case 1:
                own.admin("POST", "compact")
            case 2:
                own.admin("DELETE", f"events/{chance.choice(published)['id']}")
            case 3 if chance.random() < 0.5:
                await client.publish(
                    chance.choice(people).event(62, tags=[["relay", "ALL_RELAYS"]], created_at=EPOCH + 30)
                )
        await agrees(client, *chance.sample(filters, 3))
    await agrees(client, *filters)
    check_store(own)


async def test_what_has_expired_leaves_the_set_as_it_leaves_every_answer(client: RelayClient, author: Author) -> None:
    """Before anything has cleared it away: a peer must not be told of what it cannot get."""
    filter = {"authors": [author.pubkey]}
    await agrees(client, filter)
    await client.store(author.event(1, "stays"), author.event(1, "goes", [["expiration", str(now() + 2)]]))
    await agrees(client, filter)
    assert len((await reconcile_events(client, filter)).need) == 2
    await asyncio.sleep(2.1)
    await agrees(client, filter)


async def test_what_was_forgotten_and_published_again_is_in_the_set(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, config="[retention]\ndeleted_documents = 0\n")
    client = await connect(own)
    gone = snapshot(author, "note", {"a": 1}, "del", created_at=EPOCH)
    await client.store(gone)
    await agrees(client, {"authors": [author.pubkey]})
    assert own.admin("POST", "compact").json()["forgotten_documents"] == 1
    assert (await client.publish(gone)).message == f"stored: snapshot {gone['id']}"
    await agrees(client, {"authors": [author.pubkey]})


async def test_sets_that_nobody_waited_for_do_not_add_up(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    """Opened and closed at once, again and again, under ever other filters: neither memory nor publishing suffers."""
    own = start_node()
    client = await connect(own)
    await client.store(*(author.event(1, str(n), created_at=EPOCH + n) for n in range(300)))
    before = memory(own.process.pid)
    for n in range(1_500):
        await client.send("NEG-OPEN", "n", {"kinds": [1], "since": n}, opening())
        if n % 3:
            await asyncio.sleep(0)
        await client.send("NEG-CLOSE", "n")
    await client.still_answers()
    started = asyncio.get_running_loop().time()
    await client.store(*(author.event(1, str(n), created_at=EPOCH + n) for n in range(300, 600)))
    assert asyncio.get_running_loop().time() - started < 2
    assert memory(own.process.pid) - before < 30 << 20
    await agrees(client, {"kinds": [1]})


async def test_sessions_that_are_cut_off_while_others_publish_leave_the_set_right(
    node: Node, connect: Callable, author: Author
) -> None:
    writer, reader = await connect(node), await connect(node)
    filter = {"authors": [author.pubkey]}
    for n in range(40):
        await writer.store(*(author.event(1, f"{n}-{k}", created_at=EPOCH + n) for k in range(5)))
        await reader.send("NEG-OPEN", "n", filter, opening())
        await asyncio.sleep(0.0005 * (n % 5))
        await reader.send("NEG-CLOSE", "n")
    await agrees(reader, filter)


async def test_a_set_opened_by_many_at_once_while_others_publish_is_never_behind(
    node: Node, connect: Callable, author: Author
) -> None:
    """Whatever was acknowledged before a session opened is in its set."""
    writer, readers = await connect(node), [await connect(node) for _ in range(4)]
    filter, acknowledged, missing = {"authors": [author.pubkey]}, set(), []
    done = False

    async def publish() -> None:
        nonlocal done
        for n in range(150):
            made = author.event(1, str(n), created_at=EPOCH + n)
            await writer.store(made)
            acknowledged.add(made["id"])
        done = True

    async def read(client: RelayClient) -> None:
        while not done:
            before = set(acknowledged)
            found = await reconcile_events(client, filter)
            missing.extend(before - set(found.need))

    await asyncio.gather(publish(), *map(read, readers))
    assert missing == []
    await agrees(readers[0], filter)


# --- on their own --------------------------------------------------------------------------------------------------


class Bench:
    """A peer whose store is a list of events, with reads that can be held up."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, read: Callable[[Reader], Any]) -> Any:
        found = read(self)  # type: ignore[arg-type]
        await self.gate.wait()
        return found

    def items(self, filter: Filter, limit_max: int, now: int) -> ItemRows:
        self.reads += 1
        if len(self.stored) > limit_max:
            raise TooMany
        rows = sorted((e.created_at, bytes.fromhex(e.id)) for e in self.stored)
        return ItemRows([time for time, _ in rows], b"".join(id for _, id in rows), len(rows))

    def expired_items(self, now: int) -> list[tuple[int, bytes]]:
        return []

    def publish(self, sets: Sets, *events: Any) -> None:
        self.stored += events
        sets.published(map(operation, events))

    def remove(self, sets: Sets, one: Any) -> None:
        self.stored.remove(one)
        sets.removed([Removal(one.id, one.created_at, one.pubkey, "why")])

    async def set_of(self, sets: Sets, filter: Filter = Filter()) -> set[str]:  # noqa: B008
        return {id.hex() for id in (await sets.of(self.read, filter)).ids()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def made(n: int) -> Any:
    return event(1, content=str(n), created_at=1_000 + n)


async def test_a_set_is_read_once_and_then_follows_the_log(bench: Bench) -> None:
    sets = Sets(1_000, 1 << 30)
    for n in range(5):
        assert await bench.set_of(sets) == {e.id for e in bench.stored}
        bench.publish(sets, made(n), made(n + 100))
        bench.remove(sets, bench.stored[0])
    assert await bench.set_of(sets) == {e.id for e in bench.stored}
    assert bench.reads == 1


async def test_a_session_that_ends_while_its_set_is_brought_up_to_date_takes_nothing_with_it(bench: Bench) -> None:
    sets = Sets(1_000, 1 << 30)
    bench.publish(sets, made(1))
    await bench.set_of(sets)
    bench.publish(sets, made(2), made(3))
    bench.remove(sets, bench.stored[0])
    cut = asyncio.create_task(bench.set_of(sets))
    await asyncio.sleep(0)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert await bench.set_of(sets) == {e.id for e in bench.stored}


async def test_what_is_published_while_a_set_is_read_is_in_it(bench: Bench) -> None:
    sets = Sets(1_000, 1 << 30)
    bench.publish(sets, made(1))
    bench.gate.clear()
    reading = asyncio.create_task(bench.set_of(sets))
    await asyncio.sleep(0)
    bench.publish(sets, made(2))
    bench.remove(sets, bench.stored[0])
    bench.gate.set()
    assert await reading == {e.id for e in bench.stored}


async def test_what_went_and_came_back_is_in_the_set(bench: Bench) -> None:
    """A document that was forgotten altogether may be published again."""
    sets = Sets(1_000, 1 << 30)
    bench.publish(sets, made(1))
    await bench.set_of(sets)
    bench.remove(sets, bench.stored[0])
    bench.publish(sets, made(1))
    assert await bench.set_of(sets) == {made(1).id}


@pytest.mark.parametrize("how", ["cut off", "too many"])
async def test_a_set_that_was_never_read_is_not_kept(bench: Bench, how: str) -> None:
    sets = Sets(3 if how == "too many" else 1_000, 1 << 30)
    bench.publish(sets, *map(made, range(10)))
    bench.gate.clear()
    for n in range(50):
        asking = asyncio.create_task(bench.set_of(sets, Filter(since=n)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    assert len(sets._kept) <= reconciliation.KEPT_SETS


async def test_the_sets_that_are_kept_are_those_asked_for_last(bench: Bench) -> None:
    sets = Sets(1_000, 1 << 30)
    bench.publish(sets, made(1))
    for n in range(40):
        await bench.set_of(sets, Filter(since=n))
        await bench.set_of(sets, Filter(since=0))
    assert len(sets._kept) <= reconciliation.KEPT_SETS
    assert bench.reads == 40, "the one that came again and again was read once"


async def test_a_set_that_has_no_room_even_alone_is_not_kept_and_is_right_for_all_who_wait_for_it(bench: Bench) -> None:
    sets = Sets(1_000, 100)
    bench.publish(sets, *map(made, range(10)))
    bench.gate.clear()
    asking = [asyncio.create_task(bench.set_of(sets)) for _ in range(3)]
    await asyncio.sleep(0)
    bench.gate.set()
    await asking[0]
    bench.publish(sets, made(10))
    *_, last = await asyncio.gather(*asking)
    assert last == {e.id for e in bench.stored}
    assert bench.reads == 1
    assert not sets._kept


async def test_a_set_that_has_missed_too_much_is_read_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "CHANGES_MAX", 10)
    sets = Sets(1_000, 1 << 30)
    await bench.set_of(sets)
    for n in range(12):
        bench.publish(sets, made(n))
    assert await bench.set_of(sets) == {e.id for e in bench.stored}
    assert bench.reads == 2


async def test_sets_beyond_the_memory_for_them_are_let_go(bench: Bench) -> None:
    sets = Sets(10_000, 100_000)
    bench.publish(sets, *map(made, range(1_000)))
    for n in range(4):
        await bench.set_of(sets, Filter(since=n))
    assert len(sets._kept) == 1 and sets.bytes < 100_000
