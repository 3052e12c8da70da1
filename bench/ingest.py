"""Ingest: accepted events a second, over 8 and over 64 connections.

Every connection keeps 100 events in flight. The clock runs from the first byte sent to the last OK; then every OK is
read: each event once, each true. All relays get the same freshly signed events, on an empty store, after a short
warm-up. A slow relay gets the first part of them, so that the run ends.
"""

from __future__ import annotations

from bench.events import Batch, sign
from bench.load import publish
from bench.peers import Relay
from bench.report import Report, Round, Setting, interleave

CONNECTIONS = (8, 64)
TARGETS = {8: 1.3, 64: 1.5}
TARGET_NOSTR_RELAY = 25


def run(setting: Setting) -> Report:
    report = Report("ingest", setting)
    events = setting.sized(24_000, 4_000)
    events_slow = setting.sized(1_500, 600)
    report.settings = {
        "kind": setting.kind,
        "events": events,
        "events_slow": events_slow,
        "event_bytes": Batch(0).size,
        "window": 100,
    }
    signed: dict[tuple[int, int], list[bytes]] = {}

    def load_of(number: int, connections: int) -> list[bytes]:
        if (number, connections) not in signed:
            signed[number, connections] = sign(Batch(events, setting.kind))
        return signed[number, connections]

    def measure(relay: Relay, number: int) -> Round:
        measured: Round = {}
        for connections in CONNECTIONS:
            load = load_of(number, connections)[: events_slow if relay.slow else events]
            with relay.start() as running:
                publish(running.url, sign(Batch(200, setting.kind)), 8)
                cpu = running.cpu_seconds()
                spent = publish(running.url, load, connections, messages_max=running.messages_max)
                cpu_after = running.cpu_seconds()
            measured[f"events_per_second_{connections}"] = len(load) / spent.seconds
            measured[f"server_cpu_us_per_event_{connections}"] = (
                None if cpu is None or cpu_after is None else (cpu_after - cpu) / len(load) * 1e6
            )
            measured[f"generator_us_per_event_{connections}"] = spent.generator_cpu_seconds / len(load) * 1e6
        return measured

    interleave(report, report.available(), measure)
    for connections in CONNECTIONS:
        figure = f"events_per_second_{connections}"
        report.compare(figure, "rust", at_least=TARGETS[connections])
        report.compare(figure, "nostr-relay", at_least=TARGET_NOSTR_RELAY)
        report.compare_others(figure)
    return report
