"""Whatever happens to nodes and connections at random: in the end all are equal, and nothing acknowledged is lost."""

import pytest
from nodes import link
from turmoil import Turmoil, Writer

pytestmark = pytest.mark.timeout(400)


async def live_through(seed, start_node, author, between, direction, nudged=True):
    """Two nodes, and a link from one to the other."""
    peer, node = start_node(), start_node()
    proxy = between(peer)
    link(node, proxy.url, direction=direction)
    written = {"pull": [peer], "push": [node], "both": [peer, node]}[direction]
    await Turmoil(seed, [peer, node], [proxy], [node], nudged).end_equal(*(Writer(one, author) for one in written))


async def live_through_in_a_ring(seed, start_node, author, between, nudged=True):
    """Three nodes, each with a link to the next."""
    nodes = [start_node() for _ in range(3)]
    proxies = [between(node) for node in nodes]
    for node, next_one in zip(nodes, [*proxies[1:], proxies[0]], strict=True):
        link(node, next_one.url, direction="both")
    await Turmoil(seed, nodes, proxies, nodes, nudged).end_equal(*(Writer(node, author) for node in nodes))


def named(value):
    return f"seed {value}" if isinstance(value, int) else value


@pytest.mark.parametrize(("direction", "seed"), [("pull", 1), ("push", 2), ("both", 3)], ids=named)
async def test_two_nodes_end_equal_and_lose_nothing_acknowledged(start_node, author, between, direction, seed):
    await live_through(seed, start_node, author, between, direction)


@pytest.mark.parametrize("seed", [5, 20], ids=named)
async def test_three_nodes_in_a_ring_end_equal_and_lose_nothing_acknowledged(start_node, author, between, seed):
    await live_through_in_a_ring(seed, start_node, author, between)


async def test_two_nodes_end_equal_without_anybody_who_tells_them_to_try_again(start_node, author, between):
    await live_through(6, start_node, author, between, "both", nudged=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 45), ids=named)
async def test_two_nodes_end_equal_with_more_seeds_and_every_other_time_by_themselves(
    start_node, author, between, seed
):
    direction = ("pull", "push", "both")[seed % 3]
    await live_through(seed, start_node, author, between, direction, nudged=seed % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, *range(45, 50)], ids=named)
async def test_three_nodes_end_equal_with_more_seeds_and_every_other_time_by_themselves(
    start_node, author, between, seed
):
    """In the world of 4 it takes a minute until what a peer had no room for is given to it again."""
    await live_through_in_a_ring(seed, start_node, author, between, nudged=seed % 2 == 0)
