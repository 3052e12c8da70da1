"""Heads: of every document the versions that nothing known supersedes, for the snapshot and the revision family.

`heads` is the twin, in Spark's own functions, of `snapshots.heads` and `revisions.heads`, and is held equal to them on
random histories. It takes versions in any number and order. Facts of operations whose payload is gone count as well:
what they supersede stays superseded.

`update` keeps the lake's table. Heads of heads and of what is new are the heads of all, so only documents that
something new belongs to are looked at. For revisions the names of parents that have not come yet are kept beside the
heads (`awaited`): a late parent is no head.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from anabranch.core.operation import Family
from anabranch.pipeline.delta import Table
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.schema import FAMILIES, HEADS

SNAPSHOT, REVISION = FAMILIES[Family.SNAPSHOT], FAMILIES[Family.REVISION]

VERSION = [
    "id",
    "author",
    "recipient",
    "coordinate",
    "collection",
    "action",
    "clock",
    "clock_sum",
    "revision",
    "mtime",
    "created_at",
    "size",
    "payload",
]
"""What is known of a version beside its document and its family; `parents` and `awaited` only decide."""

FULL_ABOVE = 0.5
"""When more than this share of all operations is new, all documents are looked at: that costs less."""


class Summary(msgspec.Struct):
    """What the heads say: conflicts are documents with several heads, tombstones those whose every head deletes."""

    documents: int = 0
    heads: int = 0
    conflicts: int = 0
    tombstones: int = 0


def versions(operations: DataFrame, facts: DataFrame) -> DataFrame:
    """Operations and facts as versions of documents."""
    return _versions(operations, True).unionAll(_versions(facts, False))


def _versions(rows: DataFrame, payload: bool) -> DataFrame:
    return (
        rows.filter(f.col("family").isin(SNAPSHOT, REVISION))
        .withColumn("payload", f.lit(payload))
        .select("document", "family", *VERSION, "parents", f.lit(None).cast("array<string>").alias("awaited"))
    )


# --- the rule --------------------------------------------------------------------------------------------------------


def heads(of: DataFrame) -> DataFrame:
    """The heads of every document among the versions, as rows of `HEADS`."""
    documents = of.groupBy("document").agg(
        f.first("family").alias("family"),
        f.collect_list(f.struct(*VERSION)).alias("versions"),
        f.flatten(f.collect_list("parents")).alias("parents"),
        f.flatten(f.collect_list("awaited")).alias("awaited"),
        f.max_by("clock", "clock_sum").alias("top"),
        f.max("clock_sum").alias("top_sum"),
    )
    snapshot = f.col("family") == SNAPSHOT
    named = f.array_union("parents", "awaited")
    found = documents.select(
        "document",
        "family",
        f.when(snapshot, undominated(f.col("versions"), f.col("top"), f.col("top_sum")))
        .otherwise(unnamed(f.col("versions"), named))
        .alias("found"),
        f.when(~snapshot, f.array_except(named, f.transform("versions", lambda one: one["revision"]))).alias("awaited"),
    )
    return _rows(found)


def undominated(versions: Column, top: Column, top_sum: Column) -> Column:
    """The twin of `snapshots.heads`. `top` is a clock with the greatest sum: most versions are dominated by it.

    One clock dominates another when its sum is greater and no entry of the other is ahead of it.
    """
    rest = f.filter(versions, lambda one: (one["clock_sum"] == top_sum) | ~_covers(top, one["clock"]))

    def dominated(one: Column, among: Column) -> Column:
        return f.exists(
            among, lambda other: (other["clock_sum"] > one["clock_sum"]) & _covers(other["clock"], one["clock"])
        )

    return f.when(f.size(rest) == 1, rest).otherwise(f.filter(rest, lambda one: ~dominated(one, rest)))


def _covers(clock: Column, other: Column) -> Column:
    return f.forall(
        f.map_entries(other),
        lambda entry: f.coalesce(f.try_element_at(clock, entry["key"]), f.lit(0)) >= entry["value"],
    )


def unnamed(versions: Column, named: Column) -> Column:
    """The twin of `revisions.heads`: the versions that none names as a parent."""
    left = f.array_except(f.transform(versions, lambda one: one["revision"]), named)
    return f.filter(versions, lambda one: f.array_contains(left, one["revision"]))


def _rows(found: DataFrame) -> DataFrame:
    """A row for each head, those with a payload first, by id; one without any where a document has no head at all."""
    told = found.withColumn(
        "found",
        f.when(f.size("found") < 2, f.col("found")).otherwise(
            f.array_sort(f.filter("found", lambda one: one["payload"] | ~_has_payload(one)), _by_payload_and_id)
        ),
    ).withColumn("served", f.filter("found", lambda one: one["payload"]))
    return (
        told.withColumns(
            {
                "heads": f.size("served").cast("int"),
                "deleted": (f.size("served") > 0) & f.forall("served", lambda one: one["action"] == "del"),
            }
        )
        .select("*", f.posexplode_outer("found").alias("number", "head"))
        .withColumn("payload", f.coalesce("head.payload", f.lit(False)))
        .select(*[_column(name) for name in HEADS.names])
    )


def _has_payload(one: Column) -> Column:
    """Whether the same version is among those found with its payload: one node has lost it, another has not."""
    return f.exists(
        f.col("found"),
        lambda other: (
            other["payload"]
            & ((other["id"] == one["id"]) | f.coalesce(other["revision"] == one["revision"], f.lit(False)))
        ),
    )


def _by_payload_and_id(one: Column, other: Column) -> Column:
    before = (one["payload"] & ~other["payload"]) | ((one["payload"] == other["payload"]) & (one["id"] < other["id"]))
    return f.when(before, -1).when(one["id"] == other["id"], 0).otherwise(1)


def _column(name: str) -> Column:
    return f.col(f"head.{name}") if name in VERSION and name != "payload" else f.col(name)


# --- the table -------------------------------------------------------------------------------------------------------


def update(lake: Lake, full: bool = False, wait: float = 0.0) -> Summary:
    """Bring the lake's heads up to its operations and facts. `full` looks at every document again."""
    with lake.lock(wait):
        table, sources = lake.table("heads"), [lake.table("operations"), lake.table("facts")]
        table.sweep()
        done = {source.name: source.version for source in sources}
        fresh = None if full else _fresh(table, sources)
        if fresh is not None and not any(fresh):
            return summarise(table.read(lake.spark))
        if fresh is None:
            found = heads(versions(lake.operations(), lake.facts()))
        else:
            operations, facts = (source.read(lake.spark, files) for source, files in zip(sources, fresh, strict=True))
            found = advance(table.read(lake.spark), versions(operations, facts))
        seen = Observation()
        folder = table.stage(found.observe(seen, *_counts()).coalesce(lake.spark.sparkContext.defaultParallelism))
        table.commit([folder], done, replace=True)
        return Summary(**seen.get)


def advance(current: DataFrame, fresh: DataFrame) -> DataFrame:
    """The heads after more versions, given the heads before: the others stay, the touched are worked out again."""
    touched = fresh.select("document").distinct()
    before = current.join(touched, "document", "left_semi").select(
        "document", "family", *VERSION, f.lit(None).cast("array<string>").alias("parents"), "awaited"
    )
    return current.join(touched, "document", "left_anti").unionByName(heads(before.unionAll(fresh)))


def summarise(table: DataFrame) -> Summary:
    return Summary(**table.agg(*_counts()).first().asDict())


def _counts() -> list[Column]:
    first = f.col("payload") & (f.col("number") == 0)
    return [
        f.count_if(first).alias("documents"),
        f.count_if("payload").alias("heads"),
        f.count_if(first & (f.col("heads") > 1)).alias("conflicts"),
        f.count_if(first & f.col("deleted")).alias("tombstones"),
    ]


def _fresh(table: Table, sources: Sequence[Table]) -> list[list[str]] | None:
    """The files of each source that are new since the heads were last worked out; None: all have to be looked at."""
    added: list[list[str]] = []
    for source in sources:
        done = table.done(source.name)
        before, now = (set(source.files(done)) if done >= 0 else None), source.files()
        if before is None or not before.issubset(now):
            return None
        added.append([file for file in now if file not in before])
    new, all_files = sum(map(len, added)), sum(len(source.files()) for source in sources)
    return None if new > FULL_ABOVE * max(1, all_files) else added
