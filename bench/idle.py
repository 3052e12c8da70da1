"""Idle connections: resident memory of the relay for each of 1,000 connections that hold a live subscription.

The memory of all the relay's processes before and after they are opened; a few connections come and go first, so that
what a relay allocates once is not counted. Memory of the kernel's sockets is not in it.
"""

from __future__ import annotations

import time

from bench.events import Batch, sign
from bench.load import close_all, listen, publish
from bench.peers import Relay, Unavailable, raise_file_limit
from bench.report import Report, Round, Setting, interleave

TARGET_KIB = 20
SETTLE_SECONDS = 1.5


def run(setting: Setting) -> Report:
    report = Report("idle", setting)
    connections = min(setting.sized(1_000, 200), raise_file_limit() - 200)
    report.settings = {"connections": connections}

    def measure(relay: Relay, number: int) -> Round:
        with relay.start() as running:
            if running.pid is None:
                raise Unavailable("its memory cannot be read: it was started by somebody else")
            filter_ = {"kinds": [1], "limit": 1}
            publish(running.url, sign(Batch(200)), 8)
            close_all(listen(running.url, filter_, 20))
            time.sleep(SETTLE_SECONDS)
            before = running.rss_kib()
            listeners = listen(running.url, filter_, connections)
            time.sleep(SETTLE_SECONDS)
            after = running.rss_kib()
            close_all(listeners)
        return {"kib_per_connection": (after - before) / connections, "rss_before_kib": before, "rss_after_kib": after}

    interleave(report, report.available(), measure)
    ours = report.median("anabranch", "kib_per_connection")
    report.promise("kib_per_connection over 20 KiB", None if ours is None else ours / TARGET_KIB, at_most=1.0)
    for peer in ("rust", "nostr-relay"):
        report.compare("kib_per_connection", peer)
    return report
