"""`spark.read.format("anabranch")` and `spark.readStream.format("anabranch")`: any log as a table, or as it grows.

The path is whatever `sources.open_feeds` takes. A stream's offset is a mark for every log: stream, epoch, position.
Each batch reads at most `maxRows` positions; with `availableNow` it reads what is there and ends; how far behind it is
shows in the query's progress. Rows are parsed and classified; `prove` = true checks signatures too (ingest does). A gap
ends the query with what to do, or with `gaps` = bootstrap is a row with a problem and a first reading again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from anabranch.pipeline.feed import Advance, Feed, GapFound, Mark, Rows, Span, first
from anabranch.pipeline.rows import Rules, read_lines
from anabranch.pipeline.schema import LOG, PROVEN
from anabranch.pipeline.sources import PASSWORDS, open_feeds

PARTS = 4
OPTIONS = ("token", "authors", "recipients", "key", "accessKey", "gaps", "maxRows", "partitions", "prove")
OWN_OPTIONS = ("path", "form", "rules", "stretches", PASSWORDS)
"""Of which the pipeline alone makes use: lines as they are, what is taken, and which stretches are to be read."""

Options = dict[str, str]
Offset = dict[str, dict[str, Any]]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one log, to be read: what a batch of ingest is made of. `source` is the feed's, out of `path`'s."""

    path: str
    source: str
    start: Mark | None
    end: Mark


class Piece(InputPartition):
    """What one task reads: a span of the feed with this source, of those that the path gives."""

    def __init__(self, path: str, source: str, span: Span, problem: str | None = None) -> None:
        self.path, self.source, self.span, self.problem = path, source, span, problem


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "anabranch"

    def schema(self) -> StructType:
        return LOG if self.options.get("form") == "log" else PROVEN

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(_plain(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(_plain(self.options))


def _plain(options: Mapping[str, str]) -> Options:
    given = {name: options[name] for name in (*OPTIONS, *OWN_OPTIONS) if options.get(name) is not None}
    if "path" not in given and "stretches" not in given:
        raise ValueError(
            "say what to read: .load(PATH) with a node's folder, a file, ws://host:port, or postgresql://…"
        )
    if given.get("gaps", "error") not in ("error", "bootstrap"):
        raise ValueError("gaps is error or bootstrap")
    return given


class _Reading:
    """What both ways of reading share."""

    def __init__(self, options: Options) -> None:
        self._options = options
        rules = Rules.decoded(options["rules"]) if "rules" in options else Rules()
        self._rules = msgspec.structs.replace(rules, prove=options.get("prove", "false").lower() == "true")

    def _feeds(self, path: str) -> list[Feed]:
        return open_feeds(path, self._options, self._rules.limits)

    @property
    def _parts(self) -> int:
        return int(self._options.get("partitions", PARTS))

    def _pieces(self, path: str, feed: Feed, start: Mark | None, end: Mark) -> list[Piece]:
        return [Piece(path, feed.source, span) for span in feed.spans(start, end, self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        lines = self._lines(partition)
        return lines if self._options.get("form") == "log" else read_lines(lines, self._rules)

    def _lines(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if piece.problem is not None:
            rows = Rows("", piece.span.epoch, piece.source)
            rows.add(piece.span.until, problem=piece.problem)
            return rows.take()
        (feed,) = [feed for feed in self._feeds(piece.path) if feed.source == piece.source]
        return feed.read(piece.span)


class LogReader(_Reading, DataSourceReader):
    """All that is there now, or the stretches that a plan names."""

    def partitions(self) -> Sequence[InputPartition]:
        if "stretches" not in self._options:
            path = self._options["path"]
            return [
                piece for feed in self._feeds(path) for piece in self._pieces(path, feed, None, feed.advance(None).end)
            ]
        pieces: list[Piece] = []
        for stretch in msgspec.json.decode(self._options["stretches"], type=list[Stretch]):
            (feed,) = [feed for feed in self._feeds(stretch.path) if feed.source == stretch.source]
            pieces += self._pieces(stretch.path, feed, stretch.start, stretch.end)
        return pieces


class LogStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is new since an offset: of each log the mark up to which it was read, by the feed's source."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._target: dict[str, Mark] | None = None

    def initialOffset(self) -> Offset:
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {feed.source: feed.mark() for feed in self._feeds(self._options["path"])}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(int(self._options["maxRows"])) if "maxRows" in self._options else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        return {feed.source: msgspec.to_builtins(feed.mark()) for feed in self._feeds(self._options["path"])}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = dict(start)
        for feed in self._feeds(self._options["path"]):
            if left is not None and left <= 0:
                break
            target = None if self._target is None else self._target.get(feed.source)
            if self._target is not None and target is None:
                continue  # it was not there when the query began
            step = self._advance(feed, _mark(start, feed), left)
            if step.empty:
                continue
            end = step.end
            if target is not None and end.epoch == target.epoch and end.position > target.position:
                end = msgspec.structs.replace(end, position=target.position, byte=target.byte)
            reached[feed.source] = msgspec.to_builtins(end)
            left = None if left is None else left - max(step.rows, 1)
        return reached

    def _advance(self, feed: Feed, start: Mark | None, rows: int | None) -> Advance:
        step = feed.advance(start, rows)
        if step.missing is None or not step.broken:
            return step
        if self._options.get("gaps") != "bootstrap":
            raise GapFound(feed.source, step.missing)
        return first(feed, step.missing, rows)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        path = self._options["path"]
        pieces: list[Piece] = []
        for feed in self._feeds(path):
            since, until = _mark(start, feed), _mark(end, feed)
            if until is None or since == until:
                continue
            if since is not None and _begins_again(since, until):
                pieces.append(Piece(path, feed.source, Span(until.epoch, 0, since.position), _told(feed, since)))
                since = None
            pieces += self._pieces(path, feed, since, until)
        return pieces


def _mark(offset: Offset, feed: Feed) -> Mark | None:
    return msgspec.convert(offset[feed.source], Mark) if feed.source in offset else None


def _begins_again(since: Mark, until: Mark) -> bool:
    """Whether a stretch does not follow the mark before it: only a gap does that."""
    return (since.stream, since.epoch) != (until.stream, until.epoch) or until.first_until > since.first_until


def _told(feed: Feed, since: Mark) -> str:
    return f"gap: what followed position {since.position} of epoch {since.epoch} was gone; {feed.source} is read again"
