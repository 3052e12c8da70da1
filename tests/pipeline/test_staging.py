"""What tasks write is taken once, whatever becomes of the tasks; and many small files become few."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from logs import bad_lines, lake_heads, make_store, random_history, served_heads

from anabranch.pipeline.feed import Rows
from anabranch.pipeline.jobs import heads, ingest, tidy
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.rows import Rules, read_lines
from anabranch.pipeline.schema import BUCKETS
from anabranch.pipeline.staging import Seen, Staged, Stager
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]


def proven(lines: list[bytes]):
    for at in range(0, len(lines), 20):
        rows = Rows("s", "e", "x.jsonl")
        for number, line in enumerate(lines[at : at + 20], start=at + 1):
            rows.add(number, line)
        yield from read_lines(rows.take(), Rules())


def stager(lake: Lake, buckets: bool = True, seen: dict[tuple[str, str, str], Seen] | None = None) -> Stager:
    tables = {name: (lake.table(name).path, lake.table(name).folder()) for name in ingest.WRITTEN}
    return Stager(tables, 7, buckets, seen or {})


def take(lake: Lake, staged: list[Staged]) -> None:
    for name in ingest.WRITTEN:
        lake.table(name).take([one.file for one in staged if one.table == name], {})


def positions(lake: Lake, name: str) -> list[int]:
    return sorted(row["position"] for row in lake.read(name).select("position").collect())


@pytest.mark.parametrize("rows_at_once", [1, 50, 10_000])
def test_every_line_is_in_its_table_once(new_lake: Lakes, monkeypatch: pytest.MonkeyPatch, rows_at_once: int):
    monkeypatch.setattr("anabranch.pipeline.staging.ROWS_AT_ONCE", rows_at_once)
    lake, bad = new_lake(), list(bad_lines().values())
    lines = [*random_history(50), *bad]
    take(lake, list(stager(lake).stage(proven(lines))))
    good = list(range(1, len(lines) - len(bad) + 1))
    assert positions(lake, "operations") == positions(lake, "sightings") == good
    assert positions(lake, "rejected") == list(range(len(good) + 1, len(lines) + 1))
    assert {row["batch"] for row in lake.operations().select("batch").distinct().collect()} == {7}


def test_files_of_a_bucket_hold_nothing_of_another(new_lake: Lakes):
    lake = new_lake()
    take(lake, list(stager(lake).stage(proven(random_history(51)))))
    files = lake.table("operations").files()
    assert {file.rpartition("bucket=")[2].partition("/")[0] for file in files} <= {*BUCKETS, "mixed"}
    for file in files:
        bucket = file.rpartition("bucket=")[2].partition("/")[0]
        rows = lake.spark.read.parquet(file).collect()
        assert {(row["document"] or "mixed")[: len(bucket)] for row in rows} == {bucket}


def test_a_task_that_is_tried_again_brings_nothing_twice(new_lake: Lakes):
    lake, lines = new_lake(), random_history(52)
    writes = stager(lake)
    abandoned = list(islice(writes.stage(proven(lines)), 3))
    take(lake, list(writes.stage(proven(lines))))
    assert positions(lake, "operations") == list(range(1, len(lines) + 1))
    left = [Path(lake.table(one.table).path) / one.file.path for one in abandoned]
    assert all(file.exists() for file in left)
    for name in ingest.WRITTEN:
        lake.table(name).sweep(kept_hours=0)
    assert not any(file.exists() for file in left)
    assert positions(lake, "sightings") == list(range(1, len(lines) + 1))


def test_places_that_a_table_has_are_not_written_again(new_lake: Lakes):
    lake, lines = new_lake(), random_history(53)[:40]
    known = Seen(b"".join(n.to_bytes(8, "little") for n in (1, 5, 40)))
    take(
        lake, list(stager(lake, seen={("sightings", "s", "e"): known, ("facts", "s", "e"): known}).stage(proven(lines)))
    )
    assert set(range(1, 41)) - set(positions(lake, "sightings")) == {1, 5, 40}
    assert positions(lake, "operations") == list(range(1, 41))


def test_batches_read_here_and_by_tasks_make_the_same_lake(
    new_lake: Lakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = [*random_history(54), *bad_lines().values()]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "y.jsonl").write_bytes(b"\n".join(lines[20:]))
    lakes = []
    for alone_below, buckets_above in ((10_000, 10_000), (0, 0)):
        monkeypatch.setattr(ingest, "ALONE_BELOW", alone_below)
        monkeypatch.setattr(ingest, "BUCKETS_ABOVE", buckets_above)
        lakes.append(new_lake())
        ingest.ingest(lakes[-1], [str(tmp_path / "x.jsonl")])
        ingest.ingest(lakes[-1], [str(tmp_path)])
    for name in ("operations", "rejected", "sightings"):
        here, there = (Counter((row["stream"], row["position"]) for row in lake.read(name).collect()) for lake in lakes)
        assert here == there and set(here.values()) == {1}


# --- tidying -------------------------------------------------------------------------------------------------------


def test_many_small_files_become_few_with_the_same_rows_and_heads(
    new_lake: Lakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tidy, "FILES_MAX", 4)
    lake, lines = new_lake(), random_history(55, 200)
    random.Random(55).shuffle(lines)
    source = tmp_path / "x.jsonl"
    for at in range(0, len(lines), 20):
        with source.open("ab") as file:
            file.writelines(line + b"\n" for line in lines[at : at + 20])
        ingest.ingest(lake, [str(source)])
        heads.update(lake)
    for name in tidy.TABLES:
        assert len(lake.table(name).files()) <= 5
    assert positions(lake, "sightings") == list(range(1, len(lines) + 1))
    make_store(tmp_path / "data", lines)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        assert lake_heads(lake) == served_heads(reader)


def test_who_reads_while_files_are_put_together_reads_on(new_lake: Lakes, tmp_path: Path):
    lake, lines = new_lake(), random_history(56)
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    ingest.ingest(lake, [str(tmp_path / "x.jsonl")], batch_rows=20)
    before, count = lake.sightings(), lake.table("sightings").count()
    files = lake.table("sightings").files()
    tidy.put_together(lake.table("sightings"), files_max=1)
    lake.table("sightings").sweep()
    assert len(lake.table("sightings").files()) == 1 < len(files)
    assert before.count() == lake.sightings().count() == count
    lake.table("sightings").sweep(kept_hours=0)
    assert not any(Path(file).exists() for file in files)
    assert lake.sightings().count() == count
