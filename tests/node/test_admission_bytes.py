"""What is under way is bounded by its bytes too: groups, and all that a node has taken and not answered."""

import asyncio
import json
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from authors import Author
from processes import Node

from anabranch.config import LimitSettings, Settings
from anabranch.core import nostr
from anabranch.core.operation import KindPolicy, Operation, classify
from anabranch.core.token import Position
from anabranch.node.admission import GROUP_BYTES, Admission
from anabranch.node.connection import Connection
from anabranch.node.gate import Gate
from anabranch.node.hub import Hub, Style, Subscription
from anabranch.node.metrics import Metrics
from anabranch.node.outlet import Turns
from anabranch.store.contract import Offer, Stored
from anabranch.wire import frames
from anabranch.wire.session import Publish, Session

BULK = "x" * 90_000


def operation(author: Author, content: str = BULK) -> Operation:
    event, raw = nostr.parse(json.dumps(author.event(1, content)).encode(), nostr.Limits())
    return classify(event, raw, KindPolicy())


class Writer:
    """Keeps groups; `commit` puts the first of them on disk."""

    def __init__(self) -> None:
        self.groups: list[tuple[list[Offer], Callable]] = []
        self.sizes: list[int] = []
        self.tip = 0

    def append(self, offers: list[Offer], committed: Callable, advance: Any = None) -> None:
        self.groups.append((offers, committed))
        self.sizes.append(sum(len(offer.operation.raw) for offer in offers))

    prove_and_append = append

    def commit(self) -> None:
        offers, committed = self.groups.pop(0)
        self.tip += len(offers)
        committed([Stored(Position(self.tip - len(offers) + n + 1)) for n in range(len(offers))], [])


class Prover:
    idle = working = True

    def submit(self, proofs: Any, done: Callable[[bytes], None]) -> None:
        asyncio.get_running_loop().call_soon(done, bytes([1]) * 256)


class Transport:
    """Says whether it is read."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: 0


class World:
    def __init__(self, **limits: int) -> None:
        settings = Settings(limits=LimitSettings(**limits))
        self.hub, self.writer = Hub(Position(0), settings.limits.send_buffer_bytes), Writer()
        self.sessions: dict[Connection, None] = {}
        self.gate = Gate(settings.limits.bytes_in_flight_total, self.sessions)
        sets = SimpleNamespace(published=lambda operations: None, removed=lambda removals: None)
        self.admission = Admission(
            Prover(),  # type: ignore[arg-type]
            self.writer,  # type: ignore[arg-type]
            self.hub,
            sets,  # type: ignore[arg-type]
            Metrics(),
            self.gate,
            settings.limits.send_buffer_bytes,
        )
        self.node: Any = SimpleNamespace(
            admission=self.admission,
            gate=self.gate,
            metrics=Metrics(),
            settings=settings,
            loop=asyncio.get_running_loop(),
            opened=lambda connection: True,
            turns=Turns(asyncio.get_running_loop()),
            outgoing=SimpleNamespace(add=lambda size: None),
        )

    def connection(self) -> tuple[Connection, Transport]:
        connection, transport = Connection(self.node), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        session = SimpleNamespace(receive=lambda message, now: [Publish(message)], settled=lambda forged: [])
        connection.session = cast(Session, session)
        self.sessions[connection] = None
        return connection, transport


def read(connection: Connection, operations: list[Operation]) -> None:
    """All of them come in one read."""
    connection._take(iter([(frames.TEXT, cast(bytes, one)) for one in operations]))


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    author = Author.random()
    return [operation(author, f"{n} {BULK}") for n in range(120)]


@pytest.mark.parametrize("send_buffer_bytes", [8_388_608, 1_000_000])
async def test_a_group_has_no_more_bytes_than_a_reader_may_be_handed_at_once(
    operations: list[Operation], send_buffer_bytes: int
) -> None:
    world = World(send_buffer_bytes=send_buffer_bytes, bytes_in_flight=10**9)
    connection, _ = world.connection()
    read(connection, operations)
    stored: list[Operation] = []
    for _ in range(200):
        await asyncio.sleep(0.001)
        if world.writer.groups:
            stored += [offer.operation for offer in world.writer.groups[0][0]]
            world.writer.commit()
    assert stored == operations, "all of them, in order"
    assert max(world.writer.sizes) <= min(GROUP_BYTES, send_buffer_bytes // 2)
    assert world.admission.in_flight == 0


async def test_no_socket_is_read_while_all_together_have_too_much_under_way(operations: list[Operation]) -> None:
    """Back-pressure, not refusal: what was taken is answered, and then all are read again."""
    world = World(bytes_in_flight_total=1_000_000)
    (greedy, first), (other, second), (_, third) = (world.connection() for _ in range(3))
    read(greedy, operations[:8])
    assert first.reading and second.reading and third.reading
    read(other, operations[8:16])
    assert not (first.reading or second.reading or third.reading), "a node-wide bound: whoever is read brings more"
    while world.gate.bytes > 500_000:
        assert world.gate.closed and not (first.reading or second.reading or third.reading)
        await asyncio.sleep(0.001)
        if world.writer.groups:
            world.writer.commit()
    assert first.reading and second.reading and third.reading
    for _ in range(50):
        await asyncio.sleep(0.001)
        if world.writer.groups:
            world.writer.commit()
    assert world.admission.in_flight == world.gate.bytes == 0


async def test_many_small_events_weigh_more_than_their_bytes() -> None:
    author = Author.random()
    world = World(bytes_in_flight_total=100_000)
    connection, transport = world.connection()
    read(connection, [operation(author, f"{n}") for n in range(50)])
    assert not transport.reading


async def test_whoever_was_not_heard_for_longest_is_read_first(operations: list[Operation]) -> None:
    world, heard = World(bytes_in_flight_total=1_000_000), list[str]()
    for name, seen in (("lately", 3.0), ("long ago", 1.0), ("then", 2.0)):
        connection, transport = world.connection()
        connection.seen = seen
        transport.resume_reading = lambda name=name: heard.append(name)  # type: ignore[method-assign]
    read(connection, operations[:12])
    while world.gate.closed:
        await asyncio.sleep(0.001)
        if world.writer.groups:
            world.writer.commit()
    assert heard == ["long ago", "then", "lately"]


async def test_one_event_larger_than_all_that_may_be_under_way_passes(operations: list[Operation]) -> None:
    world = World(bytes_in_flight_total=1)
    connection, transport = world.connection()
    for one in operations[:3]:
        read(connection, [one])
        assert not transport.reading
        await asyncio.sleep(0.01)
        world.writer.commit()
        assert transport.reading


async def test_what_a_subscription_is_handed_when_it_joins_fits_into_a_small_buffer(
    operations: list[Operation],
) -> None:
    hub = Hub(Position(0), 500_000)
    hub.publish([(Position(n + 1), one) for n, one in enumerate(operations)])
    handed: list[bytes] = []
    subscription = Subscription(SimpleNamespace(send=handed.append), "s", (), Style.EVENT)  # type: ignore[arg-type]
    assert not hub.join(subscription, Position(116)), "that is read from the store"
    assert hub.join(subscription, Position(118))


async def test_a_flood_over_many_sockets_is_held_back_and_all_of_it_is_stored(
    start_node: Callable[..., Node], connect: Callable
) -> None:
    """Sockets of the operator's are answered all the while, on one connection that is kept."""
    most, one_read = 2_000_000, 600_000
    own = start_node(env={"LIMITS_BYTES_IN_FLIGHT_TOTAL": str(most)})
    author, ended = Author.random(), threading.Event()
    clients = [await connect(own) for _ in range(30)]
    events = [author.event(1, f"{n} {BULK[:60_000]}") for n in range(600)]

    def watch() -> list[float]:
        http, found = HTTPConnection("127.0.0.1", own.port, timeout=5), []
        while not ended.is_set():
            http.request("GET", "/metrics")
            lines = http.getresponse().read().decode().splitlines()
            found += [float(line.split()[1]) for line in lines if line.startswith("anabranch_bytes_in_flight ")]
        return found

    watching = asyncio.create_task(asyncio.to_thread(watch))
    try:
        await asyncio.gather(*(client.store(*events[n::30]) for n, client in enumerate(clients)))
    finally:
        ended.set()
    found = await watching
    assert max(found) > most // 2, "it was no flood"
    assert max(found) <= most + one_read
    assert (await clients[0].publish(author.event(1, "after it"))).accepted
