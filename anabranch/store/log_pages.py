"""A stretch of the whole log as JSON lines: what `GET /admin/log` answers and the pipeline reads.

The first line says what log it is and how far the page is complete; then a line for each operation in it: its signed
event, or its facts where the payload is gone; and a line for each hard removal, at its own position. A page is bounded
in lines and in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from anabranch.core.operation import Removal
from anabranch.core.token import Log, Position
from anabranch.store.contract import Facts, Line, Reader

LINES_MAX = 1_000
BYTES_MAX = 4 << 20
_HANDFUL = 100


class PageHead(msgspec.Struct, frozen=True):
    """The first line of a page. All that is in the log up to and with `complete_to` has been sent."""

    log: Log
    complete_to: int


class Removed(msgspec.Struct, frozen=True, omit_defaults=True):
    """That the operation at `position_of` was removed for good, and why; `revision` is its own id if it is one."""

    id: str
    position_of: int
    reason: str
    revision: str | None = None


class PageEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation: its event, or, where that is empty, its facts. Or the removal of one that stands further down."""

    position: int
    event: msgspec.Raw = msgspec.Raw()
    facts: msgspec.Raw = msgspec.Raw()
    removal: Removed | None = None


LogEntry = Line | Facts | Removal
"""What stands in a log: a retained operation, one of which only the facts are there, or the removal of one."""

_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(PageHead).decode
_decode_entry = msgspec.json.Decoder(PageEntry).decode
_decode_facts = msgspec.json.Decoder(Facts).decode


def told(facts: Facts) -> bytes:
    """The facts of an operation as JSON, without its payload."""
    return _encode(msgspec.structs.replace(facts, raw=None))


def untold(said: bytes) -> Facts:
    return _decode_facts(said)


def entries_between(reader: Reader, after: int, until: int, page: int = LINES_MAX) -> Iterator[LogEntry]:
    """All that stands after one position and up to another: the operations, and the removals of operations."""
    while after < until:
        found = reader.lines(Position(after), page)
        complete_to = Position(until if len(found) < page else min(until, found[-1].position))
        removals = reader.removals(Position(after), complete_to, page)
        if len(removals) == page:
            complete_to = position_of(removals[-1])
        entries: list[LogEntry] = [*found, *removals]
        yield from sorted((one for one in entries if position_of(one) <= complete_to), key=position_of)
        after = complete_to


def position_of(entry: LogEntry) -> Position:
    """Where an entry stands in the log."""
    assert entry.position is not None
    return entry.position


def page(reader: Reader, after: int, until: int | None, limit: int) -> bytes:
    """The next page after a position; `until` None: up to the tip."""
    log = reader.log()
    last = log.tip if until is None else min(until, log.tip)
    lines: list[bytes] = []
    size, complete_to = 0, max(after, last)
    for entry in entries_between(reader, after, last, min(limit, _HANDFUL)) if limit else ():
        if len(lines) == limit or size >= BYTES_MAX:
            complete_to = position_of(entry) - 1
            break
        lines.append(_encode(_page_entry(entry)))
        size += len(lines[-1])
    if not limit:
        complete_to = after
    return b"\n".join([_encode(PageHead(log, complete_to)), *lines, b""])


def _page_entry(entry: LogEntry) -> PageEntry:
    if isinstance(entry, Removal):
        assert entry.target is not None
        removed = Removed(entry.id, entry.target, entry.reason, entry.revision)
        return PageEntry(position_of(entry), removal=removed)
    if isinstance(entry, Line):
        return PageEntry(entry.position, event=msgspec.Raw(entry.raw))
    return PageEntry(entry.position, facts=msgspec.Raw(told(entry)))


def read_page(said: bytes) -> tuple[PageHead, list[PageEntry]]:
    """What `page` has said."""
    head, *entries = said.rstrip(b"\n").split(b"\n")
    return _decode_head(head), [_decode_entry(entry) for entry in entries]
