"""Heads in columns are the rules' heads, of random documents in which everything happens, and parts add up."""

import random
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import revisions, snapshots
from anabranch.pipeline.frontier import again, frontier
from anabranch.pipeline.schema import VERSIONS, arrow

SCHEMA = arrow(VERSIONS)
NAMES = [f"{digit}" * 64 for digit in "abcdef"]
DEVICES = ["laptop", "phone", "ü"]


class Version(NamedTuple):
    document: str
    id: str
    clock: dict[str, int] | None = None
    revision: str | None = None
    parents: tuple[str, ...] | None = None
    state: str = "retained"

    def row(self) -> dict[str, object]:
        clock = None if self.clock is None else list(self.clock.items())
        return {
            **dict.fromkeys(VERSIONS.names),
            "document": self.document,
            "family": "revision" if self.clock is None else "snapshot",
            "id": self.id,
            "action": "put",
            "clock": clock,
            "clock_sum": None if self.clock is None else sum(self.clock.values()),
            "revision": self.revision,
            "parents": self.parents,
            "payload": self.state == "retained",
            "removed": self.state == "removed",
        }


def table(versions: list[Version]) -> pa.Table:
    return pa.Table.from_pylist([version.row() for version in versions], SCHEMA)


states = st.sampled_from(["retained", "retained", "compacted", "removed"])
clocks = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 3), min_size=1)


@st.composite
def of_clocks(draw: st.DrawFn) -> list[Version]:
    """Snapshots of three documents; some of them are known twice, once with a payload and once without."""
    made = draw(st.lists(st.tuples(st.sampled_from("stu"), clocks, states), max_size=16))
    versions = [Version(document, f"{n:064x}", clock, state=state) for n, (document, clock, state) in enumerate(made)]
    twice = draw(st.lists(st.sampled_from(versions), max_size=4)) if versions else []
    return [*versions, *(version._replace(state=draw(states)) for version in twice)]


@st.composite
def of_parents(draw: st.DrawFn) -> list[Version]:
    """Revisions of two documents, stored once each, and removed ones beside them that name other parents."""
    versions: list[Version] = []
    for document in "vw":
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=8)):
            others = st.lists(st.sampled_from([other for other in NAMES if other != name]), max_size=3, unique=True)
            stored = any((v.document, v.revision) == (document, name) and v.state != "removed" for v in versions)
            state = "removed" if stored else draw(states)
            id = f"{len(versions):064x}"
            versions.append(Version(document, id, None, name, tuple(draw(others)), state))
    return versions


def by_the_rules(versions: list[Version]) -> set[tuple[str, str, bool]]:
    """Of every document its heads by name, and whether each can be had."""
    documents: dict[str, list[Version]] = {}
    for version in versions:
        documents.setdefault(version.document, []).append(version)
    found = set()
    for document, every in documents.items():
        if every[0].clock is not None:
            names = {head.id for head in snapshots.heads(every)}
        else:
            removed = [version for version in every if version.state == "removed"]
            stored = [version for version in every if version.state != "removed"]
            names = {head.revision for head in revisions.heads(stored, removed)}
        retained = {version.revision or version.id for version in every if version.state == "retained"}
        found |= {(document, name, name in retained) for name in names}
    return found


def named(heads: pa.Table) -> list[tuple[str, str, bool]]:
    rows = heads.select(["document", "revision", "id", "payload"]).to_pylist()
    return [(row["document"], row["revision"] or row["id"], row["payload"]) for row in rows if row["id"] is not None]


@settings(max_examples=150)
@given(of_clocks(), of_parents(), st.randoms(use_true_random=False))
def test_the_twin_in_columns_is_the_rule_with_what_was_removed(
    snapshots: list[Version], revisions: list[Version], rng: random.Random
):
    versions = [*snapshots, *revisions]
    rng.shuffle(versions)
    found = named(frontier(table(versions)))
    assert set(found) == by_the_rules(versions)
    assert len(found) == len(set(found))


@settings(max_examples=150)
@given(of_clocks(), of_parents(), st.randoms(use_true_random=False))
def test_heads_of_parts_in_any_order_are_the_heads_of_all_where_nothing_was_removed(
    snapshots: list[Version], revisions: list[Version], rng: random.Random
):
    versions = [*snapshots, *(version for version in revisions if version.state != "removed")]
    rng.shuffle(versions)
    cut = rng.randint(0, len(versions))
    parts = [again(frontier(table(versions[:cut]))), table(versions[cut:])]
    whole = frontier(table(versions))
    columns = ["document", "revision", "id", "payload", "number", "heads", "deleted"]
    order = [(name, "ascending") for name in ("document", "number", "revision")]
    there = pc.field(
        "id"
    ).is_valid()  # where revisions name each other in a circle there is no head, and a row may say so
    found = frontier(pa.concat_tables(parts))
    assert found.filter(there).select(columns).sort_by(order) == whole.filter(there).select(columns).sort_by(order)
