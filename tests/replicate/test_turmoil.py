"""Whatever happens to nodes and connections at random: in the end all are equal, and nothing acknowledged is lost."""

import pytest
from nodes import link
from turmoil import Turmoil, Writer


@pytest.mark.parametrize(
    ("direction", "seed"), [("pull", 1), ("push", 2), ("both", 3)], ids=["pull, seed 1", "push, seed 2", "both, seed 3"]
)
async def test_two_nodes_end_equal_and_lose_nothing_acknowledged(start_node, author, between, direction, seed):
    peer, node = start_node(), start_node()
    proxy = between(peer)
    link(node, proxy.url, direction=direction)
    written = {"pull": [peer], "push": [node], "both": [peer, node]}[direction]
    await Turmoil(seed, [peer, node], [proxy], [node]).end_equal(*(Writer(one, author) for one in written))


@pytest.mark.parametrize("seed", [4, 5], ids=lambda seed: f"seed {seed}")
async def test_three_nodes_in_a_ring_end_equal_and_lose_nothing_acknowledged(start_node, author, between, seed):
    nodes = [start_node() for _ in range(3)]
    proxies = [between(node) for node in nodes]
    for node, next_one in zip(nodes, [*proxies[1:], proxies[0]], strict=True):
        link(node, next_one.url, direction="both")
    await Turmoil(seed, nodes, proxies, nodes).end_equal(*(Writer(node, author) for node in nodes))
