"""All sockets of a node together have so much memory, and whoever has most of it is let go where it is too little."""

import asyncio
import json
import os
import signal
from collections.abc import Callable

import pytest
from authors import Author
from bare_sockets import BareSocket
from hypothesis import given
from hypothesis import strategies as st
from processes import Node, children

from anabranch.node.allowance import LOOK_BYTES, Allowance


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=60))
def test_what_is_held_is_hardly_more_than_the_allowance_and_only_those_with_most_are_let_go(
    steps: list[tuple[int, int]],
) -> None:
    held: dict[int, int] = {}
    gone: list[int] = []

    def let_go(one: int) -> None:
        assert held[one] == max(held.values())
        gone.append(held.pop(one))

    allowance = Allowance(1_000, held, lambda one: held[one], let_go)
    for one, size in steps:
        before = sum(held.values()), len(gone)
        held[one] = held.get(one, 0) + size
        allowance.add(size)
        assert allowance.bytes == sum(held.values()) <= 1_000 + LOOK_BYTES * len(held)
        if before[0] + size <= 1_000:
            assert len(gone) == before[1], "somebody was let go though there was room"


def test_a_full_allowance_is_not_looked_at_for_every_few_bytes() -> None:
    """Who keeps it nearly full makes nobody's messages slower."""
    held = dict.fromkeys(range(1_000), 100)
    looks = 0

    def look(one: int) -> int:
        nonlocal looks
        looks += 1
        return held[one]

    allowance = Allowance(100_001, held, look, held.__delitem__)
    for _ in range(10_000):
        allowance.add(300)  # of what is taken up at once
    assert looks <= 20 * 1_000
    assert len(held) == 1_000


def metric(node: Node, name: str) -> float:
    lines = node.http("GET", "/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"anabranch_{name}")))


async def test_readers_that_are_stuck_take_no_more_than_all_may_have_together(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    """Each is within its own bound, and so stays; all together are not."""
    own = start_node(env={"LIMITS_SEND_BUFFER_BYTES_TOTAL": "10000000"})
    stuck = []
    for n in range(12):
        bare = BareSocket(own.port, rcvbuf=4096)
        bare.handshake()
        bare.send(json.dumps(["REQ", f"stuck{n}", {"authors": [author.pubkey]}]))
        while "EOSE" not in bare.read_message():
            pass
        stuck.append(bare)
    reader, writer = await connect(own), await connect(own)
    await reader.req({"authors": [author.pubkey]}, sub="well", live=True)
    most = 0.0
    for n in range(120):
        event = author.event(1, f"{n} " + "x" * 60_000)
        await writer.store(event)
        assert (await reader.next_of("well"))[2]["id"] == event["id"]
        if n % 10 == 0:
            most = max(most, metric(own, "bytes_to_send "))
    assert 0 < most <= 10_000_000
    assert metric(own, "slow_consumers_dropped") >= 6
    for bare in stuck:
        bare.sock.close()
    await reader.still_answers()


@pytest.mark.parametrize("behind", ["a handshake", "a frame that is not whole", "a request that is not whole"])
async def test_what_is_not_whole_takes_no_more_than_all_may_have_together(
    start_node: Callable[..., Node], connect: Callable, behind: str
) -> None:
    own = start_node(env={"LIMITS_RECEIVE_BUFFER_BYTES_TOTAL": "2000000"})
    client = await connect(own)
    part = BareSocket.frame(json.dumps(["EVENT", "x" * 200_000]))[:-1]
    sockets = []
    for _ in range(30):
        bare = BareSocket(own.port)
        if behind == "a request that is not whole":
            bare.sock.sendall(b"POST /admin/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + part)
        elif behind == "a handshake":
            bare.sock.sendall(bare.upgrade_request() + part)
        else:
            bare.handshake()
            bare.sock.sendall(part)
        sockets.append(bare)
        assert metric(own, "bytes_unread ") <= 2_000_000
    for _ in range(200):
        if metric(own, "slow_consumers_dropped") < 15:
            await asyncio.sleep(0.05)
    assert metric(own, "slow_consumers_dropped") >= 15
    await client.still_answers()
    for bare in sockets:
        bare.sock.close()


async def test_what_comes_with_a_handshake_waits_while_too_much_is_under_way(
    start_node: Callable[..., Node], author: Author
) -> None:
    """Whoever opens new sockets does not pass the gate that is closed for the open ones; later all of it is stored."""
    own = start_node(env={"LIMITS_BYTES_IN_FLIGHT_TOTAL": "1000000"})
    events = [author.event(1, f"{n} " + "x" * 60_000) for n in range(60)]
    written = [BareSocket.frame(json.dumps(["EVENT", event])) for event in events]
    sockets, most = [], 0.0
    hung = children(own.process.pid, "anabranch.node.checker")
    for checker in hung:
        os.kill(checker, signal.SIGSTOP)
    try:
        for n in range(0, 60, 3):
            bare = BareSocket(own.port)
            bare.sock.sendall(bare.upgrade_request() + b"".join(written[n : n + 3]))
            sockets.append(bare)
            most = max(most, metric(own, "bytes_in_flight "))
        await asyncio.sleep(0.3)
        most = max(most, metric(own, "bytes_in_flight "))
    finally:
        for checker in hung:
            os.kill(checker, signal.SIGCONT)
    assert 900_000 < most < 1_400_000
    for bare in sockets:
        bare.read_head()
        answers = [bare.read_message() for _ in range(3)]
        assert [(answer[0], answer[2]) for answer in answers] == [("OK", True)] * 3
        bare.sock.close()
