"""What links measure, under the names of the seed, is how they stand. (What they count: `test_links`.)"""

import re

import pytest
from nodes import caught_up, link, until

from anabranch.replicate.measuring import GAUGES


def measured(node):
    """What is measured of its one link, by name."""
    served = node.http("GET", "/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(sync_\w+)(?:\{.*\})? (\S+)$", served, re.M)}


def test_what_a_link_measures_carries_the_names_of_the_seed(start_node):
    source, follower = start_node(), start_node()
    link(follower, source.url, direction="both")
    caught_up(follower)
    metrics = follower.http("GET", "/metrics").text
    for name in GAUGES:
        assert f'{name}{{direction="both",remote="{source.url}",scope="' in metrics
    assert "sync_apply_latency_ms_count" in metrics
    assert "# TYPE sync_gap_repairs_total counter" in metrics
    assert "# TYPE sync_closure_missing_total counter" in metrics


@pytest.mark.parametrize("direction", ["pull", "push"])
async def test_what_is_measured_of_a_link_is_how_it_stands(start_node, connect, author, between, direction):
    peer, node = start_node(), start_node()
    giver = await connect(peer if direction == "pull" else node)
    proxy = between(peer)
    link(node, proxy.url, direction=direction)
    caught_up(node)
    await giver.store(*(author.event(content=f"live {number}") for number in range(20)))
    position = f"sync_checkpoint_{direction}_contiguous"
    until(lambda: measured(node)[position] == 20, lambda: measured(node))
    caught_up(node)
    found = measured(node)
    assert found["sync_link_state"] == 1
    assert found[f"sync_checkpoint_{direction}_received"] == 20
    assert [found[f"sync_{name}"] for name in ("lag_positions", "lag_seconds", "inflight_events")] == [0, 0, 0]
    assert (found["sync_apply_latency_ms_count"] >= 1) == (direction == "pull")
    other = {"pull": "push", "push": "pull"}[direction]
    assert not [name for name in found if name.startswith(f"sync_checkpoint_{other}")]
    node.admin("POST", "links/up/pause")
    assert measured(node)["sync_link_state"] == 4


async def test_what_the_peer_has_not_answered_for_is_under_way_and_behind(start_node, connect, author, between):
    peer, node = start_node(), start_node()
    proxy = between(peer)
    link(node, proxy.url, direction="push")
    caught_up(node)
    proxy.stall()
    await (await connect(node)).store(*(author.event(content=str(number)) for number in range(7)))

    def behind():
        found = measured(node)
        return found if found["sync_lag_positions"] == 7 and found["sync_inflight_events"] else None

    found = until(behind, lambda: measured(node))
    assert found["sync_inflight_events"] == found["sync_checkpoint_push_received"] <= 7  # as a page was read
    assert found["sync_checkpoint_push_contiguous"] == 0 < found["sync_lag_seconds"]
    proxy.stall(False)
    until(lambda: measured(node)["sync_checkpoint_push_contiguous"] == 7, lambda: measured(node))
    assert measured(node)["sync_inflight_events"] == measured(node)["sync_lag_positions"] == 0
