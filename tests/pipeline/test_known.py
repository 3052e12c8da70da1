"""No operation is in a lake twice, whatever its short key says; and the usual case looks at keys alone."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.pipeline import known
from anabranch.pipeline.delta import Table, write_file
from anabranch.pipeline.schema import OPERATIONS, arrow
from anabranch.pipeline.staging import Staged

Row = dict[str, object]


def row(rng: random.Random, position: int | None) -> Row:
    """An operation out of few, where different ones share a key as well."""
    number = rng.randrange(8)
    if rng.random() < 0.5:
        return {"family": "snapshot", "id": f"id-{number}", "key": number % 3, "stream": "s", "position": position}
    return {
        "family": "revision",
        "id": f"wrap-{rng.randrange(100)}",
        "document": f"d{number % 2}",
        "revision": f"r{number % 4}",
        "key": number % 4 % 3,
        "stream": "s",
        "position": position,
    }


def identity(of: Row) -> tuple[object, ...]:
    return (of["document"], of["revision"]) if of["family"] == "revision" else (of["id"],)


def staged(table: Table, rows: list[Row]) -> Staged:
    written = pa.Table.from_pylist(rows, arrow(OPERATIONS))
    return Staged("operations", write_file(written, table.path, table.folder()), written["key"].to_numpy())


def plainly(there: list[Row], files: list[list[Row]]) -> list[set[int]]:
    """The rule, one row after the other: what is known goes, and of the others all but the first by its place."""
    seen = set(map(identity, there))
    dropped: list[set[int]] = [set() for _ in files]
    fresh = [(row, file, at) for file, rows in enumerate(files) for at, row in enumerate(rows)]
    fresh.sort(key=lambda one: (one[0]["position"] is not None, one[0]["position"] or 0, one[0]["id"]))
    for one, file, at in fresh:
        if identity(one) in seen:
            dropped[file].add(at)
        seen.add(identity(one))
    return dropped


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9), at_once=st.sampled_from([1, 2, 1_000]))
def test_what_is_known_is_found_as_the_plain_rule_finds_it(
    seed: int, at_once: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(known, "SECOND_LOOKS", at_once)
    rng = random.Random(seed)
    table = Table(str(tmp_path_factory.mktemp("known")), "operations", OPERATIONS)
    places = iter(rng.sample([*range(100), None], 60))
    there, *files = [[row(rng, next(places)) for _ in range(rng.randrange(1, 8))] for _ in range(rng.randrange(1, 6))]
    table.take([staged(table, there).file], {})
    found = known.repeated(table, [staged(table, rows) for rows in files])
    assert [set(rows.tolist()) for rows in found] == plainly(there, files)


def test_where_no_key_comes_twice_nothing_else_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = Table(str(tmp_path), "operations", OPERATIONS)
    one, other = ({"family": "snapshot", "id": name, "key": key, "position": 1} for name, key in (("a", 1), ("b", 2)))
    table.take([staged(table, [one]).file], {})
    read: list[str] = []
    rows = known._rows
    monkeypatch.setattr(known, "_rows", lambda files, columns: read.extend(columns) or rows(files, columns))
    (dropped,) = known.repeated(table, [staged(table, [other])])
    assert not len(dropped) and set(read) == {"key"}
    (dropped,) = known.repeated(table, [staged(table, [one])])
    assert np.array_equal(dropped, [0]) and "id" in read
