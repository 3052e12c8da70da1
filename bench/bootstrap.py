"""Bootstrap: 10,000 documents with 40,000 snapshots stored, and how bootstrap and tail grow to 100,000 documents.

A stream's first frame (STATUS), its first snapshot and its EOSE are timed from the request. It must hold exactly one
snapshot a document: the newest clock dominates. For growth, stores of N and of 10 N documents, one snapshot each, are
read by bootstrap and by tail; the time a document takes at 10 N is divided by that at N. Ours only: no peer has this
feed.
"""

from __future__ import annotations

import contextlib
import time

from bench.corpus import Corpus
from bench.events import SNAPSHOT
from bench.load import CHANGES, STALL_SECONDS, Connection, LoadError
from bench.peers import Anabranch, Running, Unavailable, say
from bench.report import Report, Round, Setting

TARGET_FIRST_FRAME = 0.10
# "Linear" leaves room for caches that no longer fit: a quadratic part would show as a factor towards ten.
TARGET_GROWTH = 1.3


def run(setting: Setting) -> Report:
    report = Report("bootstrap", setting)
    few, many = setting.sized(10_000, 1_000), setting.sized(100_000, 10_000)
    report.settings = {"documents": few, "snapshots": 4 * few, "documents_many": many}
    relays = report.available({"anabranch"})
    if relays and isinstance(relays[0], Anabranch):
        try:
            _measure(report, relays[0], Corpus(few, 4), Corpus(few, 1), Corpus(many, 1))
        except (LoadError, Unavailable) as error:
            report.skip("anabranch", error)
            report.rounds.clear()
    median = report.medians("anabranch")
    for figure in ("first_frame_share", "first_snapshot_share"):
        report.promise(figure, median.get(figure), at_most=TARGET_FIRST_FRAME)
    for mode in ("bootstrap", "tail"):
        small, large = median.get(f"{mode}_us_per_document_few"), median.get(f"{mode}_us_per_document_many")
        ratio = large / small if small and large else None
        report.promise(f"{mode}_us_per_document_many over _few", ratio, at_most=TARGET_GROWTH)
    return report


def _measure(report: Report, relay: Anabranch, history: Corpus, few: Corpus, many: Corpus) -> None:
    with contextlib.ExitStack() as stack:
        served = {corpus: stack.enter_context(corpus.served(relay)) for corpus in (history, few, many)}
        for number in range(report.setting.rounds):
            say(f"bootstrap: round {number + 1} of {report.setting.rounds}")
            status, first, whole = _stream(served[history], history, "bootstrap")
            measured: Round = {
                "first_frame_ms": status * 1e3,
                "first_snapshot_ms": first * 1e3,
                "bootstrap_ms": whole * 1e3,
                "first_frame_share": status / whole,
                "first_snapshot_share": first / whole,
                "documents_per_second": history.documents / whole,
            }
            for mode in ("bootstrap", "tail"):
                for label, corpus in (("few", few), ("many", many)):
                    _, _, seconds = _stream(served[corpus], corpus, mode)
                    measured[f"{mode}_us_per_document_{label}"] = seconds / corpus.documents * 1e6
            report.add("anabranch", measured)


def _stream(running: Running, corpus: Corpus, mode: str) -> tuple[float, float, float]:
    """Seconds to the first frame, to the first event and to EOSE."""
    connection = Connection(running.url, CHANGES)
    filter_ = {"mode": mode, "kinds": [SNAPSHOT], "authors": [corpus.batch.author()]}
    if mode == "tail":
        filter_["since"] = 0
    count = 0
    first_frame = first_event = None
    try:
        started = time.perf_counter()
        connection.send(["CHANGES", "b", filter_])
        connection.socket.settimeout(STALL_SECONDS)
        while True:
            count += connection.receive()
            seconds = time.perf_counter() - started
            if first_frame is None and (count or connection.others):
                first_frame = seconds
            if first_event is None and count:
                first_event = seconds
            last = connection.others[-1] if connection.others else b""
            if b'"ERR"' in last or b'"NOTICE"' in last:
                raise LoadError(f"refused: {last.decode(errors='replace')}")
            if b'"EOSE"' in last:
                break
    finally:
        connection.close()
    if count != corpus.documents or first_frame is None or first_event is None:
        raise LoadError(f"{mode}: {count:,} events came instead of {corpus.documents:,}")
    return first_frame, first_event, seconds
