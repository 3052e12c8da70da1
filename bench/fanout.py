"""Live fan-out: deliveries a second, 100 subscribers and 1,000 events.

Every subscriber has its own connection and one live subscription; one publisher keeps 100 events in flight. The clock
runs from the first byte published to the last delivery read. Every subscriber must get exactly as many events as were
published; one of them, chosen in advance, is read in full, and must hold every id once.
"""

from __future__ import annotations

import json

from bench.events import Batch, identity, sign
from bench.load import Listener, LoadError, Publisher, close_all, drive, listen
from bench.peers import Relay
from bench.report import Report, Round, Setting, interleave

SUBSCRIBERS = 100
TARGET_RUST = 2.5


def run(setting: Setting) -> Report:
    report = Report("fanout", setting)
    events = setting.sized(1_000, 200)
    report.settings = {"subscribers": SUBSCRIBERS, "events": events, "event_bytes": Batch(0).size, "window": 100}

    def measure(relay: Relay, number: int) -> Round:
        batch = Batch(events, authors=1)
        published = sign(batch)
        deliveries = SUBSCRIBERS * events
        with relay.start() as running:
            filter_ = {"kinds": [batch.kind], "authors": [batch.author()]}
            listeners = listen(running.url, filter_, SUBSCRIBERS, events, keep=1)
            try:
                publisher = Publisher(running.url, published)
                cpu = running.cpu_seconds()
                spent = drive([publisher], listeners)
                cpu_after = running.cpu_seconds()
                publisher.verify()
                _verify(listeners, published)
                publisher.close()
            finally:
                close_all(listeners)
        return {
            "deliveries_per_second": deliveries / spent.seconds,
            "server_cpu_us_per_delivery": (
                None if cpu is None or cpu_after is None else (cpu_after - cpu) / deliveries * 1e6
            ),
            "generator_us_per_delivery": spent.generator_cpu_seconds / deliveries * 1e6,
        }

    interleave(report, report.available(), measure)
    report.compare("deliveries_per_second", "rust", at_least=TARGET_RUST)
    report.compare_others("deliveries_per_second")
    return report


def _verify(listeners: list[Listener], published: list[bytes]) -> None:
    for listener in listeners:
        listener.receive()
        if listener.delivered != len(published):
            raise LoadError(f"a subscriber got {listener.delivered} of {len(published)} events")
    got = [json.loads(message)[2]["id"] for message in listeners[0].connection.messages()]
    if sorted(got) != sorted(identity(event) for event in published):
        raise LoadError("a subscriber got as many events as were published, but not those")
