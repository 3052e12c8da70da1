"""Audit: what each of several replicas lacks, which heads differ, and where they contradict each other.

Digests first: all that a replica knows is summed up in small cells (`pipeline.cells`), and where the sums of all
replicas are equal nothing is compared. Of the rest, whatever is not the same everywhere is a difference, and everything
else looks at differences only.

An operation is lacking where another replica has it and this one has never heard of it. It is not lacking where it is
known as compacted or removed, where a newer version has replaced it, or where somebody who may has deleted it: those
are told apart. Revisions are known by document and revision, whichever wrap brought them. What has expired counts for
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow.dataset import dataset, field
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from anabranch.core import nostr
from anabranch.core.negentropy_items import fingerprint
from anabranch.core.operation import Family, State
from anabranch.pipeline import cells
from anabranch.pipeline.cells import ROWS, SUMS, Part
from anabranch.pipeline.delta import filesystem
from anabranch.pipeline.jobs import digests, heads
from anabranch.pipeline.jobs.digests import SUMMED, WORDS
from anabranch.pipeline.replicas import Kind, Replica, Scope
from anabranch.pipeline.rows import FORGED
from anabranch.pipeline.schema import FAMILIES, OPERATIONS, STATES, arrow

EXAMPLES = 10
FEW = 20_000
"""So many differences are kept at hand; more stay where they were found."""
TASKS_A_CORE = 4
EVERYTHING = Scope()
OTHER_ID = "id does not match"
"""How the reason begins for what was altered after it was signed."""

RETAINED, COMPACTED, REMOVED = (STATES[state] for state in (State.RETAINED, State.COMPACTED, State.REMOVED))
PLAIN = FAMILIES[Family.PLAIN]

_TOLD = ["id", "family", "kind", "author", "recipient", "document", "coordinate", "created_at"]
_PLACE = ["stream", "epoch", "position"]


class LogSeen(msgspec.Struct):
    """A log that several replicas have seen, and how far each has."""

    stream: str
    epoch: str
    tips: dict[str, int]


class Findings(msgspec.Struct):
    """What an audit has found. What is counted for each replica is under its name."""

    converged: bool = True
    missing: dict[str, int] = msgspec.field(default_factory=dict)
    compacted: dict[str, int] = msgspec.field(default_factory=dict)  # known there without a payload, which others have
    removed: dict[str, int] = msgspec.field(default_factory=dict)
    withdrawn: dict[str, int] = msgspec.field(default_factory=dict)  # unknown there, and replaced or deleted there
    forged: dict[str, int] = msgspec.field(default_factory=dict)  # lines whose id or signature does not hold
    rejected: dict[str, int] = msgspec.field(default_factory=dict)  # lines that are no operations at all
    resigned: int = 0  # the same operation with two signatures, both of which hold
    heads: int = 0  # documents whose heads differ
    positions: int = 0  # places of a log at which replicas have seen different operations
    epochs: list[str] = msgspec.field(default_factory=list)  # streams of which two replicas know no epoch in common
    behind: list[LogSeen] = msgspec.field(default_factory=list)
    operations: dict[str, int] = msgspec.field(default_factory=dict)
    digests: dict[str, str] = msgspec.field(default_factory=dict)
    scopes: int = 0
    scopes_differing: int = 0
    examples: dict[str, Any] = msgspec.field(default_factory=dict)


class Audit(msgspec.Struct):
    """The findings, and in full what they count."""

    findings: Findings
    missing: DataFrame  # `replica` (its number), the operation, and the bits of those who have it
    heads: DataFrame  # `document`, `head`, and the bits of those who have it as a head
    positions: DataFrame
    forged: DataFrame


def audit(replicas: Sequence[Replica], now: int, scope: Scope = EVERYTHING) -> Audit:
    """Compare replicas as they are in their lakes."""
    findings = Findings()
    parts = _Parts.of(replicas, scope, now)
    rows = parts.rows(_compare(parts, replicas, findings))
    found = _at_hand(differences(rows, len(replicas)))
    groups = _groups(found)
    findings.resigned = sum(group.count for group in groups if group.resigned)
    missing = _missing(replicas, found, groups, findings)
    split = _split_heads(rows, found, len(replicas), any(group.versioned for group in groups))
    documents = sorted({row["document"] for row in split.select("document").collect()})
    findings.heads, findings.examples["heads"] = len(documents), documents[:EXAMPLES]
    places = _contradictions(replicas, findings)
    forged = _forged(replicas, findings)
    held = {replica.name for replica in replicas if replica.kind is not Kind.LAKE}  # a lake has turned them away
    findings.converged = not (
        any(findings.missing.values())
        or findings.heads
        or findings.positions
        or findings.epochs
        or any(count for name, count in findings.forged.items() if name in held)
    )
    return Audit(findings, missing, split, places, forged)


def _of_all(replicas: Sequence[Replica], rows: Callable[[Replica], DataFrame]) -> DataFrame:
    """The rows of every replica, with its number as `replica`."""
    each = (rows(replica).withColumn("replica", f.lit(number)) for number, replica in enumerate(replicas))
    return reduce(DataFrame.unionAll, each)


def _at_hand(rows: DataFrame) -> DataFrame:
    """The same rows; where they are few, worked out now and once."""
    some = rows.limit(FEW + 1).toArrow()
    return rows.persist() if some.num_rows > FEW else rows.sparkSession.createDataFrame(some, rows.schema)


# --- what differs ----------------------------------------------------------------------------------------------------


class _Parts(msgspec.Struct, frozen=True):
    """All that replicas know, part by part; `few`: it is quicker here than in tasks."""

    spark: SparkSession
    parts: list[Part]
    few: bool

    @classmethod
    def of(cls, replicas: Sequence[Replica], scope: Scope, now: int) -> _Parts:
        tables = [replica.lake.table(name) for replica in replicas for name in ("operations", "facts")]
        few = sum(table.count() for table in tables) <= FEW
        every = [cells.parts(number, one.lake, scope, now, few) for number, one in enumerate(replicas)]
        return cls(replicas[0].lake.spark, [part for of_one in every for part in of_one], few)

    def sums(self) -> DataFrame:
        return self._made(Part.sums, SUMS)

    def rows(self, wanted: Sequence[str]) -> DataFrame:
        """All that is in some cells."""
        some = pa.array(wanted, pa.string())
        if not wanted:
            return self.spark.createDataFrame([], ROWS)
        made = self._made(lambda part: part.rows(some), ROWS)
        return made if self.few else made.persist()

    def _made(self, of: Callable[[Part], Iterator[pa.RecordBatch]], schema: StructType) -> DataFrame:
        every = self.parts
        if self.few:
            made = [batch for part in every for batch in of(part)]
            return self.spark.createDataFrame(pa.Table.from_batches(made, arrow(schema)), schema)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from of(every[number])

        tasks = min(len(every), TASKS_A_CORE * self.spark.sparkContext.defaultParallelism)
        return self.spark.range(0, len(every), 1, tasks).mapInArrow(task, schema)


def _compare(parts: _Parts, replicas: Sequence[Replica], findings: Findings) -> list[str]:
    """Count what each replica has, with the digest that a node would answer for it; the cells that are not the same."""
    is_whole, is_cell = f.col("of") == cells.WHOLE, f.col("of") == cells.CELL
    summed = parts.sums().groupBy("of", "name", "replica").agg(*(f.sum(name).alias(name) for name in SUMMED))
    sums = f.struct(*SUMMED).alias("sums")
    same = (f.count("*") == len(replicas)) & (f.min(sums) == f.max(sums))
    each = f.collect_list(f.when(f.col("of") == cells.WHOLE, f.struct("replica", *SUMMED))).alias("each")
    compared = summed.groupBy("of", "name").agg(same.alias("same"), each)
    named = f.when(is_whole | (is_cell & ~f.col("same")), f.col("name")).alias("name")
    told = (
        compared.groupBy("of", "same", named).agg(f.count("*").alias("count"), f.first("each").alias("each")).collect()
    )
    own = {one["replica"]: one for row in told for one in row["each"]}
    for number, replica in enumerate(replicas):
        count, total = (own[number]["items"], [own[number][word] for word in WORDS]) if number in own else (0, [0])
        findings.operations[replica.name] = count
        findings.digests[replica.name] = fingerprint(digests.total(total), count).hex()
    scopes = {row["same"]: row["count"] for row in told if row["of"] == cells.NAMESPACE}
    findings.scopes, findings.scopes_differing = sum(scopes.values()), scopes.get(False, 0)
    return [row["name"] for row in told if row["of"] == cells.CELL and not row["same"]]


def differences(rows: DataFrame, replicas: int) -> DataFrame:
    """Every operation that is not the same in all replicas, and the bits of those who have it in each state."""
    every = (1 << replicas) - 1
    there = f.col("state") == RETAINED
    grouped = (
        rows.filter("NOT expired")
        .groupBy("identity")
        .agg(
            *(_bits(f.col("state") == state).alias(state) for state in (RETAINED, COMPACTED, REMOVED)),
            f.coalesce(f.min(f.when(there, f.col("id"))), f.min("id")).alias("id"),
            *(f.any_value(name).alias(name) for name in _TOLD if name != "id"),
            *(f.min(f.when(there, f.col(name))).alias(f"{name}_min") for name in ("id", "copy")),
            *(f.max(f.when(there, f.col(name))).alias(f"{name}_max") for name in ("id", "copy")),
        )
    )
    resigned = f.coalesce(f.expr("id_min = id_max AND copy_min <> copy_max"), f.lit(False))
    gone = f.col(COMPACTED).bitwiseOR(f.col(REMOVED))
    same = (f.col(RETAINED) == every) | ((f.col(RETAINED) == 0) & (gone == every))
    return grouped.withColumn("resigned", resigned).filter(~same | f.col("resigned"))


def _bits(which: Column) -> Column:
    return f.coalesce(f.bit_or(f.when(which, f.expr("shiftleft(1, replica)"))), f.lit(0))


class _Group(msgspec.Struct):
    """Differences of one sort, and how many there are."""

    retained: int
    compacted: int
    removed: int
    versioned: bool
    resigned: bool
    count: int

    def why(self, number: int) -> str | None:
        """What these are to a replica: lacking or known without a payload; None where it has them, or nobody."""
        bit = 1 << number
        if not self.retained or self.retained & bit:
            return None
        return "removed" if self.removed & bit else "compacted" if self.compacted & bit else "missing"


def _groups(found: DataFrame) -> list[_Group]:
    versioned = f.coalesce(f.col("family").isin(heads.VERSIONED), f.lit(False)).alias("versioned")
    rows = found.groupBy(RETAINED, COMPACTED, REMOVED, versioned, "resigned").count().collect()
    return [_Group(*row) for row in rows]


# --- who lacks what --------------------------------------------------------------------------------------------------


def _missing(replicas: Sequence[Replica], found: DataFrame, groups: Sequence[_Group], findings: Findings) -> DataFrame:
    """What each replica lacks, with its number as `replica`."""
    unknown = [_told_apart(number, replica, groups, findings) for number, replica in enumerate(replicas)]
    reasons = [_reasons(replica) if any(unknown) else _NO_REASONS for replica in replicas]
    lacking = []
    for number, replica in enumerate(replicas):
        known_there = f.col(RETAINED).bitwiseOR(f.col(COMPACTED)).bitwiseOR(f.col(REMOVED))
        own = found.filter((f.col(RETAINED) != 0) & (known_there.bitwiseAND(f.lit(1 << number)) == 0))
        if unknown[number] and (gone := withdrawn(own, replica.lake.operations(), reasons[number])) is not None:
            own = own.join(gone, "identity", "left_anti")
        lacking.append(own.withColumn("replica", f.lit(number)))
    missing = _at_hand(reduce(DataFrame.unionAll, lacking))
    counts = dict(missing.groupBy("replica").count().collect()) if any(unknown) else {}
    for number, replica in enumerate(replicas):
        findings.missing[replica.name] = counts.get(number, 0)
        findings.withdrawn[replica.name] = unknown[number] - counts.get(number, 0)
    findings.examples["missing"] = _examples(replicas, missing) if counts else {}
    return missing


def _told_apart(number: int, replica: Replica, groups: Sequence[_Group], findings: Findings) -> int:
    """Note what a replica knows without a payload; how much it has never heard of."""
    counts = dict.fromkeys(("missing", "compacted", "removed"), 0)
    for group in groups:
        if (why := group.why(number)) is not None:
            counts[why] += group.count
    findings.compacted[replica.name], findings.removed[replica.name] = counts["compacted"], counts["removed"]
    return counts["missing"]


class _Reasons(msgspec.Struct, frozen=True):
    """How much a replica has that can be the reason why it has not taken something."""

    deletions: int = 0
    requests: int = 0  # to vanish
    replaceable: int = 0


_NO_REASONS = _Reasons()
_REPLACEABLE = f"family = '{PLAIN}' AND document IS NOT NULL"


def _reasons(replica: Replica) -> _Reasons:
    """Counted here, on every core: three columns of many files are sooner read than handed out."""
    files = [filesystem(file) for file in replica.lake.table("operations").files()]
    if not files:
        return _NO_REASONS
    rows = dataset([path for _, path in files], schema=arrow(OPERATIONS), format="parquet", filesystem=files[0][0])
    kind, plain = field("kind"), field("family") == PLAIN
    deletions, requests = (rows.count_rows(filter=kind == one) for one in (nostr.DELETION, nostr.VANISH))
    return _Reasons(deletions, requests, rows.count_rows(filter=plain & field("document").is_valid()))


def withdrawn(lacking: DataFrame, operations: DataFrame, reasons: _Reasons) -> DataFrame | None:
    """The identities of what a replica with these operations would not take: replaced, deleted, or vanished.

    Twin of what a store decides when it is offered an operation. None where there is nothing that could be the reason.
    """
    owner = f.explode(f.array_distinct(f.array("author", f.coalesce("recipient", "author")))).alias("owner")
    owned = lacking.filter(f.col("kind") != nostr.VANISH).select("*", owner)
    found: list[DataFrame] = []
    if reasons.deletions:
        found += _deleted(owned, operations)
    if reasons.requests:
        vanished = operations.filter(f.col("kind") == nostr.VANISH).groupBy(f.col("author").alias("owner"))
        until = vanished.agg(f.max("created_at").alias("until"))
        found.append(owned.join(until, "owner").filter("created_at <= until"))
    if reasons.replaceable:
        others = operations.filter(_REPLACEABLE).select(
            "document", f.col("created_at").alias("until"), f.col("id").alias("other")
        )
        newer = "until > created_at OR (until = created_at AND other < id)"  # nostr.newer
        found.append(lacking.filter(_REPLACEABLE).join(others, "document").filter(newer))
    if not found:
        return None
    return reduce(DataFrame.unionAll, (rows.select("identity") for rows in found)).distinct()


def _deleted(owned: DataFrame, operations: DataFrame) -> list[DataFrame]:
    """What deletions name: one's own events by id, one's own addresses up to their time."""
    tags = operations.filter(f.col("kind") == nostr.DELETION).select(
        f.col("author").alias("owner"), f.col("created_at").alias("until"), f.explode("tags").alias("tag")
    )
    named = tags.select("owner", "until", f.col("tag")[0].alias("name"), f.get("tag", f.lit(1)).alias("target"))
    by_id = named.filter("name = 'e'").select("owner", f.col("target").alias("id"))
    by_address = named.filter("name = 'a'").select("owner", f.col("target").alias("address"), "until")
    address = f.concat_ws(":", f.col("kind").cast("string"), "author", "coordinate").alias("address")
    addressed = owned.filter(f.col("family") == PLAIN).select("*", address)
    return [
        owned.filter(f.col("kind") != nostr.DELETION).join(by_id, ["owner", "id"]),
        addressed.join(by_address, ["owner", "address"]).filter("created_at <= until"),
    ]


def _examples(replicas: Sequence[Replica], rows: DataFrame) -> dict[str, list[str]]:
    """A few ids for each replica."""
    first = Window.partitionBy("replica").orderBy("id")
    some = rows.select("replica", "id", f.row_number().over(first).alias("at")).filter(f.col("at") <= EXAMPLES)
    found: dict[str, list[str]] = {replica.name: [] for replica in replicas}
    for row in sorted(some.collect()):
        found[replicas[row["replica"]].name].append(row["id"])
    return found


def _split_heads(rows: DataFrame, found: DataFrame, replicas: int, any_documents: bool) -> DataFrame:
    """The heads that not all replicas have as heads, of the documents that something differs in."""
    documents = found.filter(f.col("family").isin(heads.VERSIONED)).select("document").distinct()
    versions = rows.filter(f.col("family").isin(heads.VERSIONED)).join(documents, "document", "left_semi")
    # Under names of their own, so that all are worked out at once and nothing of one replica meets another's.
    apart = versions.withColumn("document", f.concat_ws("/", f.col("replica").cast("string"), "document"))
    named = (
        heads.heads(apart)
        .filter("payload")
        .select(f.split("document", "/").alias("name"), f.coalesce("revision", "id").alias("head"))
    )
    own = named.select(f.expr("int(name[0])").alias("replica"), f.expr("name[1]").alias("document"), "head")
    bits = f.bit_or(f.expr("shiftleft(1, replica)")).alias("held_by")
    split = own.groupBy("document", "head").agg(bits).filter(f.col("held_by") != (1 << replicas) - 1)
    return _at_hand(split if any_documents else split.limit(0))


# --- logs and lines --------------------------------------------------------------------------------------------------


def _contradictions(replicas: Sequence[Replica], findings: Findings) -> DataFrame:
    """The places of a log at which replicas have seen different operations."""
    seen = _of_all(
        replicas, lambda replica: replica.lake.sightings().filter("position IS NOT NULL").select(*_PLACE, "id")
    )
    tips: dict[tuple[str, str], dict[str, int]] = {}
    for row in seen.groupBy("replica", "stream", "epoch").agg(f.max("position").alias("tip")).collect():
        tips.setdefault((row["stream"], row["epoch"]), {})[replicas[row["replica"]].name] = row["tip"]
    shared = {log: by for log, by in sorted(tips.items()) if len(by) > 1}
    findings.behind = [LogSeen(*log, by) for log, by in shared.items() if len(set(by.values())) > 1]
    findings.epochs = sorted({stream for stream, _ in tips if no_epoch_in_common(stream, tips)})
    here = [(f.col("stream") == stream) & (f.col("epoch") == epoch) for stream, epoch in shared]
    places = seen.filter(reduce(lambda one, other: one | other, here, f.lit(False))).groupBy(*_PLACE)
    told = places.agg(f.min("id").alias("one"), f.max("id").alias("other")).filter("one <> other").persist()
    if shared:
        findings.positions = told.count()
        some = told.orderBy(*_PLACE).limit(EXAMPLES).collect() if findings.positions else []
        findings.examples["positions"] = [row.asDict() for row in some]
    return told


def no_epoch_in_common(stream: str, tips: dict[tuple[str, str], dict[str, int]]) -> bool:
    """Whether two replicas have both seen a stream, and never the same epoch of it."""
    epochs: dict[str, set[str]] = {}
    for (other, epoch), by in tips.items():
        for name in by if other == stream else ():
            epochs.setdefault(name, set()).add(epoch)
    return any(one.isdisjoint(other) for one in epochs.values() for other in epochs.values())


def _forged(replicas: Sequence[Replica], findings: Findings) -> DataFrame:
    """Lines whose id or signature does not hold."""
    id = f.get_json_object(f.col("raw").cast("string"), "$.id").alias("id")
    every = _of_all(replicas, lambda replica: replica.lake.rejected().select(id, "reason", *_PLACE))
    is_forged = f.col("reason").startswith(FORGED) | f.col("reason").startswith(OTHER_ID)
    counts: dict[tuple[int, bool], int] = {}
    if any(replica.lake.table("rejected").count() for replica in replicas):
        for row in every.groupBy("replica", is_forged.alias("forged")).count().collect():
            counts[row["replica"], row["forged"]] = row["count"]
    for number, replica in enumerate(replicas):
        findings.forged[replica.name] = counts.get((number, True), 0)
        findings.rejected[replica.name] = counts.get((number, False), 0)
    forged = every.filter(is_forged)
    findings.examples["forged"] = _examples(replicas, forged) if any(findings.forged.values()) else {}
    return forged
