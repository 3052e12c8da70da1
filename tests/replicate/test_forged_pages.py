"""A forged page on its way to the disk: what is behind it stays where it is, and the forgery is named, however the
connection ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from histories import signed
from stores import SqliteBackend
from test_applying import Host, token

from anabranch.core import nostr
from anabranch.core.checkpoint import Checkpoint
from anabranch.core.scope import EVERYTHING
from anabranch.replicate import dialling, following
from anabranch.replicate import effects as do
from anabranch.replicate.budget import Budget
from anabranch.replicate.following import Following
from anabranch.replicate.room import Room
from anabranch.replicate.spec import Direction, LinkSpec, Timing
from anabranch.replicate.states import LinkState
from anabranch.store.contract import LinkChange, LinkRecord, StoreError

SPEC = LinkSpec("up", "ws://127.0.0.1:9/", EVERYTHING, Direction.PULL)
INFORMATION = {"changes_feed": {"stream_id": "s", "epoch": "e", "min_seq": 1, "max_seq": 3, "log": True}}
GOOD, LATER = signed(content="good"), signed(content="later")
LIE = msgspec.structs.replace(signed(content="lie"), sig="0" * 128)


class Slow(Host):
    """Proves a page of one event sooner than a larger one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SqliteBackend(folder).create())

    async def prove(self, proofs: bytes) -> bytes | None:
        await asyncio.sleep(0.01 * (len(proofs) // nostr.PROOF_BYTES))
        return await super().prove(proofs)

    async def write(self, job: Any) -> Any:
        return job(self.store_.writer)


class World:
    timing = Timing(retry_min=1000.0)

    def __init__(self, host: Slow) -> None:
        self.host = host
        self.budget, self.room = Budget(), Room()
        self.clock, self.wall, self.share = (lambda: 0.0), (lambda: 7), (lambda: 0.5)
        self.reasons: list[str] = []

    def feeding(self, peer: str) -> tuple[str, ...]:
        return ()

    def repaired(self, reason: str) -> None:
        self.reasons.append(reason)

    def blocked(self, kind: str) -> None: ...

    def took(self, milliseconds: float) -> None: ...


@pytest.fixture
async def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Following]:
    """A link that tails a log from its beginning; its peer is played by the test."""

    async def never(url: str) -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(dialling, "dial", never)
    host, start = Slow(tmp_path), Checkpoint.at(token(0))
    host.store_.writer.note_link(LinkChange("up", pull=start))
    one = Following(World(host), SPEC, LinkRecord("up", SPEC.peer, "pull", pull=start))
    await asyncio.sleep(0.01)
    one.call(lambda link, now: link.opened(INFORMATION, now))
    yield one
    await one.stop()


def bring(one: Following, *pages: list[tuple[int, nostr.Event]]) -> None:
    stream = one.link._intake.stream
    assert stream is not None
    for page in pages:
        for position, event in page:
            message = b'["CHANGES","%b","EVENT",%d,%b]' % (stream.name.encode(), position, nostr.serialise(event))
            one.call(lambda link, now, message=message: link.heard(message, now))
        one.call(lambda link, now: link.flush(now))


async def on_disk(one: Following) -> None:
    """Until the first page is answered for, and the machine was not told yet."""
    while not (one._pages and one._pages[0][0].done()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def settled(one: Following) -> None:
    async with asyncio.timeout(10):
        while one._pages or one._todo:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_behind_a_forged_page_is_stored_or_moves_the_checkpoint(followed: Following):
    bring(followed, [(1, GOOD), (2, LIE)], [(3, LATER)])
    await settled(followed)
    host = followed._world.host
    assert host.record.pull.contiguous.position == followed.link.pull.contiguous.position == 0
    assert host.reader.known([GOOD.id, LIE.id, LATER.id]) == set()
    assert LIE.id in followed.link.last_error


async def test_a_forgery_is_named_and_remembered_though_the_connection_ended_first(followed: Following):
    bring(followed, [(1, GOOD), (2, LIE)], [(3, LATER)])
    await on_disk(followed)
    followed.call(lambda link, now: link.lost("the peer hung up", now))
    await settled(followed)
    record = followed._world.host.record
    assert record.pull.contiguous.position == followed.link.pull.contiguous.position == 0
    assert record.unsure and followed.link.unsure
    assert followed.link.state is LinkState.REPAIRING
    assert LIE.id in record.last_error
    assert followed._world.reasons == ["disorder"]


async def test_a_paused_link_stays_paused_though_a_forgery_is_found_out_late(followed: Following):
    bring(followed, [(1, GOOD), (2, LIE)])
    await on_disk(followed)
    followed.call(lambda link, now: link.pause(now))
    await settled(followed)
    assert followed.link.state is LinkState.PAUSED
    assert followed.link.unsure


async def test_a_fault_of_ours_in_a_page_is_no_fault_of_the_stores_and_is_logged(
    followed: Following, caplog: pytest.LogCaptureFixture
):
    async def broken(proofs: bytes) -> bytes | None:
        raise AttributeError("of ours")

    followed._world.host.prove = broken
    bring(followed, [(1, GOOD)])
    await settled(followed)
    assert followed.link.pull.contiguous.position == 0
    (said,) = [record for record in caplog.records if record.message == "a link stumbled"]
    assert said.exc_info


async def test_no_checkpoint_passes_a_dead_letter_that_could_not_be_written(followed: Following):
    host, write = followed._world.host, followed._world.host.write
    refuses = True

    async def full(job: Any) -> Any:
        if refuses:
            raise StoreError("the disk is full")
        return await write(job)

    host.write = full
    followed._todo.append(do.Bury(LATER.id, "no", "pull"))
    bring(followed, [(1, GOOD)])
    await settled(followed)
    assert host.record.pull.contiguous.position == 0
    assert host.reader.known([GOOD.id]) == set()
    refuses = False
    await followed._write_unwritten()
    assert [letter.id for letter in host.reader.dead_letters("up")] == [LATER.id]


async def test_what_a_link_is_told_while_it_writes_something_down_is_not_waited_past(
    followed: Following, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(following, "SUCCESS_NOTED_SECONDS", 1)
    host, write, writing = followed._world.host, followed._world.host.write, asyncio.Event()

    async def slow(job: Any) -> Any:
        writing.set()
        await asyncio.sleep(0.01)
        return await write(job)

    host.write = slow
    followed.caught_up_at, followed._moved = 0.0, True
    followed._stirred.set()
    await writing.wait()
    followed.call(lambda link, now: [do.Bury(LATER.id, "no", "pull")])
    async with asyncio.timeout(5):
        while not host.reader.dead_letters("up"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
