"""Generated histories are valid, the same for the same seed, and have in them what real ones have."""

from pathlib import Path

import pytest
from logs import make_store

from anabranch.core import nostr
from anabranch.core.nostr import Limits
from anabranch.core.operation import Action, Family, KindPolicy, classify
from anabranch.pipeline.generate import Plan, generate
from anabranch.store.sqlite import SqliteStore


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(generated: Path, tmp_path: Path):
    plan = Plan(operations=1_500, documents=150, seed=11, content_bytes=100)
    generate(plan, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == generated.read_bytes()
    generate(Plan(operations=1_500, documents=150, seed=12, content_bytes=100), tmp_path / "other.jsonl")
    assert not set((tmp_path / "other.jsonl").read_bytes().splitlines()) & set(generated.read_bytes().splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.jsonl", "other.jsonl"]


def test_every_operation_is_valid_and_all_are_there(generated: Path):
    events = [nostr.parse(line, Limits()) for line in generated.read_bytes().splitlines()]
    assert len(events) == len({event.id for event, _ in events}) == 1_500
    assert all(nostr.verify(event for event, _ in events))
    operations = [classify(event, raw, KindPolicy()) for event, raw in events]
    assert len({operation.document for operation in operations}) == 150
    for family in (Family.SNAPSHOT, Family.REVISION):
        assert sum(operation.family is family for operation in operations) > 400
    assert any(operation.action is Action.DELETE for operation in operations)


def test_some_revisions_come_before_their_parents_and_devices_come_back_late(generated: Path):
    seen: set[str] = set()
    late, times = 0, []
    for line in generated.read_bytes().splitlines():
        event, raw = nostr.parse(line, Limits())
        times.append(event.created_at)
        if (facts := classify(event, raw, KindPolicy()).revision) is not None:
            late += any(parent not in seen for parent in facts.parents)
            seen.add(facts.revision)
    assert late > 5
    assert times != sorted(times)


def test_conflicts_and_tombstones_are_some_and_not_all(generated_store: Path):
    with SqliteStore.inspect(generated_store).reader() as reader:
        statistics = reader.statistics()
    assert statistics.documents == 150
    assert 5 < statistics.conflicts < 75
    assert 5 < statistics.tombstones < 75


@pytest.mark.parametrize("operations, documents", [(1, 1), (7, 7), (40, 3)])
def test_any_size_is_met_to_the_operation(tmp_path: Path, operations: int, documents: int):
    generate(Plan(operations, documents, seed=1), tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_bytes().splitlines()
    assert len(lines) == operations
    report = make_store(tmp_path / "data", lines)
    assert (report.stored, report.rejected) == (operations, 0)


def test_more_documents_than_operations_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="an operation for each"):
        generate(Plan(operations=2, documents=3, seed=1), tmp_path / "x.jsonl")
