"""What every test may lean on: a running node, a client on its port, an author with a key.

`node` is one public node shared by the whole session: it must outlive every test that touches it. `start_node`
gives a test a node of its own, for settings and state that others must not see.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from authors import Author
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer, binaries
from processes import ADMIN_TOKEN, Node
from sockets import RelayClient
from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "anabranch", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("anabranch")

LONG = ("pipeline", "sim")
OWN_JAVA = ("test_beside", "test_cluster", "test_run", "test_spark_session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker is left alone with it in the end."""
    items.sort(key=lambda item: next((at for at, name in enumerate(LONG) if name in item.path.parts), len(LONG)))


class Workers(LoadScopeScheduling):
    """A file stays with one worker, and so does the whole pipeline: it has one Java then, which is warm."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        return "pipeline" if file.parent.name == "pipeline" and file.stem not in OWN_JAVA else str(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Workers:
    return Workers(config, log)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    shared = Node(tmp_path_factory.mktemp("shared"))
    shared.start()
    yield shared
    shared.stop()


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The shared public node. A test that ends the process fails here, and the next one gets it back."""
    if not shared_node.alive:
        shared_node.start()
    yield shared_node
    assert shared_node.alive, f"the node ended during this test:\n{shared_node.log_tail()}"


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """A factory of nodes that belong to one test: `start_node(env={...}, config="[retention]…", admin=True)`."""
    started: list[Node] = []

    def start(*, admin: bool = False, env: dict[str, str] | None = None, config: str | None = None) -> Node:
        own = Node(
            tmp_path / f"data-{len(started)}",
            env={**({"ADMIN_TOKEN": ADMIN_TOKEN} if admin else {}), **(env or {})},
            config=config,
            token=ADMIN_TOKEN if admin else None,
        )
        started.append(own)
        own.start()
        return own

    yield start
    for own in started:
        own.end()


@pytest.fixture
async def connect(node_connections: AsyncExitStack) -> Callable[[Node], Awaitable[RelayClient]]:
    """A factory of client connections that are closed when the test ends."""

    async def open_client(to: Node, **options: object) -> RelayClient:
        return await node_connections.enter_async_context(RelayClient.open(to.url, **options))

    return open_client


@pytest.fixture
async def node_connections() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def client(node: Node, connect: Callable[[Node], Awaitable[RelayClient]]) -> RelayClient:
    """A connection to the shared node."""
    return await connect(node)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session."""
    bin = binaries()
    if bin is None:
        pytest.skip("no PostgreSQL here: install your system's postgresql package to run this on it")
    server = PostgresServer(bin)
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def author() -> Author:
    """Someone who has not written anything yet."""
    return Author.random()
