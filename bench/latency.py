"""Delivery latency: 50 events a second to 100 subscribers, p50 and p99 in milliseconds.

One sample a delivery, from the moment the event is handed to the kernel to the moment its bytes have been read.
Publisher and subscribers share one thread and one clock; reading 100 deliveries takes it under a millisecond, the
same for every relay. Every delivery must arrive.
"""

from __future__ import annotations

import select
import time

from bench.events import Batch, identity, sign
from bench.load import STALL_SECONDS, Listener, LoadError, Publisher, close_all, listen, publishing
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
        return _run(publisher, listeners, events)
    finally:
        close_all([publisher, *listeners])


def _run(publisher: Publisher, listeners: list[Listener], events: list[bytes]) -> list[float]:
    frames = [publishing(event) for event in events]
    sent_at: list[float] = []
    # Which bytes were read when; whose events they are is worked out afterwards.
    reads: list[tuple[Listener, float]] = []
    by_fileno = {listener.connection.fileno(): listener for listener in listeners}
    with select.epoll() as readable:
        for fileno in (*by_fileno, publisher.connection.fileno()):
            readable.register(fileno, select.EPOLLIN)
        started = time.perf_counter()
        moved = started
        missing = len(events) * len(listeners)
        while missing:
            now = time.perf_counter()
            due = started + len(sent_at) / EVENTS_PER_SECOND
            if len(sent_at) < len(frames) and now >= due:
                sent_at.append(time.perf_counter())
                publisher.connection.socket.send(frames[len(sent_at) - 1])
                continue
            for fileno, _ in readable.poll(max(0.0, due - now) if len(sent_at) < len(frames) else 1.0):
                listener = by_fileno.get(fileno)
                if listener is None:
                    publisher.receive()
                    continue
                missing -= listener.receive()
                moved = time.perf_counter()
                reads.append((listener, moved))
            if time.perf_counter() - moved > STALL_SECONDS:
                raise LoadError(f"{missing} deliveries never came")
    return _samples(reads, [identity(event) for event in events], sent_at)


def _samples(reads: list[tuple[Listener, float]], ids: list[str], sent_at: list[float]) -> list[float]:
    number_of = {event_id: number for number, event_id in enumerate(ids)}
    seen: dict[Listener, set[int]] = {}
    samples = []
    chunks = {listener: iter(listener.connection.kept or ()) for listener, _ in reads}
    for listener, at in reads:
        for event_id in _ids(next(chunks[listener])):
            number = number_of[event_id]
            if number in seen.setdefault(listener, set()):
                raise LoadError(f"event {event_id} was delivered twice")
            seen[listener].add(number)
            if number >= WARM_UP:
                samples.append((at - sent_at[number]) * 1e3)
    return samples


def _ids(chunk: bytes) -> list[str]:
    """The ids in what one read completed. Content and tags here hold no quotes, so the key is an event's own."""
    return [part[:64].decode() for part in chunk.split(b'"id":"')[1:]]
