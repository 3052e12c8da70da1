"""As whom a link speaks with a private peer: a secret key and perhaps an access key, each in a file of its own.

A link only ever knows where the files are. They are read anew for each connection, so a key is changed by changing the
file, and no secret stands in the ledger, in the log or in an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from anabranch.core.nip19 import parse_secret
from anabranch.core.nostr import Invalid, Keys

FILE_BYTES_MAX = 1_000
_ACCESS_KEY = re.compile(r"sk_[A-Za-z0-9_-]{8,200}")


class NoIdentity(Exception):
    """A file has no key that could be used; the text says which file, and what is to be done."""


class KeyFiles(msgspec.Struct, frozen=True):
    """Where the keys are. Without `key` there is no identity, and the link says nothing of itself."""

    key: str | None = None
    access_key: str | None = None

    def read(self) -> Identity | None:
        """Raises `NoIdentity`."""
        if self.key is None:
            return None
        try:
            keys = Keys(parse_secret(_text(self.key)))
        except Invalid:
            raise NoIdentity(f"{self.key} has no secret key: put one in, as nsec1… or 64 hexadecimal digits") from None
        if self.access_key is None:
            return Identity(keys)
        access_key = _text(self.access_key)
        if not _ACCESS_KEY.fullmatch(access_key):
            raise NoIdentity(f"{self.access_key} has no access key: put one in, as sk_…")
        return Identity(keys, access_key)


@dataclass(frozen=True)
class Identity:
    keys: Keys = field(repr=False)
    access_key: str | None = field(default=None, repr=False)


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(FILE_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise NoIdentity(f"{file} cannot be read by the node: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoIdentity(f"{file} has no key, but something that is no text") from None
