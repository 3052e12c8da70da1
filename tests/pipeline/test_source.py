"""Any log is a table, whatever door it is read through, and a gap is never silent."""

import gzip
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from logs import AUTHORS, START, bad_lines, make_store, random_history, snapshot
from processes import ADMIN_TOKEN, Node
from pyspark.sql import DataFrame, SparkSession

from anabranch.core.nostr import Limits, serialise
from anabranch.core.token import Position
from anabranch.pipeline.feed import FeedError, Span
from anabranch.pipeline.feed_dump import DumpFeed
from anabranch.pipeline.schema import LOG, PROVEN
from anabranch.pipeline.sources import open_feeds
from anabranch.store.sqlite import SqliteStore


def read(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("anabranch").options(**options).load(str(path))


def lines_of(rows: DataFrame) -> list[tuple[int, str]]:
    return sorted((row["position"], row["raw"]) for row in rows.select("position", "raw").collect())


def test_a_store_and_a_dump_of_it_are_the_same_table(spark: SparkSession, generated: Path, generated_store: Path):
    expected = list(enumerate(generated.read_text().splitlines(), start=1))
    for path in (generated, generated_store, generated_store / "anabranch.db"):
        rows = read(spark, path, partitions="3")
        assert rows.schema == PROVEN
        assert lines_of(rows) == expected
        assert rows.filter("problem IS NOT NULL OR state <> 'retained'").isEmpty()


def test_what_is_compressed_reads_the_same(spark: SparkSession, generated: Path, tmp_path: Path):
    plain = generated.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain))
    with pa.CompressedOutputStream(str(tmp_path / "b.jsonl.zst"), "zstd") as out:
        out.write(plain)
    rows = read(spark, tmp_path)
    expected = generated.read_text().splitlines()
    assert lines_of(rows) == sorted([*enumerate(expected, 1), *enumerate(expected, 1)])
    assert {row[0] for row in rows.select("stream").distinct().collect()} == {
        str(tmp_path / "a.jsonl.gz"),
        str(tmp_path / "b.jsonl.zst"),
    }


def test_the_log_form_has_lines_and_places_and_nothing_else(spark: SparkSession, generated: Path):
    rows = read(spark, generated, form="log")
    assert rows.schema == LOG
    assert {bytes(row["line"]) for row in rows.collect()} == set(generated.read_bytes().splitlines())


def test_every_column_says_what_the_event_says(spark: SparkSession, generated_store: Path):
    rows = {row["id"]: row for row in read(spark, generated_store).collect()}
    with SqliteStore.inspect(generated_store).reader() as reader:
        for facts in reader.facts(limit=2_000):
            row = rows[facts.id]
            assert row["document"] == facts.document.hex()
            assert (row["author"], row["kind"], row["created_at"]) == (facts.author, facts.kind, facts.created_at)
            assert (row["coordinate"], row["collection"]) == (facts.coordinate, facts.collection)
            assert row["action"] == ("del" if facts.action else "put")
            if facts.clock is not None:
                assert row["clock"] == facts.clock and row["clock_sum"] == sum(facts.clock.values())
            if facts.revision is not None:
                assert (row["recipient"], row["revision"]) == (facts.revision.recipient, facts.revision.revision)
                assert (tuple(row["parents"]), row["mtime"]) == (facts.revision.parents, facts.revision.mtime)


def test_compacted_operations_are_rows_of_facts(spark: SparkSession, tmp_path: Path):
    events = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 5)]
    make_store(tmp_path / "data", map(serialise, events))
    store = SqliteStore.open(tmp_path / "data")
    store.writer.compact([Position(1), Position(2)])
    store.close()
    rows = read(spark, tmp_path / "data").orderBy("position").collect()
    assert [(row["id"], row["state"]) for row in rows] == [
        (event.id, state) for event, state in zip(events, ["compacted"] * 2 + ["retained"] * 2, strict=True)
    ]
    assert [row["raw"] is None for row in rows] == [True, True, False, False]
    assert rows[0]["clock"] == {"laptop": 1}


def test_no_line_of_a_dump_stops_a_run(spark: SparkSession, tmp_path: Path):
    bad = bad_lines()
    good = random_history(1)[:20]
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join([*good, *bad.values(), b"", b"   ", good[0]]))
    problems = [row for row in read(spark, tmp_path, prove="true").orderBy("position").collect() if row["problem"]]
    assert [row["position"] for row in problems] == list(range(len(good) + 1, len(good) + len(bad) + 1))
    for words, row in zip(bad, problems, strict=True):
        assert words in row["problem"]
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(b"\n".join(good))[:-20])
    cut = read(spark, tmp_path / "y.jsonl.gz").collect()
    assert "could not be read to its end" in cut[-1]["problem"]


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_a_file_is_cut_at_line_ends_only(tmp_path: Path, parts: int):
    texts = [b"x" * length for length in (1, 500, 3, 200, 4, 4, 4, 900, 1)]
    for end in (b"", b"\n"):
        file = tmp_path / "x.jsonl"
        file.write_bytes(b"\n".join(texts) + end)
        feed = DumpFeed(file, Limits())
        spans = feed.spans(None, feed.advance(None).end, parts)
        read = [row for span in spans for batch in feed.read(span) for row in batch.to_pylist()]
        assert [(row["position"], row["line"]) for row in read] == list(enumerate(texts, start=1))
        assert feed.advance(None, 4).end.position == 4


# --- as it grows ---------------------------------------------------------------------------------------------------


class Stream:
    """A query that keeps what it reads in memory, started again and again on one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, path: Path | str, **options: str) -> None:
        self._spark, self._folder, self._path, self._options = spark, folder, str(path), options

    def run(self) -> list[int]:
        """Read what is there; how many rows each batch had."""
        query = (
            self._spark.readStream.format("anabranch")
            .options(**self._options)
            .load(self._path)
            .select("epoch", "position", "id", "problem")
            .writeStream.format("json")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._folder / "rows"))
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[dict[str, object]]:
        schema = "epoch string, position bigint, id string, problem string"
        return [row.asDict() for row in self._spark.read.schema(schema).json(str(self._folder / "rows")).collect()]


def test_a_stream_reads_on_where_it_was_at_the_pace_it_was_told(spark: SparkSession, tmp_path: Path):
    lines = random_history(2)[:30]
    make_store(tmp_path / "data", lines[:20])
    stream = Stream(spark, tmp_path, tmp_path / "data", maxRows="8")
    first = stream.run()
    assert len(first) >= 2 and max(first) <= 8
    make_store(tmp_path / "data", lines[20:])
    stream.run()
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        known = [(facts.position, facts.id) for facts in reader.facts()]
    assert sorted((row["position"], row["id"]) for row in stream.rows()) == known


def test_a_dump_that_grows_is_read_on(spark: SparkSession, tmp_path: Path):
    lines = random_history(3)[:30]
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:10]) + b"\n")
    stream = Stream(spark, tmp_path, folder, maxRows="4")
    stream.run()
    with (folder / "a.jsonl").open("ab") as file:
        file.write(b"\n".join(lines[10:20]) + b"\n")
    (folder / "b.jsonl").write_bytes(b"\n".join(lines[20:]))
    stream.run()
    assert sorted(row["position"] for row in stream.rows()) == sorted([*range(1, 21), *range(1, 11)])


def test_a_gap_ends_a_stream_with_what_to_do_or_is_told_in_a_row(spark: SparkSession, tmp_path: Path):
    make_store(tmp_path / "data", random_history(4)[:20])
    strict = Stream(spark, tmp_path / "strict", tmp_path / "data")
    lenient = Stream(spark, tmp_path / "lenient", tmp_path / "data", gaps="bootstrap")
    strict.run(), lenient.run()
    store = SqliteStore.open(tmp_path / "data")
    store.writer.new_epoch(Position(100))
    tip = store.log().tip
    store.close()
    with pytest.raises(Exception, match=r"epoch_changed.*goes from \d+ to \d+. Read it again .* gaps=bootstrap"):
        strict.run()
    lenient.run()
    told = [row for row in lenient.rows() if row["problem"]]
    assert len(told) == 1 and "gap: what followed position" in told[0]["problem"]
    assert len({row["epoch"] for row in lenient.rows()}) == 2 and tip >= 20


# --- over the wire -------------------------------------------------------------------------------------------------


def test_a_nodes_whole_log_is_read_over_the_wire(
    spark: SparkSession, start_node: Callable[..., Node], generated_store: Path, monkeypatch: pytest.MonkeyPatch
):
    node = start_node(admin=True)
    node.stop()
    for file in generated_store.glob("anabranch.db*"):
        shutil.copy(file, node.data)
    node.start()
    here = lines_of(read(spark, generated_store))
    assert lines_of(read(spark, node.url, token=ADMIN_TOKEN, partitions="2")) == here
    monkeypatch.setenv("ANABRANCH_ADMIN_TOKEN", ADMIN_TOKEN)
    (feed,) = open_feeds(node.url.replace("ws:", "http:"))
    assert feed.mark().position == len(here)
    monkeypatch.delenv("ANABRANCH_ADMIN_TOKEN")
    with pytest.raises(FeedError, match="ANABRANCH_ADMIN_TOKEN"):
        open_feeds(node.url)[0].mark()


def test_pages_of_the_log_are_bounded_and_complete(start_node: Callable[..., Node]):
    node = start_node(admin=True)
    assert node.http("GET", "/admin/log").status == 401
    assert node.admin("POST", "log").status == 405
    for wrong in ("after=-1", "limit=x", "until=", "sideways=1"):
        assert node.admin("GET", f"log?{wrong}").status == 400
    empty = node.admin("GET", "log").text.splitlines()
    assert len(empty) == 1 and '"complete_to":0' in empty[0]


def test_what_cannot_be_read_says_why(tmp_path: Path):
    for path, words in {
        str(tmp_path / "nowhere"): "is not there",
        str(tmp_path): "no .jsonl",
        "gopher://x": "no address",
    }.items():
        with pytest.raises(FeedError, match=words):
            open_feeds(path)
    with pytest.raises(FeedError, match="does not answer"):
        open_feeds("ws://127.0.0.1:9")[0].mark()
    assert not list(DumpFeed(tmp_path / "empty.jsonl", Limits()).spans(None, _empty(tmp_path), 3))


def test_a_web_server_that_is_no_node_is_told_apart():
    for page, words in {"": "has no /admin/log", "<html>hello</html>": "no answer that makes sense"}.items():
        with web_server(page) as url, pytest.raises(FeedError, match=words):
            open_feeds(url)[0].mark()


@contextmanager
def web_server(page: str) -> Iterator[str]:
    """Answers every GET with the page; without one with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _empty(folder: Path):
    (folder / "empty.jsonl").write_bytes(b"")
    return DumpFeed(folder / "empty.jsonl", Limits()).advance(None).end


def test_a_span_of_an_older_epoch_is_not_read(tmp_path: Path):
    make_store(tmp_path / "data", random_history(5)[:3])
    (feed,) = open_feeds(str(tmp_path / "data"))
    with pytest.raises(FeedError, match="restored"):
        list(feed.read(Span("another", 0, 3)))


def test_changes_of_authors_and_recipients_are_read_from_a_node(
    spark: SparkSession, start_node: Callable[..., Node], tmp_path: Path
):
    node = start_node(admin=True)
    node.stop()
    lines = random_history(6, 200)
    make_store(node.data, lines)
    node.start()
    mine, theirs = AUTHORS[0].pubkey, AUTHORS[1].pubkey
    rows = read(spark, node.url, authors=mine, recipients=theirs).collect()
    here = read(spark, node.data).collect()
    expected = {
        (row["stream"], row["epoch"], row["position"], row["id"])
        for row in here
        if row["state"] == "retained"
        and ((row["author"] == mine and row["family"] == "snapshot") or row["recipient"] == theirs)
    }
    assert {(row["stream"], row["epoch"], row["position"], row["id"]) for row in rows} == expected
    assert len(rows) == len(expected) > 20

    node.stop()
    store = SqliteStore.open(node.data)
    store.writer.raise_floor(Position(store.log().tip))
    store.close()
    node.start()
    trimmed = read(spark, node.url, authors=mine).collect()
    with SqliteStore.inspect(node.data).reader() as reader:
        heads = {facts.id for facts in reader.facts(limit=1_000) if facts.head and facts.author == mine and facts.clock}
    assert heads <= {row["id"] for row in trimmed}
    assert {row["position"] for row in trimmed} >= {None}
    to_them = read(spark, node.url, recipients=theirs).filter("position IS NULL").collect()
    assert {row["id"] for row in to_them} == {row["id"] for row in rows if row["recipient"] == theirs}


def test_a_private_node_is_told_who_we_are(spark: SparkSession, start_node: Callable[..., Node]):
    node = start_node(env={"PRIVATE": "true"})
    node.stop()
    make_store(node.data, random_history(6, 60))
    node.start()
    secret = (bytes([1]) * 32).hex()
    assert read(spark, node.url, authors=AUTHORS[0].pubkey, key=secret).count() > 5
    with pytest.raises(Exception, match="auth-required"):
        read(spark, node.url, authors=AUTHORS[0].pubkey).count()
