"""Repair: give each replica what it lacks, what a version stands on before it.

A node gets events over its websocket and acknowledges each, a lake takes them in by ingest, a store that no node holds
by import. Each of them proves everything again and may refuse; that it has something already is a success. A dump is
not written to. Whether it helped says the audit that follows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from anabranch.client.reconcile import RelayError, publish
from anabranch.core.nostr import Keys
from anabranch.pipeline.jobs.audit import Audit
from anabranch.pipeline.jobs.export import in_order
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Kind, Reading, Replica
from anabranch.store.contract import StoreBusy
from anabranch.store.sqlite import DATABASE, SqliteStore
from anabranch.store.transfer import Rejection, import_lines

REPAIRS = "repairs"
"""The folder of a lake from which what it lacked is taken in; what is there belongs to a run that was killed."""


class Repaired(msgspec.Struct):
    """What became of what a replica lacked. `problem` says why nothing could be done, if so."""

    lacked: int = 0
    accepted: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    problem: str | None = None


def write_missing(audit: Audit, replicas: Sequence[Replica], number: int, to: Path) -> int:
    """Write what a replica lacks, one event a line, in an order in which it can be taken; how many that is."""
    wanted = audit.missing.filter(f.col("replica") == number).select("id")
    others = [other.lake.operations() for at, other in enumerate(replicas) if at != number]
    held = reduce(DataFrame.unionByName, (rows.join(wanted, "id", "left_semi") for rows in others))
    count = 0
    with to.open("wb") as file:
        for row in in_order(held.dropDuplicates(["id"])).select("raw").toLocalIterator():
            file.write(row["raw"].encode() + b"\n")
            count += 1
    return count


def repair(replica: Replica, lines: Path, count: int, reading: Reading, now_ms: int) -> Repaired:
    """Give a replica the events in a file."""
    match replica.kind:
        case Kind.NODE:
            return _publish(replica.name, lines, count, reading)
        case Kind.LAKE:
            return _ingest(replica.lake, lines, count, reading)
        case Kind.STORE:
            return _import(Path(replica.name), lines, count, reading, now_ms)
        case Kind.DATABASE:
            return Repaired(count, problem="a database is only read: name the address of its node (ws://host:port)")
    return Repaired(count, problem="a dump is not written to: name a node, a store or a lake that was made of it")


def _publish(url: str, lines: Path, count: int, reading: Reading) -> Repaired:
    secret = reading.options.get("key")
    keys = Keys(bytes.fromhex(secret)) if secret else None
    access_key = reading.options.get("accessKey")
    parts = urlsplit(url)
    address = parts._replace(scheme={"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)).geturl()
    try:
        with lines.open("rb") as file:
            events = (line.rstrip(b"\n") for line in file)
            done = asyncio.run(publish(address, events, keys=keys, access_key=access_key))
    except RelayError as error:
        return Repaired(count, problem=str(error))
    return Repaired(count, len(done.accepted), dict(Counter(done.refused.values())))


def _ingest(lake: Lake, lines: Path, count: int, reading: Reading) -> Repaired:
    if not lake.local:
        return Repaired(count, problem=f"only a lake on this machine can be repaired; ingest {lines} into it")
    folder = Path(lake.path) / REPAIRS
    folder.mkdir(exist_ok=True)
    own = folder / f"{uuid4().hex}.jsonl"  # a name of its own: it is a log of its own
    own.write_bytes(lines.read_bytes())
    done = ingest(lake, [str(own)], rules=reading.rules, wait=reading.wait)
    own.unlink()
    refused = {"rejected: see the lake's table of that name": done.rejected} if done.rejected else {}
    return Repaired(count, count - done.rejected, refused)


def _import(folder: Path, lines: Path, count: int, reading: Reading, now_ms: int) -> Repaired:
    refused: Counter[str] = Counter()

    def note(rejection: Rejection) -> None:
        refused[rejection.reason] += 1

    try:
        store = SqliteStore.open(folder.parent if folder.name == DATABASE else folder)
    except StoreBusy:
        return Repaired(count, problem=f"a node holds {folder}: name its address instead (ws://host:port)")
    try:
        with lines.open("rb") as file:
            done = import_lines(
                file,
                store.writer,
                limits=reading.rules.limits,
                kinds=reading.rules.kinds,
                now_ms=lambda: now_ms,
                rejected=note,
            )
    finally:
        store.close()
    return Repaired(count, done.stored + done.duplicate + done.superseded, dict(refused))
