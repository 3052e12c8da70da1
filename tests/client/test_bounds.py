"""Relays without measure: whatever they send, and however slowly, memory and time are bounded."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from authors import Author, snapshot
from driving import OWNER, dialled, event, follower, live, of, say, sent
from replicas import OpenReplica, heads
from scripted_relay import ScriptedRelay, Talk, serving
from waiting import until

from anabranch.client import Keys, bootstraps, following, information
from anabranch.client import effects as do
from anabranch.client.bootstraps import RevisionBootstrap, SnapshotBootstrap, Wanted
from anabranch.client.file import Proven
from anabranch.client.follower import State
from anabranch.client.inbox import Inbox
from anabranch.client.messages import TEXT_MAX, Frame, ProtocolError
from anabranch.client.proving import Batch
from anabranch.client.staging import AND_MORE, HINTED_MAX, OPEN_MAX, REASONS_MAX, Staging
from anabranch.core.negentropy_items import varint
from anabranch.core.operation import Family
from anabranch.core.replica import Version


def frame(*parts: Any) -> Frame:
    return Frame(json.dumps(parts))


# --- machines ---


@pytest.mark.parametrize("bounds", [{"events_max": 100}, {"bytes_max": 5_000}])
def test_a_bootstrap_without_an_end_is_left_although_it_repeats_itself(bounds: dict[str, int]):
    machine = SnapshotBootstrap("boot", OWNER, **bounds)
    machine.receive(frame("CHANGES", "boot", "STATUS", {"snapshot_seq": 5}))
    with pytest.raises(ProtocolError, match="a bootstrap of more than"):
        for _ in range(200):
            machine.receive(frame("CHANGES", "boot", "SNAPSHOT", event(1)))


def test_a_bootstrap_of_large_events_is_proven_in_small_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstraps, "STAGE_BYTES", 1_000)
    machine = SnapshotBootstrap("boot", OWNER)
    machine.receive(frame("CHANGES", "boot", "STATUS", {"snapshot_seq": 5}))
    large = {"content": "x" * 600}
    assert machine.receive(frame("CHANGES", "boot", "SNAPSHOT", large)) == []
    (stage,) = machine.receive(frame("CHANGES", "boot", "SNAPSHOT", large))
    assert len(stage.events) == 2


def test_a_fetch_without_an_end_is_left():
    machine, _ = live(Family.REVISION)
    machine.wake()
    (request,) = sent(machine.wanted([Wanted("c" * 64)], 0.0))
    for number in range(bootstraps.FETCH_EVENTS_MAX // 256 + 1):
        say(machine, "EVENTS", request[1], [event(number)] * 256)
    assert machine.state is State.OFFLINE
    assert "an answer to a fetch of more than" in machine.last_error


@pytest.mark.parametrize("bound", ["ROUNDS_MAX", "NEED_MAX"])
def test_a_reconciliation_without_an_end_is_left(bound: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstraps, bound, 20)
    machine = RevisionBootstrap("boot", OWNER, True, 60_000)
    machine.receive(frame("NEG-STATUS", "boot", {"strategy": "revision-sync.v1", "snapshot_seq": 1}))
    machine.items([])
    with pytest.raises(ProtocolError, match="a reconciliation that"):
        for _ in range(50):
            ids, never = os.urandom(32), os.urandom(16)  # one more id, then a fingerprint that matches nothing
            said = b"\x61" + varint(10**9) + b"\0\2" + varint(1) + ids + b"\0\0\1" + never
            machine.receive(frame("NEG-MSG", "boot", said.hex()))


def test_what_a_relay_says_is_kept_short():
    machine, tail = live()
    say(machine, "NOTICE", "n" * 10_000)
    assert len(machine.last_notice) == TEXT_MAX
    machine.wake()
    effects = say(machine, "CHANGES", tail, "DELETED", 61, "e" * 10_000, "r" * 10_000)
    ((removed,),) = [apply.removed for apply in of(do.Apply, effects)]
    assert max(map(len, removed)) == TEXT_MAX
    say(machine, "CHANGES", tail, "ERR", "x" * 10_000)
    assert len(machine.last_error) == TEXT_MAX
    machine = follower()
    dialled(machine, {"changes_feed": {"stream_id": "s" * 10_000}, "snapshot_sync": {"changes_feed": True}})
    boot = machine._bootstrap.name
    say(machine, "CHANGES", boot, "STATUS", {"snapshot_seq": 5})
    say(machine, "CHANGES", boot, "EOSE", 5)
    assert len(machine.checkpoint.stream) == TEXT_MAX


# --- what is staged, and what waits ---


def batch(event: str, dropped: int = 0, hinted: int = 0) -> Batch:
    kept = Proven(Version(event, "d", False, 1), event, b"raw")
    return Batch([kept], [f"reason {number}" for number in range(dropped)], [f"{number}" for number in range(hinted)])


async def test_what_is_staged_twice_is_kept_once_and_reasons_are_bounded():
    async def proving(event: str) -> Batch:
        return batch(event, dropped=REASONS_MAX, hinted=HINTED_MAX + 5)

    staging = Staging()
    for number in range(100):
        await staging.add(proving(f"e{number % 3}"))
        assert staging.waiting <= OPEN_MAX
    taken = await staging.take()
    assert [one.event for one in taken.proven] == ["e0", "e1", "e2"]
    assert len(taken.dropped) == 100 * REASONS_MAX  # all are counted
    assert len(set(taken.dropped)) == REASONS_MAX + 1 and taken.dropped[-1] is AND_MORE
    assert len(taken.hinted) == HINTED_MAX
    assert (await staging.take()).proven == []


async def test_staging_waits_while_too_many_batches_are_open_and_forgets_what_is_discarded():
    opened = asyncio.Event()

    async def proving() -> Batch:
        await opened.wait()
        return batch("e")

    staging = Staging()
    for _ in range(OPEN_MAX):
        await staging.add(proving())
    one_more = asyncio.ensure_future(staging.add(proving()))
    await asyncio.sleep(0.01)
    assert not one_more.done()
    opened.set()
    await one_more
    staging.discard()
    assert (await staging.take()).proven == []


async def test_an_inbox_is_full_by_count_or_by_bytes():
    inbox: Inbox[str] = Inbox(count_max=3, bytes_max=150)
    await inbox.put("a", b"x" * 99)
    await inbox.put("a", b"x" * 99)
    waiting = asyncio.ensure_future(inbox.put("a", b"y"))
    await asyncio.sleep(0)
    assert not waiting.done() and len(inbox) == 2
    assert inbox.take() == ("a", b"x" * 99)
    await waiting
    await inbox.put("a", OSError())
    assert len(inbox) == 3 and inbox.full
    while inbox.take() is not None:
        pass
    assert not inbox.full


async def test_a_message_that_is_too_large_ends_the_connection(open_replica: OpenReplica):
    async def answer(talk: Talk, frame: list[Any]) -> None:
        await talk.say("NOTICE", "x" * following.MESSAGE_BYTES_MAX)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        await until(lambda: relay.connections > 1)
        (status,) = await replica.status()
        assert status.last_error == "the relay sent a message of more than 4 MiB"


async def test_an_endless_bootstrap_applies_nothing_and_the_relay_is_left(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstraps.SnapshotBootstrap.__init__, "__defaults__", (1_000, 1 << 30))
    me = Author.random()
    same = snapshot(me, "d", {"a": 1})

    async def answer(talk: Talk, frame: list[Any]) -> None:
        await talk.say("CHANGES", frame[1], "STATUS", {"snapshot_seq": 5})
        while True:
            await talk.say("CHANGES", frame[1], "SNAPSHOT", same)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url], keys=Keys(me.key.secret))
        await until(lambda: relay.connections > 1)
        (status,) = await replica.status()
        assert "a bootstrap of more than 1000 events" in status.last_error
        assert await heads(replica) == {}


# --- slowness ---


@pytest.fixture
def dripping() -> Iterator[str]:
    """A web server whose answer never ends, one byte at a time."""
    server = socket.create_server(("127.0.0.1", 0))

    def drip(client: socket.socket) -> None:
        try:
            client.recv(4096)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                client.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass

    def serve() -> None:
        try:
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    yield f"ws://127.0.0.1:{server.getsockname()[1]}/"
    server.close()


async def test_an_information_document_that_drips_is_given_up(dripping: str):
    began = time.monotonic()
    with pytest.raises(OSError, match="did not come within"):
        await information.fetch(dripping, 0.3)
    assert time.monotonic() - began < 2
    await until(lambda: not [one for one in threading.enumerate() if one.name == "anabranch-information"])


def test_an_information_document_that_drips_keeps_no_process_from_exiting(dripping: str):
    script = (
        "import asyncio, sys\nfrom anabranch.client import information\n"
        "async def main():\n"
        "    task = asyncio.ensure_future(information.fetch(sys.argv[1], 60))\n"
        "    await asyncio.sleep(0.3)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script, dripping], timeout=15, check=True)


async def test_a_relay_that_answers_each_feed_with_a_gap_is_left_and_tried_later(open_replica: OpenReplica):
    async def answer(talk: Talk, frame: list[Any]) -> None:
        match frame:
            case ["CHANGES", name, {"since": _}]:
                await talk.say("CHANGES", name, "ERR", "checkpoint too old: min_seq is 9")
            case _:
                await serving([])(talk, frame)

    async with ScriptedRelay(answer).running() as relay:
        await open_replica("laptop", relays=[relay.url])
        await until(lambda: relay.connections > 2)
        bootstraps = [one for one in relay.asked("CHANGES") if one[2].get("mode") == "bootstrap"]
        assert len(bootstraps) <= relay.connections
