"""Real JavaScript clients run on a Node.js with the npm packages as locked beside these tests (`node_peers`)."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import node_peers
import pytest

from bench import peers

Script = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def node_js() -> list[str]:
    """The command that runs Node.js, once the packages are there."""
    try:
        return node_peers.installed()
    except node_peers.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def javascript(node_js: list[str]) -> Script:
    """Runs a script of this folder, `javascript("x.mjs", "argument", …, told={…})`; its last line is its JSON result.

    What is `told` goes to its standard input as JSON.
    """

    def run(script: str, *arguments: str, told: Any = None) -> dict[str, Any]:
        command = [*node_js, str(node_peers.script(script)), *arguments]
        done = subprocess.run(command, input=json.dumps(told), capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.strip().rpartition("\n")[2])

    return run


@pytest.fixture
def plain_relay() -> Iterator[str]:
    """Where a relay without negentropy listens."""
    relay = peers.NostrRelay()
    try:
        relay.version()
        with relay.start() as running:
            yield running.url
    except peers.Unavailable as reason:
        pytest.skip(str(reason))
