"""Checkers that work for links too: who publishes is neither refused for it nor made to stand behind many pages."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.core import nostr
from anabranch.core.operation import KindPolicy, classify
from anabranch.core.token import Position
from anabranch.node.admission import Admission
from anabranch.node.gate import Gate
from anabranch.node.hub import Hub
from anabranch.node.metrics import Metrics
from anabranch.node.prover import BESIDE, Prover
from anabranch.store.contract import Offer, Stored

EVENTS = [nostr.Keys(bytes([1]) * 32).sign(1, [], f"{n}", 1_700_000_000 + n) for n in range(200)]
PAGE = nostr.proofs(EVENTS)


class Writer:
    def append(self, offers: list[Offer], committed: Any) -> None:
        stored = [Stored(Position(n + 1)) for n in range(len(offers))]
        asyncio.get_running_loop().call_soon(committed, stored, [])

    prove_and_append = append


class Publisher:
    def __init__(self, expected: int) -> None:
        self.answers: list[bytes] = []
        self.answered = asyncio.Event()
        self._expected = expected

    def acknowledge(self, answer: bytes, size: int, forged: bool = False) -> None:
        self.answers.append(answer)
        if len(self.answers) == self._expected:
            self.answered.set()


@pytest.fixture
async def prover() -> AsyncIterator[Prover]:
    one = Prover(1)
    await one.start()
    yield one
    one.close()


def offered(prover: Prover, count: int) -> Publisher:
    sets = cast(Any, SimpleNamespace(published=lambda operations: None, removed=lambda removals: None))
    hub = Hub(Position(0), 1 << 23)
    admission = Admission(prover, cast(Any, Writer()), hub, sets, Metrics(), Gate(1 << 30, {}), 1 << 23)
    publisher = Publisher(count)
    for event in EVENTS[:count]:
        admission.offer(publisher, classify(event, nostr.serialise(event), KindPolicy()), None)
    return publisher


async def test_while_every_checker_is_full_of_a_links_pages_what_is_published_is_accepted(prover: Prover):
    pages: list[bytes | None] = []
    while prover.idle:
        prover.submit(PAGE, pages.append)
    publisher = offered(prover, 20)
    await asyncio.wait_for(publisher.answered.wait(), 20)
    assert [b"true" in answer for answer in publisher.answers] == [True] * 20


async def test_what_is_published_stands_behind_few_pages_however_many_there_are(prover: Prover):
    proven: list[asyncio.Task] = [asyncio.create_task(prover.check_beside(PAGE)) for _ in range(20)]
    await asyncio.sleep(0)
    publisher = offered(prover, 20)
    await asyncio.wait_for(publisher.answered.wait(), 20)
    assert sum(page.done() for page in proven) <= 2 * BESIDE  # those before its two batches, and what went between
    assert await asyncio.gather(*proven) == [bytes([1]) * len(EVENTS)] * 20


async def test_who_says_who_they_are_stands_behind_few_pages_however_many_there_are(prover: Prover):
    proven: list[asyncio.Task] = [asyncio.create_task(prover.check_beside(PAGE)) for _ in range(50)]
    await asyncio.sleep(0)
    assert await prover.check(nostr.proof(EVENTS[0])) == bytes([1])
    assert sum(page.done() for page in proven) <= 2 * BESIDE
    await asyncio.gather(*proven)


async def test_with_no_checker_at_work_it_is_said_at_once_that_nothing_could_be_checked(prover: Prover):
    prover.close()
    await asyncio.sleep(0.05)
    publisher = offered(prover, 20)
    await asyncio.wait_for(publisher.answered.wait(), 5)
    assert all(b"could not be checked" in answer for answer in publisher.answers)
    assert await prover.check(PAGE) is None
