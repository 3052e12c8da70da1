"""A node's admin API, as the pipeline uses it: its log, and handing it a plan of what may go."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import msgspec

from anabranch.core.token import Log
from anabranch.pipeline.feed import FeedError
from anabranch.store.log_pages import LINES_MAX, PageEntry, PageHead, read_page

TIMEOUT = 60.0
PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}

PLAN_MAX = 1_000
"""Candidates that a node takes at once."""


class Compacted(msgspec.Struct, frozen=True):
    """A node's answer to a piece of a plan."""

    dropped: int
    bytes: int
    refused: dict[str, int]


class NodeAdmin:
    """Requests to a node with its admin token. Every failure is a `FeedError` that says what to do."""

    def __init__(self, url: str, token: str | None, without_token: str = "") -> None:
        """`without_token`: what else can be done by who has not the token."""
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise FeedError(f"{url!r} is no address of a node: write it like ws://host:7447")
        self._secure = parts.scheme in ("wss", "https")
        self._host, self._port = parts.hostname, parts.port or PORTS[parts.scheme]
        self._token = token
        self._without_token = f", {without_token}" if without_token else ""
        self.url = f"{parts.scheme}://{parts.hostname}:{self._port}"

    def log(self) -> Log:
        """The log that the node has now."""
        with self._connected() as connection:
            return self._page(connection, "limit=0")[0].log

    def entries(self, after: int, until: int) -> Iterator[tuple[Log, list[PageEntry]]]:
        """A stretch of the log, page by page, each with the log as it then was."""
        with self._connected() as connection:
            while after < until:
                head, entries = self._page(connection, f"after={after}&until={until}&limit={LINES_MAX}")
                yield head.log, entries
                after = head.complete_to

    def compact(self, log: Log, candidates: Sequence[tuple[int, str]]) -> Compacted:
        """Have the node drop what of the candidates, positions and ids of that log, it would drop by itself."""
        plan = {"stream": log.stream, "epoch": log.epoch, "operations": candidates}
        with self._connected() as connection:
            answer = self._ask(connection, "POST", "/admin/compact/plan", msgspec.json.encode(plan))
        with self._understood():
            return msgspec.json.decode(answer, type=Compacted)

    def _connected(self) -> closing[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return closing(kind(self._host, self._port, timeout=TIMEOUT))

    def _page(self, connection: http.client.HTTPConnection, query: str) -> tuple[PageHead, list[PageEntry]]:
        answer = self._ask(connection, "GET", f"/admin/log?{query}")
        with self._understood():
            return read_page(answer)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except msgspec.MsgspecError:
            raise FeedError(f"{self.url} gave no answer that makes sense: is it an Anabranch node?") from None

    def _ask(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, said = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise FeedError(f"{self.url} does not answer ({error}); try again later") from error
        asked = path.partition("?")[0]
        if status == 200:
            return said
        if status == 401 or b"admin not configured" in said:
            raise FeedError(
                f"{self.url} wants its admin token: set ANABRANCH_ADMIN_TOKEN as the node has it{self._without_token}"
            )
        if status == 409:
            raise FeedError(f"{self.url} has another log now: ingest it again, then make a new plan")
        if status == 404:
            raise FeedError(f"{self.url} has no {asked}: it is no Anabranch node, or an older one{self._without_token}")
        raise FeedError(
            f"{self.url} answered {status} to {method} {asked}: {said[:200].decode(errors='replace').strip()}"
        )
