"""From what a person writes to feeds: a folder, a file, an address.

| written | read |
| --- | --- |
| a node's data folder, or its `anabranch.db` | the node's store, while it runs |
| a file, or a folder of `.jsonl` files, plain, `.gz` or `.zst` | dumps |
| `postgresql://` | the log of a node that keeps it there, while it runs; only read |
| `ws://`, `wss://`, `http://`, `https://` | the node's whole log, with its admin token |
| the same with authors or recipients | CHANGES, of any relay that speaks it |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from anabranch.core.nostr import Limits
from anabranch.pipeline.feed import Feed, FeedError
from anabranch.pipeline.feed_admin import AdminFeed
from anabranch.pipeline.feed_dump import DumpFeed, dumps_in
from anabranch.pipeline.feed_store import StoreFeed, is_store
from anabranch.store.contract import StoreError

TOKEN_VARIABLE = "ANABRANCH_ADMIN_TOKEN"
ADDRESSES = ("ws", "wss", "http", "https")
DATABASES = ("postgresql", "postgres")
PASSWORDS = "passwords"
"""The option that has the passwords of databases, by what their addresses are without."""


def open_feeds(source: str, options: Mapping[str, str] | None = None, limits: Limits | None = None) -> list[Feed]:
    """The feeds that a source is. `options`: token, authors, recipients, key. Raises `FeedError`."""
    options = options or {}
    scheme = urlsplit(source).scheme
    if scheme in ADDRESSES:
        if options.get("authors") or options.get("recipients"):
            from anabranch.pipeline.feed_changes import changes_feeds

            return list(changes_feeds(source, options))
        return [AdminFeed(source, options.get("token") or os.environ.get(TOKEN_VARIABLE))]
    if scheme in DATABASES:
        return [StoreFeed.of_database(source, _passwords(options).get(source))]
    if scheme not in ("", "file"):
        raise FeedError(
            f"{scheme}://… is no folder, no file and no address of a node (ws://host:port) or its database (postgresql://…)"
        )
    path = Path(unquote(urlsplit(source).path) if scheme == "file" else source)
    if is_store(path):
        return [StoreFeed.of_folder(path)]
    if path.is_dir():
        files = dumps_in(path)
        if not files:
            raise FeedError(f"{path} has no store of a node (anabranch.db) and no .jsonl, .jsonl.gz or .jsonl.zst file")
        return [DumpFeed(file, limits or Limits()) for file in files]
    if not path.is_file():
        raise FeedError(f"{path} is not there")
    return [DumpFeed(path, limits or Limits())]


def without_passwords(sources: Sequence[str], options: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The sources as they may be written down, and the options with the passwords that were in them."""
    named, passwords = [], _passwords(options)
    for source in sources:
        if urlsplit(source).scheme in DATABASES:
            from anabranch.store.postgres_connection import Address

            try:
                address = Address(source)
            except StoreError as error:
                raise FeedError(str(error)) from None
            source = address.place
            if address.password is not None:
                passwords[source] = address.password
        named.append(source)
    return named, dict(options) | ({PASSWORDS: msgspec.json.encode(passwords).decode()} if passwords else {})


def _passwords(options: Mapping[str, str]) -> dict[str, str]:
    return msgspec.json.decode(options.get(PASSWORDS) or "{}", type=dict[str, str])
