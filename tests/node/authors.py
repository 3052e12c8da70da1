"""Authors and what they sign: NIP-01 events and snapshots, built by the book and independently of the node.

The id is computed with the standard library's JSON and the signature with libsecp256k1, so that the tests do not
share a single line with what they test.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any

import coincurve

Event = dict[str, Any]
Tags = list[list[str]]

NOTE = 42061
"""The one sync kind that is defined: an encrypted note."""

EPOCH = 1_700_000_000
"""A `created_at` long past, to count up from."""


def event_id(event: Event) -> str:
    fields = [0, event["pubkey"], event["created_at"], event["kind"], event["tags"], event["content"]]
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> int:
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Author:
    key: coincurve.PrivateKey
    pubkey: str

    @classmethod
    def random(cls) -> "Author":
        return cls.of(os.urandom(32))

    @classmethod
    def of(cls, secret: bytes) -> "Author":
        key = coincurve.PrivateKey(secret)
        return cls(key, key.public_key_xonly.format().hex())

    @property
    def secret_hex(self) -> str:
        return self.key.secret.hex()

    def event(self, kind: int = 1, content: str = "", tags: Tags | None = None, created_at: int | None = None) -> Event:
        return self.sign(
            {
                "pubkey": self.pubkey,
                "created_at": now() if created_at is None else created_at,
                "kind": kind,
                "tags": tags or [],
                "content": content,
            }
        )

    def sign(self, unsigned: Event) -> Event:
        """Complete an event with the id and signature that its fields have, whatever the fields are."""
        identity = event_id(unsigned)
        return {"id": identity, **unsigned, "sig": self.key.sign_schnorr(bytes.fromhex(identity)).hex()}

    def auth(self, challenge: str, relay: str, created_at: int | None = None, tags: Tags | None = None) -> Event:
        """A NIP-42 answer to a challenge."""
        usual = [["relay", relay], ["challenge", challenge]]
        return self.event(22242, tags=usual if tags is None else tags, created_at=created_at)


def vc_tags(clock: dict[str, int]) -> Tags:
    return [["vc", device, str(clock[device])] for device in sorted(clock)]


def snapshot(
    author: Author,
    d: str,
    clock: dict[str, int],
    o: str = "put",
    c: str | None = None,
    content: str = "sealed",
    created_at: int | None = None,
    kind: int = NOTE,
) -> Event:
    """A version of the document (author, d), or with o="del" its tombstone."""
    tags = [["d", d], ["o", o], *vc_tags(clock), *([["c", c]] if c is not None else [])]
    return author.event(kind, content, tags, created_at)


def versions(
    author: Author, d: str, count: int, device: str = "laptop", start: int = EPOCH, **rest: Any
) -> list[Event]:
    """A straight history: each version dominates the one before."""
    return [snapshot(author, d, {device: n + 1}, created_at=start + n, **rest) for n in range(count)]


def dominates(a: dict[str, int], b: dict[str, int]) -> bool:
    devices = {*a, *b}
    return all(a.get(x, 0) >= b.get(x, 0) for x in devices) and any(a.get(x, 0) > b.get(x, 0) for x in devices)


def clock_of(event: Event) -> dict[str, int]:
    return {tag[1]: int(tag[2]) for tag in event["tags"] if tag[0] == "vc"}


def tag_of(event: Event, name: str) -> str | None:
    return next((tag[1] for tag in event["tags"] if tag[0] == name), None)


def heads(events: list[Event]) -> list[Event]:
    """The oracle: what nothing else in the same document dominates, in bootstrap order."""
    current = [
        event
        for event in events
        if not any(
            (other["pubkey"], tag_of(other, "d")) == (event["pubkey"], tag_of(event, "d"))
            and dominates(clock_of(other), clock_of(event))
            for other in events
        )
    ]
    return sorted(current, key=lambda event: (event["created_at"], event["id"]))


def ids(events: list[Event]) -> list[str]:
    return [event["id"] for event in events]
