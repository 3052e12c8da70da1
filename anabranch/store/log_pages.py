"""A stretch of the whole log as JSON lines: what `GET /admin/log` answers and the pipeline reads.

The first line says what log it is and how far the page is complete; then a line for each operation in it: its signed
event, or its facts where the payload is gone. A page is bounded in lines and in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from anabranch.core.token import Log, Position
from anabranch.store.contract import Facts, Reader

LINES_MAX = 1_000
BYTES_MAX = 4 << 20
_HANDFUL = 100


class PageHead(msgspec.Struct, frozen=True):
    """The first line of a page. All that is in the log up to and with `complete_to` has been sent."""

    log: Log
    complete_to: int


class PageEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation: its event, or, where that is empty, its facts."""

    position: int
    event: msgspec.Raw = msgspec.Raw()
    facts: msgspec.Raw = msgspec.Raw()


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(PageHead).decode
_decode_entry = msgspec.json.Decoder(PageEntry).decode
_decode_facts = msgspec.json.Decoder(Facts).decode


def told(facts: Facts) -> bytes:
    """The facts of an operation as JSON, without its payload."""
    return _encode(msgspec.structs.replace(facts, raw=None))


def untold(said: bytes) -> Facts:
    return _decode_facts(said)


def facts_between(reader: Reader, after: int, until: int, page: int = LINES_MAX) -> Iterator[Facts]:
    """All that is stored of the operations after one position and up to another."""
    while after < until and (found := reader.facts(Position(after), min(page, until - after))):
        for facts in found:
            if facts.position > until:
                return
            yield facts
        after = found[-1].position


def page(reader: Reader, after: int, until: int | None, limit: int) -> bytes:
    """The next page after a position; `until` None: up to the tip."""
    log = reader.log()
    last = log.tip if until is None else min(until, log.tip)
    lines: list[bytes] = []
    size, complete_to = 0, max(after, last)
    for facts in facts_between(reader, after, last, min(limit, _HANDFUL)) if limit else ():
        if len(lines) == limit or size >= BYTES_MAX:
            complete_to = facts.position - 1
            break
        if facts.raw is not None:
            entry = PageEntry(facts.position, event=msgspec.Raw(facts.raw))
        else:
            entry = PageEntry(facts.position, facts=msgspec.Raw(told(facts)))
        lines.append(_encode(entry))
        size += len(lines[-1])
    if not limit:
        complete_to = after
    return b"\n".join([_encode(PageHead(log, complete_to)), *lines, b""])


def read_page(said: bytes) -> tuple[PageHead, list[PageEntry]]:
    """What `page` has said."""
    head, *entries = said.rstrip(b"\n").split(b"\n")
    return _decode_head(head), [_decode_entry(entry) for entry in entries]
