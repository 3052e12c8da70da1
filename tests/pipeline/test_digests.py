"""A digest of the lake is what the node itself answers for the same set."""

import random
from collections.abc import Callable
from pathlib import Path

from logs import AUTHORS, START, make_store, random_history
from processes import Node
from pyspark.sql import SparkSession
from websockets.sync.client import connect

from anabranch.core.changes import RevisionQuery
from anabranch.core.filter import Filter
from anabranch.core.negentropy import Items
from anabranch.pipeline.jobs import digests, heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.store.contract import ItemRows
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]
NOW = START + 1_000_000
EVERYTHING = b"\x00\x00"  # a bound: infinity, and no id
BY_FINGERPRINT = b"\x01"


def fingerprint(rows: ItemRows) -> tuple[int, str]:
    return len(rows.timestamps), Items.build(rows.timestamps, rows.ids).fingerprint.hex()


def test_sums_of_ids_in_parts_are_the_fingerprint_of_the_set(spark: SparkSession):
    """Ids near the ends of their range, so that every sum overflows."""
    rng = random.Random(1)
    sets = {
        "few": [rng.randbytes(32) for _ in range(3)],
        "many": [rng.randbytes(32) for _ in range(700)],
        "high": [bytes([255] * 31 + [number]) for number in range(256)],
        "low": [bytes([number] + [0] * 31) for number in range(256)],
    }
    rows = [(name, id.hex()) for name, ids in sets.items() for id in ids]
    rng.shuffle(rows)
    items = spark.createDataFrame(rows, "name string, id string").repartition(5)
    found = {row["name"]: (row["items"], row["digest"]) for row in digests.digests(items, "name").collect()}
    assert found == {
        name: (len(ids), Items.build([0] * len(ids), b"".join(ids)).fingerprint.hex()) for name, ids in sets.items()
    }
    (empty,) = digests.digests(items.limit(0)).collect()
    assert (empty["items"], empty["digest"]) == (0, Items.build([], b"").fingerprint.hex())


def test_digests_of_every_scope_are_the_nodes_own(new_lake: Lakes, tmp_path: Path):
    make_store(tmp_path / "data", random_history(3, 250))
    lake = new_lake()
    ingest(lake, [str(tmp_path / "data")])
    heads.update(lake)
    items = digests.of_operations(lake.operations(), NOW)
    by_author_and_kind = digests.digests(items, "author", "kind").collect()
    revisions = digests.digests(digests.of_revisions(lake.heads()), "recipient").collect()
    (whole,) = digests.digests(items).collect()
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        assert (whole["items"], whole["digest"]) == fingerprint(reader.items(Filter(), 10_000, NOW))
        for row in by_author_and_kind:
            own = Filter(authors=frozenset({row["author"]}), kinds=frozenset({row["kind"]}))
            assert (row["items"], row["digest"]) == fingerprint(reader.items(own, 10_000, NOW)), row
        for row in revisions:
            own = reader.current_revisions(RevisionQuery(row["recipient"]), 10_000, NOW)
            assert (row["items"], row["digest"]) == fingerprint(own), row
    assert len(by_author_and_kind) > 10
    assert {row["recipient"] for row in revisions} == {author.pubkey for author in AUTHORS}


def test_a_running_node_finds_nothing_to_tell_where_the_digest_is_its_own(
    new_lake: Lakes, tmp_path: Path, start_node: Callable[..., Node]
):
    """NEG-OPEN with the digest as its only range: the answer is empty if and only if the sets are equal."""
    node = start_node(admin=True)
    node.stop()
    make_store(node.data, random_history(4, 150))
    node.start()
    lake = new_lake()
    ingest(lake, [node.url], options={"token": node.token})
    items = digests.of_operations(lake.operations(), NOW)
    (whole,) = digests.digests(items).collect()
    author = AUTHORS[0].pubkey
    (own,) = digests.digests(items.filter(items.author == author)).collect()
    with connect(node.url) as socket:
        for filter, digest, answer in (
            ("{}", whole["digest"], "61"),
            (f'{{"authors":["{author}"]}}', own["digest"], "61"),
            ("{}", own["digest"], None),
        ):
            message = (b"\x61" + EVERYTHING + BY_FINGERPRINT + bytes.fromhex(digest)).hex()
            socket.send(f'["NEG-OPEN","x",{filter},"{message}"]')
            said = str(socket.recv(10))
            assert said.startswith('["NEG-MSG","x","61')
            assert (said == f'["NEG-MSG","x","{answer}"]') is (answer is not None)
            socket.send('["NEG-CLOSE","x"]')
