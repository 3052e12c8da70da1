"""What the tests of links lean on: a proxy before a node."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from processes import Node
from proxy import Proxy


@pytest.fixture
def between() -> Iterator[Callable[[Node], Proxy]]:
    """A factory of proxies before nodes."""
    with ExitStack() as running:
        yield lambda node: running.enter_context(Proxy(node.port).running())
