"""The ledger of ingest: which stretches of which logs its batches are, written before a batch begins.

How far a log was read is kept by the log's own name: a node's store and the same node's address are one log, read
through two doors. A batch that `sightings` does not have yet was interrupted, and is done again just as it was planned.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anabranch.pipeline.feed import Feed, GapFound, Mark, Missing, first
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.source import Stretch

WORK = "ingest"
"""Under this name every table remembers the last batch that it has."""


class Planned(Stretch, frozen=True, kw_only=True):
    """A line of the ledger: a stretch of a log in a batch, and the gap before it if there was one."""

    batch: int
    gap: Missing | None = None


class Ledger:
    def __init__(self, lake: Lake) -> None:
        self._table, self._last = lake.table("batches"), lake.table("sightings")
        self._lines = sorted((_line(row) for row in self._table.rows()), key=lambda line: line.batch)

    @property
    def _number(self) -> int:
        return self._lines[-1].batch if self._lines else -1

    def unfinished(self) -> list[Planned] | None:
        """The last batch, if it was not carried out to its end."""
        if self._last.done(WORK) >= self._number:
            return None
        return [line for line in self._lines if line.batch == self._number]

    def mark(self, of: Feed) -> Mark | None:
        key = of.key()
        return next((line.end for line in reversed(self._lines) if line.end.key == key), None)

    def epochs(self) -> dict[str, list[str]]:
        """The epochs of every stream, in the order in which they were met."""
        met: dict[str, dict[str, None]] = {}
        for line in self._lines:
            met.setdefault(line.end.stream, {})[line.end.epoch] = None
        return {stream: list(epochs) for stream, epochs in met.items()}

    def overlaps(self, batch: Sequence[Planned]) -> bool:
        """Whether some of a batch was read before, so that places have to be compared."""
        return any(
            (line.end.stream, line.end.epoch) == (other.end.stream, other.end.epoch)
            and (line.end.scope != other.end.scope or other.end.position > (line.start.position if line.start else 0))
            for line in batch
            for other in self._lines
            if other.batch < line.batch
        )

    def plan(self, feeds: Sequence[tuple[str, Feed]], gaps: str, rows: int) -> list[Planned]:
        """The next batch: of every log what is new, about so many rows in all. Empty when there is nothing."""
        batch: dict[tuple[str, str], Planned] = {}
        left = rows
        for path, feed in feeds:
            if left <= 0:
                break
            step = feed.advance(self.mark(feed), left)
            if step.broken and step.missing is not None:
                if gaps != "bootstrap":
                    raise GapFound(feed.source, step.missing)
                step = first(feed, step.missing, left)
            if step.empty or step.end.key in batch:
                continue
            batch[step.end.key] = Planned(
                path=path,
                source=feed.source,
                start=step.start,
                end=step.end,
                batch=self._number + 1,
                gap=step.missing,
            )
            left -= max(1, step.rows)
        return list(batch.values())

    def write(self, batch: Sequence[Planned]) -> None:
        rows = [
            {
                "batch": line.batch,
                "path": line.path,
                "source": line.source,
                "start": None if line.start is None else as_json(line.start),
                "end": as_json(line.end),
                "gap": None if line.gap is None else as_json(line.gap),
            }
            for line in batch
        ]
        self._table.append(rows, {WORK: batch[0].batch})
        self._lines += batch


def _line(row: dict[str, str]) -> Planned:
    return Planned(
        path=row["path"],
        source=row["source"],
        start=None if row["start"] is None else msgspec.json.decode(row["start"], type=Mark),
        end=msgspec.json.decode(row["end"], type=Mark),
        batch=int(row["batch"]),
        gap=None if row["gap"] is None else msgspec.json.decode(row["gap"], type=Missing),
    )


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
