"""The contract suite runs on every store: each test is given each of them in turn."""

from collections.abc import Iterator

import pytest
from stores import BACKENDS, Opened, PostgresBackend, SqliteBackend, Stores


@pytest.fixture(params=BACKENDS)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """A factory of empty stores, for tests that need many."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        yield Stores(SqliteBackend(folder))
        return
    backend = PostgresBackend(folder, request.getfixturevalue("postgres"))
    yield Stores(backend)
    backend.close()


@pytest.fixture
def opened(stores: Stores) -> Iterator[Opened]:
    """One empty store."""
    with stores.open() as one:
        yield one
