"""An audit finds all that replicas lack of each other, and only that."""

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from logs import AUTHORS, START, WRAPS, bad_lines, make_store, random_history, revision, snapshot
from test_ingest import dump

from anabranch.core import nostr
from anabranch.core.nostr import Limits, serialise
from anabranch.core.operation import Family, KindPolicy, Operation, classify
from anabranch.core.token import Position
from anabranch.pipeline.jobs import audit as auditing
from anabranch.pipeline.jobs import ingest as ingesting
from anabranch.pipeline.jobs.audit import Audit, Findings, no_epoch_in_common
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Kind, Replica, Scope
from anabranch.store.sqlite import SqliteStore

Lakes = Callable[[], Lake]
Looks = Callable[..., tuple[Audit, list[Replica]]]
NOW = START + 1_000_000


def operations(lines: Iterable[bytes]) -> list[Operation]:
    return [classify(*nostr.parse(line, Limits()), KindPolicy()) for line in lines]


def identity(of: Operation) -> tuple[bytes | None, str]:
    return (None, of.event.id) if of.revision is None else (of.document, of.revision.revision)


def lacking(here: Sequence[bytes], there: Sequence[bytes]) -> set[str]:
    """The slow way: the ids of what only they have, unless we have a newer version of something replaceable."""
    ours = operations(here)
    known = {identity(one) for one in ours}
    found = {}
    for other in operations(there):
        replaced = other.family is Family.PLAIN and any(
            one.document == other.document
            and other.document is not None
            and nostr.newer(one.event.created_at, one.event.id, other.event.created_at, other.event.id)
            for one in ours
        )
        if identity(other) not in known and not replaced:
            found.setdefault(identity(other), set()).add(other.event.id)
    return {min(ids) for ids in found.values()}


def missing(of: Audit, number: int) -> set[str]:
    return {row["id"] for row in of.missing.filter(f"replica = {number}").select("id").collect()}


def counts(findings: Findings, *names: str) -> list[list[int]]:
    return [list(getattr(findings, name).values()) for name in names]


def test_all_that_each_lacks_is_found_and_only_that(look: Looks, tmp_path: Path):
    rng, lines = random.Random(5), random_history(50, 260)
    some = [line for line in lines if rng.random() < 0.9]
    others = [line for line in lines if rng.random() < 0.9]
    rng.shuffle(others)
    names = dump(tmp_path, "a.jsonl", some), dump(tmp_path, "b.jsonl", others)
    found, _ = look(*names)
    assert missing(found, 0) == lacking(some, others) and missing(found, 1) == lacking(others, some)
    findings = found.findings
    assert findings.missing == dict(zip(names, (len(missing(found, 0)), len(missing(found, 1))), strict=True))
    assert min(findings.missing.values()) > 5
    assert not findings.converged
    assert findings.examples["missing"][names[0]] == sorted(missing(found, 0))[:10]
    assert 0 < findings.heads == found.heads.select("document").distinct().count()
    assert findings.digests[names[0]] != findings.digests[names[1]]
    assert (findings.positions, findings.epochs, findings.behind, findings.resigned) == (0, [], [], 0)


@pytest.mark.parametrize("above", [0, 10_000])
def test_tasks_find_the_same_as_this_process_in_files_by_bucket_and_in_mixed_ones(
    look: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int
):
    """Of replicas with facts, of which one lacks some lines of every family."""
    monkeypatch.setattr(ingesting, "BUCKETS_ABOVE", above)
    lines = random_history(51, 150)
    make_store(tmp_path / "data", lines)
    store = SqliteStore.open(tmp_path / "data", "OFF")
    store.writer.compact([Position(number) for number in range(1, 60)])
    store.close()
    found, replicas = look(str(tmp_path / "data"), dump(tmp_path, "x.jsonl", lines[::2]))
    monkeypatch.setattr(auditing, "FEW", 0)
    again = auditing.audit(replicas, NOW)
    assert again.findings == found.findings and not found.findings.converged
    assert [missing(again, number) for number in (0, 1)] == [missing(found, number) for number in (0, 1)]
    assert min(findings.compacted[replicas[0].name] for findings in (again.findings, found.findings)) > 0


def test_the_same_set_in_any_order_and_place_has_converged_by_its_digests(look: Looks, new_lake: Lakes, tmp_path: Path):
    events = [snapshot(author, d, {"laptop": n}, START + n) for author in AUTHORS for d in "AB" for n in (1, 2)]
    lines = [serialise(event) for event in events]
    make_store(tmp_path / "data", lines)
    names = [str(tmp_path / "data"), dump(tmp_path, "x.jsonl", lines[::-1]), str(tmp_path / "lake-0")]
    ingest(new_lake(), [dump(tmp_path, "y.jsonl", lines[5:] + lines[:5])])
    found, replicas = look(*names)
    assert [replica.kind for replica in replicas] == [Kind.STORE, Kind.DUMP, Kind.LAKE]
    findings = found.findings
    assert findings.converged and set(findings.missing.values()) == {0}
    assert (findings.scopes, findings.scopes_differing) == (3, 0)
    assert len(set(findings.digests.values())) == 1 and set(findings.operations.values()) == {len(lines)}


def test_what_is_known_and_gone_is_told_apart_from_what_is_lacking(look: Looks, tmp_path: Path):
    """Compacted, removed, replaced by a newer version, deleted by its author, expired, wrapped by another key."""
    author, name = AUTHORS[0], "ab" * 32
    versions = [snapshot(author, "A", {"laptop": n}, START + n) for n in (1, 2, 3)]
    profile = [author.sign(0, [], str(n), START + n) for n in (1, 2)]
    note, taken_back = (author.sign(1, [], text, START) for text in ("note", "taken back"))
    deletion = author.sign(nostr.DELETION, [["e", taken_back.id]], "", START)
    expired = author.sign(1, [["expiration", str(NOW)]], "", START)
    wraps = [revision(wrap, author, "B", name, [], START) for wrap in WRAPS[:2]]
    make_store(tmp_path / "data", map(serialise, [*versions, note, deletion, profile[1], wraps[0]]))
    store = SqliteStore.open(tmp_path / "data", "OFF")
    store.writer.compact([Position(1)])
    store.writer.remove([note.id])
    store.close()
    lines = [*versions, note, taken_back, deletion, *profile, expired, wraps[1]]
    names = str(tmp_path / "data"), dump(tmp_path, "x.jsonl", [serialise(event) for event in lines])
    found, _ = look(*names)
    assert counts(found.findings, "missing", "compacted", "removed", "withdrawn") == [[0, 0], [1, 0], [1, 0], [2, 0]]
    assert found.findings.converged and found.findings.scopes_differing == 1


def test_forged_and_altered_copies_are_named(look: Looks, tmp_path: Path):
    lines, bad = [serialise(snapshot(AUTHORS[0], "A", {"laptop": 1}))], bad_lines()
    forged = [bad["signature does not hold"], bad["id does not match"]]
    names = dump(tmp_path, "a.jsonl", lines), dump(tmp_path, "b.jsonl", [*lines, *forged, b"nonsense"])
    findings = look(*names)[0].findings
    assert counts(findings, "missing", "forged", "rejected") == [[0, 0], [0, 2], [0, 1]]
    assert not findings.converged
    assert findings.examples["forged"][names[1]] == [nostr.parse(lines[0], Limits())[0].id] * 2


def test_two_signatures_that_both_hold_are_told_and_another_spelling_is_the_same(look: Looks, tmp_path: Path):
    event, again = (AUTHORS[0].sign(1, [], "x", START, deterministic=known) for known in (True, False))
    assert event.id == again.id and event.sig != again.sig
    other = serialise(AUTHORS[1].sign(1, [], "x", START))
    spaced = other.replace(b'","', b'", "', 1)
    names = dump(tmp_path, "a.jsonl", [serialise(event), other]), dump(tmp_path, "b.jsonl", [serialise(again), spaced])
    findings = look(*names)[0].findings
    assert (findings.converged, findings.resigned) == (True, 1)
    assert (findings.scopes, findings.scopes_differing) == (2, 1)


def test_copies_of_a_log_that_went_on_apart_contradict_each_other(look: Looks, tmp_path: Path):
    line = [snapshot(AUTHORS[0], "A", {"laptop": n}, START + n) for n in range(1, 5)]
    make_store(tmp_path / "one", map(serialise, line[:2]))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    make_store(tmp_path / "one", [serialise(line[2])])
    make_store(tmp_path / "two", map(serialise, [line[3], line[2]]))
    names = str(tmp_path / "one"), str(tmp_path / "two")
    findings = look(*names)[0].findings
    log = SqliteStore.inspect(tmp_path / "one").log()
    (place,) = findings.examples["positions"]
    assert (place["stream"], place["epoch"], place["position"]) == (log.stream, log.epoch, 3)
    assert {place["one"], place["other"]} == {line[2].id, line[3].id}
    assert not findings.converged and findings.positions == 1
    (behind,) = findings.behind
    assert behind.tips == {names[0]: 3, names[1]: 4}


def test_replicas_of_a_stream_that_never_saw_the_same_epoch_are_told():
    seen = {("s", "one"): {"A": 3}, ("s", "two"): {"B": 9}, ("t", "one"): {"A": 1, "B": 1}, ("t", "two"): {"B": 1}}
    assert no_epoch_in_common("s", seen) and not no_epoch_in_common("t", seen)


def test_only_what_is_in_the_scope_is_compared(look: Looks, tmp_path: Path):
    mine, yours = (serialise(snapshot(author, "A", {"laptop": 1})) for author in AUTHORS[:2])
    wrapped = revision(WRAPS[0], AUTHORS[0], "B", "ab" * 32)
    names = dump(tmp_path, "a.jsonl", [mine]), dump(tmp_path, "b.jsonl", [mine, yours, serialise(wrapped)])
    own = frozenset({AUTHORS[0].pubkey})
    found, _ = look(*names, scope=Scope(own, own))
    assert missing(found, 0) == {wrapped.id} and found.findings.operations == dict(zip(names, (1, 2), strict=True))
