"""A real client from npm, nostr-tools, publishes, queries, subscribes and authenticates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from processes import Node

Story = Callable[..., dict[str, Any]]


@pytest.fixture
def nostr_tools(javascript: Story) -> Story:
    """Runs one story of nostr_tools.mjs against a relay: `nostr_tools("pool", url)`."""
    return partial(javascript, "nostr_tools.mjs")


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
