"""Removals: what its nodes have removed for good leaves the lake as well.

A log tells of every hard removal at a position of its own: by deletion, by a request to vanish, by expiry, by the
operator. An operation leaves when every stream that it was seen in has removed it, in whatever order that was heard;
while one of them has it, or has only compacted it, it stays. A revision is one operation, whichever wraps brought it:
it leaves when no stream has it in any of them.

What leaves becomes a fact that is `removed`, and the files that held it are written again without it. The files that
they stand for are named no longer; an hour later they are gone too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.core.operation import State
from anabranch.pipeline.delta import File, Table, filesystem, rewritten
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.rows import known_by
from anabranch.pipeline.schema import FACTS, STATES, arrow
from anabranch.pipeline.staging import among

REMOVED = STATES[State.REMOVED]

_FACTS = arrow(FACTS)
_SEEN = ["stream", "epoch", "position", "id", "document", "revision", "state"]


class Leaving(msgspec.Struct, frozen=True):
    """What leaves `operations`: as rows of `facts`; the files without it, and the paths of those they stand for."""

    facts: pa.Table
    files: list[File]
    without: list[str]


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """That an operation was seen somewhere, or was said to be removed there."""

    stream: str
    epoch: str
    position: int | None
    id: str
    document: str | None
    revision: str | None
    state: str

    @property
    def identity(self) -> str | tuple[str | None, str]:
        """What the operation is known by."""
        return self.id if self.revision is None else (self.document, self.revision)


def leaving(lake: Lake, batch: int, sightings: Sequence[str], epochs: Mapping[str, Sequence[str]]) -> Leaving | None:
    """What a batch takes out of a lake; None: nothing.

    `sightings` are the files of the batch that `sightings` does not have yet, `epochs` those of each stream, in order.
    """
    files = [*lake.table("sightings").files(), *sightings]
    removed = {one.id for one in _seen(sightings, "state", [REMOVED])}
    seen = list(_seen(files, "id", removed))
    revisions = {one.revision for one in seen if one.revision is not None}
    identities = {one.identity for one in seen}
    wraps = {one.id for one in _seen(files, "revision", revisions) if one.identity in identities} - removed
    seen += _seen(files, "id", wraps)
    going = gone(seen, epochs)
    return _taken_out(lake.table("operations"), going, batch) if going else None


def gone(seen: Sequence[Sighting], epochs: Mapping[str, Sequence[str]]) -> list[Sighting]:
    """One sighting of each operation (of a revision, in each of its wraps) that no stream has any more.

    In a stream the last word counts: that of the latest epoch that knows the operation, at the highest position.
    """
    order = {(stream, epoch): at for stream, every in epochs.items() for at, epoch in enumerate(every)}
    last: dict[tuple[str, str], tuple[int, int, bool]] = {}
    known: dict[str, Sighting] = {}
    for one in seen:
        word = (order[one.stream, one.epoch], one.position or 0, one.state == REMOVED)
        last[one.id, one.stream] = max(last.get((one.id, one.stream), word), word)
        if one.id not in known or one.revision is not None:  # where a removal is told, only the id is
            known[one.id] = one
    held = {known[id].identity for (id, _), (_, _, is_removed) in last.items() if not is_removed}
    return [one for one in known.values() if one.identity not in held]


def _seen(files: Sequence[str], column: str, values: Iterable[str]) -> Iterator[Sighting]:
    """The sightings that have one of the values in a column."""
    wanted = pa.array(sorted(values), pa.string())
    for uri in files if len(wanted) else ():
        system, path = filesystem(uri)
        with pq.ParquetFile(path, filesystem=system) as file:
            mask = pc.is_in(file.read([column])[column], wanted)
            if pc.any(mask, min_count=0).as_py():
                rows = file.read(_SEEN).filter(mask)
                yield from map(Sighting, *(rows[name].to_pylist() for name in _SEEN))


def _taken_out(table: Table, going: Sequence[Sighting], batch: int) -> Leaving | None:
    """The files of the operations that hold some of these, written again."""
    keys = np.sort([known_by(one.id, _bytes(one.document), one.revision) for one in going])
    ids = pa.array([one.id for one in going], pa.string())
    facts, files, without = [], [], []
    for held in table.named():
        system, path = filesystem(f"{table.path}/{held.path}")
        with pq.ParquetFile(path, filesystem=system) as file:
            if not among(keys, file.read(["key"])["key"].to_numpy()).any():
                continue
            mask = pc.is_in(file.read(["id"])["id"], ids).to_numpy(zero_copy_only=False)
            if not mask.any():
                continue
            rows = file.read([name for name in FACTS.names if name not in ("state", "batch")]).filter(pa.array(mask))
        facts.append(_as_facts(rows, batch))
        without.append(held.path)
        if not mask.all():
            files.append(rewritten(table.path, held.path, np.flatnonzero(mask)))
    return Leaving(pa.concat_tables(facts), files, without) if facts else None


def _as_facts(rows: pa.Table, batch: int) -> pa.Table:
    rows = rows.append_column("state", pa.repeat(REMOVED, rows.num_rows))
    rows = rows.append_column("batch", pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows))
    return rows.select(FACTS.names).cast(_FACTS)


def _bytes(document: str | None) -> bytes | None:
    return None if document is None else bytes.fromhex(document)
