"""The changes of one author or one recipient, from any relay that speaks CHANGES.

The stream, its epoch and its bounds come from the relay's NIP-11 document. A first reading of a log that has been
trimmed begins with what is there, which has no positions: of snapshots the heads (a bootstrap), of revisions all that
the relay retains. What is missing is told as a gap. A relay that asks who we are gets an answer signed with `key`
(NIP-42), after `accessKey` where it wants one.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from anabranch.core import nostr
from anabranch.core.nostr import Keys
from anabranch.core.revisions import GIFT_WRAP, is_revision
from anabranch.core.token import GapReason, Log, Position
from anabranch.pipeline.feed import Advance, FeedError, Mark, Missing, Rows, Span, advance_log, positions
from anabranch.pipeline.relay import TALK_ERRORS, TIMEOUT, Change, Relay


def changes_feeds(url: str, options: Mapping[str, str]) -> Iterator[ChangesFeed]:
    """A feed for each of the authors and recipients that the options name."""
    secret = options.get("key")
    if secret and not nostr.is_hex(secret, 64):
        raise FeedError("key is a secret key of 64 hexadecimal digits")
    keys = Keys(bytes.fromhex(secret)) if secret else None
    access_key = options.get("accessKey") or None
    for option, role in (("authors", "author"), ("recipients", "recipient")):
        for pubkey in filter(None, (options.get(option) or "").split(",")):
            yield ChangesFeed(url, role, pubkey.strip(), keys, access_key)


class ChangesFeed:
    def __init__(
        self, url: str, role: str, pubkey: str, keys: Keys | None = None, access_key: str | None = None
    ) -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("ws", "wss") or not self._parts.hostname:
            raise FeedError(f"{url!r}: CHANGES are spoken at an address like ws://host:7447")
        self._url, self._role, self._pubkey = url, role, pubkey
        self._keys, self._access_key = keys, access_key
        self._scope = f"{role}={pubkey}"
        self.source = f"{url.rstrip('/')}#{self._scope}"

    @property
    def _filter(self) -> dict[str, Any]:
        if self._role == "author":
            return {"authors": [self._pubkey]}
        return {"kinds": [GIFT_WRAP], "#p": [self._pubkey]}

    def _log(self) -> Log:
        """What the relay says of its log."""
        secure = self._parts.scheme == "wss"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT)
        try:
            connection.request("GET", self._parts.path or "/", headers={"Accept": "application/nostr+json"})
            said = msgspec.json.decode(connection.getresponse().read())["changes_feed"]
            floor, tip = Position(max(1, int(said["min_seq"]))), Position(int(said["max_seq"]))
            return Log(str(said.get("stream_id") or self._url), str(said.get("epoch") or ""), floor, tip)
        except (OSError, http.client.HTTPException) as error:
            raise FeedError(f"{self._url} does not answer ({error}); try again later") from error
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError):
            raise FeedError(f"{self._url} says nothing of a changes feed: it does not speak CHANGES") from None
        finally:
            connection.close()

    def key(self) -> tuple[str, str]:
        return self._log().stream, self._scope

    def mark(self) -> Mark:
        log = self._log()
        return Mark(log.stream, log.epoch, log.tip, scope=self._scope)

    def advance(self, start: Mark | None, rows: int | None = None) -> Advance:
        log = self._log()
        if start is None and log.floor > 1:  # what is there is of one moment: it and what follows it come together
            missing = Missing(GapReason.TOKEN_TOO_OLD.value, 0, log.floor, log.tip, log.epoch)
            return Advance(None, advance_log(log, None, None, self._scope).end, missing)
        return advance_log(log, start, rows, self._scope)

    def spans(self, start: Mark | None, end: Mark, parts: int) -> list[Span]:
        floor = self._log().floor
        if start is not None or floor <= 1:
            return positions(start, end, 1)
        trimmed = Mark(end.stream, end.epoch, floor - 1)
        return [Span(end.epoch, 0, 0, heads=True), *positions(trimmed, end, 1)]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        log = self._log()
        if log.epoch != span.epoch:
            raise FeedError(f"{self._url}: the log was restored meanwhile; run it again")
        rows = Rows(log.stream, log.epoch, self.source)
        try:
            with Relay(self._url, self._keys, self._access_key) as relay:
                for change in self._current(relay) if span.heads else self._changes(relay, span):
                    rows.add(change.position, change.line, removed=change.removed)
                    if rows.full:
                        yield from rows.take()
        except TALK_ERRORS as error:
            raise FeedError(f"{self._url} ended the feed ({error}); try again later") from error
        yield from rows.take()

    def _changes(self, relay: Relay, span: Span) -> Iterator[Change]:
        return relay.changes(self._filter | {"since": span.after, "until_seq": span.until})

    def _current(self, relay: Relay) -> Iterator[Change]:
        """What is there now, instead of a history that is gone: it has no positions."""
        if self._role == "author":
            yield from relay.changes(self._filter | {"mode": "bootstrap"})
        else:
            for found in relay.pages(self._filter):
                if is_revision(found.event):
                    yield Change(None, found.raw)
