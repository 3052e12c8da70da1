"""Where versions stand in their documents, in columns: what retention looks at, whatever the policy.

`standing` takes all that is known of some documents and gives a row for each version with a payload: whether it is a
head, whether it is the foremost of what has a payload, how many come before it, and since when its document is deleted.
Heads are those of `frontier`. A plan that is made of this is held equal to the rule and to a node.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from anabranch.core.operation import Family
from anabranch.pipeline.frontier import Numbers, frontier, numbered
from anabranch.pipeline.schema import FACTS, FAMILIES, VERSIONS, arrow

ASKED = ["kind", "expires_at"]
"""Columns that are passed on, beside those of `VERSIONS`."""

SHOWN = ["id", "family", "kind", "author", "recipient", "document", "coordinate", "action", "created_at", "mtime"]
OWN = [*SHOWN, "expires_at", "size"]
"""What is told of an operation itself."""

PLACES = {
    "head": t.BooleanType(),
    "foremost": t.BooleanType(),
    "before": t.IntegerType(),
    "deleted_at": t.LongType(),
}
STANDING = t.StructType([*(FACTS[name] for name in OWN), *(t.StructField(name, kind) for name, kind in PLACES.items())])
"""`head`: nothing known supersedes it. `foremost`: nothing with a payload does. `before`: how many of the document come
before it, the foremost first, then the newest. `deleted_at`: of a document of snapshots whose every head deletes, when
the last of them was made."""

_STANDING = arrow(STANDING)


def standing(versions: pa.Table, now: int) -> pa.Table:
    """Rows of `STANDING` for operations among versions, columns of `VERSIONS` and `ASKED`.

    Of each document all that is known must be there. What has expired supersedes, and stands nowhere itself.
    """
    expired = pc.and_(versions["payload"], pc.less_equal(versions["expires_at"], now).fill_null(False))
    stored, gone = versions.filter(pc.invert(expired)), versions.filter(expired)
    versions = pa.concat_tables([stored, _removed(gone)])
    heads = frontier(versions.select(VERSIONS.names))
    heads = heads.filter(heads["payload"])
    live = versions.filter(versions["payload"])
    foremost = _foremost(versions, live, heads)
    places = {
        "head": pc.is_in(live["id"], heads["id"]),
        "foremost": foremost,
        "before": pa.array(_before(live, foremost), pa.int32()),
        "deleted_at": _deleted_at(live, heads),
    }
    return pa.concat_tables([_rows(live, places), _rows(gone, {})])


def _removed(versions: pa.Table) -> pa.Table:
    marks = {"payload": pa.repeat(False, versions.num_rows), "removed": pa.repeat(True, versions.num_rows)}
    return pa.table([marks.get(name, versions[name]) for name in versions.column_names], schema=versions.schema)


def _rows(of: pa.Table, places: Mapping[str, pa.Array]) -> pa.Table:
    none = {name: pa.nulls(of.num_rows, _STANDING.field(name).type) for name in PLACES}
    return pa.table(
        [places.get(name, none[name]) if name in none else of[name] for name in _STANDING.names], schema=_STANDING
    )


def _foremost(versions: pa.Table, live: pa.Table, heads: pa.Table) -> pa.ChunkedArray:
    """The heads among what has a payload: others than the heads only where a document has lost something."""
    lost = pc.and_(pc.invert(versions["payload"]), pc.equal(versions["family"], FAMILIES[Family.SNAPSHOT]))
    touched = pc.unique(versions.filter(lost)["document"])
    again = frontier(live.filter(pc.is_in(live["document"], touched)).select(VERSIONS.names))
    rest = heads.filter(pc.invert(pc.is_in(heads["document"], touched)))
    return pc.is_in(live["id"], pa.chunked_array([*rest["id"].chunks, *again["id"].chunks], pa.string()))


def _before(live: pa.Table, foremost: pa.ChunkedArray) -> Numbers:
    """Of each row, how many of its document come before it."""
    document, _ = numbered(live["document"])
    ranked = pa.table(
        {"document": document, "foremost": foremost.cast(pa.int8()), "made": live["created_at"], "id": live["id"]}
    )
    keys = [("document", "ascending"), ("foremost", "descending"), ("made", "descending"), ("id", "descending")]
    order = pc.sort_indices(ranked, keys).to_numpy()
    first = np.append(0, np.cumsum(np.bincount(document)))[:-1] if len(document) else document
    before = np.empty(len(document), np.int64)
    before[order] = np.arange(len(document)) - first[document[order]]
    return before


def _deleted_at(live: pa.Table, heads: pa.Table) -> pa.ChunkedArray:
    """When the document of each row was deleted; null where it is not."""
    tombstones = heads.filter(pc.and_(heads["deleted"], pc.equal(heads["family"], FAMILIES[Family.SNAPSHOT])))
    last = tombstones.group_by("document", use_threads=False).aggregate([("created_at", "max")])
    return last["created_at_max"].take(pc.index_in(live["document"], last["document"]))
