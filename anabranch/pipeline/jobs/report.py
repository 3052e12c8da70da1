"""Report: what a lake holds, as one page that can be shown to somebody.

`gather` asks the tables and gives plain numbers; `report_page.page` makes a self-contained HTML file of them. Conflicts
over time are told by the rules themselves: every document's versions are gone through in the order in which they were
made, and each moment at which it has several heads, or one again, is counted.

When something was made is the author's word. A few that claim to be from another century would flatten every plot, so
the plots show where all but a thousandth on either side lie; what is outside is counted and said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from anabranch.core import revisions, snapshots
from anabranch.core.operation import Family, State
from anabranch.pipeline.frontier import numbered
from anabranch.pipeline.jobs import heads, retention
from anabranch.pipeline.jobs.audit import Findings
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.report_numbers import (
    DEVICES_MAX,
    Conflicts,
    Device,
    Devices,
    Growth,
    Owner,
    Replica,
    Report,
    Saving,
    Totals,
)
from anabranch.pipeline.report_page import page
from anabranch.pipeline.schema import FAMILIES, STATES, arrow

BINS_MAX = 60
STEPS = (60, 300, 900, 3_600, 4 * 3_600, 86_400, 7 * 86_400, 30 * 86_400, 91 * 86_400, 365 * 86_400)
TOP = 10
POLICIES = (
    "full_retention",
    "nondominated_plus_recent_history:4,payload_days=90",
    "nondominated_plus_recent_history:4",
    "current_only",
)
"""What is compared: the words of `anabranch pipeline retention --policy`."""

SEEN = [STATES[state] for state in (State.RETAINED, State.COMPACTED, State.REMOVED)]

_LOOKED_AT = ["document", "family", "id", "clock", "revision", "parents", "mtime", "created_at"]
_TURNS = StructType([StructField("moment", LongType()), StructField("turn", IntegerType())])


def write(lake: Lake, out: Path, now: int, wait: float = 0.0, compared: Findings | None = None) -> Report:
    """Bring the heads up to date, and write the page; it takes its name when it is whole.

    `compared` is what an audit of the lake and of others has found.
    """
    found = gather(lake, now, wait, compared)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(page(found), encoding="utf-8")
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return found


def gather(lake: Lake, now: int, wait: float = 0.0, compared: Findings | None = None) -> Report:
    """All numbers of a report, as of `now`."""
    current = heads.update(lake, wait=wait)
    owners = _by_owner(lake.operations()).persist()
    totals = _totals(lake, current, owners)
    growth = _growth(lake.operations())
    return Report(
        lake.path,
        now,
        totals,
        growth,
        _conflicts(lake, growth.times),
        _devices(lake.heads()),
        _busiest(lake.heads()),
        _owners(lake, owners),
        _savings(lake, now) if totals.operations else [],
        _replicas(lake.sightings()),
        [(row["reason"], row["count"]) for row in _most(lake.rejected().groupBy("reason").count(), "count").collect()],
        [(row["source"], row["reason"], row["position"]) for row in lake.gaps().limit(TOP).collect()],
        compared,
    )


def _totals(lake: Lake, current: heads.Summary, owners: DataFrame) -> Totals:
    sums = owners.agg(f.sum("bytes"), f.count("*")).first()
    assert sums is not None
    counts = {name: lake.table(name).count() for name in ("operations", "facts", "rejected", "gaps")}
    return Totals(
        bytes=sums[0] or 0,
        owners=sums[1],
        documents=current.documents,
        heads=current.heads,
        conflicts=current.conflicts,
        tombstones=current.tombstones,
        **counts,
    )


# --- over time -------------------------------------------------------------------------------------------------------


def _moment() -> Column:
    """When a version was made. A gift wrap's own time is made up (NIP-59); what is in it has one of its own."""
    return f.coalesce((f.col("mtime") / 1000).cast("long"), f.col("created_at"))


def _owner() -> Column:
    return f.coalesce("recipient", "author")


def _growth(operations: DataFrame) -> Growth:
    made = operations.select(_moment().alias("moment"), "family")
    edges = made.agg(
        f.min("moment"),
        f.percentile_approx("moment", [0.001, 0.999], 10_000),
        f.max("moment"),
    ).first()
    if edges is None or edges[0] is None:
        return Growth()
    step, times = bins(edges[0], *edges[1], edges[2])
    counted = made.groupBy(f.floor((f.col("moment") - times[0]) / step).alias("bin"), "family").count().collect()
    found = Growth(times, {name: [0] * len(times) for name in FAMILIES.values()})
    for row in counted:
        if 0 <= row["bin"] < len(times):
            found.families[row["family"]][row["bin"]] = row["count"]
        else:
            found.outside += row["count"]
    return found


def bins(first: int, low: int, high: int, last: int) -> tuple[int, list[int]]:
    """How long a bin is, and where each begins: from the low to the high, or to the very ends where these are near."""
    near = max(1, high - low) // 10
    low, high = (first if low - first <= near else low), (last if last - high <= near else high)
    step = next((step for step in STEPS if (high - low) / step <= BINS_MAX), (high - low) // BINS_MAX + 1)
    return step, list(range(low - low % step, high + 1, step))


def _conflicts(lake: Lake, times: Sequence[int]) -> Conflicts:
    if not times:
        return Conflicts()
    step = times[1] - times[0] if len(times) > 1 else 1

    def found(versions: pa.Table) -> pa.Table:
        turned = list(turns(versions))
        return pa.table([[at for at, _ in turned], [turn for _, turn in turned]], schema=arrow(_TURNS))

    turned = heads.over(lake, found, _TURNS)
    bin = f.greatest(f.lit(0), f.least(f.lit(len(times) - 1), f.floor((f.col("moment") - times[0]) / step)))
    counted = turned.groupBy(bin.alias("bin"), "turn").count().collect()
    told = Conflicts([0] * len(times), [0] * len(times))
    for row in counted:
        (told.came if row["turn"] > 0 else told.settled)[row["bin"]] = row["count"]
    return told


class _Version(msgspec.Struct, frozen=True, gc=False):
    id: str
    clock: Mapping[str, int]
    revision: str


def turns(versions: pa.Table) -> Iterator[tuple[int, int]]:
    """The moments at which a document of these came into conflict (1) or out of it (-1), by the rules of `core`."""
    versions = _several(versions)
    documents: dict[str, list[tuple[int, _Version, Sequence[str] | None]]] = {}
    rows = zip(*(versions[name].to_pylist() for name in _LOOKED_AT), strict=True)
    for document, family, id, clock, revision, parents, mtime, created_at in rows:
        made = created_at if mtime is None else mtime // 1000
        named = (parents or ()) if family == FAMILIES[Family.REVISION] else None
        documents.setdefault(document, []).append((made, _Version(id, dict(clock or ()), revision), named))
    for history in documents.values():
        current: list[_Version] = []
        named: set[str] = set()
        for made, version, parents in sorted(history, key=lambda one: (one[0], one[1].id)):
            before = len(current)
            if parents is None:
                current = snapshots.advance(current, version)
            else:
                current = revisions.advance(current, version, parents, version.revision in named)
                named.update(parents)
            if (len(current) > 1) is not (before > 1):
                yield made, 1 if len(current) > 1 else -1


def _several(versions: pa.Table) -> pa.Table:
    """Those of documents with several versions: one alone is in conflict with nothing."""
    document, documents = numbered(versions["document"])
    return versions.filter(pa.array(np.bincount(document, minlength=len(documents))[document] > 1))


# --- by device, owner, policy, replica -------------------------------------------------------------------------------


def _most(rows: DataFrame, by: str, top: int = TOP) -> DataFrame:
    return rows.orderBy(f.desc(by), *(name for name in rows.columns if name != by)).limit(top)


def _devices(current: DataFrame) -> list[Devices]:
    devices = f.size(f.array_distinct(f.flatten(f.collect_list(f.map_keys("clock")))))
    documents = (
        current.filter(f.col("clock").isNotNull())
        .groupBy("document")
        .agg(f.least(devices, f.lit(DEVICES_MAX)).alias("devices"), f.max("heads").alias("heads"))
    )
    counted = documents.groupBy("devices").agg(
        f.count("*").alias("documents"), f.count_if(f.col("heads") > 1).alias("conflicts")
    )
    return [Devices(**row.asDict()) for row in counted.orderBy("devices").collect()]


def _busiest(current: DataFrame) -> list[Device]:
    """A device's counter in a document is how many of its edits are in it."""
    edits = (
        current.select("document", f.explode("clock").alias("name", "edits"))
        .groupBy("document", "name")
        .agg(f.max("edits").alias("edits"))
        .groupBy("name")
        .agg(f.count("*").alias("documents"), f.sum("edits").alias("edits"))
    )
    return [Device(**row.asDict()) for row in _most(edits, "edits").collect()]


def _by_owner(operations: DataFrame) -> DataFrame:
    owned = operations.groupBy(_owner().alias("pubkey"))
    return owned.agg(f.count("*").alias("operations"), f.sum("size").alias("bytes"))


def _owners(lake: Lake, owners: DataFrame) -> list[Owner]:
    conflicts = (
        lake.conflicts().filter("number = 0").groupBy(_owner().alias("pubkey")).agg(f.count("*").alias("conflicts"))
    )
    top = _most(owners, "operations").join(conflicts, "pubkey", "left").fillna(0, ["conflicts"])
    return [Owner(**row.asDict()) for row in _most(top, "operations").collect()]


def _savings(lake: Lake, now: int) -> list[Saving]:
    """What each policy would keep and drop, in one pass over all operations."""
    sums = []
    for text in POLICIES:
        reason = retention.reason(retention.policy(text), now)
        stays, size = reason.isNull(), f.col("size")
        sums += [f.sum(f.when(stays, size)), f.sum(f.when(~stays, size)), f.count_if(~stays)]
    found = retention.standing_of(lake, now).agg(*sums).first()
    assert found is not None
    of = [[number or 0 for number in found[at : at + 3]] for at in range(0, len(sums), 3)]
    return [Saving(text, *three) for text, three in zip(POLICIES, of, strict=True)]


def _replicas(sightings: DataFrame) -> list[Replica]:
    """Of every log what it was last seen to have."""
    number = f.array_position(f.array(*map(f.lit, SEEN)), f.col("state"))
    last = f.max(f.coalesce("position", f.lit(0)) * (len(SEEN) + 1) + number) % (len(SEEN) + 1)  # numbers: no sorting
    seen = sightings.groupBy("stream", "id").agg(last.alias("last")).groupBy("stream", "last").count().collect()
    states = {(row["stream"], SEEN[row["last"] - 1]): row["count"] for row in seen}
    several = len({stream for stream, _ in states}) > 1
    in_all = sightings.select("id").distinct().count() if several else sum(states.values())
    found = []
    logs = sightings.groupBy("stream").agg(f.max("source").alias("source"), f.max("position").alias("tip"))
    for log in logs.orderBy("source", "stream").collect():
        of = {state: states.get((log["stream"], state), 0) for state in SEEN}
        found.append(Replica(log["source"], log["tip"], **of, lacking=in_all - sum(of.values())))
    return found
