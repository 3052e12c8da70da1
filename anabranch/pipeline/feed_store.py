"""The log of a node on this machine, read from its store while the node runs.

Everything the store knows is there: the signed lines of what is retained, the facts of what is not, and what was
removed for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from anabranch.core.operation import Removal
from anabranch.pipeline.feed import Advance, FeedError, Mark, Rows, Span, advance_log, positions
from anabranch.store.contract import StoreError
from anabranch.store.log_pages import entries_between, told
from anabranch.store.sqlite import DATABASE, SqliteStore


def is_store(path: Path) -> bool:
    return (path / DATABASE).exists() or path.name == DATABASE


class StoreFeed:
    def __init__(self, path: Path) -> None:
        self._folder = path.parent if path.name == DATABASE else path
        self.source = str(self._folder.resolve())

    def _store(self) -> SqliteStore:
        try:
            return SqliteStore.inspect(self._folder)
        except StoreError as error:
            raise FeedError(str(error)) from error

    def advance(self, start: Mark | None, rows: int | None = None) -> Advance:
        return advance_log(self._store().log(), start, rows)

    def key(self) -> tuple[str, str]:
        return self.mark().key

    def mark(self) -> Mark:
        log = self._store().log()
        return Mark(log.stream, log.epoch, log.tip)

    def spans(self, start: Mark | None, end: Mark, parts: int) -> list[Span]:
        return positions(start, end, parts)

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        with self._store().reader() as reader:
            log = reader.log()
            if log.epoch != span.epoch:
                raise FeedError(f"{self.source}: the store was restored meanwhile; run it again")
            rows = Rows(log.stream, log.epoch, self.source)
            for entry in entries_between(reader, span.after, span.until):
                if isinstance(entry, Removal):
                    rows.add(entry.position, removed=entry.id)
                else:
                    rows.add(entry.position, entry.raw, None if entry.raw is not None else told(entry))
                if rows.full:
                    yield from rows.take()
            yield from rows.take()
