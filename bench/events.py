"""Signed events, made before the clock starts.

A `Batch` describes events; `sign` turns it into their JSON, on every core, at about 30 µs each. Every event of a
batch is valid, new (its content holds a random run id) and of exactly the asked size, so that no relay can answer
from memory or be favoured by a shorter line. Content is plain ASCII: the id is the hash of a string that needs no
escaping.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from coincurve import PrivateKey
from coincurve._libsecp256k1 import ffi, lib

NOTE = 1
SNAPSHOT = 42061
SIZE = 590
SPAN_SECONDS = 600
CHUNK = 2500
DEVICE = "6f3b0a52-9c1d-4a7e-8f21-0d5e7c94b310"


@dataclass(frozen=True, slots=True)
class Batch:
    """`count` events of one kind. Snapshots go round the documents, so that document d has the clocks 1, 2, 3 …"""

    count: int
    kind: int = NOTE
    authors: int = 16
    documents: int = 0
    size: int = SIZE
    run: str = field(default_factory=lambda: os.urandom(8).hex())
    now: int = field(default_factory=lambda: int(time.time()))

    def secret(self, author: int) -> bytes:
        return hashlib.sha256(f"{self.run}/{author}".encode()).digest()

    def author(self, author: int = 0) -> str:
        return PrivateKey(self.secret(author)).public_key_xonly.format().hex()


class Signer:
    """One author's key. coincurve's own method also makes the key pair and verifies, each time: four times slower."""

    def __init__(self, secret: bytes):
        key = PrivateKey(secret)
        self.pubkey = key.public_key_xonly.format().hex()
        self._context = key.context
        self._pair = ffi.new("secp256k1_keypair *")
        self._signature = ffi.new("unsigned char[64]")
        if not lib.secp256k1_keypair_create(self._context.ctx, self._pair, secret):
            raise ValueError("this secret is not a key; choose another run id")

    def sign(self, digest: bytes) -> str:
        lib.secp256k1_schnorrsig_sign32(self._context.ctx, self._signature, digest, self._pair, ffi.NULL)
        return bytes(ffi.buffer(self._signature)).hex()


def sign(batch: Batch) -> list[bytes]:
    """The JSON of every event of the batch, in order."""
    return [event for chunk in sign_in_chunks(batch) for event in chunk]


def sign_in_chunks(batch: Batch) -> Iterator[list[bytes]]:
    """The same, a few thousand at a time: for batches that should not stand in memory at once."""
    starts = range(0, batch.count, CHUNK)
    if len(starts) <= 1:
        yield _span(batch, 0, batch.count)
        return
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        ends = [min(start + CHUNK, batch.count) for start in starts]
        yield from pool.map(_span, [batch] * len(starts), starts, ends)


def identity(event: bytes) -> str:
    """The id of an event made here."""
    return event[7:71].decode()


def _span(batch: Batch, start: int, end: int) -> list[bytes]:
    signers = [Signer(batch.secret(author)) for author in range(batch.authors)]
    return [_event(batch, signers[index % batch.authors], index) for index in range(start, end)]


def _event(batch: Batch, signer: Signer, index: int) -> bytes:
    created_at = batch.now - SPAN_SECONDS + index * SPAN_SECONDS // batch.count
    tags = "[]"
    if batch.kind == SNAPSHOT:
        documents = batch.documents or batch.count
        document, counter = index % documents, index // documents + 1
        tags = f'[["d","{_coordinate(batch.run, document)}"],["o","put"],["vc","{DEVICE}","{counter}"]]'
    content = f"{batch.run} {index} "
    # Everything but id, content and signature: its length says how much to pad.
    fixed = len(f'{{"id":"","pubkey":"{signer.pubkey}","created_at":{created_at},"kind":{batch.kind},"tags":{tags},')
    content += "x" * (batch.size - fixed - len('"content":"","sig":""}') - 64 - 128 - len(content))
    digest = hashlib.sha256(f'[0,"{signer.pubkey}",{created_at},{batch.kind},{tags},"{content}"]'.encode()).digest()
    return (
        f'{{"id":"{digest.hex()}","pubkey":"{signer.pubkey}","created_at":{created_at},"kind":{batch.kind},'
        f'"tags":{tags},"content":"{content}","sig":"{signer.sign(digest)}"}}'
    ).encode()


def _coordinate(run: str, document: int) -> str:
    """An upper-case UUIDv4, as note clients use them, derived from the document's number."""
    digits = hashlib.md5(f"{run}/{document}".encode()).hexdigest().upper()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-A{digits[17:20]}-{digits[20:]}"
