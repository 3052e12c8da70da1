"""The contract suite runs on every store: each test is given each of them in turn."""

from collections.abc import Iterator

import pytest
from stores import BACKENDS, Opened, Stores


@pytest.fixture(params=sorted(BACKENDS))
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """A factory of empty stores, for tests that need many."""
    return Stores(BACKENDS[request.param](tmp_path_factory.mktemp(request.param)))


@pytest.fixture
def opened(stores: Stores) -> Iterator[Opened]:
    """One empty store."""
    with stores.open() as one:
        yield one
