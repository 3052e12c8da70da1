"""Every implementation of the store's contract, as the contract suite sees it.

A `Backend` makes empty stores and opens one again after it was closed. Another implementation joins by one more
class and one more entry in `BACKENDS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from histories import operation
from postgres_server import PostgresServer

from anabranch.core.nostr import Event
from anabranch.core.operation import State
from anabranch.store.contract import Facts, Offer, Outcome, Reader, Store, Writer
from anabranch.store.postgres import PostgresStore
from anabranch.store.sqlite import SqliteStore

NOW = 1_006
"""In the middle of the moments that histories are made of: some of what expires has, some has not."""


class Backend(Protocol):
    def create(self) -> Store:
        """A new, empty store."""

    def reopen(self, store: Store) -> Store:
        """Close the store and open it again, as after a restart."""


class SqliteBackend:
    """Stores in folders; without waiting for the disk, which no promise of the suite depends on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()

    def create(self) -> SqliteStore:
        folder = self._folder / str(next(self._numbers))
        shutil.rmtree(folder, ignore_errors=True)
        return SqliteStore.open(folder, "OFF")

    def reopen(self, store: SqliteStore) -> SqliteStore:
        store.close()
        return SqliteStore.open(store.folder, "OFF")


class PostgresBackend:
    """Stores in schemas of one database of a real server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._open: dict[str, PostgresStore] = {}
        self._numbers = count()

    def create(self) -> PostgresStore:
        for url in [url for url, store in self._open.items() if store.closed]:
            del self._open[url]
            self._server.give_back(url)
        return self._opened(self._server.empty_url(), self._folder / str(next(self._numbers)))

    def reopen(self, store: PostgresStore) -> PostgresStore:
        store.close()
        return self._opened(next(url for url, one in self._open.items() if one is store), store.folder)

    def _opened(self, url: str, folder: Path) -> PostgresStore:
        self._open[url] = PostgresStore.open(url, folder, durable=False)
        return self._open[url]

    def close(self) -> None:
        for url, store in self._open.items():
            store.close()
            self._server.give_back(url)


BACKENDS = ("postgres", "sqlite")


class Opened:
    """A store with its writer and one reader at hand, and the few words the tests say most."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._use(store)

    def _use(self, store: Store) -> None:
        self.store = store
        self.writer: Writer = store.writer
        self.reader: Reader = store.open_reader()

    def append(self, *events: Event, received_at: int = 0, key: str | None = None) -> list[Outcome]:
        return self.writer.append([Offer(operation(e), key) for e in events], received_at)

    def facts(self) -> list[Facts]:
        return list(every_fact(self.reader))

    def fact(self, e: Event) -> Facts | None:
        return next((facts for facts in self.facts() if facts.id == e.id), None)

    def heads(self) -> set[str]:
        """Ids of all that the store itself calls a head and can give."""
        return {facts.id for facts in self.facts() if facts.head and facts.state is State.RETAINED}

    def ids(self, positions: Sequence[int]) -> list[str]:
        known = {facts.position: facts.id for facts in self.facts()}
        return [known[position] for position in positions]

    def reopen(self) -> None:
        self.reader.close()
        self._use(self._backend.reopen(self.store))

    def close(self) -> None:
        self.reader.close()
        self.store.close()


def every_fact(reader: Reader, page: int = 1_000) -> Iterator[Facts]:
    after = 0
    while found := reader.facts(after, page):
        yield from found
        after = found[-1].position


class Stores:
    """Opens stores for a test, as many as it likes."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @contextmanager
    def open(self, *groups: Iterable[Event]) -> Iterator[Opened]:
        opened = Opened(self.backend, self.backend.create())
        try:
            for group in groups:
                opened.append(*group)
            yield opened
        finally:
            opened.close()
