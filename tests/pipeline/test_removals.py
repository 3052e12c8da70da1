"""What nodes have removed for good leaves the lake, and the heads are the nodes' own all the while."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from histories import KINDS, operation
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import AUTHORS, START, WRAPS, lake_heads, make_store, revision, served_heads, snapshot
from revision_histories import MTIMES, revision_histories, times
from test_ingest import dump

from anabranch.core import nostr, revisions, snapshots
from anabranch.core.nostr import Event, serialise
from anabranch.core.operation import Family, State
from anabranch.pipeline.jobs import heads
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.jobs.removals import Sighting, gone
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.rows import Rules
from anabranch.store.contract import Facts, Offer
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]
NAMES = ["a1" * 32, "b2" * 32, "c3" * 32]


def remove(folder: Path, *events: Event) -> None:
    store = SqliteStore.open(folder, "OFF")
    assert store.writer.remove([event.id for event in events]) == len(events)
    store.close()


def states(lake: Lake) -> dict[str, str]:
    """What the lake has of each operation: its payload, or a fact and its state."""
    known = {row["id"]: row["state"] for row in lake.table("facts").rows()}
    return known | {row["id"]: "payload" for row in lake.table("operations").rows()}


def files_with(lake: Lake, word: str) -> set[str]:
    """The Parquet files anywhere in the lake's folder that have a payload with the word in it."""
    found = set()
    for path in Path(lake.path).rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        if "raw" in table.column_names and any(word in str(raw) for raw in table["raw"].to_pylist()):
            found.add(str(path))
    return found


def test_what_every_node_has_removed_leaves_the_lake_and_its_files(new_lake: Lakes, tmp_path: Path):
    events = [snapshot(AUTHORS[0], d, {"laptop": 1}, START + n) for n, d in enumerate("ABCD")]
    make_store(tmp_path / "data", map(serialise, events))
    lake, data = new_lake(), str(tmp_path / "data")
    ingest(lake, [data])
    remove(tmp_path / "data", events[1])
    done = ingest(lake, [data])
    assert (done.operations, done.sightings) == (0, 1)
    assert states(lake) == {event.id: "payload" for event in events} | {events[1].id: "removed"}
    last = max(lake.table("sightings").rows(), key=lambda row: row["position"])
    assert (last["position"], last["id"], last["state"]) == (5, events[1].id, "removed")
    lake.table("operations").sweep()  # whoever is reading the old file may go on for a while
    old = files_with(lake, events[1].id)
    assert old and not old & set(lake.table("operations").files())
    lake.table("operations").sweep(kept_hours=0)
    assert not files_with(lake, events[1].id)
    assert states(lake)[events[0].id] == "payload"
    assert ingest(lake, [data]).batches == 0


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_another_node_still_has_stays_in_whatever_order_it_is_heard(new_lake: Lakes, tmp_path: Path, order: str):
    event = snapshot(AUTHORS[0], "A", {"laptop": 1})
    for name in "ab":
        make_store(tmp_path / name, [serialise(event)])
    remove(tmp_path / "a", event)
    lake = new_lake()
    for name in order:
        ingest(lake, [str(tmp_path / name)])
    assert states(lake) == {event.id: "payload"}
    remove(tmp_path / "b", event)
    ingest(lake, [str(tmp_path / "b")])
    assert states(lake) == {event.id: "removed"}
    # A dump that has it brings it back.
    assert ingest(lake, [dump(tmp_path, "x.jsonl", [serialise(event)])]).operations == 1
    assert states(lake) == {event.id: "payload"}


def test_a_revision_leaves_when_no_node_has_it_in_any_wrap(new_lake: Lakes, tmp_path: Path):
    one, other = (revision(wrap, AUTHORS[0], "A", NAMES[0]) for wrap in WRAPS[:2])
    make_store(tmp_path / "a", [serialise(one)])
    make_store(tmp_path / "b", [serialise(other)])
    lake = new_lake()
    ingest(lake, [str(tmp_path / "a"), str(tmp_path / "b")])
    remove(tmp_path / "a", one)
    ingest(lake, [str(tmp_path / "a")])
    assert lake.table("operations").count() == 1
    remove(tmp_path / "b", other)
    ingest(lake, [str(tmp_path / "b")])
    assert lake.table("operations").count() == 0


def test_a_removed_revision_gives_its_parent_back_and_a_removed_snapshot_does_not(
    new_lake: Lakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heads, "FULL_ABOVE", 99)  # however much is new, it is taken in as something new
    events = [
        revision(WRAPS[0], AUTHORS[0], "A", NAMES[0]),
        revision(WRAPS[1], AUTHORS[0], "A", NAMES[1], [NAMES[0]], START + 1),
        snapshot(AUTHORS[1], "B", {"laptop": 1}, START + 2),
        snapshot(AUTHORS[1], "B", {"laptop": 2}, START + 3),
        *(snapshot(AUTHORS[2], str(n), {"laptop": 1}, START + 4 + n) for n in range(8)),
    ]
    make_store(tmp_path / "data", map(serialise, events))
    lake = new_lake()
    ingest(lake, [str(tmp_path / "data")])
    heads.update(lake)
    remove(tmp_path / "data", events[1], events[3])
    ingest(lake, [str(tmp_path / "data")])
    heads.update(lake)
    with SqliteStore.inspect(tmp_path / "data").reader() as reader:
        said = served_heads(reader)
    assert lake_heads(lake) == said
    assert {NAMES[0]} in said.values() and not any(events[2].id in names for names in said.values())


def sighting(at: int | None, state: str, *, stream: str = "s", epoch: str = "e", id: str = "x") -> Sighting:
    return Sighting(stream, epoch, at, id, None, None, state)


def test_in_a_stream_the_last_word_of_its_latest_epoch_counts():
    epochs = {"s": ["e", "f"], "t": ["e"]}

    def leaves(*seen: Sighting) -> bool:
        shuffled = random.Random(1).sample(seen, len(seen))
        assert bool(gone(seen, epochs)) == bool(gone(shuffled, epochs))
        return bool(gone(seen, epochs))

    assert leaves(sighting(1, "retained"), sighting(2, "removed"))
    assert leaves(sighting(None, "retained"), sighting(2, "removed"))
    assert not leaves(sighting(1, "retained"), sighting(2, "removed"), sighting(3, "retained"))
    assert not leaves(sighting(1, "retained"), sighting(2, "removed"), sighting(1, "compacted", stream="t"))
    assert not leaves(sighting(9, "removed"), sighting(1, "retained", epoch="f"))
    assert leaves(sighting(9, "retained"), sighting(1, "retained", epoch="f"), sighting(2, "removed", epoch="f"))


# --- the node's own heads --------------------------------------------------------------------------------------------


def marked_heads(folder: Path) -> dict[str, set[str]]:
    """What a node itself holds to be heads, whether it can still serve them or not."""
    found: dict[str, set[str]] = {}
    with SqliteStore.inspect(folder).reader() as reader:
        for facts in reader.facts(limit=1_000):
            removed_revision = facts.family is Family.REVISION and facts.state is State.REMOVED
            if facts.head and facts.family is not Family.PLAIN and not removed_revision:
                name = facts.id if facts.revision is None else facts.revision.revision
                found.setdefault(facts.document.hex(), set()).add(name)
    return found


def heads_by_the_rules(folder: Path) -> dict[str, set[str]]:
    """What the rules say of all that the node knows."""
    documents: dict[str, list[Facts]] = {}
    with SqliteStore.inspect(folder).reader() as reader:
        for facts in reader.facts(limit=1_000):
            if facts.family is not Family.PLAIN:
                documents.setdefault(facts.document.hex(), []).append(facts)
    found: dict[str, set[str]] = {}
    for document, every in documents.items():
        if every[0].family is Family.SNAPSHOT:
            found[document] = {head.id for head in snapshots.heads(every)}
        else:
            stored, removed = (
                [f.revision for f in every if (f.state is State.REMOVED) is gone] for gone in (False, True)
            )
            found[document] = {head.revision for head in revisions.heads(stored, removed)}
    return {document: names for document, names in found.items() if names}


def all_heads(lake: Lake) -> dict[str, set[str]]:
    """The lake's heads, with a payload or without."""
    found: dict[str, set[str]] = {}
    for row in lake.table("heads").rows():
        if row["id"] is not None:
            found.setdefault(row["document"], set()).add(row["revision"] or row["id"])
    return found


@settings(max_examples=12)
@given(data=st.data())
def test_heads_are_the_nodes_own_whatever_is_removed_in_between(
    new_lake: Lakes, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data
):
    """Random histories of both families, taken in a little at a time, and all at once at the end.

    Signatures are blank in these histories, and not what this is about.
    """
    monkeypatch.setattr(nostr, "verify", lambda events: [True] * len(events))
    monkeypatch.setattr(heads, "FULL_ABOVE", 99)  # however much is new, it is taken in as something new
    folder = tmp_path_factory.mktemp("node") / "data"
    rules, lake = Rules(kinds=KINDS), new_lake()
    history = data.draw(revision_histories(max_size=16))
    size = max(1, -(-len(history) // 3))
    for at in range(0, len(history), size):
        store = SqliteStore.open(folder, "OFF")
        store.writer.append([Offer(operation(event)) for event in history[at : at + size]], 0)
        match data.draw(st.sampled_from(["nothing", "expire", "remove", "compact"])):
            case "expire":
                store.writer.expire(data.draw(times), 1_000)
            case "remove":
                store.writer.remove([event.id for event in data.draw(st.lists(st.sampled_from(history), max_size=4))])
            case "compact":
                with store.reader() as reader:
                    rows = reader.old_revisions(0, data.draw(st.sampled_from(MTIMES)), 1_000)
                store.writer.compact([position for position, _, _ in rows])
        store.writer.vanish(1_000)
        store.close()
        ingest(lake, [str(folder)], rules=rules, batch_rows=data.draw(st.sampled_from([3, 1_000])))
        heads.update(lake)
        assert all_heads(lake) == marked_heads(folder) == heads_by_the_rules(folder)
    step_by_step = heads.update(lake)
    assert heads.update(lake, full=True) == step_by_step
    assert all_heads(lake) == marked_heads(folder)
