"""A plan is what the rule says and what the node itself would do, and no plan makes a node forget more than that."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from logs import AUTHORS, START, WRAPS, make_store, revision, snapshot
from processes import Node
from pyspark.sql import DataFrame, Row, SparkSession

from anabranch.core import nostr, retention
from anabranch.core import snapshots as snapshot_rules
from anabranch.core.nostr import Event, serialise
from anabranch.core.operation import State
from anabranch.core.retention import DAY, Mode, Policy, ReplayWindow, Version
from anabranch.core.token import Position
from anabranch.pipeline.feed import FeedError
from anabranch.pipeline.jobs import retention as job
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.node_admin import NodeAdmin
from anabranch.pipeline.schema import FACTS, OPERATIONS
from anabranch.store import compaction
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]
NOW = START + 100 * DAY
POLICIES = [
    Policy(Mode.CURRENT_ONLY, payload_days=0, deleted_documents=None),
    Policy(Mode.CURRENT_ONLY, payload_days=30, deleted_documents=1),
    Policy(Mode.RECENT_HISTORY, 1, 0, 0),
    Policy(Mode.RECENT_HISTORY, 3, 0, 2),
    Policy(Mode.RECENT_HISTORY, 4, 50, 100),
    Policy(Mode.RECENT_HISTORY, 2, None, 1),
    Policy(Mode.FULL, payload_days=0, deleted_documents=0),
]


def reasons(plan: DataFrame) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in plan.filter("reason IS NOT NULL").select("id", "reason").collect():
        found.setdefault(row["reason"], set()).add(row["id"])
    return found


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_keeps_what_the_rule_keeps(spark: SparkSession, seed: int):
    rng = random.Random(seed)
    documents: dict[str, list[Version]] = {}
    for number in range(300):
        for position in range(rng.choice((1, 2, 3, 8))):
            clock = {device: rng.randint(1, 3) for device in rng.sample("abcd", rng.randint(1, 4))}
            version = Version(
                Position(position), f"{rng.getrandbits(64):016x}", NOW - rng.choice((0, 30, 30, 90)) * DAY, clock
            )
            documents.setdefault(f"d{number}", []).append(version)
    blank: dict[str, Any] = dict.fromkeys(OPERATIONS.names)
    rows = [
        Row(
            **(
                blank
                | {"document": name, "id": version.id, "family": "snapshot", "action": "put", "size": 1}
                | {"created_at": version.created_at, "clock": version.clock, "author": "x"}
                | {"clock_sum": sum(version.clock.values())}
            )
        )
        for name, versions in documents.items()
        for version in versions
    ]
    operations = spark.createDataFrame(rows, OPERATIONS)
    standing = job.standing(operations, spark.createDataFrame([], FACTS), NOW).localCheckpoint()
    for policy in POLICIES:
        expected = {
            version.id
            for versions in documents.values()
            for version in versions
            if version.position not in retention.keep(versions, policy, NOW)
        }
        assert reasons(job.plan(standing, policy, NOW)).get("superseded", set()) == expected
    dominated = sum(len(versions) - len(snapshot_rules.heads(versions)) for versions in documents.values())
    assert dominated > 300


# --- the node --------------------------------------------------------------------------------------------------------


def forgetful_history(seed: int, size: int = 160) -> list[bytes]:
    """Versions of few documents, many of them deleted, some that expire, and deletions by their authors."""
    rng = random.Random(seed)
    names = [rng.randbytes(32).hex() for _ in range(14)]
    events: list[Event] = []
    for number in range(size):
        at, deletes = START + number * (DAY // 2), rng.random() < 0.3
        author = rng.choice(AUTHORS)
        if events and rng.random() < 0.08:
            gone = rng.choice(events)
            owner = next((keys for keys in (*AUTHORS, *WRAPS) if keys.pubkey == gone.pubkey), author)
            events.append(owner.sign(nostr.DELETION, [["e", gone.id]], "", at, deterministic=True))
        elif rng.random() < 0.5:
            clock = {device: rng.randint(1, 4) for device in rng.sample(("laptop", "phone"), rng.randint(1, 2))}
            events.append(snapshot(author, rng.choice("ABCDEF"), clock, at, deletes))
        else:
            name = rng.choice(names)
            parents = rng.sample([other for other in names if other != name], rng.choice((0, 1, 1, 2)))
            events.append(revision(rng.choice(WRAPS), author, rng.choice("AB"), name, parents, at, deletes))
        if rng.random() < 0.15 and events[-1].kind != nostr.DELETION:
            last = events.pop()
            tags = [*last.tags, ["expiration", str(rng.choice((START + 1, NOW + 1)))]]
            keys = next(keys for keys in (*AUTHORS, *WRAPS) if keys.pubkey == last.pubkey)
            events.append(keys.sign(last.kind, tags, last.content, last.created_at, deterministic=True))
    return [serialise(event) for event in events]


def compacted_by_the_node(folder: Path, policy: Policy) -> dict[str, set[str]]:
    """What is gone after the node's own compaction, by how it went."""
    store = SqliteStore.open(folder, "OFF")
    try:
        reader = store.open_reader()
        before = list(reader.facts(limit=10_000))
        report = compaction.Report()
        for step in compaction.steps(reader, policy, ReplayWindow(), NOW):
            compaction.carry_out(step, store.writer, report)
        after = {facts.id: facts.state for facts in reader.facts(limit=10_000)}
        reader.close()
    finally:
        store.close()
    retained = {facts.id for facts in before if facts.state is State.RETAINED}
    expired = {facts.id for facts in before if facts.id in retained and (facts.expires_at or NOW + 1) <= NOW}
    assert all(after.get(id) is not State.RETAINED for id in expired)
    gone = {
        "expired": expired,
        "deleted": {id for id in retained - expired if id not in after},
        "superseded": {id for id in retained if after.get(id) is State.COMPACTED},
    }
    return {reason: ids for reason, ids in gone.items() if ids}


@pytest.mark.parametrize("seed, from_files", [(0, True), (1, False), (2, True)])
def test_a_plan_is_what_the_node_itself_would_do(new_lake: Lakes, tmp_path: Path, seed: int, from_files: bool):
    """Both families, with something compacted, removed and expired before, under every policy."""
    lines = forgetful_history(seed)
    make_store(tmp_path / "data", lines[:100])
    compacted_by_the_node(tmp_path / "data", Policy(Mode.RECENT_HISTORY, 2, 80, None))
    make_store(tmp_path / "data", lines[100:])
    lake = new_lake()
    ingest(lake, [str(tmp_path / "data")])
    where = job.standing_of(lake, NOW) if from_files else job.standing(lake.operations(), lake.facts(), NOW)
    standing = where.localCheckpoint()
    seen: set[str] = set()
    for number, policy in enumerate(POLICIES):
        copy = shutil.copytree(tmp_path / "data", tmp_path / f"copy-{number}")
        expected = compacted_by_the_node(copy, policy)
        assert reasons(job.plan(standing, policy, NOW)) == expected, policy
        seen |= expected.keys()
    assert seen == {"expired", "deleted", "superseded"}


# --- the words -------------------------------------------------------------------------------------------------------


def test_a_policy_is_written_in_the_words_of_the_settings():
    assert job.policy("current_only") == Policy(Mode.CURRENT_ONLY, payload_days=0)
    assert job.policy("full_retention").cutoff(NOW) is None
    assert job.policy("nondominated_plus_recent_history:7") == Policy(Mode.RECENT_HISTORY, 7, 0)
    written = " nondominated_plus_recent_history , recent_count=2, payload_days=30d,deleted_documents=none"
    assert job.policy(written) == Policy(Mode.RECENT_HISTORY, 2, 30, None)
    assert job.policy("current_only,payload_days=none,deleted_documents=0") == Policy(Mode.CURRENT_ONLY, 4, 0, 0)


@pytest.mark.parametrize(
    "text", ["", "current", "current_only:0", "current_only:x", "current_only,30d", "current_only,payload_days=-1"]
)
def test_a_policy_that_is_none_is_told_how_to_write_it(text: str):
    with pytest.raises(job.BadPolicy, match=r"is no policy .*; write it like current_only"):
        job.policy(text)


# --- a real node -----------------------------------------------------------------------------------------------------


def test_a_plan_handed_to_a_running_node_drops_what_it_names_and_nothing_newer(
    new_lake: Lakes, tmp_path: Path, start_node: Callable[..., Node]
):
    """Of a lake that has read another node as well, and of a plan that is older than what the node has now."""
    node = start_node(admin=True, env={"RETENTION_MODE": "current_only", "RETENTION_INTERVAL_SECONDS": "100000"})
    node.stop()
    line = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 8)]
    names = ["a1" * 32, "b2" * 32]
    wrapped = [revision(WRAPS[0], AUTHORS[1], "B", names[0]), revision(WRAPS[0], AUTHORS[1], "B", names[1], names[:1])]
    make_store(tmp_path / "other", map(serialise, [line[6], revision(WRAPS[1], AUTHORS[1], "B", names[0]), *line[:3]]))
    make_store(node.data, map(serialise, [*line[:5], *wrapped]))
    lake = new_lake()
    ingest(lake, [str(tmp_path / "other"), str(node.data)])
    store = SqliteStore.open(node.data, "OFF")
    store.writer.remove([line[4].id])  # after the lake has read it: what was second is the foremost now
    store.close()
    node.start()
    admin = NodeAdmin(node.url, node.token)
    log = admin.log()
    operations, facts = job.of_log(lake, log)
    plan = job.plan(job.standing(operations, facts, NOW).localCheckpoint(), job.policy("current_only"), NOW)
    assert reasons(plan) == {"superseded": {wrapped[0].id, *(event.id for event in line[:4])}}
    told: list[tuple[int, int]] = []
    done = job.apply(operations, plan, admin, log, lambda *so_far: told.append(so_far))
    assert (done.candidates, done.dropped, done.refused) == (5, 4, {"kept": 1})
    assert told == [(5, 4)]
    with SqliteStore.inspect(node.data).reader() as reader:
        states = {facts.id: facts.state for facts in reader.facts(limit=100)}
    assert [states[event.id] for event in (*line[:4], *wrapped)] == [
        *[State.COMPACTED] * 3,
        *(State.RETAINED, State.COMPACTED, State.RETAINED),
    ]
    another = msgspec.structs.replace(log, epoch="another")
    with pytest.raises(FeedError, match="has another log now"):
        job.apply(operations, plan, admin, another)
    with pytest.raises(FeedError, match="wants its admin token"):
        NodeAdmin(node.url, "wrong").log()
    node.verify()
