"""A repair gives each replica what an audit has found that it lacks."""

import random
from collections.abc import Callable
from pathlib import Path

from logs import AUTHORS, START, WRAPS, make_store, random_history, revision
from processes import Node
from test_audit import NOW, Looks
from test_ingest import dump

from anabranch.core.nostr import Event, serialise
from anabranch.pipeline.jobs import repair
from anabranch.pipeline.jobs.audit import Audit, audit
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Kind, Reading, Replica, read_again

Lakes = Callable[[], Lake]


def mended(found: Audit, replicas: list[Replica], folder: Path, reading: Reading) -> list[repair.Repaired]:
    done = []
    for number, replica in enumerate(replicas):
        lines = folder / f"lacks-{number}.jsonl"
        count = repair.write_missing(found, replicas, number, lines)
        done.append(repair.repair(replica, lines, count, reading, NOW * 1000))
    read_again(replicas, reading)
    return done


def test_a_node_a_store_and_a_lake_are_repaired_and_a_dump_is_not(
    look: Looks, new_lake: Lakes, tmp_path: Path, start_node: Callable[..., Node]
):
    rng, lines = random.Random(9), [line for line in random_history(70, 90) if b'"kind":100' not in line]
    lines = [line for line in lines if b'"kind":300' not in line]
    parts = [[line for line in lines if rng.random() < 0.8] for _ in range(4)]
    node = start_node(admin=True)
    node.stop()
    make_store(node.data, parts[0])
    node.start()
    make_store(tmp_path / "store", parts[1])
    lake = new_lake()
    ingest(lake, [dump(tmp_path, "lake.jsonl", parts[2])])
    names = [node.url, str(tmp_path / "store"), lake.path, dump(tmp_path, "d.jsonl", parts[3])]
    reading = Reading(options={"token": node.token or ""})
    found, replicas = look(*names, reading=reading)
    assert all(found.findings.missing.values())
    done = mended(found, replicas, tmp_path, reading)
    assert [one.lacked for one in done] == list(found.findings.missing.values())
    assert [one.accepted for one in done[:3]] == [one.lacked for one in done[:3]]
    assert done[3].accepted == 0 and "a dump is not written to" in str(done[3].problem)
    again = audit(replicas, NOW).findings
    assert list(again.missing.values()) == [0, 0, 0, done[3].lacked]
    node.verify()


def test_a_refusal_is_listed_and_a_held_store_is_left_alone(
    look: Looks, tmp_path: Path, start_node: Callable[..., Node]
):
    node = start_node(admin=True, env={"LIMITS_CONTENT_CHARACTERS": "10"})
    long = AUTHORS[0].sign(1, [], "x" * 50, START)
    short = AUTHORS[0].sign(1, [], "x", START)
    reading = Reading(options={"token": node.token or ""})
    file = dump(tmp_path, "x.jsonl", [serialise(long), serialise(short)])
    found, replicas = look(node.url, file, reading=reading)
    (done, _) = mended(found, replicas, tmp_path, reading)
    assert (done.lacked, done.accepted, list(done.refused.values())) == (2, 1, [1])
    assert next(iter(done.refused)).startswith("invalid: content is longer")
    held = repair.repair(Replica(str(node.data), Kind.STORE, replicas[0].lake), Path(file), 2, reading, 0)
    assert held.accepted == 0 and "name its address" in str(held.problem)


def test_a_repair_gives_parents_before_their_children(look: Looks, tmp_path: Path):
    names = [f"{n}{n}" * 32 for n in range(1, 6)]
    line: list[Event] = []
    for at, name in enumerate(names):  # each is older than its parent: clocks go wrong
        parents = [line[-1].first("r") or ""] if line else []
        line.append(revision(WRAPS[0], AUTHORS[0], "A", name, parents, START - at))
    shuffled = [serialise(event) for event in (line[3], line[0], line[4], line[2], line[1])]
    found, replicas = look(dump(tmp_path, "a.jsonl", []), dump(tmp_path, "b.jsonl", shuffled))
    repair.write_missing(found, replicas, 0, tmp_path / "lacks.jsonl")
    assert (tmp_path / "lacks.jsonl").read_bytes().splitlines() == [serialise(event) for event in line]
