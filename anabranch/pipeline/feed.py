"""Feeds: logs that can be read in stretches, wherever they are.

A feed has one stream. `advance` says how far it can be read from a mark, `spans` cuts that stretch into pieces that can
be read apart, and `read` gives the rows of one. A mark means something only in its stream and epoch. Where what follows
a mark is gone, that is a gap: an error that says what to do, or, by choice, a first reading again and a row that tells
of it; never a jump.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from anabranch.core.token import Log, Position, gap
from anabranch.pipeline.schema import LOG, arrow

ROWS_A_SPAN = 62_500
ROWS_A_SPAN_MIN = 1_000
BATCH_ROWS = 2_000
BATCH_BYTES = 8 << 20

_SCHEMA = arrow(LOG)


class Mark(msgspec.Struct, frozen=True):
    """How far a log was read: all up to and with `position`.

    Up to `first_until` it is a first reading, which takes whatever is there, below the floor too. `byte` is where the
    next line of a file begins. `scope` is the part of a log that a feed carries; empty for the whole.
    """

    stream: str
    epoch: str
    position: int = 0
    byte: int = 0
    first_until: int = 0
    scope: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What a mark is a mark of."""
        return self.stream, self.scope


class Missing(msgspec.Struct, frozen=True):
    """A gap: why what follows a mark cannot be had, and what can."""

    reason: str
    requested: int
    oldest: int
    latest: int
    was_epoch: str = ""

    def text(self, source: str) -> str:
        return (
            f"{source}: what follows position {self.requested} is gone ({self.reason}): the log goes from "
            f"{self.oldest} to {self.latest}. Read it again from its beginning with gaps=bootstrap; what is known "
            "already is not taken twice"
        )


class GapFound(Exception):
    """A feed cannot be continued where it was left. Trying again does not help; gaps=bootstrap does."""

    def __init__(self, source: str, missing: Missing) -> None:
        super().__init__(missing.text(source))
        self.missing = missing


class FeedError(Exception):
    """A feed cannot be read; the text says why and what to do."""


class Advance(msgspec.Struct, frozen=True):
    """A stretch that can be read now: after `start` (None: from the beginning), up to and with `end`.

    With `missing`, nothing follows the start; of a first reading it tells what was gone before it began.
    """

    start: Mark | None
    end: Mark
    missing: Missing | None = None

    @property
    def empty(self) -> bool:
        return self.start == self.end

    @property
    def broken(self) -> bool:
        """Whether it is a gap in what was being read, and not only before it."""
        return self.missing is not None and self.start is not None

    @property
    def rows(self) -> int:
        """How many at the most."""
        return self.end.position - (self.start.position if self.start else 0)


class Span(msgspec.Struct, frozen=True):
    """A piece of a stretch: positions after one and up to another, and for a file the bytes they are in.

    With `heads` it is no stretch of the log but what stands in for one that is gone: the heads of that moment.
    """

    epoch: str
    after: int
    until: int
    byte: int = 0
    byte_end: int = 0
    heads: bool = False


class Feed(Protocol):
    source: str

    def key(self) -> tuple[str, str]:
        """The key of its marks."""
        ...

    def advance(self, start: Mark | None, rows: int | None = None) -> Advance: ...
    def mark(self) -> Mark:
        """The end of the log as it is now."""
        ...

    def spans(self, start: Mark | None, end: Mark, parts: int) -> Sequence[Span]: ...
    def read(self, span: Span) -> Iterator[pa.RecordBatch]: ...


def first(feed: Feed, missing: Missing, rows: int | None) -> Advance:
    """The first reading again, after a gap."""
    again = feed.advance(None, rows)
    return Advance(None, again.end, missing)


def advance_log(log: Log, start: Mark | None, rows: int | None, scope: str = "") -> Advance:
    """How far a log with positions can be read from a mark, at most so many positions further."""
    if start is None:
        first_until, after = log.tip, 0
    elif start.epoch != log.epoch:
        missing = Missing("epoch_changed", start.position, log.floor, log.tip, start.epoch)
        return Advance(start, start, missing)
    else:
        first_until, after = start.first_until, start.position
        found = gap(log, Position(after))
        if found is not None and after >= first_until:
            return Advance(start, start, Missing(found.reason.value, after, log.floor, log.tip, log.epoch))
    end = log.tip if rows is None else min(log.tip, after + rows)
    return Advance(start, Mark(log.stream, log.epoch, end, first_until=first_until, scope=scope))


def positions(start: Mark | None, end: Mark, parts: int) -> list[Span]:
    """Ranges of positions of about the same length: so many, but none of them too long or too short."""
    after = start.position if start is not None else 0
    count = end.position - after
    parts = max(1, -(-count // ROWS_A_SPAN), min(parts, count // ROWS_A_SPAN_MIN))
    cuts = [after + count * at // parts for at in range(parts + 1)]
    return [Span(end.epoch, low, high) for low, high in itertools.pairwise(cuts) if high > low]


class Rows:
    """Rows of a log on their way into batches."""

    def __init__(self, stream: str, epoch: str, source: str) -> None:
        self._place = (stream, epoch, source)
        self._rows: list[tuple[int | None, bytes | None, bytes | None, str | None, str | None]] = []
        self._bytes = 0

    def add(
        self,
        position: int | None,
        line: bytes | None = None,
        facts: bytes | None = None,
        removed: str | None = None,
        problem: str | None = None,
    ) -> None:
        self._rows.append((position, line, facts, removed, problem))
        self._bytes += len(line or facts or b"")

    @property
    def full(self) -> bool:
        return len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        """What has been added, as one batch, if anything has."""
        if self._rows:
            stream, epoch, source = (pa.repeat(value, len(self._rows)) for value in self._place)
            columns = (stream, epoch, *zip(*self._rows, strict=True), source)
            yield pa.RecordBatch.from_arrays(
                [
                    column if isinstance(column, pa.Array) else pa.array(column, field.type)
                    for column, field in zip(columns, _SCHEMA, strict=True)
                ],
                schema=_SCHEMA,
            )
            self._rows, self._bytes = [], 0
