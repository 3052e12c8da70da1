"""Signatures at the price of a hash, where the price of a curve would be all that a simulation does.

Most of what the world's authors sign carries a stand-in that only the world's `Notary` can have made; it knows each of
them and vouches for it. Some carry a real signature. Whatever the notary has not made itself is checked on the curve,
so what is forged is found out just as it is outside. An event that goes from node to node is parsed and
classified once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from anabranch.core import nostr
from anabranch.core.nostr import PROOF_BYTES, Event, Keys, Limits
from anabranch.core.operation import KindPolicy, Operation, classify
from anabranch.node import linking
from anabranch.wire import session

REAL = 1 / 32


@lru_cache(maxsize=256)
def keys(number: int) -> Keys:
    """The same authors in every world."""
    return Keys(hashlib.sha256(b"author %d" % number).digest())


class Notary:
    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._genuine: set[bytes] = set()
        self._checked: dict[bytes, bool] = {}
        self._read: dict[tuple[bytes, Limits], tuple[Event, bytes]] = {}
        self._operations: dict[tuple[bytes, KindPolicy], Operation] = {}

    def sign(self, author: Keys, kind: int, tags: Sequence[Sequence[str]], content: str, created_at: int) -> Event:
        if self._random.random() < REAL:
            return author.sign(kind, tags, content, created_at, deterministic=True)
        id = nostr.event_id(author.pubkey, created_at, kind, tags, content)
        stand_in = hashlib.blake2b(bytes.fromhex(id), key=b"notary").hexdigest()
        event = Event(id, author.pubkey, created_at, kind, [list(tag) for tag in tags], content, stand_in)
        self._genuine.add(nostr.proof(event))
        return event

    def verify_proofs(self, proofs: bytes) -> bytes:
        """`nostr.verify_proofs`, with what is known already."""
        return bytes([self._holds(proofs[at : at + PROOF_BYTES]) for at in range(0, len(proofs), PROOF_BYTES)])

    def parse(self, raw: bytes | memoryview | msgspec.Raw, limits: Limits) -> tuple[Event, bytes]:
        """`nostr.parse`; what one node has read is not read again for the next. What is malformed is, every time."""
        key = bytes(raw), limits
        read = self._read.get(key)
        if read is None:
            read = self._read[key] = _parse(*key)
        return read

    def classify(self, event: Event, raw: bytes, kinds: KindPolicy) -> Operation:
        """`operation.classify`, likewise."""
        key = raw, kinds
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = classify(event, raw, kinds)
        return operation

    def _holds(self, proof: bytes) -> bool:
        if proof in self._genuine:
            return True
        held = self._checked.get(proof)
        if held is None:
            held = self._checked[proof] = bool(_verify_proofs(proof)[0])
        return held

    @contextmanager
    def in_office(self) -> Iterator[None]:
        """Every event that is read and every signature that is checked in this process goes to the notary."""
        nostr.verify_proofs, nostr.parse = self.verify_proofs, self.parse
        session.classify = linking.classify = self.classify
        try:
            yield
        finally:
            nostr.verify_proofs, nostr.parse = _verify_proofs, _parse
            session.classify = linking.classify = classify


_verify_proofs, _parse = nostr.verify_proofs, nostr.parse
