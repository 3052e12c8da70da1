"""What a node counts, for Prometheus. Counters are added to by the batch, not by the event."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from anabranch import __version__


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = self._counter
        self.stored = counter("operations_stored", "Operations stored")
        self.refused = counter("operations_refused", "Operations refused for their signature")
        self.failed = counter("operations_failed", "Operations that could not be stored for the store's fault")
        self.messages = counter("messages_received", "Websocket messages received")
        self.deliveries = counter("live_deliveries", "Operations delivered live")
        self.replayed = counter("operations_replayed", "Stored operations sent")
        self.dropped = counter("slow_consumers_dropped", "Connections dropped because they fell behind")
        self.compacted = counter("snapshots_compacted", "Snapshots and revisions whose payload was compacted")
        self.compacted_bytes = counter("compacted_bytes", "Bytes of compacted payloads")
        self.reconciliations = counter("reconciliations_opened", "Reconciliations opened")
        self.connections_total = counter("connections_opened", "Connections opened")
        self.query_seconds = Histogram(
            "anabranch_query_seconds", "Time until the first answer of a query", registry=self.registry
        )
        Gauge("anabranch_build_info", "The release", ["version"], registry=self.registry).labels(__version__).set(1)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"anabranch_{name}", text, registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is asked for when it is read."""
        Gauge(f"anabranch_{name}", text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self.registry)
