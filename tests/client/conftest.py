"""What the tests of the client lean on: replicas that are closed in the end, a second relay, somebody with a key."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import Node
from replicas import FAMILIES, QUICK, OpenReplica

from anabranch.client import Keys, Replica
from anabranch.client.now import REAL


@pytest.fixture(scope="session")
def second_shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    shared = Node(tmp_path_factory.mktemp("second"))
    shared.start()
    yield shared
    shared.end()


@pytest.fixture
def second_node(second_shared_node: Node) -> Node:
    """Another public node, shared as well."""
    if not second_shared_node.alive:
        second_shared_node.start()
    return second_shared_node


@pytest.fixture
def keys() -> Keys:
    """Somebody who has written nothing yet."""
    return Keys(REAL.fresh_bytes(32))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def open_replica(tmp_path: Path, keys: Keys) -> AsyncIterator[OpenReplica]:
    """`open_replica("laptop", relays=[…])`: the replica in the file of that name, of `keys` if no other are given."""
    async with AsyncExitStack() as stack:

        async def open_one(name: str, **options: Any) -> Replica:
            owner = options.pop("keys", keys)
            replica = await Replica.open(tmp_path / f"{name}.db", owner, **{"timing": QUICK, **options})
            stack.push_async_callback(replica.close)
            return replica

        yield open_one
