"""Links between two local nodes: the first pull, live lag, a repair, and what a thousand idle links weigh.

- pull: 100,000 operations from one node to an empty one, every signature checked, every page on disk, the digests
  compared at the end; against what the same machine takes over 8 connections.
- lag: 500 operations a second into one node; one sample an operation, from the kernel of its publisher to a subscriber
  of the other node.
- repair: two nodes with the same operations but for 1,000; all bytes on the wire are counted, less those of the
  reconciliation itself, and set against those of the 1,000.
- idle: a node with 1,000 links, each of another scope; the memory they take, each with its connection.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from anabranch.config import LimitSettings
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.nostr import Event
from anabranch.wire.dialogue import BOUNDS
from bench.corpus import Corpus
from bench.events import Batch, sign
from bench.load import LoadError, Publisher, close_all, listen, publish
from bench.pacing import paced
from bench.peers import Anabranch, Running, say, store
from bench.report import Report, Round, Setting, interleave, percentile
from bench.wiretap import Wiretap

EVENTS_PER_SECOND = 500
DIFFERENT = 1_000
LINKS = 1_000
PULL_SHARE_MIN = 0.6
LAG_MS_MAX = 250
REPAIR_SHARE_MAX = 1.2
LINK_KIB_MAX = 100
CATCH_UP_SECONDS = 900
LIMITS = LimitSettings()
_event = msgspec.json.Decoder(Event).decode


def run(setting: Setting) -> Report:
    report = Report("links", setting)
    pulled = setting.operations or setting.sized(100_000, 5_000)
    repaired = setting.operations or setting.sized(1_000_000, 5_000)
    different, links = setting.sized(DIFFERENT, 100), setting.sized(LINKS, 50)
    report.settings = {"pulled": pulled, "repaired": repaired, "different": different, "links": links}
    relays = [relay for relay in report.available({"anabranch"}) if isinstance(relay, Anabranch)]

    def measure(relay: Anabranch, number: int) -> Round:
        measured: Round = {**_pull(relay, pulled), **_lag(relay, setting.sized(10, 2))}
        if number == 0:  # these take minutes, or do not vary
            measured |= {**_repair(relay, repaired, different), **_idle(relay, links)}
        return measured

    interleave(report, relays, measure)
    median = report.medians("anabranch")
    report.promise("pull_share_of_ingest", median.get("pull_share_of_ingest"), at_least=PULL_SHARE_MIN)
    report.promise("lag_p99_ms", median.get("lag_p99_ms"), at_most=LAG_MS_MAX)
    report.promise("repair_bytes_share", median.get("repair_bytes_share"), at_most=REPAIR_SHARE_MAX)
    report.promise("idle_kib_a_link", median.get("idle_kib_a_link"), at_most=LINK_KIB_MAX)
    return report


# --- the admin API ---


def _ask(node: Running, method: str, path: str, body: object = None) -> dict[str, object]:
    parts = urlsplit(node.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request(method, f"/admin/links{path}", None if body is None else json.dumps(body))
        answer = connection.getresponse()
        said = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status >= 400:
        raise LoadError(f"the node answered {answer.status}: {said}")
    return said


def _caught_up(node: Running, name: str = "up") -> float:
    """Seconds until the link has caught up."""
    started = time.perf_counter()
    while time.perf_counter() - started < CATCH_UP_SECONDS:
        if _ask(node, "GET", f"/{name}")["caught_up"]:
            return time.perf_counter() - started
        time.sleep(0.01)
    raise LoadError(f"not caught up: {_ask(node, 'GET', f'/{name}/explain')['explanation']}")


@contextmanager
def _two(relay: Anabranch, first: Path | None = None, second: Path | None = None) -> Iterator[tuple[Running, Running]]:
    with relay.start(first) as source, relay.start(second) as follower:
        yield source, follower


# --- what is measured ---


def _pull(relay: Anabranch, operations: int) -> Round:
    load = sign(Batch(min(operations, 24_000)))
    with relay.start() as running:
        publish(running.url, sign(Batch(200)), 8)
        ingest = len(load) / publish(running.url, load, 8).seconds
    with store() as folder:
        file = folder / "events.jsonl"
        file.write_bytes(b"\n".join(sign(Batch(operations))) + b"\n")
        if not relay.load_offline(file, folder / "data"):
            raise LoadError("the source could not be filled")
        with _two(relay, folder / "data") as (source, follower):
            _ask(follower, "POST", "", {"name": "up", "peer": source.url})
            seconds = _caught_up(follower)
    rate = operations / seconds
    return {"ingest_per_second": ingest, "pull_per_second": rate, "pull_share_of_ingest": rate / ingest}


def _lag(relay: Anabranch, seconds: int) -> Round:
    batch = Batch(seconds * EVENTS_PER_SECOND, authors=1)
    events = sign(batch)
    with _two(relay) as (source, follower):
        _ask(follower, "POST", "", {"name": "up", "peer": source.url})
        _caught_up(follower)
        (listener,) = listen(follower.url, {"kinds": [batch.kind], "authors": [batch.author()]}, 1, keep=1)
        publisher = Publisher(source.url, [])
        try:
            samples = paced(publisher, [listener], events, EVENTS_PER_SECOND)
        finally:
            close_all([publisher, listener])
    return {"lag_p50_ms": percentile(samples, 0.5), "lag_p99_ms": percentile(samples, 0.99)}


def _repair(relay: Anabranch, operations: int, different: int) -> Round:
    corpus = Corpus(operations // 4, 4)
    with store() as folder:
        part = folder / "part.jsonl"
        lines = corpus.ready().read_bytes().splitlines(keepends=True)
        missing = lines[:: max(1, len(lines) // different)][:different]
        lacking = set(missing)
        part.write_bytes(b"".join(line for line in lines if line not in lacking))
        say(f"  importing {operations:,} operations twice")
        for file, data in ((corpus.ready(), "source"), (part, "follower")):
            if not relay.load_offline(file, folder / data):
                raise LoadError("a store could not be filled")
        with ExitStack() as stack:
            source, follower = stack.enter_context(_two(relay, folder / "source", folder / "follower"))
            tap = stack.enter_context(Wiretap(source.url).running())
            _ask(follower, "POST", "", {"name": "up", "peer": tap.url})
            seconds = _caught_up(follower)
            moved = tap.bytes
            tap.bytes = 0
            _ask(follower, "POST", "/up/repair")  # from here on it is not caught up
            again = _caught_up(follower)
            nothing = tap.bytes
    payload = sum(map(len, missing))
    own = _reconciliation_bytes(lines, lacking)
    return {
        "repair_seconds": seconds,
        "repair_bytes": moved,
        "repair_payload_bytes": payload,
        "compare_seconds": again,
        "compare_bytes": nothing,
        "reconciliation_bytes": own,
        "repair_bytes_share": (moved - own) / payload,  # with the information, the handshake and the last comparison
    }


def _reconciliation_bytes(whole: list[bytes], lacking: set[bytes]) -> int:
    """What finding the difference takes by itself: the same two sets, compared here, as hex on the wire."""
    theirs = _items(whole)
    ours = Reconciler(_items([line for line in whole if line not in lacking]), BOUNDS.frame_bytes)
    peer = Reconciler(theirs, LIMITS.message_bytes // 2 - 256)
    message, moved = ours.initiate(), 0
    while message is not None:
        reply = peer.respond(message)
        moved += 2 * (len(message) + len(reply))
        message = ours.reconcile(reply).message
    return moved


def _items(lines: list[bytes]) -> Items:
    events = sorted((event.created_at, bytes.fromhex(event.id)) for event in map(_event, lines))
    return Items.build([time for time, _ in events], b"".join(id for _, id in events))


def _idle(relay: Anabranch, links: int) -> Round:
    with _two(relay) as (source, follower):
        before = follower.rss_kib()
        for number in range(links):
            body = {"name": f"link-{number}", "peer": source.url, "scope": {"authors": [f"{number:064x}"]}}
            _ask(follower, "POST", "", body)
        for number in range(links):
            _caught_up(follower, f"link-{number}")
        time.sleep(2)
        after = follower.rss_kib()
    return {"idle_kib_a_link": None if before is None or after is None else (after - before) / links}
