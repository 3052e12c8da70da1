"""Retention: what a policy would keep and drop, of every operation, before anything goes.

A plan is what a node itself would do on the same log under the same policy at the same time: expired operations go,
then documents whose every head deletes, the oldest above the cap, then superseded payloads. Plan and node are held
equal on random histories.

`standing` says of each operation what the rules look at, whatever the policy. `plan` is then a matter of columns, the
twin of `core.retention.keep` and `forgettable`; several policies share one standing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from anabranch.config import RetentionSettings
from anabranch.core.operation import Family, State
from anabranch.core.retention import DAY, Mode, Policy
from anabranch.core.token import Log
from anabranch.pipeline import standing as places
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.node_admin import PLAN_MAX, NodeAdmin
from anabranch.pipeline.schema import FACTS, FAMILIES, STATES

EXPIRED, DELETED, SUPERSEDED = "expired", "deleted", "superseded"
"""Why an operation goes."""

AGES = {1: "1 day", 7: "7 days", 30: "30 days", 90: "90 days", 365: "1 year"}
OLDER = "older"
TOP = 10

SNAPSHOT, REVISION = FAMILIES[Family.SNAPSHOT], FAMILIES[Family.REVISION]


class BadPolicy(ValueError):
    """A policy is written wrong; the text says how it would be right."""


def policy(text: str) -> Policy:
    """The policy that a person wrote, in the words of the settings: `MODE[:recent_count][,name=value]…`.

    An age that is not named is any age, for a policy that is written out means to let something go.
    """
    mode, *rest = (part.strip() for part in text.split(","))
    mode, _, count = mode.partition(":")
    given: dict[str, str | int | None] = {"mode": mode, "payload_days": 0}
    if count:
        given["recent_count"] = count
    for part in rest:
        name, equals, value = part.partition("=")
        if not equals or name not in ("recent_count", "payload_days", "deleted_documents"):
            raise BadPolicy(_how(text, f"{part!r} says nothing about retention"))
        given[name] = None if value == "none" else value.removesuffix("d") if name == "payload_days" else value
    try:
        return msgspec.convert(given, RetentionSettings, strict=False).policy()
    except msgspec.ValidationError as error:
        raise BadPolicy(_how(text, str(error))) from None


def _how(text: str, problem: str) -> str:
    return (
        f"{text!r} is no policy ({problem}); write it like current_only, full_retention, "
        "nondominated_plus_recent_history:4 or current_only,payload_days=30,deleted_documents=100"
    )


# --- from operations to a plan ---------------------------------------------------------------------------------------


def standing(operations: DataFrame, facts: DataFrame, now: int) -> DataFrame:
    """Every operation, and where it stands in its document (`pipeline.standing`).

    `deleted_later`: of a document whose every head deletes, how many of its author's were deleted after it.
    """

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if given := list(batches):
            yield from places.standing(pa.Table.from_batches(given), now).to_batches()

    versions = heads.versions(operations, facts, *places.ASKED).repartition("document")
    return _of_all(operations, versions.mapInArrow(found, places.STANDING))


def standing_of(lake: Lake, now: int) -> DataFrame:
    """The same of all that is in a lake, straight from its files."""
    found = heads.over(lake, lambda versions: places.standing(versions, now), places.STANDING, *places.ASKED)
    return _of_all(lake.operations(), found)


def _of_all(operations: DataFrame, versions: DataFrame) -> DataFrame:
    """Versions with what lies beyond their documents, and all other operations."""
    deleted = versions.filter("deleted_at IS NOT NULL").select("author", "document", "deleted_at").distinct()
    latest = Window.partitionBy("author").orderBy(f.desc("deleted_at"), f.desc("document"))
    later = deleted.select("document", (f.row_number().over(latest) - 1).alias("deleted_later"))
    marked = versions.drop("deleted_at").join(f.broadcast(later), "document", "left")  # few: the rest need no sorting
    others = operations.filter(~f.col("family").isin(heads.VERSIONED)).select(places.OWN)
    return marked.unionByName(others, allowMissingColumns=True)


def plan(standing: DataFrame, policy: Policy, now: int) -> DataFrame:
    """Every operation, and why it goes under a policy: `reason` is null for what stays."""
    return standing.withColumn("reason", reason(policy, now)).select(*places.SHOWN, "size", "head", "reason")


def reason(policy: Policy, now: int) -> Column:
    """Why an operation goes, of a row of `standing`."""
    reason = f.when(f.col("expires_at") <= now, EXPIRED)
    if policy.deleted_documents is not None and policy.mode is not Mode.FULL:
        reason = reason.when(f.col("deleted_later") >= policy.deleted_documents, DELETED)  # core.retention.forgettable
    if (cutoff := policy.cutoff(now)) is not None:
        reason = reason.when(_superseded(policy, cutoff), SUPERSEDED)
    return reason


def _superseded(policy: Policy, cutoff: int) -> Column:
    """Twin of `core.retention.keep`, and of what compaction does with revisions."""
    snapshot = (f.col("family") == SNAPSHOT) & ~f.col("foremost") & (f.col("created_at") < cutoff)
    if policy.mode is Mode.RECENT_HISTORY:
        snapshot &= f.col("before") >= policy.recent_count
    return snapshot | ((f.col("family") == REVISION) & ~f.col("head") & (f.col("mtime") < cutoff * 1000))


# --- what a plan comes to --------------------------------------------------------------------------------------------


class Share(msgspec.Struct):
    """Operations that stay and go, and their bytes."""

    name: str = ""
    keep: int = 0
    keep_bytes: int = 0
    drop: int = 0
    drop_bytes: int = 0


class Summary(msgspec.Struct):
    """What a plan keeps and drops in all, by reason and by age; by author and by document those who lose most."""

    total: Share
    reasons: dict[str, int]
    ages: list[Share]
    authors: list[Share]
    documents: list[Share]


def summarise(plan: DataFrame, now: int, top: int = TOP) -> Summary:
    ages = {row["name"]: row for row in _shares(plan, _age(now)).collect()}
    reasons = plan.filter("reason IS NOT NULL").groupBy("reason").count().collect()
    total = Share("all")
    for row in ages.values():
        for name in ("keep", "keep_bytes", "drop", "drop_bytes"):
            setattr(total, name, getattr(total, name) + row[name])
    return Summary(
        total,
        {row["reason"]: row["count"] for row in sorted(reasons)},
        [_share(ages[name]) for name in (*AGES.values(), OLDER) if name in ages],
        _most(_shares(plan, f.coalesce("recipient", "author")), top),
        _most(_shares(plan.filter("document IS NOT NULL"), f.col("document")), top),
    )


def _age(now: int) -> Column:
    """How old an operation is: a revision by its mtime, any other by when it was made."""
    age = f.lit(now) - f.coalesce(f.col("mtime") / 1000, f.col("created_at"))
    name = f.lit(OLDER)
    for days, words in reversed(AGES.items()):
        name = f.when(age < days * DAY, words).otherwise(name)
    return name


def _shares(plan: DataFrame, by: Column) -> DataFrame:
    stays = f.col("reason").isNull()
    sums = {"keep": stays, "drop": ~stays}
    return plan.groupBy(by.alias("name")).agg(
        *(f.count_if(which).alias(name) for name, which in sums.items()),
        *(f.sum(f.when(which, f.col("size")).otherwise(0)).alias(f"{name}_bytes") for name, which in sums.items()),
    )


def _most(shares: DataFrame, top: int) -> list[Share]:
    """Those who lose most."""
    found = shares.filter("drop > 0").orderBy(f.desc("drop_bytes"), "name").limit(top).collect()
    return [_share(row) for row in found]


def _share(row: Row) -> Share:
    return msgspec.convert(row.asDict(), Share)


# --- handing a plan to a node ----------------------------------------------------------------------------------------


class Applied(msgspec.Struct):
    """What became of a plan at a node."""

    candidates: int = 0
    dropped: int = 0
    bytes: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)


def of_log(lake: Lake, log: Log) -> tuple[DataFrame, DataFrame]:
    """What one log has shown to a lake, as that log has it: operations by their ids and positions there, and facts.

    A revision is the same in another wrap. What was last seen without a payload, or removed, is a fact of that log,
    whether others still have it or not.
    """
    here = (f.col("stream") == log.stream) & (f.col("epoch") == log.epoch)
    identity = f.coalesce(f.concat("document", "revision"), "id").alias("identity")
    last = f.max_by(f.struct("position", "id", "state"), "position").alias("last")
    seen = lake.sightings().filter(here & f.col("position").isNotNull()).groupBy(identity).agg(last)
    own = (
        lake.operations()
        .withColumn("identity", identity)
        .drop("position", "id")
        .join(seen.select("identity", "last.*"), "identity")
    )
    retained = f.col("state") == STATES[State.RETAINED]
    facts = lake.facts().filter(here).select(FACTS.names)
    return own.filter(retained), facts.unionByName(own.filter(~retained).select(FACTS.names)).dropDuplicates(["id"])


def apply(
    operations: DataFrame,
    plan: DataFrame,
    node: NodeAdmin,
    log: Log,
    progress: Callable[[int, int], None] = lambda done, dropped: None,
) -> Applied:
    """Hand a plan to the node that has the log; it checks every candidate again. Operations are those `of_log`.

    Only superseded payloads are handed over: what has expired and whole documents the node lets go by itself.
    """
    going = plan.filter(f.col("reason") == SUPERSEDED).select("id")
    rows = operations.select("id", "position").join(going, "id").orderBy("position")
    applied = Applied()
    for chunk in _chunks(((row["position"], row["id"]) for row in rows.toLocalIterator()), PLAN_MAX):
        answer = node.compact(log, chunk)
        applied.candidates += len(chunk)
        applied.dropped += answer.dropped
        applied.bytes += answer.bytes
        for why, count in answer.refused.items():
            applied.refused[why] = applied.refused.get(why, 0) + count
        progress(applied.candidates, applied.dropped)
    return applied


def _chunks(rows: Iterator[tuple[int, str]], size: int) -> Iterator[list[tuple[int, str]]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk
