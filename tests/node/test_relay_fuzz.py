"""Ten thousand frames of nonsense: the process lives, and the neighbour's session stays open and is answered."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from authors import NOTE, Author, snapshot
from bare_sockets import BareSocket
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import Node
from sockets import ConnectionEnded, RelayClient
from websockets.exceptions import ConnectionClosed

SOMEONE = Author.of(b"\x07" * 32)
NOTHING = '["REQ","x",{"ids":["' + "0" * 64 + '"]}]'


@pytest.fixture
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("fuzzed"))
    own.start()
    yield own
    own.end()


VALID: list[list[Any]] = [
    ["EVENT", SOMEONE.event(1, "plain", [["t", "a"], ["e", "0" * 64]], 1_700_000_000)],
    ["EVENT", SOMEONE.event(5, "", [["e", "1" * 64], ["a", f"30023:{SOMEONE.pubkey}:x"]], 1_700_000_000)],
    ["EVENT", SOMEONE.event(30023, "", [["d", "x"], ["expiration", "1800000000"]], 1_700_000_000)],
    ["EVENT", snapshot(SOMEONE, "note", {"a": 1, "b": 2}, c="notes", created_at=1_700_000_000)],
    ["REQ", "q", {"authors": [SOMEONE.pubkey], "kinds": [1, NOTE], "#t": ["a"], "since": 1, "until": 2, "limit": 3}],
    ["REQ", "q2", {"ids": ["0" * 64]}, {"#d": ["note"], "limit": 1}],
    ["REQ-BATCH", "q3", {"authors": [SOMEONE.pubkey]}],
    ["COUNT", "c", {"kinds": [1]}],
    ["CLOSE", "q"],
    ["AUTH", SOMEONE.auth("challenge", "ws://x", 1_700_000_000)],
    ["TOKEN", "sk_" + "a" * 24],
    [
        "CHANGES",
        "t",
        {
            "mode": "tail",
            "since": 0,
            "until_seq": 9,
            "limit": 5,
            "authors": [SOMEONE.pubkey],
            "kinds": [NOTE],
            "live": True,
        },
    ],
    [
        "CHANGES",
        "b",
        {"mode": "bootstrap", "authors": [SOMEONE.pubkey], "kinds": [NOTE], "#d": ["note"], "#o": ["put"]},
    ],
]

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**70), NOTE, 1e3, 1.5, 1e308, -0.0]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "a" * 64, "A" * 64, "\u0000", "\ud83d\ude00", "q", "put", "del", "tail", "#d", "x" * 70, "0" * 63]
    ),
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=6,
)


def mutate(frame: Any, junk: Any, seed: int) -> Any:
    """A copy of a valid frame with one place replaced, removed, doubled, or put one level deeper."""
    copy, chance = json.loads(json.dumps(frame)), random.Random(seed)
    place: Any = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return copy
        key = chance.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.8:
            place = place[key]
            continue
        match chance.randrange(4):
            case 0 | 1:
                place[key] = junk
            case 2:
                del place[key]
            case _:
                place[key] = [place[key], place[key]]
        return copy


MUTANTS = st.builds(mutate, st.sampled_from(VALID), JUNK, st.integers(0, 2**32)).map(json.dumps)
CUT = st.builds(lambda frame, cut: json.dumps(frame)[: cut % 400], st.sampled_from(VALID), st.integers(0, 399))
FRAMES = st.one_of(
    MUTANTS,
    MUTANTS,
    MUTANTS,
    st.builds(
        lambda verb, rest: json.dumps([verb, *rest]), st.sampled_from([v[0] for v in VALID]), st.lists(JUNK, max_size=3)
    ),
    JUNK.map(json.dumps),
    CUT,
    st.text(max_size=40).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
    st.binary(max_size=40),
)


class Arena:
    """A few connections that take the nonsense, and a neighbour that must not notice."""

    def __init__(self, node: Node, fuzzers: int) -> None:
        self.node, self.sent, self.reopened = node, 0, 0
        self.stack = AsyncExitStack()
        self.fuzzers: list[RelayClient | None] = [None] * fuzzers

    async def open(self) -> None:
        self.neighbour = await self.stack.enter_async_context(RelayClient.open(self.node.url))
        await self.neighbour.tail(SOMEONE, sub="standing", live=True)

    async def close(self) -> None:
        await self.stack.aclose()

    async def round(self, frames: list[str | bytes]) -> None:
        slot = random.randrange(len(self.fuzzers))
        client = self.fuzzers[slot]
        if client is None:
            client = self.fuzzers[slot] = await self.stack.enter_async_context(RelayClient.open(self.node.url))
            self.reopened += 1
        try:
            for frame in frames:
                await client.send_raw(frame)
                self.sent += 1
            await client.still_answers()
        except (ConnectionEnded, ConnectionClosed):
            self.fuzzers[slot] = None
        await self.neighbour.still_answers()
        assert self.node.alive


def run_frames(node: Node, examples: int) -> Arena:
    with asyncio.Runner() as runner:
        arena = Arena(node, fuzzers=4)
        runner.run(arena.open())

        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        @given(frames=st.lists(FRAMES, min_size=20, max_size=30))
        def throw(frames: list[str | bytes]) -> None:
            runner.run(arena.round(frames))

        throw()
        event = snapshot(SOMEONE, f"after-{arena.sent}", {"x": 1})
        runner.run(arena.neighbour.store(event))
        runner.run(arena.close())
    return arena


def test_ten_thousand_odd_frames_end_neither_the_process_nor_a_neighbour(fuzzed: Node) -> None:
    arena = run_frames(fuzzed, 500)
    assert arena.sent >= 10_000
    assert arena.reopened <= 50, "nonsense in a well-formed message should not cost a connection"
    assert fuzzed.stop() == 0
    fuzzed.verify()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_odd_frames_end_neither_the_process_nor_a_neighbour(fuzzed: Node) -> None:
    assert run_frames(fuzzed, 5000).sent >= 100_000


@settings(max_examples=150, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
@given(
    upgraded=st.booleans(),
    chunks=st.lists(st.one_of(st.binary(max_size=60), st.just(BareSocket.frame(NOTHING))), min_size=1, max_size=5),
)
def test_random_bytes_on_the_port_end_neither_the_process_nor_a_neighbour(
    shared_node: Node, upgraded: bool, chunks: list[bytes]
) -> None:
    with BareSocket(shared_node.port) as neighbour:
        neighbour.handshake()
        with BareSocket(shared_node.port) as noisy:
            if upgraded:
                noisy.handshake()
            try:
                for chunk in chunks:
                    noisy.sock.sendall(chunk)
            except OSError:
                pass
        neighbour.send(NOTHING)
        assert neighbour.read_message() == ["EOSE", "x"]
    assert shared_node.alive
