"""Heads of many documents at once, in columns: the vectorised twin of `snapshots.heads` and `revisions.heads`.

`frontier` takes versions of any documents of both families and gives their heads, a row each. It is held equal to the
rules on random histories. What it gives may be put beside versions that were not known and given to it again, as long
as nothing of the document was removed: heads of parts are the heads of all.

Snapshots: of every document one version with the greatest clock sum is compared with all the others, column by column.
Few documents have anything left after that; for those the rule itself is asked. Revisions: a version is a head when its
own id stands in no row of its document as a parent. Names are numbered (dictionaries), so nothing is decided by a hash.
A snapshot that was removed goes on to supersede; a revision that was removed names its parents only where something
that is stored descends from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.core import snapshots
from anabranch.core.operation import Family
from anabranch.pipeline.schema import FAMILIES, HEADS, VERSIONS, arrow

Numbers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_HEADS = arrow(HEADS)
_VERSIONS = arrow(VERSIONS)
_OWN = [name for name in HEADS.names if name in VERSIONS.names and name != "awaited"]


class _Version(NamedTuple):
    id: str
    clock: Mapping[str, int]
    row: int


def frontier(versions: pa.Table) -> pa.Table:
    """The heads among the versions (columns of `VERSIONS`), as rows of `HEADS`."""
    is_snapshot = pc.equal(versions["family"], FAMILIES[Family.SNAPSHOT]).to_numpy()
    of_clocks, of_parents = np.flatnonzero(is_snapshot), np.flatnonzero(~is_snapshot)
    found = [*_of_snapshots(versions, of_clocks), *_of_revisions(versions, of_parents)]
    return pa.concat_tables(found) if found else _HEADS.empty_table()


def _columns(versions: pa.Table, rows: Numbers, names: list[str]) -> pa.Table:
    """What is needed to decide on some rows, in one piece; the rest, which is most of it, is not copied."""
    return _those(versions.select(names), rows).combine_chunks()


def _those(versions: pa.Table, rows: Numbers) -> pa.Table:
    """Some rows; they ascend."""
    wanted = np.zeros(versions.num_rows, np.bool_)
    wanted[rows] = True
    return versions.filter(pa.array(wanted))


def again(heads: pa.Table) -> pa.Table:
    """Heads as versions to be looked at again: what their parents superseded is gone, what they wait for is not."""
    parents = pa.nulls(heads.num_rows, _VERSIONS.field("parents").type)
    heads = heads.append_column("parents", parents).append_column("removed", pa.repeat(False, heads.num_rows))
    return heads.select(VERSIONS.names).cast(_VERSIONS)


# --- snapshots -------------------------------------------------------------------------------------------------------


def _of_snapshots(versions: pa.Table, rows: Numbers) -> Iterator[pa.Table]:
    if not len(rows):
        return
    known = _columns(versions, rows, ["document", "id", "clock", "clock_sum", "payload"])
    document, _ = numbered(known["document"])
    kept = np.flatnonzero(_not_dominated_by_top(document, known))
    counts = np.bincount(document[kept], minlength=int(document.max()) + 1)
    settled = counts[document[kept]] == 1
    heads = np.array([*kept[settled].tolist(), *_by_the_rule(known, document, kept[~settled])], np.int64)
    yield _told(_those(versions, rows[heads]), None)


def _not_dominated_by_top(document: Numbers, versions: pa.Table) -> Marks:
    """Which versions are not dominated by the one of their document that has the greatest clock sum."""
    sums = versions["clock_sum"].to_numpy()
    clocks = versions["clock"].combine_chunks()
    clocks = clocks.chunk(0) if isinstance(clocks, pa.ChunkedArray) else clocks
    offsets = clocks.offsets.to_numpy()
    keys, items = clocks.keys, clocks.items
    device, _ = numbered(keys.slice(offsets[0], offsets[-1] - offsets[0]))
    counter = items.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    starts = offsets[:-1] - offsets[0]

    order = np.lexsort((sums, document))
    last = np.flatnonzero(np.append(document[order][1:] != document[order][:-1], True))
    top = np.empty(int(document.max()) + 1, np.int64)
    top[document[order][last]] = order[last]

    row = np.repeat(np.arange(len(document)), np.diff(offsets))
    entry = document[row] * (int(device.max()) + 1) + device
    is_top = np.zeros(len(document), np.bool_)
    is_top[top] = True
    of_top = np.flatnonzero(is_top[row])
    of_top = of_top[np.argsort(entry[of_top])]
    at = np.minimum(np.searchsorted(entry[of_top], entry), len(of_top) - 1)
    covered = (entry[of_top][at] == entry) & (counter[of_top][at] >= counter)
    all_covered = np.logical_and.reduceat(covered, starts)
    marks: Marks = (sums == sums[top[document]]) | ~all_covered
    return marks


def _by_the_rule(versions: pa.Table, document: Numbers, rows: Numbers) -> list[int]:
    """The heads among what is left of documents with several candidates."""
    some = versions.select(["id", "clock", "payload"]).take(pa.array(rows))
    documents: dict[int, dict[str, _Version]] = {}
    for row, id, clock, payload in zip(
        rows.tolist(), *(some[name].to_pylist() for name in ("id", "clock", "payload")), strict=True
    ):
        known = documents.setdefault(int(document[row]), {})
        if payload or id not in known:  # of the same version, the one with a payload
            known[id] = _Version(id, dict(clock), row)
    return [head.row for known in documents.values() for head in snapshots.heads(known.values())]


# --- revisions -------------------------------------------------------------------------------------------------------


def _of_revisions(versions: pa.Table, rows: Numbers) -> Iterator[pa.Table]:
    if not len(rows):
        return
    given = _columns(versions, rows, ["document", "revision", "parents", "awaited", "payload", "removed"])
    document, documents = numbered(given["document"])
    own = _one(given["revision"])
    named_rows, named_names = zip(*(_flattened(_one(given[name])) for name in ("parents", "awaited")), strict=True)
    name, names = numbered(pa.concat_arrays([own, *named_names]))
    own_key = document * len(names) + name[: len(own)]
    naming = np.concatenate(named_rows)
    named_key = document[naming] * len(names) + name[len(own) :]
    removed = given["removed"].fill_null(False).to_numpy()
    known = own.is_valid().to_numpy(zero_copy_only=False) & ~removed
    named_key = np.sort(_counting(named_key, removed[naming], own_key[naming], own_key[known]))
    is_head = known & ~_among(named_key, own_key)
    heads = _once(np.flatnonzero(is_head), own_key, given)

    awaited_key = np.unique(named_key[~_among(np.sort(own_key[known]), named_key)])
    awaited = _lists(awaited_key // len(names), names.take(pa.array(awaited_key % len(names))), len(documents))
    yield _told(_those(versions, rows[heads]), awaited.take(pa.array(document[heads])))
    waiting = np.unique(awaited_key // len(names))
    headless = np.setdiff1d(waiting, document[heads])
    if len(headless):
        yield _headless(documents.take(pa.array(headless)), awaited.take(pa.array(headless)))


def _counting(named: Numbers, is_removed: Marks, by: Numbers, stored: Numbers) -> Numbers:
    """Those of the names that count, one each: of what is stored, and of what is removed and lies between.

    The twin of `revisions.named`. `by` is who names, and `is_removed` whether that was removed.
    """
    if not is_removed.any():
        return named
    found = np.unique(named[~is_removed])
    between = np.flatnonzero(is_removed & ~_among(np.sort(stored), by))
    counting = found
    while len(found) and len(between):
        reached = _among(found, by[between])
        found = np.setdiff1d(named[between[reached]], counting)
        counting, between = np.union1d(counting, found), between[~reached]
    return counting


def _once(heads: Numbers, key: Numbers, versions: pa.Table) -> Numbers:
    """Each revision once: where one node has lost its payload and another has not, the one that has it."""
    payload = versions["payload"].take(pa.array(heads)).to_numpy()
    order = np.lexsort((~payload, key[heads]))
    first = np.append(True, key[heads][order][1:] != key[heads][order][:-1]) if len(order) else order.astype(np.bool_)
    return np.sort(heads[order[first]])


def _headless(documents: pa.Array, awaited: pa.Array) -> pa.Table:
    """Rows for documents of which every version is named: what they wait for has to be remembered all the same."""
    count = len(documents)
    known = {
        "document": documents,
        "family": pa.repeat(FAMILIES[Family.REVISION], count),
        "payload": pa.repeat(False, count),
        "number": pa.repeat(pa.scalar(0, pa.int32()), count),
        "heads": pa.repeat(pa.scalar(0, pa.int32()), count),
        "deleted": pa.repeat(False, count),
        "awaited": awaited,
    }
    return pa.table([known.get(field.name, pa.nulls(count, field.type)) for field in _HEADS], schema=_HEADS)


# --- columns ---------------------------------------------------------------------------------------------------------


def _told(heads: pa.Table, awaited: pa.Array | None) -> pa.Table:
    """Rows of `HEADS`: those of a document with a payload first, by id, and what they come to together."""
    if awaited is None:
        awaited = pa.nulls(heads.num_rows, _HEADS.field("awaited").type)
    heads = heads.select(_OWN).append_column("awaited", awaited)
    heads = heads.take(
        pc.sort_indices(heads, [("document", "ascending"), ("payload", "descending"), ("id", "ascending")])
    ).combine_chunks()
    document, documents = numbered(heads["document"])
    payload = heads["payload"].to_numpy()
    deletes = pc.equal(heads["action"], "del").to_numpy()
    served = np.bincount(document, payload, len(documents)).astype(np.int32)
    deleted = (np.bincount(document, payload & ~deletes, len(documents)) == 0) & (served > 0)
    first = np.append(0, np.cumsum(np.bincount(document, minlength=len(documents))))[:-1]
    added = {
        "number": (np.arange(len(document)) - first[document]).astype(np.int32),
        "heads": served[document],
        "deleted": deleted[document],
    }
    return pa.table(
        [pa.array(added[name]) if name in added else heads[name] for name in _HEADS.names], names=_HEADS.names
    ).cast(_HEADS)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined


def numbered(values: pa.Array | pa.ChunkedArray) -> tuple[Numbers, pa.Array]:
    """A number for each value, in the order in which they first come, and the values by number; null is -1."""
    array = _one(values) if isinstance(values, pa.ChunkedArray) else values
    encoded = array.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _among(ordered: Numbers, keys: Numbers) -> Marks:
    """Which of the keys are among those in order."""
    if not len(ordered):
        return np.zeros(len(keys), np.bool_)
    found: Marks = ordered[np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)] == keys
    return found


def _flattened(lists: pa.Array) -> tuple[Numbers, pa.Array]:
    """The rows that the values of lists stand in, and the values."""
    row = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return row, lists.flatten()


def _lists(owner: Numbers, values: pa.Array, count: int) -> pa.Array:
    """A list for each owner; `owner` ascends."""
    offsets = np.append(0, np.cumsum(np.bincount(owner, minlength=count)))
    kind = _HEADS.field("awaited").type
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.cast(pa.string())).cast(kind)
