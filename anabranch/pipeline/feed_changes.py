"""The changes of one author or one recipient, from any relay that speaks CHANGES.

The stream, its epoch and its bounds come from the relay's NIP-11 document. A first reading of snapshots whose log has
been trimmed begins with the heads (a bootstrap), which have no positions; that of revisions has no such beginning, and
says so. A relay that asks who we are gets an answer signed with `key` (NIP-42).
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from anabranch.core import nostr
from anabranch.core.nostr import Keys
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.token import Log, Position
from anabranch.pipeline.feed import Advance, FeedError, Mark, Rows, Span, advance_log, positions
from anabranch.pipeline.feed_admin import PORTS

TIMEOUT = 30.0
MESSAGE_BYTES = 4 << 20
_SUBSCRIPTION = "pipeline"
_message = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value = msgspec.json.decode


def changes_feeds(url: str, options: Mapping[str, str]) -> Iterator[ChangesFeed]:
    """A feed for each of the authors and recipients that the options name."""
    secret = options.get("key")
    if secret and not nostr.is_hex(secret, 64):
        raise FeedError("key is a secret key of 64 hexadecimal digits")
    keys = Keys(bytes.fromhex(secret)) if secret else None
    for option, role in (("authors", "author"), ("recipients", "recipient")):
        for pubkey in filter(None, (options.get(option) or "").split(",")):
            yield ChangesFeed(url, role, pubkey.strip(), keys)


class ChangesFeed:
    def __init__(self, url: str, role: str, pubkey: str, keys: Keys | None) -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("ws", "wss") or not self._parts.hostname:
            raise FeedError(f"{url!r}: CHANGES are spoken at an address like ws://host:7447")
        self._url, self._role, self._pubkey, self._keys = url, role, pubkey, keys
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
        connection = kind(self._parts.hostname or "", self._parts.port or PORTS[self._parts.scheme], timeout=TIMEOUT)
        try:
            connection.request("GET", self._parts.path or "/", headers={"Accept": "application/nostr+json"})
            said = _value(connection.getresponse().read())["changes_feed"]
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
        if start is None and log.floor > 1:
            if self._role == "recipient":
                raise FeedError(
                    f"{self._url}: its log begins at {log.floor}, and a feed of revisions has no other beginning; "
                    "read the node's store or its whole log instead"
                )
            rows = None  # the heads are of one moment: they and what follows them come together
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
        if span.heads:
            asked = self._filter | {"mode": "bootstrap"}
        else:
            asked = self._filter | {"since": span.after, "until_seq": span.until}
        try:
            with connect(
                self._url, open_timeout=TIMEOUT, close_timeout=1, max_size=MESSAGE_BYTES, ping_interval=None
            ) as socket:
                for position, line in self._changes(socket, asked):
                    rows.add(position, line)
                    if rows.full:
                        yield from rows.take()
        except (OSError, WebSocketException) as error:
            raise FeedError(f"{self._url} ended the feed ({error}); try again later") from error
        yield from rows.take()

    def _changes(self, socket: ClientConnection, asked: dict[str, Any]) -> Iterator[tuple[int | None, bytes]]:
        """What the relay sends until it says that this was all."""
        challenge, refused = None, None
        request = msgspec.json.encode(("CHANGES", _SUBSCRIPTION, asked))
        socket.send(request, text=True)
        while True:
            parts = _message(socket.recv(TIMEOUT))
            verb = _value(parts[0])
            if verb == "AUTH":
                challenge = _value(parts[1])
            elif verb == "OK" and _value(parts[2]):
                refused = None
                socket.send(request, text=True)
            elif verb == "OK":
                raise FeedError(f"{self._url} does not let us in: {_value(parts[3])}")
            elif verb == "CHANGES" and _value(parts[1]) == _SUBSCRIPTION:
                kind = _value(parts[2])
                if kind == "EVENT":
                    yield _value(parts[3]), bytes(parts[4])
                elif kind == "SNAPSHOT":
                    yield None, bytes(parts[3])
                elif kind == "EOSE":
                    return
                elif kind == "ERR":
                    refused = _value(parts[3])
                    if not refused.startswith("auth-required") or self._keys is None:
                        raise FeedError(f"{self._url} refused the feed: {refused}")
            if refused is not None and challenge is not None:
                self._authenticate(socket, challenge)
                challenge = None

    def _authenticate(self, socket: ClientConnection, challenge: str) -> None:
        assert self._keys is not None
        tags = [["relay", self._url], ["challenge", challenge]]
        event = self._keys.sign(nostr.AUTH, tags, "", int(time.time()))
        socket.send(msgspec.json.encode(("AUTH", msgspec.Raw(nostr.serialise(event)))), text=True)
