"""The whole log of a node, over the wire: `GET /admin/log`, page by page, for whoever has the node's admin token."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from anabranch.core.token import Log
from anabranch.pipeline.feed import Advance, FeedError, Mark, Rows, Span, advance_log, positions
from anabranch.pipeline.node_admin import NodeAdmin


class AdminFeed:
    def __init__(self, url: str, token: str | None) -> None:
        self._node = NodeAdmin(url, token, without_token="or name authors or recipients")
        self.source = self._node.url

    def _log(self) -> Log:
        return self._node.log()

    def advance(self, start: Mark | None, rows: int | None = None) -> Advance:
        return advance_log(self._log(), start, rows)

    def key(self) -> tuple[str, str]:
        return self.mark().key

    def mark(self) -> Mark:
        log = self._log()
        return Mark(log.stream, log.epoch, log.tip)

    def spans(self, start: Mark | None, end: Mark, parts: int) -> list[Span]:
        return positions(start, end, parts)

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        rows = None
        for log, entries in self._node.entries(span.after, span.until):
            if log.epoch != span.epoch:
                raise FeedError(f"{self.source}: the store was restored meanwhile; run it again")
            rows = rows or Rows(log.stream, log.epoch, self.source)
            for entry in entries:
                removed = None if entry.removal is None else entry.removal.id
                rows.add(entry.position, bytes(entry.event) or None, bytes(entry.facts) or None, removed)
                if rows.full:
                    yield from rows.take()
        if rows is not None:
            yield from rows.take()
