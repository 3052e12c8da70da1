"""nostr-sdk's negentropy (Rust) and ours find the same differences, whoever begins, whatever the sets and frame limits.

It can only be driven over a websocket: as an initiator it talks with our `Reconciler` behind a bare server, as a
responder it is its own relay, which holds signed events.
"""

import asyncio
import json
import os
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from negentropy_sets import SPREADS_IN_31_BITS, Sides, items_of, limits, sides
from nostr_sdk import EventId, Filter, NegentropyItem, RelayUrl, SyncOptions, Timestamp
from relay_model import items
from sdk_peers import Database, running_relay, sdk_client
from websockets.asyncio.server import ServerConnection, serve

from anabranch.client.reconcile import Bounds, Method, difference, publish
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.nostr import Event, Keys, serialise

MILLISECONDS = [1_790_000_000_000, 2**53 + 7]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One for all examples: what runs on it outlives each of them."""
    own = asyncio.new_event_loop()
    yield own
    own.close()


# --- it begins, ours answers --------------------------------------------------------------------------------------


class Responder:
    """A relay that knows NEG-OPEN and NEG-MSG only, over whichever set it is given."""

    def __init__(self) -> None:
        self.items = Items.build([], b"")
        self.frame_bytes = 0
        self.rounds = 0

    async def serve(self, socket: ServerConnection) -> None:
        session = Reconciler(self.items)
        async for message in socket:
            verb, name, *rest = json.loads(message)
            if verb == "NEG-OPEN":
                session, self.rounds = Reconciler(self.items, self.frame_bytes), 0
            if verb in ("NEG-OPEN", "NEG-MSG"):
                self.rounds += 1
                answer = session.respond(bytes.fromhex(rest[-1]))
                await socket.send(json.dumps(["NEG-MSG", name, answer.hex()]))


@pytest.fixture(scope="module")
def initiator(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Responder, Any]]:
    """Our responder, and nostr-sdk's connection to it."""
    responder = Responder()

    async def open_all() -> tuple[Any, Any, Any]:
        server = await serve(responder.serve, "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = sdk_client(url, Database())
        client = await context.__aenter__()
        return server, context, await client.relay(RelayUrl.parse(url))

    server, context, relay = loop.run_until_complete(open_all())
    yield responder, relay
    loop.run_until_complete(context.__aexit__(None, None, None))
    server.close()
    loop.run_until_complete(server.wait_closed())


@settings(max_examples=80)
@given(pair=sides([*SPREADS_IN_31_BITS, *MILLISECONDS]), limit=limits)
def test_it_begins_and_learns_just_the_difference(
    loop: asyncio.AbstractEventLoop, initiator: tuple[Responder, Any], pair: Sides, limit: int
) -> None:
    responder, relay = initiator
    responder.items, responder.frame_bytes = items_of(pair.responder), limit
    theirs = [
        NegentropyItem(id=EventId.parse(id.hex()), timestamp=Timestamp.from_secs(time)) for time, id in pair.initiator
    ]
    found = run(loop, relay.sync(Filter(), items=theirs, opts=SyncOptions().dry_run()))
    assert sorted(bytes.fromhex(id.to_hex()) for id in found.local) == pair.have
    assert sorted(bytes.fromhex(id.to_hex()) for id in found.remote) == pair.need
    assert responder.rounds >= 1


# --- ours begins, it answers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relay_url(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    context = running_relay()
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


@st.composite
def signed_sides(draw: st.DrawFn) -> tuple[Keys, list[Event], list[Event], list[Event]]:
    """Events of an author whom nobody has met: in both sets, in ours, in the relay's."""
    source = random.Random(draw(st.integers(0, 2**32)))
    keys = Keys(os.urandom(32))  # never the same again: the relay remembers
    spread = draw(st.sampled_from([1, 3, 40, 10**6]))
    sizes = draw(st.tuples(*[st.sampled_from([0, 0, 1, 31, 33, 250])] * 3))

    def make(count: int) -> list[Event]:
        return [
            keys.sign(1, [], source.randbytes(8).hex(), 1_700_000_000 - source.randrange(spread)) for _ in range(count)
        ]

    both, ours, its = map(make, sizes)
    return keys, both, ours, its


@settings(max_examples=30)
@given(pair=signed_sides(), frame_bytes=st.sampled_from([4_096, 4_096, 60_000]))
def test_it_answers_and_ours_learns_just_the_difference(
    loop: asyncio.AbstractEventLoop,
    relay_url: str,
    pair: tuple[Keys, list[Event], list[Event], list[Event]],
    frame_bytes: int,
) -> None:
    keys, both, ours, its = pair
    run(loop, publish(relay_url, map(serialise, [*both, *its])))
    found = run(
        loop,
        difference(
            relay_url, {"authors": [keys.pubkey]}, items([*both, *ours]), bounds=Bounds(frame_bytes=frame_bytes)
        ),
    )
    assert (sorted(found.have), sorted(found.need)) == (sorted(e.id for e in ours), sorted(e.id for e in its))
    assert found.method is Method.NEGENTROPY


def run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(asyncio.wait_for(work, 30))
