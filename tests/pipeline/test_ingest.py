"""Every operation is in the lake once and proven, whatever it came from and however often it came."""

import gzip
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from logs import AUTHORS, START, WRAPS, bad_lines, make_store, random_history, revision, snapshot

from anabranch.core.nostr import serialise
from anabranch.core.token import Position
from anabranch.pipeline.feed import GapFound
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake, LakeBusy, NoLake
from anabranch.pipeline.schema import TABLES
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]


def ids(lake: Lake) -> Counter[str]:
    return Counter(row["id"] for row in lake.operations().select("id").collect())


def dump(folder: Path, name: str, lines: list[bytes]) -> str:
    (folder / name).write_bytes(b"\n".join(lines) + b"\n")
    return str(folder / name)


def test_what_a_node_stores_of_a_dump_is_what_the_lake_takes(new_lake: Lakes, tmp_path: Path):
    lines, bad = random_history(7), list(bad_lines().values())
    report = make_store(tmp_path / "data", [*lines, *bad])
    lake = new_lake()
    done = ingest(lake, [dump(tmp_path, "x.jsonl", [*lines, *bad])])
    assert done.rejected == report.rejected == len(bad)
    assert done.sightings == len(lines)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        stored = {facts.id for facts in reader.facts(limit=10_000)}
    taken = ids(lake)
    assert max(taken.values()) == 1
    # A node does not take a replaceable event that a newer one has replaced; a lake keeps all of a history.
    replaced = {row["id"] for row in lake.operations().filter("family = 'plain'").select("id").collect()}
    assert stored <= taken.keys() and taken.keys() - stored <= replaced
    reasons = {row["position"]: row["reason"] for row in lake.rejected().collect()}
    for at, words in enumerate(bad_lines(), start=len(lines) + 1):
        assert words in reasons[at]


@pytest.mark.parametrize("alone_below", [0, 1_000])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_bad_lines_of_any_dump_are_rejected_with_a_reason_and_stop_nothing(
    new_lake: Lakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, alone_below: int
):
    monkeypatch.setattr("anabranch.pipeline.jobs.ingest.ALONE_BELOW", alone_below)
    bad, good = bad_lines(), list(dict.fromkeys(random_history(13)))[:30]
    lake, content = new_lake(), b"\n".join([*good[:10], *bad.values(), *good[10:]])
    file = tmp_path / f"x.jsonl{suffix}"
    if suffix == ".zst":
        with pa.CompressedOutputStream(str(file), "zstd") as out:
            out.write(content)
    else:
        file.write_bytes(gzip.compress(content) if suffix else content)
    done = ingest(lake, [str(file)])
    assert (done.rejected, done.sightings) == (len(bad), len(good))
    reasons = [row["reason"] for row in lake.rejected().orderBy("position").collect()]
    assert all(words in reason for words, reason in zip(bad, reasons, strict=True))
    assert ingest(lake, [str(file)]).batches == 0


def test_ingest_is_incremental_and_running_it_again_is_harmless(new_lake: Lakes, tmp_path: Path):
    lines, lake = random_history(8), new_lake()
    make_store(tmp_path / "data", lines[:60])
    first = ingest(lake, [str(tmp_path / "data")])
    assert ingest(lake, [str(tmp_path / "data")]).batches == 0
    make_store(tmp_path / "data", lines[60:])
    second = ingest(lake, [str(tmp_path / "data")], batch_rows=20)
    assert second.batches > 1
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        known = reader.facts(limit=10_000)
    assert first.operations + second.operations + second.facts + first.facts >= len(known)
    places = [(row["position"], row["id"]) for row in lake.sightings().orderBy("position").collect()]
    assert {(facts.position, facts.id) for facts in known} <= set(places)
    assert len(places) == len(set(places))


def test_several_nodes_make_one_lake_with_each_operation_once(new_lake: Lakes, tmp_path: Path):
    lines, lake = [line for line in random_history(9) if b'"kind":42061' in line], new_lake()
    make_store(tmp_path / "a", lines[:40])
    make_store(tmp_path / "b", lines[20:])
    ingest(lake, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert max(ids(lake).values()) == 1
    seen = Counter(row["id"] for row in lake.sightings().collect())
    assert set(seen) == set(ids(lake))
    assert max(seen.values()) == 2
    assert lake.sightings().select("stream").distinct().count() == 2


def test_a_revision_that_comes_in_another_wrap_is_one_operation(new_lake: Lakes, tmp_path: Path):
    first, again = (revision(wrap, AUTHORS[0], "A", "ab" * 32, ["cd" * 32]) for wrap in WRAPS[:2])
    lake = new_lake()
    done = ingest(lake, [dump(tmp_path, "x.jsonl", [serialise(first), serialise(again)])])
    assert (done.operations, done.sightings) == (1, 2)
    assert set(ids(lake)) == {first.id}
    assert ingest(lake, [dump(tmp_path, "y.jsonl", [serialise(again)])]).operations == 0


def test_facts_of_what_is_compacted_stand_apart_from_what_is_proven(new_lake: Lakes, tmp_path: Path):
    events = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 5)]
    make_store(tmp_path / "data", map(serialise, events))
    store = SqliteStore.open(tmp_path / "data")
    store.writer.compact([Position(1)])
    store.close()
    lake = new_lake()
    done = ingest(lake, [str(tmp_path / "data")])
    assert (done.operations, done.facts, done.sightings) == (3, 1, 4)
    assert [(row["id"], row["state"]) for row in lake.facts().collect()] == [(events[0].id, "compacted")]
    # Another node still has it: then it is proven, and known to both.
    assert ingest(lake, [dump(tmp_path, "x.jsonl", [serialise(events[0])])]).operations == 1


def test_a_gap_is_an_error_or_a_row_and_a_first_reading_again(new_lake: Lakes, tmp_path: Path):
    lake, data = new_lake(), str(tmp_path / "data")
    make_store(tmp_path / "data", random_history(10)[:30])
    ingest(lake, [data])
    before = ids(lake)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        was = reader.log()
    store = SqliteStore.open(tmp_path / "data")
    store.writer.new_epoch(Position(50))
    store.close()
    with pytest.raises(GapFound, match="epoch_changed"):
        ingest(lake, [data])
    done = ingest(lake, [data], gaps="bootstrap", batch_rows=10)
    assert (done.gaps, done.operations) == (1, 0)
    assert ids(lake) == before
    (gap,) = lake.gaps().collect()
    assert (gap["reason"], gap["position"], gap["was_epoch"]) == ("epoch_changed", was.tip, was.epoch)
    assert ingest(lake, [data]).batches == 0


def test_below_the_floor_is_a_gap_and_what_is_read_again_is_not_there_twice(new_lake: Lakes, tmp_path: Path):
    lake, data = new_lake(), str(tmp_path / "data")
    lines = random_history(11)
    make_store(tmp_path / "data", lines[:30])
    ingest(lake, [data])
    make_store(tmp_path / "data", lines[30:60])
    store = SqliteStore.open(tmp_path / "data")
    store.writer.raise_floor(Position(store.log().tip - 2))
    store.close()
    with pytest.raises(GapFound, match="token_too_old"):
        ingest(lake, [data])
    ingest(lake, [data], gaps="bootstrap", batch_rows=25)
    places = Counter((row["epoch"], row["position"]) for row in lake.sightings().collect())
    assert max(places.values()) == 1
    assert lake.gaps().count() == 1


def test_two_runs_at_once_on_one_lake_one_fails_clearly_or_waits(new_lake: Lakes, tmp_path: Path):
    lake, source = new_lake(), dump(tmp_path, "x.jsonl", random_history(12)[:5])
    with lake.lock(), pytest.raises(LakeBusy, match=f"in use by another run .process {os.getpid()}.*--wait"):
        ingest(Lake(lake.path, lake.spark, create=True), [source])
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from anabranch.pipeline import Lake\n"
            f"with Lake({lake.path!r}, create=True).lock(): print(flush=True); time.sleep(1.5)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline()
    assert ingest(lake, [source], wait=30).operations > 0
    assert holder.wait() == 0


def test_the_tables_are_delta_and_anybody_reads_them(new_lake: Lakes, generated: Path):
    lake = new_lake()
    ingest(lake, [str(generated)])
    for name, schema in TABLES.items():
        assert [field.name for field in DeltaTable(lake.table(name).path).schema().fields] == schema.names
    path = lake.table("operations").path
    assert polars.scan_delta(path).select(polars.len()).collect().item() == 1_500
    operations = DeltaTable(path).to_pyarrow_dataset()
    assert duckdb.sql("SELECT count(DISTINCT id), sum(clock_sum) FROM operations").fetchall()[0][0] == 1_500
    assert operations.count_rows() == lake.table("operations").count() == 1_500


def test_a_lake_that_is_not_there_is_told_and_not_made(tmp_path: Path):
    with pytest.raises(NoLake, match="pipeline ingest --from"):
        Lake(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
