"""What is under way is bounded by its bytes too: groups, and all that a node has taken and not answered."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from authors import Author

from anabranch.config import LimitSettings, Settings
from anabranch.core import nostr
from anabranch.core.operation import KindPolicy, Operation, classify
from anabranch.core.token import Position
from anabranch.node.admission import GROUP_BYTES, Admission
from anabranch.node.connection import Connection
from anabranch.node.hub import Hub, Style, Subscription
from anabranch.node.metrics import Metrics
from anabranch.store.contract import Offer, Stored
from anabranch.wire.session import Publish

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
    idle = True

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
        sets = SimpleNamespace(published=lambda operations: None, removed=lambda removals: None)
        self.admission = Admission(
            Prover(),  # type: ignore[arg-type]
            self.writer,  # type: ignore[arg-type]
            self.hub,
            sets,  # type: ignore[arg-type]
            Metrics(),
            settings.limits.bytes_in_flight_total,
            settings.limits.send_buffer_bytes,
        )
        self.node: Any = SimpleNamespace(
            admission=self.admission,
            settings=settings,
            loop=asyncio.get_running_loop(),
            opened=lambda connection: True,
        )

    def connection(self) -> tuple[Connection, Transport]:
        connection, transport = Connection(self.node), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    author = Author.random()
    return [operation(author, f"{n} {BULK}") for n in range(120)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("send_buffer_bytes", [8_388_608, 1_000_000])
async def test_a_group_has_no_more_bytes_than_a_reader_may_be_handed_at_once(
    operations: list[Operation], send_buffer_bytes: int
) -> None:
    world = World(send_buffer_bytes=send_buffer_bytes, bytes_in_flight=10**9)
    connection, _ = world.connection()
    connection._carry_out([Publish(one) for one in operations])
    stored: list[Operation] = []
    for _ in range(200):
        await asyncio.sleep(0.001)
        if world.writer.groups:
            stored += [offer.operation for offer in world.writer.groups[0][0]]
            world.writer.commit()
    assert stored == operations, "all of them, in order"
    assert max(world.writer.sizes) <= min(GROUP_BYTES, send_buffer_bytes // 2)
    assert world.admission.in_flight == 0


async def test_a_node_that_has_taken_too_much_reads_no_further_until_it_is_less(operations: list[Operation]) -> None:
    """Back-pressure, not refusal: whoever has nothing under way is still heard."""
    world = World(bytes_in_flight_total=1_000_000)
    (greedy, first), (other, second), (_, third) = (world.connection() for _ in range(3))
    greedy._carry_out([Publish(one) for one in operations[:8]])
    assert first.reading and not world.admission.full
    other._carry_out([Publish(one) for one in operations[8:16]])
    assert world.admission.full and not second.reading, "a node-wide bound"
    assert third.reading
    for _ in range(50):
        await asyncio.sleep(0.001)
        if world.writer.groups:
            world.writer.commit()
    assert first.reading and second.reading and not world.admission.full and world.admission.in_flight == 0


async def test_what_a_subscription_is_handed_when_it_joins_fits_into_a_small_buffer(
    operations: list[Operation],
) -> None:
    hub = Hub(Position(0), 500_000)
    hub.publish([(Position(n + 1), one) for n, one in enumerate(operations)])
    handed: list[bytes] = []
    subscription = Subscription(SimpleNamespace(send=handed.append), "s", (), Style.EVENT)  # type: ignore[arg-type]
    assert not hub.join(subscription, Position(116)), "that is read from the store"
    assert hub.join(subscription, Position(118))
