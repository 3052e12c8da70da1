"""What a lake knows already, found in columns: no operation twice, and no two compared that need not be.

Every operation has a short key of eight bytes (`rows.known_by`). Keys are looked at first, a file at a time; where
one comes twice, a second look is taken at what operations are known by: the id, or, of a revision, its document and its
own id, as in a node. Of those that are the same the one that is known stays, and among new ones the first by its place.
So the usual case costs a column, and the answer is always exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.core.operation import Family
from anabranch.pipeline.delta import Table, filesystem
from anabranch.pipeline.feed import Mark
from anabranch.pipeline.schema import FAMILIES, arrow
from anabranch.pipeline.staging import Numbers, Seen, Staged, among

SECOND_LOOKS = 1_000_000
"""So many keys are looked at again at once."""

_IDENTITY = ["key", "id", "family", "document", "revision"]
_PLACE = ["stream", "epoch", "position", "id"]


def repeated(table: Table, staged: Sequence[Staged]) -> list[Numbers]:
    """Of each staged file of operations the rows that are known already, or stand in an earlier place as well."""
    fresh = np.sort(np.concatenate([_keys(one) for one in staged])) if staged else np.empty(0, np.int64)
    files = table.files()
    twice, hit = _doubtful(fresh, files)
    dropped: list[list[Numbers]] = [[] for _ in staged]
    for some in np.array_split(twice, -(-len(twice) // SECOND_LOOKS)) if len(twice) else ():
        for at, rows in _same(some, [f"{table.path}/{one.file.path}" for one in staged], hit):
            dropped[at].append(rows)
    return [np.unique(np.concatenate(rows)) if rows else np.empty(0, np.int64) for rows in dropped]


def places(table: Table, of: Mark) -> Seen:
    """The places of a log that a table has."""
    own = (pc.field("stream") == of.stream) & (pc.field("epoch") == of.epoch)
    columns = [name for name in _PLACE if name in table.schema.names]
    some = (rows.filter(own) for rows in _rows(table.files(), columns))
    found = pa.concat_tables([arrow(table.schema).empty_table().select(columns), *some])
    nowhere = pc.is_null(found["position"])
    ids = frozenset(found.filter(nowhere)["id"].to_pylist()) if "id" in columns else frozenset()
    return Seen(np.sort(found.filter(pc.invert(nowhere))["position"].to_numpy()).tobytes(), ids)


def _keys(staged: Staged) -> Numbers:
    assert staged.keys is not None
    return staged.keys


def _doubtful(fresh: Numbers, files: Sequence[str]) -> tuple[Numbers, list[str]]:
    """The keys that come more than once, ascending, and the known files that have some of them. `fresh` ascends."""
    found = [fresh[1:][fresh[1:] == fresh[:-1]]]
    hit: list[str] = []
    for file in files if len(fresh) else ():
        (rows,) = _rows([file], ["key"])
        known = rows["key"].to_numpy()
        common = known[among(fresh, known)]
        if len(common):
            found.append(common)
            hit.append(file)
    return np.unique(np.concatenate(found)), hit


def _same(keys: Numbers, staged: Sequence[str], known: Sequence[str]) -> Iterator[tuple[int, Numbers]]:
    """Of each staged file the rows with some keys that are, exactly, known or a later copy."""
    there = [identity(rows) for rows, _ in _with_keys(keys, known, _IDENTITY)]
    looked_at = list(_with_keys(keys, staged, [*_IDENTITY, *_PLACE[:-1]]))
    if not looked_at:
        return
    rows = pa.concat_tables([rows for rows, _ in looked_at])
    file = np.repeat(np.arange(len(looked_at)), [len(at) for _, at in looked_at])
    row = np.concatenate([at for _, at in looked_at])
    names = identity(rows)
    gone = pc.is_in(names, pa.concat_arrays(there)).to_numpy(zero_copy_only=False) if there else _none(len(row))
    order = pc.sort_indices(
        rows.select(_PLACE), sort_keys=[(name, "ascending", "at_start") for name in _PLACE]
    ).to_numpy()
    numbered = names.dictionary_encode().indices.to_numpy()
    first = np.unique(numbered[order], return_index=True)[1]
    later = np.ones(len(row), np.bool_)
    later[order[first]] = False
    for at in range(len(looked_at)):
        if len(found := row[(file == at) & (gone | later)]):
            yield at, found


def _with_keys(keys: Numbers, files: Sequence[str], columns: list[str]) -> Iterator[tuple[pa.Table, Numbers]]:
    """The rows of each file that have one of the keys, and which ones they are."""
    for file in files:
        (rows,) = _rows([file], columns)
        at = np.flatnonzero(among(keys, rows["key"].to_numpy()))
        yield rows.take(pa.array(at)), at


def identity(rows: pa.Table) -> pa.StringArray:
    """What operations are known by."""
    revision = pc.equal(rows["family"], FAMILIES[Family.REVISION])
    own = pc.binary_join_element_wise(rows["document"], rows["revision"], "")
    found = pc.if_else(revision, own, rows["id"])
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _rows(files: Sequence[str], columns: list[str]) -> Iterator[pa.Table]:
    for uri in files:
        system, path = filesystem(uri)
        with pq.ParquetFile(path, filesystem=system) as file:
            yield file.read(columns, use_threads=False)


def _none(count: int) -> npt.NDArray[np.bool_]:
    return np.zeros(count, np.bool_)
