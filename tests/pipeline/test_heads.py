"""The pipeline's heads are the rule's heads and the node's heads, and increments add up to the whole."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from logs import AUTHORS, START, WRAPS, lake_heads, make_store, random_history, revision, served_heads, snapshot
from pyspark.sql import Row, SparkSession
from test_ingest import dump

from anabranch.core import revisions, snapshots
from anabranch.core.nostr import serialise
from anabranch.core.token import Position
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.schema import BUCKETS, FACTS, OPERATIONS
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]


class Version(NamedTuple):
    document: str
    id: str
    clock: dict[str, int]
    revision: str
    parents: tuple[str, ...]


def random_versions(seed: int) -> tuple[list[Version], list[Version]]:
    """Versions of a few hundred documents of each family, with clocks and parents in which everything happens."""
    rng = random.Random(seed)
    devices = [f"d{number}" for number in range(5)] + ["ü", "\0"]
    of_clocks, of_parents = [], []
    for document in range(150):
        for _ in range(rng.choice((1, 1, 2, 5, 12))):
            clock = {device: rng.randint(1, 3) for device in rng.sample(devices, rng.randint(1, len(devices)))}
            of_clocks.append(Version(f"s{document}", f"{rng.getrandbits(64):016x}", clock, "", ()))
        names = [f"r{number}" for number in range(12)]
        for name in rng.sample(names, rng.choice((1, 2, 5, 12))):
            parents = tuple(other for other in rng.sample(names, rng.choice((0, 1, 1, 3))) if other != name)
            of_parents.append(Version(f"r{document}", f"{rng.getrandbits(64):016x}", {}, name, parents))
    return of_clocks, of_parents


def as_rows(of_clocks: list[Version], of_parents: list[Version]) -> list[Row]:
    known: dict[str, Any] = dict.fromkeys(OPERATIONS.names)

    def row(version: Version, **own: Any) -> Row:
        return Row(**(known | {"document": version.document, "id": version.id, "action": "put"} | own))

    return [
        *(row(v, family="snapshot", clock=v.clock, clock_sum=sum(v.clock.values())) for v in of_clocks),
        *(row(v, family="revision", revision=v.revision, parents=list(v.parents)) for v in of_parents),
    ]


def by_document(versions: list[Version], rule: Callable[[list[Version]], list[Version]]) -> set[tuple[str, str]]:
    documents: dict[str, list[Version]] = {}
    for version in versions:
        documents.setdefault(version.document, []).append(version)
    return {(name, head.id) for name, every in documents.items() for head in rule(every)}


@pytest.mark.parametrize("seed", range(3))
def test_the_twin_in_spark_is_the_rule(spark: SparkSession, seed: int):
    of_clocks, of_parents = random_versions(seed)
    expected = by_document(of_clocks, snapshots.heads) | by_document(of_parents, revisions.heads)
    operations = spark.createDataFrame(as_rows(of_clocks, of_parents), OPERATIONS)
    found = heads.heads(heads.versions(operations, spark.createDataFrame([], FACTS))).filter("payload").collect()
    assert {(row["document"], row["id"]) for row in found} == expected
    assert len(found) == len(expected)
    several = {name for name, _ in expected if sum(other == name for other, _ in expected) > 1}
    assert {row["document"] for row in found if row["heads"] > 1} == several
    assert len(several) > 50


@pytest.mark.parametrize("seed", range(2))
def test_the_lakes_heads_are_the_nodes_own(new_lake: Lakes, tmp_path: Path, seed: int):
    lines = random_history(seed + 40, 200)
    make_store(tmp_path / "data", lines)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        said, statistics = served_heads(reader), reader.statistics()
    for source in (str(tmp_path / "data"), dump(tmp_path, "x.jsonl", lines)):
        lake = new_lake()
        ingest(lake, [source])
        found = heads.update(lake)
        assert lake_heads(lake) == said
        assert (found.documents, found.conflicts, found.tombstones) == (
            statistics.documents,
            statistics.conflicts,
            statistics.tombstones,
        )
        assert found.heads == sum(map(len, said.values()))


def test_the_generated_history_has_the_nodes_answers(new_lake: Lakes, generated: Path, generated_store: Path):
    lake = new_lake()
    ingest(lake, [str(generated)])
    found = heads.update(lake)
    with SqliteStore.inspect(generated_store).reader() as reader:
        said, statistics = served_heads(reader), reader.statistics()
    assert lake_heads(lake) == said
    assert (found.documents, found.conflicts, found.tombstones) == (150, statistics.conflicts, statistics.tombstones)
    assert found.conflicts > 5 and found.tombstones > 5


def test_increments_over_a_growing_log_are_the_whole(new_lake: Lakes, tmp_path: Path):
    lines, lake = random_history(60, 200), new_lake()
    for count in (120, 170, len(lines)):
        make_store(tmp_path / "data", lines[:count])
        ingest(lake, [str(tmp_path / "data")])
        found = heads.update(lake)
    everything = lake.heads().drop("awaited").collect()
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        assert lake_heads(lake) == served_heads(reader)
    assert heads.update(lake) == found
    assert heads.update(lake, full=True) == found
    again = lake.heads().drop("awaited").collect()
    assert sorted(map(repr, again)) == sorted(map(repr, everything))


def test_what_was_compacted_and_removed_still_supersedes(new_lake: Lakes, tmp_path: Path):
    names = ["a1" * 32, "b2" * 32, "c3" * 32]
    events = [
        *(snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 4)),
        revision(WRAPS[0], AUTHORS[1], "B", names[0], [], START),
        revision(WRAPS[1], AUTHORS[1], "B", names[1], [names[0]], START + 1),
        revision(WRAPS[2], AUTHORS[1], "B", names[2], [names[1]], START + 2),
        snapshot(AUTHORS[2], "C", {"laptop": 1}),
        snapshot(AUTHORS[2], "C", {"laptop": 2}),
    ]
    make_store(tmp_path / "data", map(serialise, events))
    store = SqliteStore.open(tmp_path / "data")
    store.writer.compact([Position(1), Position(2), Position(5)])
    store.writer.remove([events[5].id, events[7].id])  # two heads: what they superseded does not come back
    store.close()
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        said = served_heads(reader)
    lake = new_lake()
    ingest(lake, [str(tmp_path / "data")])
    found = heads.update(lake)
    assert lake_heads(lake) == said
    assert found.documents == len(said) == 1
    # Something new of the documents that have lost their heads: the lost ones are still known.
    more = [revision(WRAPS[0], AUTHORS[1], "B", "d4" * 32, [names[1]]), snapshot(AUTHORS[2], "C", {"phone": 1})]
    make_store(tmp_path / "data", map(serialise, more))
    ingest(lake, [str(tmp_path / "data")])
    heads.update(lake)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        assert lake_heads(lake) == served_heads(reader)


def test_what_is_no_version_of_anything_has_no_heads(new_lake: Lakes, tmp_path: Path):
    events = [snapshot(AUTHORS[0], "A", {"laptop": 1}), AUTHORS[0].sign(1, [], "plain", START)]
    lake = new_lake()
    ingest(lake, [dump(tmp_path, "x.jsonl", [serialise(event) for event in events])])
    files = heads._Files.of(lake)
    read = [id for bucket in BUCKETS for id in files.bucket(bucket).fresh(after=-1)["id"].to_pylist()]
    assert read == [events[0].id]
    assert heads.update(lake).heads == 1


def test_files_by_bucket_and_a_little_at_a_time_give_the_same(
    new_lake: Lakes, generated: Path, generated_store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("anabranch.pipeline.jobs.ingest.BUCKETS_ABOVE", 0)
    lake = new_lake()
    ingest(lake, [str(generated)], batch_rows=1_200)
    files = lake.table("operations").files()
    assert all(any(f"/bucket={bucket}/" in file for file in files) for bucket in BUCKETS)
    with SqliteStore.inspect(generated_store).reader() as reader:
        said = served_heads(reader)
    # In tasks, and here; all documents of a bucket at once, and a few at a time, as where there is little memory.
    for alone_below, rows_at_once in ((0, 500_000), (99_999, 20)):
        monkeypatch.setattr(heads, "ALONE_BELOW", alone_below)
        monkeypatch.setattr(heads, "ROWS_AT_ONCE", rows_at_once)
        heads.update(lake, full=True)
        assert lake_heads(lake) == said
        monkeypatch.undo()
    scanned = heads.scan(lake).filter("payload").select("document", "id").collect()
    assert sorted(scanned) == sorted(lake.heads().select("document", "id").collect())
