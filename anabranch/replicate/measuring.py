"""What the links of a node count, for Prometheus, under the names that the seed gives them.

Gauges are read from the links when they are asked for: a link that is idle costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from anabranch.core.token import ProgressToken
from anabranch.replicate.explaining import lag_positions, lag_seconds
from anabranch.replicate.states import LinkState
from anabranch.wire.address import discreet

if TYPE_CHECKING:
    from anabranch.replicate.links import Links

_LABELS = ["tenant", "remote", "scope", "direction"]
_STATES = {state: number for number, state in enumerate(LinkState)}
GAUGES = {
    "sync_link_state": "0 initial, 1 live, 2 degraded_poll, 3 repairing, 4 paused",
    "sync_checkpoint_pull_received": "Position of the last operation received",
    "sync_checkpoint_pull_contiguous": "Position up to which all is applied",
    "sync_checkpoint_push_received": "Position up to which our log was read for the peer",
    "sync_checkpoint_push_contiguous": "Position up to which the peer has answered for all",
    "sync_inflight_events": "Operations under way in either direction",
    "sync_lag_positions": "Positions that the slower direction is behind",
    "sync_lag_seconds": "Seconds since the two were last known to be equal; 0 while caught up",
}


class Measures(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._links: Links | None = None
        self.repairs = Counter("sync_gap_repairs", "Repairs begun, by what led to them", ["reason"], registry=registry)
        self.closure_missing = Counter(
            "sync_closure_missing", "Tries of operations that need one that is not there", ["class"], registry=registry
        )
        self.apply_latency = Histogram(
            "sync_apply_latency_ms",
            "Milliseconds from a page received to a page on disk",
            buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000),
            registry=registry,
        )
        registry.register(self)

    def watch(self, links: Links) -> None:
        self._links = links

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {name: GaugeMetricFamily(name, text, labels=_LABELS) for name, text in GAUGES.items()}
        for following in list(self._links.links.values()) if self._links is not None else ():
            assert self._links is not None
            link, own = following.link, self._links.host.log
            labels = [own.stream, discreet(link.spec.peer), link.spec.scope.id, str(link.spec.direction)]
            lags = [lag for lag in lag_positions(link, own).values() if lag is not None]
            values = {
                "sync_link_state": _STATES[link.state],
                "sync_inflight_events": link.in_flight,
                "sync_lag_positions": max(lags, default=None),
                "sync_lag_seconds": lag_seconds(following, self._links.clock(), self._links.wall()),
            }
            if link.spec.pulls:
                values["sync_checkpoint_pull_received"] = _position(link.pull.received)
                values["sync_checkpoint_pull_contiguous"] = _position(link.pull.contiguous)
            if link.spec.pushes:
                values["sync_checkpoint_push_received"] = _position(link.pusher.read if link.pusher else None)
                values["sync_checkpoint_push_contiguous"] = _position(link.push.contiguous)
            for name, value in values.items():
                if value is not None:
                    families[name].add_metric(labels, value)
        return families.values()


def _position(token: ProgressToken | None) -> int | None:
    return None if token is None else token.position
