"""Stored events: a REQ of 10,000 and a CHANGES tail of 10,000, in events a second.

The clock runs from the request to EOSE, over one connection. All relays are filled once and stay up; the rounds take
turns. A CHANGES tail exists only in ours, so it is held against the peers' REQ of as many events.
"""

from __future__ import annotations

import contextlib
import time

from bench.events import SNAPSHOT, Batch, sign
from bench.load import CHANGES, EVENT, Connection, LoadError, publish
from bench.peers import Relay, Running, Unavailable, say
from bench.report import Report, Round, Setting, interleave

TARGET_NOSTR_RELAY = 10


def run(setting: Setting) -> Report:
    report = Report("query", setting)
    count = setting.sized(10_000, 1_000)
    report.settings = {"events": count, "event_bytes": Batch(0).size}
    # One author, asked for by name: a relay that held something before is asked for the same events as the others.
    notes = Batch(count, authors=1)
    snapshots = Batch(count, SNAPSHOT, authors=1, documents=count // 4)
    with contextlib.ExitStack() as stack:
        running: dict[str, Running] = {}
        for relay in report.available():
            if relay.stored_max < count:
                report.skip(relay.name, f"a REQ of it returns at most {relay.stored_max} events")
                continue
            try:
                each = stack.enter_context(relay.start())
                _fill(each, sign(notes))
                if relay.name == "anabranch":
                    _fill(each, sign(snapshots))
            except (LoadError, Unavailable) as error:
                report.skip(relay.name, error)
                continue
            running[relay.name] = each

        def measure(relay: Relay, number: int) -> Round:
            url = running[relay.name].url
            filter_ = {"kinds": [notes.kind], "authors": [notes.author()], "limit": count}
            rate, generator_us = _ask(url, EVENT, ["REQ", f"r{number}", filter_], count)
            measured: Round = {"req_per_second": rate, "generator_us_per_event": generator_us}
            if relay.name == "anabranch":
                filter_ = {"mode": "tail", "since": 0, "kinds": [SNAPSHOT], "authors": [snapshots.author()]}
                rate, _ = _ask(url, CHANGES, ["CHANGES", f"c{number}", filter_], count)
                measured["changes_per_second"] = rate
            return measured

        interleave(report, [relay for relay in setting.relays if relay.name in running], measure)
    report.compare("req_per_second", "nostr-relay", at_least=TARGET_NOSTR_RELAY)
    report.compare("changes_per_second", "nostr-relay:req_per_second", at_least=TARGET_NOSTR_RELAY)
    report.compare_others("req_per_second")
    return report


def _fill(running: Running, events: list[bytes]) -> None:
    say(f"  filling {running.name} with {len(events):,} events")
    publish(running.url, events, 8, messages_max=running.messages_max)


def _ask(url: str, wanted: int, request: list[object], expected: int) -> tuple[float, float]:
    """Events a second until EOSE, and this client's own µs an event. Asked twice: the first time warms caches."""
    for _ in range(2):
        connection = Connection(url, wanted)
        try:
            cpu, started = time.process_time(), time.perf_counter()
            connection.send(request)
            count = connection.until("EOSE")
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        finally:
            connection.close()
        if count != expected:
            raise LoadError(f"{count:,} events came instead of {expected:,}")
    return count / seconds, cpu / count * 1e6
