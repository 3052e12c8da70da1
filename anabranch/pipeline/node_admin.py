"""A node's admin API, as the pipeline uses it: what log it has, and handing it a plan of what may go."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from anabranch.core.token import Log
from anabranch.pipeline.feed import FeedError
from anabranch.pipeline.feed_admin import PORTS, TIMEOUT
from anabranch.store.log_pages import read_page

PLAN_MAX = 1_000
"""Candidates that a node takes at once."""


class Compacted(msgspec.Struct, frozen=True):
    """A node's answer to a piece of a plan."""

    dropped: int
    bytes: int
    refused: dict[str, int]


class NodeAdmin:
    """Requests to a node with its admin token. Every failure is a `FeedError` that says what to do."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise FeedError(f"{url!r} is no address of a node: write it like http://host:7447")
        self._secure = parts.scheme in ("wss", "https")
        self._host, self._port = parts.hostname, parts.port or PORTS[parts.scheme]
        self._token = token
        self.url = f"{parts.scheme}://{parts.hostname}:{self._port}"

    def log(self) -> Log:
        """The log that the node has now."""
        return read_page(self._request("GET", "/admin/log?limit=0"))[0].log

    def compact(self, log: Log, candidates: Sequence[tuple[int, str]]) -> Compacted:
        """Have the node drop what of the candidates, positions and ids of that log, it would drop by itself."""
        plan = {"stream": log.stream, "epoch": log.epoch, "operations": candidates}
        try:
            return msgspec.json.decode(self._request("POST", "/admin/compact/plan", plan), type=Compacted)
        except msgspec.MsgspecError:
            raise FeedError(f"{self.url} gave no answer that makes sense: is it an Anabranch node?") from None

    def _request(self, method: str, path: str, body: Any = None) -> bytes:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            response = connection.getresponse()
            status, said = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise FeedError(f"{self.url} does not answer ({error}); try again later") from error
        finally:
            connection.close()
        if status == 200:
            return said
        if status in (401, 503):
            raise FeedError(f"{self.url} wants its admin token: set ANABRANCH_ADMIN_TOKEN as the node has it")
        if status == 409:
            raise FeedError(f"{self.url} has another log now: ingest it again, then make a new plan")
        if status == 404:
            raise FeedError(f"{self.url} takes no plans: it is no Anabranch node, or an older one")
        raise FeedError(f"{self.url} answered {status} to {method} {path.partition('?')[0]}")
