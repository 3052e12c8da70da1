"""The whole log of a node, over the wire: `GET /admin/log`, page by page, for whoever has the node's admin token."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa

from anabranch.core.token import Log
from anabranch.pipeline.feed import Advance, FeedError, Mark, Rows, Span, advance_log, positions
from anabranch.store.log_pages import LINES_MAX, PageEntry, PageHead, read_page

TIMEOUT = 60.0
PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}


class AdminFeed:
    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise FeedError(f"{url!r} is no address of a node: write it like ws://host:7447")
        self._secure = parts.scheme in ("wss", "https")
        self._host, self._port = parts.hostname, parts.port or PORTS[parts.scheme]
        self._token = token
        self.source = f"{parts.scheme}://{parts.hostname}:{self._port}"

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=TIMEOUT)

    def _page(
        self, connection: http.client.HTTPConnection, after: int, until: int, limit: int
    ) -> tuple[PageHead, list[PageEntry]]:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request("GET", f"/admin/log?after={after}&until={until}&limit={limit}", headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise FeedError(f"{self.source} does not answer ({error}); try again later") from error
        if status in (401, 503):
            raise FeedError(
                f"{self.source} wants its admin token for its whole log: set ANABRANCH_ADMIN_TOKEN as the node has it, "
                "or name authors or recipients"
            )
        if status != 200:
            raise FeedError(
                f"{self.source} answered {status} to GET /admin/log: it is no Anabranch node, or an older one; "
                "name authors or recipients"
            )
        return read_page(body)

    def _log(self) -> Log:
        connection = self._connection()
        try:
            return self._page(connection, 0, 0, 0)[0].log
        finally:
            connection.close()

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
        connection, after, rows = self._connection(), span.after, None
        try:
            while after < span.until:
                head, entries = self._page(connection, after, span.until, LINES_MAX)
                log = head.log
                if log.epoch != span.epoch:
                    raise FeedError(f"{self.source}: the store was restored meanwhile; run it again")
                rows = rows or Rows(log.stream, log.epoch, self.source)
                for entry in entries:
                    removed = None if entry.removal is None else entry.removal.id
                    rows.add(entry.position, bytes(entry.event) or None, bytes(entry.facts) or None, removed)
                    if rows.full:
                        yield from rows.take()
                after = head.complete_to
            if rows is not None:
                yield from rows.take()
        finally:
            connection.close()
