"""The log of a node, read from its store while the node runs: a folder of this machine, or a PostgreSQL database.

Everything the store knows is there: the signed lines of what is retained, the facts of what is not, and what was
removed for good. It is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from anabranch.core.operation import Removal
from anabranch.pipeline.feed import Advance, FeedError, Mark, Rows, Span, advance_log, positions
from anabranch.store.contract import Line, StoreError
from anabranch.store.log_pages import entries_between, told
from anabranch.store.opening import AnyStore, inspect_store
from anabranch.store.sqlite import DATABASE


def is_store(path: Path) -> bool:
    return (path / DATABASE).exists() or path.name == DATABASE


class StoreFeed:
    def __init__(self, source: str, inspect: Callable[[], AnyStore]) -> None:
        self.source = source
        self._inspect = inspect

    @classmethod
    def of_folder(cls, path: Path) -> StoreFeed:
        folder = path.parent if path.name == DATABASE else path
        return cls(str(folder.resolve()), lambda: inspect_store(folder))

    @classmethod
    def of_database(cls, url: str, password: str | None = None) -> StoreFeed:
        """The password is that of the address, or else the one given beside it. What is told has none."""
        from anabranch.store.postgres import PostgresStore
        from anabranch.store.postgres_connection import Address

        try:
            address = Address(url, password)
        except StoreError as error:
            raise FeedError(str(error)) from None
        return cls(address.place, lambda: PostgresStore.inspect(address))

    def _store(self) -> AnyStore:
        try:
            return self._inspect()
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
                if isinstance(entry, Line):
                    rows.add(entry.position, entry.raw)
                elif isinstance(entry, Removal):
                    rows.add(entry.position, removed=entry.id)
                else:
                    rows.add(entry.position, facts=told(entry))
                if rows.full:
                    yield from rows.take()
            yield from rows.take()
