"""Relays as sources: private ones, trimmed ones, and what they remove."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from logs import AUTHORS, START, WRAPS, make_store, random_history, revision
from processes import ADMIN_TOKEN, Node

from anabranch.core import nip19
from anabranch.core.nostr import DELETION, serialise
from anabranch.core.token import Position
from anabranch.pipeline.feed import FeedError
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.sources import open_feeds
from anabranch.store.sqlite import SqliteStore
from anabranch.wire.dialogue import BOUNDS

Lakes = Callable[[], Lake]
Nodes = Callable[..., Node]

ME, SECRET = AUTHORS[0], bytes([1]) * 32


def with_store(node: Node, *lines: bytes, floor: int = 0) -> None:
    """Give the node's store more lines, and perhaps let its log begin at a later position."""
    node.stop()
    make_store(node.data, lines)
    if floor:
        store = SqliteStore.open(node.data)
        store.writer.raise_floor(Position(floor))
        store.close()
    node.start()


def rows_of(url: str, **options: str) -> Iterator[dict[str, object]]:
    for feed in open_feeds(url, options):
        for span in feed.spans(None, feed.advance(None).end, 1):
            for batch in feed.read(span):
                yield from batch.to_pylist()


def test_a_trimmed_log_begins_with_what_is_there_and_a_gap_that_says_so(new_lake: Lakes, start_node: Nodes):
    node, lake = start_node(), new_lake()
    mine = [revision(WRAPS[0], ME, "A", f"{n:064x}", [f"{n - 1:064x}"] if n else [], START + n) for n in range(6)]
    plain_wrap = WRAPS[1].sign(1059, [["p", ME.pubkey]], "no revision", START)
    with_store(node, *map(serialise, [*mine[:5], plain_wrap]), floor=4)
    options = {"recipients": ME.pubkey}
    done = ingest(lake, [node.url], options=options)
    assert (done.operations, done.gaps) == (5, 1)
    (gap,) = lake.gaps().collect()
    assert (gap["reason"], gap["position"], gap["oldest"]) == ("token_too_old", 0, 4)
    assert {row["id"] for row in lake.operations().collect()} == {event.id for event in mine[:5]}

    with_store(node, serialise(mine[5]))
    again = ingest(lake, [node.url], options=options)
    assert (again.operations, again.sightings, again.gaps) == (1, 1, 0)
    assert ingest(lake, [node.url], options=options).batches == 0


def test_what_a_relay_removes_for_good_leaves_the_lake(new_lake: Lakes, start_node: Nodes):
    node, lake = start_node(), new_lake()
    kept, gone = (revision(WRAPS[at], ME, name, name.lower() * 64) for at, name in enumerate("AB"))
    with_store(node, serialise(kept), serialise(gone))
    options = {"recipients": ME.pubkey}
    assert ingest(lake, [node.url], options=options).operations == 2
    with_store(node, serialise(WRAPS[1].sign(DELETION, [["e", gone.id]], "", START + 1)))
    ingest(lake, [node.url], options=options)
    assert {row["id"] for row in lake.operations().collect()} == {kept.id}
    seen = {(row["id"], row["state"]) for row in lake.sightings().collect()}
    assert seen == {(kept.id, "retained"), (gone.id, "retained"), (gone.id, "removed")}


def test_a_private_node_is_told_who_we_are_and_our_access_key(start_node: Nodes):
    node = start_node(env={"PRIVATE": "true"}, admin=True)
    with_store(node, *random_history(6, 60))
    asked = {"authors": ME.pubkey, "recipients": ME.pubkey}
    with pytest.raises(FeedError, match=r"asks who we are \(auth-required.*--key"):
        list(rows_of(node.url, **asked))
    known = len(list(rows_of(node.url, **asked, key=SECRET.hex())))
    assert known > 10
    access_key = node.admin("POST", "keys", {}).json()["key"]
    with pytest.raises(FeedError, match=r"token-required.*--access-key"):
        list(rows_of(node.url, **asked, key=SECRET.hex()))
    with pytest.raises(FeedError, match="does not let us in: token-invalid"):
        list(rows_of(node.url, **asked, key=SECRET.hex(), accessKey="sk_wrong"))
    assert len(list(rows_of(node.url, **asked, key=SECRET.hex(), accessKey=access_key))) == known
    with pytest.raises(FeedError, match="refused the feed: restricted"):
        list(rows_of(node.url, recipients=AUTHORS[1].pubkey, key=SECRET.hex(), accessKey=access_key))


def test_a_private_trimmed_node_is_read_with_a_key_as_well(start_node: Nodes):
    node = start_node(env={"PRIVATE": "true"})
    mine = [revision(WRAPS[0], ME, "A", f"{n:064x}", at=START + n) for n in range(5)]
    with_store(node, *map(serialise, mine), floor=5)
    rows = list(rows_of(node.url, recipients=ME.pubkey, key=SECRET.hex()))
    assert {row["line"] for row in rows} == set(map(serialise, mine))
    with pytest.raises(FeedError, match="asks who we are"):
        list(rows_of(node.url, recipients=ME.pubkey))


def test_what_a_trimmed_node_cannot_show_whole_is_not_taken_for_all(start_node: Nodes):
    node = start_node()
    crowd = [revision(WRAPS[0], ME, "A", f"{n:064x}", at=START) for n in range(BOUNDS.page + 1)]
    with_store(node, *map(serialise, crowd), floor=len(crowd))
    with pytest.raises(FeedError, match=f"more events of one second .{START}. than it gives at once"):
        list(rows_of(node.url, recipients=ME.pubkey))


@pytest.mark.parametrize("way", ["nsec", "file", "variable"])
def test_the_command_takes_a_key_in_every_way(
    way: str, start_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Result]
):
    node = start_node(env={"PRIVATE": "true", "ADMIN_TOKEN": ADMIN_TOKEN})
    with_store(node, *random_history(6, 60))
    given = {"nsec": nip19.encode("nsec", SECRET), "file": str(tmp_path / "key"), "variable": SECRET.hex()}[way]
    (tmp_path / "key").write_text(f"{SECRET.hex()}\n")
    if way == "variable":
        monkeypatch.setenv("ANABRANCH_KEY", given)
    source = ["--lake", str(tmp_path / "lake"), "--from", node.url, "--authors", ME.pubkey]
    run = command("pipeline", "ingest", "--json", *source, *([] if way == "variable" else ["--key", given]))
    assert json.loads(run.stdout).get("operations", 0) > 5, run.stdout


def test_a_key_that_is_none_is_told_before_anything_starts(tmp_path: Path, command: Callable[..., Result]):
    source = ["--lake", str(tmp_path / "lake"), "--from", "ws://127.0.0.1:9", "--authors", ME.pubkey]
    run = command("pipeline", "ingest", *source, "--key", "nonsense")
    assert run.exit_code == 2 and "--key" in run.stderr and "it takes a secret key" in run.stderr
