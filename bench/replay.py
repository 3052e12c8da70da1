"""Replay: the relay's memory stays flat while a long log is read from its beginning.

A CHANGES tail from 0 over the whole log, to a reader that stops for a while at a fifth of it: what it does not read
must wait in the store, not in the relay. Memory is read ten times a second. Two growths are judged: from before the
request to the peak, which holds what one replay needs; and from a tenth of the log to the peak after it, which must
not grow with the log. `--operations 1000000` is the promised size.
"""

from __future__ import annotations

import time

from bench.corpus import Corpus
from bench.events import SNAPSHOT
from bench.load import CHANGES, STALL_SECONDS, Connection, LoadError
from bench.peers import Anabranch, Running, Unavailable, say
from bench.report import Report, Round, Setting

SNAPSHOTS_PER_DOCUMENT = 10
PAUSE_SECONDS = 2.0
SAMPLE_SECONDS = 0.1
GROWTH_KIB_MAX = 32 * 1024
GROWTH_AFTER_TENTH_KIB_MAX = 8 * 1024


def run(setting: Setting) -> Report:
    report = Report("replay", setting)
    operations = setting.operations or setting.sized(200_000, 20_000)
    corpus = Corpus(max(1, operations // SNAPSHOTS_PER_DOCUMENT), SNAPSHOTS_PER_DOCUMENT)
    report.settings = {"operations": corpus.operations, "documents": corpus.documents, "pause_seconds": PAUSE_SECONDS}
    relays = report.available({"anabranch"})
    if relays and isinstance(relays[0], Anabranch):
        try:
            with corpus.served(relays[0]) as running:
                for number in range(setting.rounds):
                    say(f"replay: round {number + 1} of {setting.rounds}")
                    report.add("anabranch", _replay(running, corpus))
        except (LoadError, Unavailable) as error:
            report.skip("anabranch", error)
            report.rounds.clear()
    median = report.medians("anabranch")
    for figure, limit in (("growth_kib", GROWTH_KIB_MAX), ("growth_after_tenth_kib", GROWTH_AFTER_TENTH_KIB_MAX)):
        growth = median.get(figure)
        report.promise(f"{figure} over {limit} KiB", None if growth is None else growth / limit, at_most=1.0)
    return report


def _replay(running: Running, corpus: Corpus) -> Round:
    before = running.rss_kib() or 0
    connection = Connection(running.url, CHANGES)
    filter_ = {"mode": "tail", "since": 0, "kinds": [SNAPSHOT], "authors": [corpus.batch.author()]}
    count, at_tenth, peak, peak_after_tenth = 0, 0, before, 0
    paused = False
    try:
        started = sampled = time.perf_counter()
        connection.send(["CHANGES", "replay", filter_])
        connection.socket.settimeout(STALL_SECONDS)
        while not any(b'"EOSE"' in other or b'"ERR"' in other for other in connection.others):
            count += connection.receive()
            if not paused and count >= corpus.operations // 5:
                paused = True
                time.sleep(PAUSE_SECONDS)
                started += PAUSE_SECONDS
            now = time.perf_counter()
            if now - sampled >= SAMPLE_SECONDS or (not at_tenth and count >= corpus.operations // 10):
                sampled = now
                rss = running.rss_kib() or 0
                peak = max(peak, rss)
                if at_tenth:
                    peak_after_tenth = max(peak_after_tenth, rss)
                elif count >= corpus.operations // 10:
                    at_tenth = peak_after_tenth = rss
        seconds = time.perf_counter() - started
        peak = max(peak, running.rss_kib() or 0)
    finally:
        connection.close()
    if count != corpus.operations:
        said = connection.others[-1][:200].decode(errors="replace")
        raise LoadError(f"{count:,} operations came instead of {corpus.operations:,}; the relay said {said}")
    return {
        "operations_per_second": count / seconds,
        "rss_before_kib": before,
        "rss_at_tenth_kib": at_tenth,
        "rss_peak_kib": peak,
        "growth_kib": peak - before,
        "growth_after_tenth_kib": peak_after_tenth - at_tenth,
    }
