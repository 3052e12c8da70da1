"""Kept sets: opening a reconciliation over a filter that was asked for before reads nothing.

A node over a long log. NEG-OPEN to the first NEG-MSG, over the same events: by a filter that has not been asked for
(the set is read and built), by one that has (the set is kept), and again each time after something was published (the
set follows the log). The other side asks by a fingerprint that is not ours, and gets those of sixteen parts.
"""

from __future__ import annotations

import json
import time

from bench.corpus import Corpus
from bench.events import SNAPSHOT, Batch, sign
from bench.load import OK, STALL_SECONDS, Connection, LoadError
from bench.peers import Anabranch, Running, Unavailable, say
from bench.report import Report, Round, Setting

SNAPSHOTS_PER_DOCUMENT = 10
OPENS = 5
REBUILD_SHARE_MAX = 0.05
ANOTHER = "61000001" + "00" * 16  # negentropy, version 1: one range up to infinity, and a fingerprint


def run(setting: Setting) -> Report:
    report = Report("kept", setting)
    operations = setting.operations or setting.sized(1_000_000, 20_000)
    corpus = Corpus(max(1, operations // SNAPSHOTS_PER_DOCUMENT), SNAPSHOTS_PER_DOCUMENT)
    report.settings = {"items": corpus.operations, "opens": OPENS}
    relays = report.available({"anabranch"})
    if relays and isinstance(relays[0], Anabranch):
        try:
            with corpus.served(relays[0]) as running:
                for number in range(setting.rounds):
                    say(f"kept: round {number + 1} of {setting.rounds}")
                    report.add("anabranch", _round(running, corpus, number))
        except (LoadError, Unavailable) as error:
            report.skip("anabranch", error)
            report.rounds.clear()
    median = report.medians("anabranch")
    rebuilt = median.get("rebuilt_seconds")
    for figure in ("kept_seconds", "followed_seconds"):
        value = median.get(figure)
        ratio = value / rebuilt if value is not None and rebuilt else None
        report.promise(f"{figure} over rebuilt_seconds", ratio, at_most=REBUILD_SHARE_MAX)
    return report


def _round(running: Running, corpus: Corpus, number: int) -> Round:
    filter_ = {"kinds": [SNAPSHOT], "authors": [corpus.batch.author()]}
    far = 4_000_000_000 + number
    connection = Connection(running.url, OK)
    try:
        rebuilt = _open(connection, filter_ | {"until": far})  # the same events by another filter: read anew
        _open(connection, filter_)
        kept = min(_open(connection, filter_) for _ in range(OPENS))
        followed = []
        for at in range(OPENS):
            created_at = int(time.time()) - number * OPENS - at
            batch = Batch(1, SNAPSHOT, authors=1, documents=1, run=corpus.batch.run, now=created_at)
            connection.send(["EVENT", json.loads(sign(batch)[0])])
            while not connection.receive():
                pass
            followed.append(_open(connection, filter_))
    finally:
        connection.close()
    return {"rebuilt_seconds": rebuilt, "kept_seconds": kept, "followed_seconds": sorted(followed)[OPENS // 2]}


def _open(connection: Connection, filter_: dict[str, object]) -> float:
    started = time.perf_counter()
    connection.send(["NEG-OPEN", "kept", filter_, ANOTHER])
    connection.others.clear()
    connection.socket.settimeout(STALL_SECONDS)
    while not connection.others:
        connection.receive()
    seconds = time.perf_counter() - started
    answer = connection.others[0]
    if b'"NEG-MSG"' not in answer[:40]:
        raise LoadError(f"no reconciliation: {answer[:200]!r}")
    connection.send(["NEG-CLOSE", "kept"])
    return seconds
