"""The processes that check signatures: when they die or hang every event is still answered, and others take over."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from pathlib import Path

import pytest
from authors import Author, Event, ids, snapshot
from processes import Node, children
from sockets import ConnectionEnded, RelayClient

from anabranch.core import nostr
from anabranch.node.checker import NICE
from anabranch.node.prover import Prover, _Worker

UNCHECKED = "error: the signature could not be checked; try again"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    one = Node(tmp_path_factory.mktemp("checked"))
    one.start()
    yield one
    one.end()


def checkers(node: Node) -> list[int]:
    assert node.process is not None
    return children(node.process.pid, "anabranch.node.checker")


def signal_checkers(node: Node, number: signal.Signals) -> list[int]:
    found = checkers(node)
    for pid in found:
        os.kill(pid, number)
    return found


async def offer(client: RelayClient, events: list[Event], patience: float = 10) -> list[Event]:
    """Publish in one go; each gets an answer. Those that could not be checked."""
    for event in events:
        await client.send("EVENT", event)
    return await answers(client, events, patience)


async def answers(client: RelayClient, events: list[Event], patience: float = 10) -> list[Event]:
    unchecked = []
    for event in events:
        _, _, accepted, message = await client.next(("OK", event["id"]), patience)
        assert accepted or message == UNCHECKED, message
        if not accepted:
            unchecked.append(event)
    return unchecked


async def all_ready(node: Node, before: list[int], patience: float = 8) -> None:
    """Until as many others check as did before, and the node says that it is ready."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = checkers(node)
        if len(found) == len(before) and not set(found) & set(before) and node.http("GET", "/readyz").status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"checkers {checkers(node)} after {before}:\n{node.log_tail()}")


def notes(author: Author, count: int, name: str) -> list[Event]:
    return [snapshot(author, f"{name} {n}", {"x": 1}) for n in range(count)]


def test_checkers_stand_back_for_their_node_and_no_ctrl_c_of_its_terminal_reaches_them(own: Node) -> None:
    assert own.process is not None
    node = own.process.pid
    for pid in checkers(own):
        assert os.getsid(pid) == os.getsid(node)  # only within one session does the scheduler heed how nice they are
        assert os.getpgid(pid) != os.getpgid(node)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, node) + NICE


async def test_a_service_manager_that_tells_every_process_to_end_ends_the_node_once_all_is_answered(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    one = start_node()
    client: RelayClient = await connect(one)
    events = notes(author, 1_500, "note")
    for event in events:
        await client.send("EVENT", event)
    await client.next(("OK", events[0]["id"]))
    assert one.process is not None
    for pid in [*checkers(one), one.process.pid]:
        os.kill(pid, signal.SIGTERM)
    accepted = 0
    with suppress(ConnectionEnded):
        for event in events[1:]:
            _, _, taken, message = await client.next(("OK", event["id"]))
            assert taken, message
            accepted += 1
    assert accepted > 100  # had come before it
    assert one.process.wait(10) == 0


def test_checkers_take_no_module_from_the_folder_in_which_the_node_was_started(tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    folder.mkdir()
    for name in ("msgspec", "coincurve", "struct"):
        (folder / f"{name}.py").write_text("raise SystemExit('taken from where it was started')")
    one = Node(tmp_path / "data")
    with chdir(folder):
        one.start()
    try:
        assert one.http("GET", "/readyz").status == 200
        assert "taken from" not in one.log_tail()
    finally:
        one.end()


class Dying(_Worker):
    """Its process is there, and is gone at once."""

    starts = 0

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        type(self).starts += 1
        return subprocess.Popen(["true"], stdin=theirs.fileno(), stdout=theirs.fileno())


async def test_a_checker_that_dies_as_soon_as_it_starts_is_started_again_ever_more_rarely() -> None:
    worker = Dying()
    await worker.start()
    await asyncio.sleep(2)
    assert not worker.working
    worker.close()
    assert 2 <= Dying.starts <= 6


async def test_nothing_waits_for_a_checker_that_is_just_starting_while_there_is_another() -> None:
    prover = Prover(2)
    await prover.start()
    one = prover._workers[0]
    assert one._process is not None
    one._process.kill()
    async with asyncio.timeout(10):
        while one._transport is None or one.working:  # noqa: ASYNC110
            await asyncio.sleep(0)
        one._process.send_signal(signal.SIGSTOP)
        proof = nostr.proof(nostr.Keys(bytes([1]) * 32).sign(1, [], "", 1))
        assert await asyncio.gather(*(prover.check(proof) for _ in range(100))) == [bytes([1])] * 100
        assert prover.idle
    prover.close()


async def test_when_idle_checkers_are_killed_events_are_answered_and_stored_again_later(
    own: Node, connect: Callable, author: Author
) -> None:
    client: RelayClient = await connect(own)
    killed = signal_checkers(own, signal.SIGKILL)
    assert killed
    events = notes(author, 60, "a")
    unchecked = await offer(client, events)
    await all_ready(own, killed)
    assert await offer(client, [*unchecked, *notes(author, 60, "b")]) == []
    assert set(ids(events)) <= set((await client.tail(author)).ids)


async def test_when_checkers_are_killed_at_work_every_event_is_answered_and_the_stored_ones_are_there(
    own: Node, connect: Callable, author: Author
) -> None:
    client: RelayClient = await connect(own)
    events = notes(author, 1_500, "note")
    answering = asyncio.create_task(answers(client, events))
    killed: list[int] = []
    for n, event in enumerate(events):
        await client.send("EVENT", event)
        if n == 500:
            killed = signal_checkers(own, signal.SIGKILL)
    unchecked = await answering
    await all_ready(own, killed)
    stored = set((await client.tail(author)).ids)
    assert stored == set(ids(events)) - set(ids(unchecked))
    for at in range(0, len(unchecked), 500):
        assert await offer(client, unchecked[at : at + 500]) == []
    assert set((await client.tail(author)).ids) == set(ids(events))


async def test_while_no_checker_is_there_a_forgery_is_not_taken(own: Node, connect: Callable, author: Author) -> None:
    client: RelayClient = await connect(own)
    other = Author.random()
    forged = [{**event, "sig": other.event(1)["sig"]} for event in notes(author, 30, "note")]
    killed = signal_checkers(own, signal.SIGKILL)
    for event in forged:
        await client.send("EVENT", event)
    for event in forged:
        assert (await client.next(("OK", event["id"])))[2] is False
    await all_ready(own, killed)
    assert (await client.tail(author)).events == []


@pytest.mark.slow
async def test_when_every_checker_hangs_events_are_answered_all_the_same(
    own: Node, connect: Callable, author: Author
) -> None:
    client: RelayClient = await connect(own)
    hung = signal_checkers(own, signal.SIGSTOP)
    try:
        began = time.monotonic()
        events = notes(author, 200, "note")
        unchecked = await offer(client, events, patience=15)
        assert time.monotonic() - began < 15
        await all_ready(own, hung)
        assert await offer(client, unchecked) == []
        assert set((await client.tail(author)).ids) == set(ids(events))
    finally:
        for pid in set(hung) & set(checkers(own)):
            os.kill(pid, signal.SIGCONT)
