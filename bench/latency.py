"""Delivery latency: 50 events a second to 100 subscribers, p50 and p99 in milliseconds.

Publisher and subscribers share one thread; reading 100 deliveries takes it under a millisecond, the same for every
relay. Every delivery must arrive.
"""

from __future__ import annotations

from bench.events import Batch, sign
from bench.load import Publisher, close_all, listen
from bench.pacing import paced
from bench.peers import Relay, Running
from bench.report import Report, Round, Setting, interleave, percentile

SUBSCRIBERS = 100
EVENTS_PER_SECOND = 50
WARM_UP = 25


def run(setting: Setting) -> Report:
    report = Report("latency", setting)
    seconds = setting.sized(6, 2)
    report.settings = {
        "subscribers": SUBSCRIBERS,
        "events_per_second": EVENTS_PER_SECOND,
        "seconds": seconds,
        "event_bytes": Batch(0).size,
    }

    def measure(relay: Relay, number: int) -> Round:
        batch = Batch(WARM_UP + seconds * EVENTS_PER_SECOND, authors=1)
        with relay.start() as running:
            samples = _paced(running, batch)
        return {"p50_ms": percentile(samples, 0.5), "p99_ms": percentile(samples, 0.99), "max_ms": max(samples)}

    interleave(report, report.available(), measure)
    for figure in ("p50_ms", "p99_ms"):
        report.compare(figure, "rust", at_most=1.0)
        report.compare_others(figure)
    return report


def _paced(running: Running, batch: Batch) -> list[float]:
    """Milliseconds of every delivery after the warm-up."""
    events = sign(batch)
    filter_ = {"kinds": [batch.kind], "authors": [batch.author()]}
    listeners = listen(running.url, filter_, SUBSCRIBERS, keep=SUBSCRIBERS)
    publisher = Publisher(running.url, [])
    try:
        return paced(publisher, listeners, events, EVENTS_PER_SECOND, WARM_UP)
    finally:
        close_all([publisher, *listeners])
