"""A node's log in PostgreSQL is one more door to the same table: only read, while the node writes."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from logs import AUTHORS, START, snapshot
from postgres_server import PostgresServer
from processes import Node
from pyspark.sql import DataFrame, SparkSession
from test_source import lines_of

from anabranch.core.nostr import Limits, serialise
from anabranch.core.operation import KindPolicy
from anabranch.core.token import Position
from anabranch.pipeline import feed as feeds
from anabranch.pipeline import replicas
from anabranch.pipeline.feed import FeedError, GapFound
from anabranch.pipeline.jobs.audit import audit
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.jobs.repair import repair
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Reading
from anabranch.pipeline.sources import open_feeds, without_passwords
from anabranch.store.contract import StoreError
from anabranch.store.postgres import PostgresStore
from anabranch.store.transfer import import_lines


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.empty_url()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[PostgresStore]:
    """A store that stays open for writing, as a running node has it."""
    store = PostgresStore.open(url, tmp_path / "data", durable=False)
    yield store
    store.close()


def fill(store: PostgresStore, lines: list[bytes]) -> None:
    stream = BytesIO(b"".join(line + b"\n" for line in lines))
    import_lines(stream, store.writer, limits=Limits(), kinds=KindPolicy(), now_ms=lambda: START * 1000, workers=0)


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("anabranch").options(**options).load(url)


def test_a_database_and_a_dump_are_the_same_table(
    spark: SparkSession, generated: Path, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
):
    lines = generated.read_bytes().splitlines()
    fill(store, lines)
    rows = read(spark, url)
    assert lines_of(rows) == [(at, line.decode()) for at, line in enumerate(lines, start=1)]
    assert {row[0] for row in rows.select("source").distinct().collect()} == {store.place}
    monkeypatch.setattr(feeds, "ROWS_A_SPAN_MIN", 100)
    (feed,) = open_feeds(url)
    spans = feed.spans(None, feed.mark(), 3)
    parts = [[row["position"] for batch in feed.read(span) for row in batch.to_pylist()] for span in spans]
    assert [len(part) for part in parts] == [len(lines) // 3] * 3
    assert [at for part in parts for at in part] == list(range(1, len(lines) + 1))


def test_compacted_operations_are_rows_of_facts(spark: SparkSession, store: PostgresStore, url: str):
    events = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 4)]
    fill(store, [serialise(event) for event in events])
    store.writer.compact([Position(1)])
    rows = read(spark, url).orderBy("position").collect()
    assert [(row["id"], row["state"], row["raw"] is None) for row in rows] == [
        (events[0].id, "compacted", True),
        (events[1].id, "retained", False),
        (events[2].id, "retained", False),
    ]


def test_a_role_that_may_only_read_is_enough(
    spark: SparkSession, store: PostgresStore, url: str, postgres: PostgresServer
):
    fill(store, [serialise(snapshot(AUTHORS[0], "A", {"laptop": 1}))])
    schema = url.rpartition("%3D")[2]
    postgres.run("DROP ROLE IF EXISTS analyst; CREATE ROLE analyst LOGIN")
    postgres.run(f"GRANT USAGE ON SCHEMA {schema} TO analyst; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO analyst")
    try:
        assert read(spark, url.replace("//anabranch:", "//analyst:")).count() == 1
    finally:
        postgres.run("DROP OWNED BY analyst; DROP ROLE analyst")


def test_a_feed_of_a_database_cannot_change_it(store: PostgresStore, url: str):
    (feed,) = open_feeds(url)
    with feed._store().reader() as reader:
        assert reader._value("SHOW transaction_read_only") == "on"
        with pytest.raises(StoreError, match="read-only"):
            reader._rows("UPDATE log SET tip = 0")


def test_ingest_goes_on_where_it_was_and_writes_no_password_down(
    spark: SparkSession, tmp_path: Path, store: PostgresStore, url: str
):
    lake = Lake(tmp_path / "lake", spark, create=True)
    events = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 6)]
    fill(store, [serialise(event) for event in events[:3]])
    assert ingest(lake, [url]).operations == 3
    fill(store, [serialise(event) for event in events[3:]])
    assert ingest(lake, [url], batch_rows=1).operations == 2
    assert ingest(lake, [url]).operations == 0
    assert {row[0] for row in lake.table("sightings").read(spark).select("source").collect()} == {store.place}
    for file in (tmp_path / "lake").rglob("*"):
        assert file.is_dir() or b"not-shown" not in file.read_bytes(), file


def test_another_epoch_is_a_gap(new_lake: Callable[[], Lake], store: PostgresStore, url: str):
    lake = new_lake()
    fill(store, [serialise(snapshot(AUTHORS[0], "A", {"laptop": 1}))])
    ingest(lake, [url])
    store.writer.new_epoch()
    with pytest.raises(GapFound) as gap:
        ingest(lake, [url])
    assert "not-shown" not in str(gap.value)
    assert ingest(lake, [url], gaps="bootstrap").gaps == 1


def test_a_database_is_a_replica_like_any_other(spark: SparkSession, tmp_path: Path, store: PostgresStore, url: str):
    events = [serialise(snapshot(AUTHORS[0], "A", {"laptop": n}, START + n)) for n in range(1, 4)]
    fill(store, events[:2])
    (tmp_path / "dump.jsonl").write_bytes(b"\n".join(events))
    (shown,), options = without_passwords([url], {})
    reading = Reading(options)
    opened = replicas.opened(spark, [shown, str(tmp_path / "dump.jsonl")], tmp_path / "work", reading)
    found = audit(opened, START + 10)
    assert found.findings.missing == {shown: 1, str(tmp_path / "dump.jsonl"): 0}
    refusal = repair(opened[0], tmp_path / "dump.jsonl", 1, reading, START * 1000).problem
    assert refusal is not None and "name the address of its node" in refusal
    assert "not-shown" not in shown


async def test_a_running_nodes_log_is_read_beside_it(
    spark: SparkSession, start_node: Callable[..., Node], connect: Callable, url: str
):
    own = start_node(env={"STORE": url})
    client = await connect(own)
    events = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 4)]
    for event in events:
        await client.send("EVENT", json.loads(serialise(event)))
        assert (await client.next(("OK", event.id)))[2]
    assert [row["id"] for row in read(spark, url).orderBy("position").collect()] == [event.id for event in events]


def test_what_is_no_database_is_said_without_its_password(url: str):
    for address, words in {
        url: "no store in postgresql://",
        "postgresql://ann:hunter2@127.0.0.1:1/x": "cannot reach postgresql://ann@127.0.0.1:1/x",
        "postgresql://ann:hunter2%@127.0.0.1/x": "address cannot be read",
        "mysql://ann:hunter2@127.0.0.1/x": "mysql://… is no folder, no file and no address",
    }.items():
        with pytest.raises(FeedError, match=words) as refused:
            open_feeds(address)[0].mark()
        assert "hunter2" not in str(refused.value) and "not-shown" not in str(refused.value)
