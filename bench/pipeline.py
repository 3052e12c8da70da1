"""Pipeline: heads on Spark against DuckDB and the plain rule, proof on all cores against one, ingest, increments.

A generated history stands in a node's store and, ingested, in a lake. Everything is measured warm, after a small run of
the same; the start of Spark is reported apart. DuckDB gets the same Parquet files, as many threads as there are cores,
and the fastest of the SQL that we found, for the same columns: versions that the one with the greatest clock does not
dominate, then each against each; revisions by an anti-join. The plain rule is `core` over the same files. All must find
the same heads.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from anabranch.core import revisions, snapshots
from anabranch.pipeline.feed_store import StoreFeed
from anabranch.pipeline.generate import Plan, generate
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import WRITTEN, ingest, stage
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.rows import Rules
from anabranch.pipeline.session import session
from anabranch.pipeline.source import Stretch
from anabranch.pipeline.staging import Stager
from bench.load import LoadError
from bench.peers import say, store
from bench.report import Report, Round, Setting

OPERATIONS_A_DOCUMENT = 10
NEW_SHARE = 0.01
DUCKDB_RATIO_MAX = 1.5
PYTHON_RATIO_MAX = 1 / 1.5
PROOF_RATIO_MIN = 1.7
INGEST_MIN = 15_000
INCREMENT_SHARE_MAX = 0.15
ONE_PROCESS_ROWS = 250_000  # in pieces as large as those of the others


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """Something that finds heads; it stands where a relay stands in the other benchmarks."""

    name: str


ENGINES = [Engine("anabranch"), Engine("duckdb"), Engine("python")]


def run(setting: Setting) -> Report:
    operations = setting.operations or setting.sized(1_000_000, 20_000)
    plan = Plan(operations, max(1, operations // OPERATIONS_A_DOCUMENT), seed=1)
    report = Report("pipeline", dataclasses.replace(setting, relays=ENGINES))
    history, more = _history(plan)
    data = _store(history)
    cores = len(os.sched_getaffinity(0))
    pa.set_memory_pool(pa.system_memory_pool())  # as the workers have it
    with store() as folder:
        started = time.perf_counter()
        spark = session(f"local[{cores},4]", {"spark.driver.memory": "4g"})
        spark.range(1).count()
        report.settings = {
            "operations": plan.operations,
            "documents": plan.documents,
            "cores": cores,
            "session_start_seconds": round(time.perf_counter() - started, 2),
        }
        try:
            warm(spark, folder)
            for number in range(setting.rounds):
                say(f"pipeline: round {number + 1} of {setting.rounds}")
                _round(report, spark, folder, data, more, cores)
        finally:
            spark.stop()
    report.compare("heads_seconds", "duckdb", at_most=DUCKDB_RATIO_MAX)
    report.compare("heads_seconds", "python", at_most=PYTHON_RATIO_MAX)
    ours = report.medians("anabranch")
    report.promise("proofs/s on all cores over one process", ours["proof_ratio"], at_least=PROOF_RATIO_MIN)
    report.promise("ingest operations/s", ours["ingest_per_second"] / INGEST_MIN, at_least=1)
    report.promise("an increment of 1 % over the whole", ours["increment_share"], at_most=INCREMENT_SHARE_MAX)
    return report


def _history(plan: Plan) -> tuple[Path, Path]:
    """A history but for its last hundredth, and that; found again on the same day."""
    folder = Path(tempfile.gettempdir()) / f"anabranch-bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = f"pipeline-{plan.operations}-{plan.documents}-{plan.seed}"
    whole, most, rest = (folder / f"{name}{part}.jsonl" for part in ("", "-most", "-rest"))
    if not rest.exists():
        say(f"  generating {plan.operations:,} operations")
        generate(plan, whole)
        with whole.open("rb") as file, most.open("wb") as out:
            out.writelines(islice(file, round(plan.operations * (1 - NEW_SHARE))))
            unfinished = rest.with_suffix(".unfinished")
            unfinished.write_bytes(file.read())
        unfinished.rename(rest)
        whole.unlink()
    return most, rest


def _store(history: Path) -> Path:
    """The folder of a node that has a history, found again as well."""
    from anabranch.core.nostr import Limits
    from anabranch.core.operation import KindPolicy
    from anabranch.store.sqlite import SqliteStore
    from anabranch.store.transfer import import_lines

    folder = history.with_suffix(".store")
    if not folder.exists():
        say("  importing them into a store")
        unfinished = history.with_suffix(".unfinished-store")
        shutil.rmtree(unfinished, ignore_errors=True)
        opened = SqliteStore.open(unfinished, "OFF")
        with history.open("rb") as file:
            import_lines(
                file, opened.writer, limits=Limits(), kinds=KindPolicy(), now_ms=lambda: time.time_ns() // 10**6
            )
        opened.close()
        unfinished.rename(folder)
    return folder


def warm(spark: SparkSession, folder: Path) -> None:
    """The same on a little, so that what is measured is the work and not the compiler."""
    file = folder / "warm.jsonl"
    generate(Plan(20_000, 2_000, 99), file)
    lake = Lake(folder / "warm", spark, create=True)
    ingest(lake, [str(file)])
    for _ in range(3):
        heads.update(lake, full=True)


def _round(report: Report, spark: SparkSession, folder: Path, data: Path, more: Path, cores: int) -> None:
    shutil.rmtree(folder / "lake", ignore_errors=True)
    lake, source = Lake(folder / "lake", spark, create=True), str(data)
    ingest_seconds, done = _timed(lambda: ingest(lake, [source]))
    update_seconds, found = _timed(lambda: heads.update(lake, full=True))
    files = lake.table("operations").files()
    heads_seconds, _ = _timed(lambda: heads.scan(lake).write.format("noop").mode("overwrite").save())
    duck_seconds, duck = _timed(lambda: _duckdb(files, cores))
    python_seconds, plain = _timed(lambda: _plain(files))
    if not duck == plain == found.heads:
        raise LoadError(f"different heads: {found.heads} on Spark, {duck} by DuckDB, {plain} by the plain rule")
    proofs, alone = _proofs(spark, folder, data, None), _proofs(spark, folder, data, ONE_PROCESS_ROWS)
    increment_seconds, _ = _timed(lambda: (ingest(lake, [str(more)]), heads.update(lake)))
    measured: Round = {
        "heads_seconds": heads_seconds,
        "update_seconds": update_seconds,
        "ingest_seconds": ingest_seconds,
        "ingest_per_second": done.operations / ingest_seconds,
        "proofs_per_second": proofs,
        "proofs_per_second_one_process": alone,
        "proof_ratio": proofs / alone,
        "increment_seconds": increment_seconds,
        "increment_share": increment_seconds / (ingest_seconds + update_seconds),
    }
    report.add("anabranch", measured)
    report.add("duckdb", {"heads_seconds": duck_seconds})
    report.add("python", {"heads_seconds": python_seconds})


# --- the others ------------------------------------------------------------------------------------------------------

_COVERS = (
    "CREATE MACRO covers(big, small) AS "
    "len(list_filter(map_entries(small), lambda e: coalesce(big[e.key], 0) < e.value)) = 0"
)
_COLUMNS = (
    "document, family, id, author, recipient, coordinate, collection, action, clock, clock_sum, revision, mtime, "
    "created_at, size"
)
_HEADS = f"""
CREATE TEMP TABLE found AS
WITH a AS MATERIALIZED (SELECT {_COLUMNS}, parents FROM read_parquet($files) WHERE family <> 'plain'),
v AS (SELECT * FROM a WHERE family = 'snapshot'),
r AS (SELECT * FROM a WHERE family = 'revision'),
top AS (SELECT document, max_by(clock, clock_sum) AS clock, max(clock_sum) AS clock_sum FROM v GROUP BY document),
rest AS MATERIALIZED (
  SELECT v.* FROM v JOIN top USING (document) WHERE v.clock_sum = top.clock_sum OR NOT covers(top.clock, v.clock)),
named AS (SELECT DISTINCT document, unnest(parents) AS revision FROM r)
SELECT {_COLUMNS} FROM rest a WHERE NOT EXISTS (
  SELECT 1 FROM rest b
  WHERE b.document = a.document AND b.clock_sum > a.clock_sum AND covers(b.clock, a.clock))
UNION ALL SELECT {_COLUMNS} FROM r ANTI JOIN named USING (document, revision)
"""


def _duckdb(files: list[str], threads: int) -> int:
    with duckdb.connect() as database:
        database.execute(f"SET threads = {threads}")
        database.execute(_COVERS)
        database.execute(_HEADS, {"files": files})
        return int(database.execute("SELECT count(*) FROM found").fetchall()[0][0])


class _Version(NamedTuple):
    id: str
    clock: dict[str, int]
    revision: str
    parents: list[str]


def _plain(files: list[str]) -> int:
    documents: dict[str, list[_Version]] = {}
    families: dict[str, str] = {}
    for file in files:
        rows = pq.read_table(file, columns=["document", "family", "id", "clock", "revision", "parents"]).to_pylist()
        for row in rows:
            if row["family"] != "plain":
                version = _Version(row["id"], dict(row["clock"] or ()), row["revision"], row["parents"])
                documents.setdefault(row["document"], []).append(version)
                families[row["document"]] = row["family"]
    return sum(
        len(snapshots.heads(versions) if families[name] == "snapshot" else revisions.heads(versions))
        for name, versions in documents.items()
    )


# --- proofs -----------------------------------------------------------------------------------------------------------


def _proofs(spark: SparkSession, folder: Path, data: Path, rows: int | None) -> float:
    """Lines read, proven and written as files, a second: on all cores, or, of so many rows, by this process alone."""
    feed = StoreFeed.of_folder(data)
    stretch = Stretch(path=str(data), source=feed.source, start=None, end=feed.advance(None, rows).end)
    root = folder / "proven"
    stager = Stager({name: (f"{root}/{name}", f"{root}/{name}/x") for name in WRITTEN}, 0, True, {})
    seconds, _ = _timed(lambda: stage(spark, [stretch], Rules(), {}, stager, alone=rows is not None))
    shutil.rmtree(root)
    return stretch.end.position / seconds


T = TypeVar("T")


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
