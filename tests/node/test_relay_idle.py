"""Silence: who says nothing is pinged, who does not answer is closed, and a stalled reader does not hold up a stop."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest
from authors import Author, snapshot
from bare_sockets import BareSocket
from processes import Node
from sockets import ConnectionEnded


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("impatient"), env={"LIMITS_IDLE_SECONDS": "1", "LIMITS_HANDSHAKE_SECONDS": "1"})
    own.start()
    yield own
    own.end()


async def test_a_peer_that_answers_pings_stays_and_one_that_does_not_is_closed(
    impatient: Node, connect: Callable, author: Author
) -> None:
    polite = await connect(impatient)
    answer = await polite.req({"authors": [author.pubkey]}, live=True)

    def stay_silent() -> list[int]:
        with BareSocket(impatient.port, timeout=8) as silent:
            silent.handshake()
            opcodes = []
            try:
                while True:
                    opcodes.append(silent.read_frame()[0])
            except (ConnectionEnded, ConnectionResetError):
                return opcodes

    opcodes = await asyncio.to_thread(stay_silent)
    assert opcodes[0] == 9, "a ping comes first"
    event = author.event(1, "still here")
    await polite.store(event)
    assert (await polite.next_of(answer.sub))[2] == event


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_never_ends_is_cut_off(impatient: Node, begun: bytes) -> None:
    with BareSocket(impatient.port, timeout=8) as slow:
        slow.sock.sendall(begun)
        began = time.monotonic()
        try:
            while slow.sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 6


async def test_a_node_stops_although_a_reader_has_stalled(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    writer = await connect(own)
    await writer.store(*(snapshot(author, f"d{n}", {"x": 1}, content="x" * 60_000) for n in range(60)))
    with BareSocket(own.port, rcvbuf=4096) as stalled:
        stalled.handshake()
        stalled.send(json.dumps(["REQ", "all", {"authors": [author.pubkey]}]))
        stalled.read_message()
        assert await asyncio.to_thread(own.stop) == 0
    own.verify()
