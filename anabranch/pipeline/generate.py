"""Histories that never happened and might have: signed operations of many documents, the same for the same seed.

Authors have a few devices. A device edits on top of what it has seen; now and then it is offline for a while, and what
it wrote arrives when it comes back: that is where conflicts come from. Whoever is online and sees one merges it. Some
documents are deleted in the end, some are edited on one device while another deletes them. Half of the authors write
snapshots, half revisions, and a revision sometimes arrives before its parent. Every operation is valid and signed.

A chunk of documents is made at a time, on every core, sorted by the time of arrival; the file is the merge of them all.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from anabranch.core import clock as clocks
from anabranch.core import revisions, snapshots
from anabranch.core.nostr import Keys, serialise
from anabranch.core.revisions import GIFT_WRAP
from anabranch.store import workers

START = 1_735_689_600  # 2025-01-01: the same seed gives the same bytes on any day
SPAN = 180 * 86_400
CHUNK_OPERATIONS = 50_000
DOCUMENTS_AN_AUTHOR = 40
WRAP_KEYS = 256  # a wrap's key is thrown away after use; so many stand for all of them

OFFLINE = 0.03  # how often a device goes offline after an edit
OFFLINE_EDITS = (1, 5)
DELETED = 0.08  # documents that are deleted in the end
LATE = 0.05  # revisions that arrive after their child

COLLECTIONS = ("inbox", "work", "journal", "recipes", None, None)

Progress = Callable[[int, int], None]


class Plan(msgspec.Struct, frozen=True):
    """What is to be generated."""

    operations: int
    documents: int
    seed: int
    content_bytes: int = 300  # on average

    def share(self, document: int) -> int:
        """How many operations a document has: a few have many, most have few, and all of them sum up."""
        return self._upto(document + 1) - self._upto(document)

    def _upto(self, documents: int) -> int:
        """Operations of the first so many documents: one each, and the rest by a curve that falls slowly."""
        spread = self.operations - self.documents
        return documents + round(spread * (documents / self.documents) ** 0.7)

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Ranges of documents with about so many operations each."""
        found, first = [], 0
        while first < self.documents:
            last = first + 1
            while last < self.documents and self._upto(last + 1) - self._upto(first) <= CHUNK_OPERATIONS:
                last += 1
            found.append((first, last))
            first = last
        return found


class Edit(msgspec.Struct, frozen=True):
    """One version while it is thought out: of either family."""

    id: str
    made_at: int
    arrives_at: int
    device: str
    deletes: bool
    clock: dict[str, int]
    parents: tuple[str, ...]

    @property
    def revision(self) -> str:
        return self.id


def generate(plan: Plan, out: Path, progress: Progress = lambda done, all: None) -> None:
    """Write the operations to a file, one signed event a line, in the order in which a relay would have got them."""
    if plan.documents < 1 or plan.operations < plan.documents:
        raise ValueError("there must be a document, and an operation for each")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".generating-") as folder:
        files, done = [], 0
        pool = workers.start(os.cpu_count() or 1)
        try:
            jobs = [pool.submit(_write_chunk, plan, *span, str(Path(folder) / f"{span[0]}")) for span in plan.chunks]
            for job in jobs:
                file, count = job.result()
                files.append(file)
                done += count
                progress(done, plan.operations)
        finally:
            workers.end(pool)
        unfinished = Path(folder) / "all"
        with unfinished.open("wb") as file:
            file.writelines(line for _, line in heapq.merge(*(_timed_lines(name) for name in files)))
        unfinished.replace(out)


def _timed_lines(name: str) -> Iterator[tuple[int, bytes]]:
    with open(name, "rb") as file:
        for line in file:
            at, _, event = line.partition(b" ")
            yield int(at), event


def _write_chunk(plan: Plan, first: int, last: int, name: str) -> tuple[str, int]:
    lines = [line for document in range(first, last) for line in document_lines(plan, document)]
    lines.sort(key=lambda line: line[0])
    with open(name, "wb") as file:
        file.writelines(b"%d %s\n" % line for line in lines)
    return name, len(lines)


def document_lines(plan: Plan, document: int) -> list[tuple[int, bytes]]:
    """The operations of one document, signed, each with the time of its arrival."""
    author = document // DOCUMENTS_AN_AUTHOR
    wrapped = author % 2 == 1
    rng = random.Random(f"{plan.seed}/{document}")
    keys = _keys(plan.seed, "author", author)
    coordinate = _uuid(rng).upper()
    collection = rng.choice(COLLECTIONS)
    lines = []
    for edit in history(rng, plan.share(document), wrapped):
        action = "del" if edit.deletes else "put"
        content = _sealed(rng, plan.content_bytes)
        if wrapped:
            tags = [
                ["p", keys.pubkey],
                ["d", coordinate],
                ["r", edit.id],
                *(["prev", parent] for parent in edit.parents),
                ["op", action],
                ["m", str(edit.made_at * 1000 + rng.randrange(1000))],
                ["type", "note"],
                ["v", revisions.SCHEMA],
            ]
            signer, kind = _keys(plan.seed, "wrap", rng.randrange(WRAP_KEYS)), GIFT_WRAP
        else:
            tags = [["d", coordinate], ["o", action], *clocks.tags(edit.clock)]
            if collection is not None:
                tags.append(["c", collection])
            signer, kind = keys, snapshots.NOTE
        lines.append((edit.arrives_at, serialise(signer.sign(kind, tags, content, edit.made_at, deterministic=True))))
    return lines


def history(rng: random.Random, count: int, wrapped: bool) -> list[Edit]:
    """So many edits of one document by the devices of its author, in the order of arrival."""
    devices = [_uuid(rng) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
    now = START + rng.randrange(SPAN)
    pause = max(1, (START + SPAN - now) // (count + 1))
    heads: list[Edit] = []  # what the devices that are online have seen
    made: list[Edit] = []
    away: dict[str, list[Edit]] = {}  # what an offline device has seen or written last
    waiting: dict[str, tuple[int, list[Edit]]] = {}  # until how many edits in all it is away, and what it brings along
    end = rng.random() < DELETED and count > 1

    def arrive(edits: list[Edit]) -> None:
        nonlocal heads
        for edit in edits:
            heads = _advance(heads, edit, wrapped, made)
            made.append(edit)

    for number in range(count):
        now += 1 + round(rng.expovariate(1 / pause))
        for device in [device for device, (until, _) in waiting.items() if number >= until]:
            arrive([msgspec.structs.replace(edit, arrives_at=now) for edit in waiting.pop(device)[1]])
            del away[device]
        device = rng.choice(devices)
        base = away.get(device, heads)
        deletes = end and number == count - 1 and bool(base)
        edit = Edit(
            rng.randbytes(32).hex(),
            now,
            now,
            device,
            deletes,
            clocks.advance(clocks.merge(head.clock for head in base), device),
            tuple(sorted(head.id for head in base)),
        )
        if device in away:
            away[device] = [edit]
            waiting[device][1].append(edit)
            continue
        arrive([edit])
        if len(devices) > 1 and rng.random() < OFFLINE:
            away[device] = [edit]
            waiting[device] = (number + 1 + rng.randint(*OFFLINE_EDITS) * len(devices), [])
    now += 60
    for _, edits in waiting.values():
        arrive([msgspec.structs.replace(edit, arrives_at=now) for edit in edits])
    return _shuffled(rng, made) if wrapped else made


def _advance(heads: list[Edit], edit: Edit, wrapped: bool, made: list[Edit]) -> list[Edit]:
    if wrapped:
        return revisions.advance(heads, edit, edit.parents, any(edit.id in other.parents for other in made))
    return snapshots.advance(heads, edit)


def _shuffled(rng: random.Random, edits: list[Edit]) -> list[Edit]:
    """The same, but a few arrive just after the next one: a child before its parent."""
    times = [edit.arrives_at for edit in edits]
    order = list(edits)
    for at in range(len(order) - 1):
        if rng.random() < LATE:
            order[at], order[at + 1] = order[at + 1], order[at]
    return [msgspec.structs.replace(edit, arrives_at=time) for edit, time in zip(order, times, strict=True)]


_known: dict[tuple[int, str, int], Keys] = {}


def _keys(seed: int, role: str, number: int) -> Keys:
    key = (seed, role, number)
    if key not in _known:
        _known[key] = Keys(hashlib.sha256(f"anabranch {role} {seed} {number}".encode()).digest())
    return _known[key]


def _uuid(rng: random.Random) -> str:
    digits = rng.randbytes(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _sealed(rng: random.Random, average: int) -> str:
    """What a payload looks like from outside."""
    size = min(8 * average, 64 + round(rng.expovariate(1 / max(1, average - 64))))
    return base64.b64encode(b"\x02" + rng.randbytes(size)).decode()
