"""An export is what a node would export by the same words, in an order to apply it in, and whole or not there."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logs import AUTHORS, START, WRAPS, lake_heads, make_store, random_history, revision, served_heads, snapshot
from pyspark.sql import SparkSession

from anabranch.core import clock as clocks
from anabranch.core.negentropy_items import Items
from anabranch.core.nostr import Limits, parse, serialise
from anabranch.core.operation import KindPolicy, classify
from anabranch.pipeline.jobs import export, heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.store import transfer
from anabranch.store.sqlite import SqliteStore
from anabranch.store.transfer import Selector


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Path]:
    """A lake, and the store it was read from: the same history."""
    folder = tmp_path_factory.mktemp("both") / "data"
    make_store(folder, random_history(7, 200))
    lake = Lake(folder.parent / "lake", spark, create=True)
    ingest(lake, [str(folder)])
    return lake, folder


def lines_of(file: Path) -> list[bytes]:
    with file.open("rb") as stream:
        return [line for _, line in transfer.lines(transfer.decompressed(stream), 1 << 20) if line]


def served_items(folder: Path, selector: Selector) -> bytes:
    """The digest of what a store has in a scope."""
    with SqliteStore.inspect(folder).reader() as reader:
        events = [parse(line.strip(), Limits())[0] for line in transfer.export(reader, selector)]
    ids = b"".join(bytes.fromhex(event.id) for event in events)
    return Items.build([event.created_at for event in events], ids).fingerprint


A = frozenset({AUTHORS[0].pubkey})
SCOPES = {
    "all": Selector(),
    "authors": Selector(authors=A),
    "recipients": Selector(recipients=A),
    "kinds": Selector(kinds=frozenset({1, 10_002, 42_061})),
    "documents": Selector(documents=frozenset({"A"})),
    "times": Selector(since=START + 50, until=START + 120),
    "heads": Selector(heads_only=True),
    "heads of some": Selector(heads_only=True, kinds=frozenset({1059, 30_023, 1}), since=START + 20),
    "nothing": Selector(authors=frozenset({"0" * 64})),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_lake_exports_what_its_node_would(both: tuple[Lake, Path], tmp_path: Path, scope: str):
    lake, folder = both
    out = tmp_path / "out.jsonl"
    done = export.export(lake, out, SCOPES[scope])
    with SqliteStore.inspect(folder).reader() as reader:
        expected = sorted(line.strip() for line in transfer.export(reader, SCOPES[scope]))
    assert sorted(lines_of(out)) == expected
    assert done.operations == len(expected) and done.bytes == out.stat().st_size
    assert bool(expected) is (scope != "nothing")


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "x.parquet"])
def test_a_fresh_node_imports_it_and_answers_the_same(both: tuple[Lake, Path], tmp_path: Path, name: str):
    lake, folder = both
    scope = Selector(kinds=frozenset({1059, 42_061}))
    export.export(lake, tmp_path / name, scope)
    fresh = SqliteStore.open(tmp_path / "fresh", "OFF")
    with (tmp_path / name).open("rb") as stream:
        report = transfer.import_lines(
            transfer.decompressed(stream),
            fresh.writer,
            limits=Limits(),
            kinds=KindPolicy(),
            now_ms=lambda: START * 1000,
            workers=0,
        )
    fresh.close()
    assert report.stored > 50 and not report.rejected and report.broken is None
    assert served_items(tmp_path / "fresh", scope) == served_items(folder, scope)
    heads.update(lake)
    with SqliteStore.inspect(tmp_path / "fresh").reader() as reader:
        assert served_heads(reader) == lake_heads(lake)


def test_a_folder_takes_parquet_files_with_every_column(both: tuple[Lake, Path], tmp_path: Path):
    lake, _ = both
    done = export.export(lake, tmp_path / "many", Selector())
    table = pq.read_table(tmp_path / "many")
    assert table.num_rows == done.operations == lake.table("operations").count()
    assert table.column_names == lake.table("operations").schema.names
    assert all(file.suffix == ".parquet" for file in (tmp_path / "many").iterdir())


def test_what_a_version_stands_on_comes_before_it(new_lake: Callable[[], Lake], tmp_path: Path):
    rng = random.Random(3)
    names = [rng.randbytes(32).hex() for _ in range(30)]
    events = []
    for number, name in enumerate(names):  # times and the order of arrival say nothing about the order
        parents = rng.sample(names[:number], min(number, rng.choice((0, 1, 2))))
        events.append(revision(WRAPS[0], AUTHORS[0], "A", name, parents, START + rng.randrange(50)))
        clock = {device: rng.randint(1, 4) for device in ("laptop", "phone")}
        events.append(snapshot(AUTHORS[1], "B", clock, START + rng.randrange(50)))
    rng.shuffle(events)
    (tmp_path / "in.jsonl").write_bytes(b"".join(serialise(event) + b"\n" for event in events))
    lake = new_lake()
    ingest(lake, [str(tmp_path / "in.jsonl")])
    export.export(lake, tmp_path / "out.jsonl", Selector())
    written = [classify(*parse(line, Limits()), KindPolicy()) for line in lines_of(tmp_path / "out.jsonl")]
    assert len(written) == len({event.id for event in events})
    come: set[str] = set()
    clocks_come: list[dict[str, int]] = []
    for operation in written:
        if operation.revision is not None:
            assert come.issuperset(operation.revision.parents)
            come.add(operation.revision.revision)
        else:
            assert not any(clocks.dominates(before, operation.clock) for before in clocks_come)
            clocks_come.append(operation.clock)


def test_revisions_that_name_each_other_in_a_circle_are_written_too():
    table = pa.table(
        {
            "document": ["d"] * 3,
            "family": ["revision"] * 3,
            "created_at": [3, 2, 1],
            "clock_sum": pa.nulls(3, pa.int64()),
            "revision": ["a", "b", "c"],
            "parents": [["b"], ["a"], ["b"]],
        }
    )
    placed = export.with_places(table)
    assert placed["moment"].to_pylist() == [3, 2, 1]
    assert placed.num_rows == 3


def test_an_export_that_fails_leaves_what_was_there(
    both: tuple[Lake, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lake, _ = both
    out = tmp_path / "place" / "x.jsonl"
    out.parent.mkdir()
    out.write_bytes(b"before\n")
    pieces = export._pieces

    def broken(*arguments: object):
        yield next(iter(pieces(*arguments)))
        assert list(out.parent.glob(".*.unfinished"))
        raise OSError("no space left on device")

    monkeypatch.setattr(export, "_pieces", broken)
    with pytest.raises(OSError, match="no space"):
        export.export(lake, out, Selector())
    assert [file.name for file in out.parent.iterdir()] == ["x.jsonl"]
    assert out.read_bytes() == b"before\n"


@pytest.mark.parametrize("name", ["x.csv", "full", "nowhere/x.jsonl"])
def test_a_target_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, name: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(export.BadTarget):
        export.check(tmp_path / name)
