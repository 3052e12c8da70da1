"""Events published at an even pace, and when each of them reached each listener.

One sample a delivery, from the moment the event is handed to the kernel to the moment its bytes have been read.
Publisher and listeners share one thread and one clock.
"""

from __future__ import annotations

import select
import time

from bench.events import identity
from bench.load import STALL_SECONDS, Listener, LoadError, Publisher, publishing


def paced(
    publisher: Publisher, listeners: list[Listener], events: list[bytes], per_second: int, warm_up: int = 0
) -> list[float]:
    """Milliseconds of every delivery, but for those of the first events. Raises `LoadError` where one never comes."""
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
            due = started + len(sent_at) / per_second
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
    return _samples(reads, [identity(event) for event in events], sent_at, warm_up)


def _samples(reads: list[tuple[Listener, float]], ids: list[str], sent_at: list[float], warm_up: int) -> list[float]:
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
            if number >= warm_up:
                samples.append((at - sent_at[number]) * 1e3)
    return samples


def _ids(chunk: bytes) -> list[str]:
    """The ids in what one read completed. Content and tags here hold no quotes, so the key is an event's own."""
    return [part[:64].decode() for part in chunk.split(b'"id":"')[1:]]
