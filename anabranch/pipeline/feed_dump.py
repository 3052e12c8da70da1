"""Dumps: files of signed events, one a line, as `anabranch export` and strfry write them; plain, gzip or zstd.

A file is a stream, and its lines are its positions. Its epoch is taken from its first line: a file that was replaced is
another log, a plain file that has grown is the same one, read on from where it ended. A plain file is cut at line ends
and read in parallel; a compressed one is read whole. A line that is too long never stands in memory, and input that is
broken off is a row with a problem: no line of a dump can stop a run.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from anabranch.core.nostr import Limits
from anabranch.pipeline.feed import Advance, FeedError, Mark, Missing, Rows, Span
from anabranch.store.transfer import GZIP_MAGIC, ZSTD_MAGIC, LineReader, lines, unpacked_zstd

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst")
SPAN_BYTES = 64 << 20
BLOCK = 4 << 20
FIRST_LINE_MAX = 1 << 16


def dumps_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())


class DumpFeed:
    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path.resolve()
        self._limits = limits
        self.source = str(self._path)

    def _head(self) -> tuple[bytes, int]:
        """How the file begins, and its length."""
        try:
            with self._path.open("rb") as file:
                return file.read(FIRST_LINE_MAX), self._path.stat().st_size
        except OSError as error:
            raise FeedError(f"{self._path}: {error.strerror}") from error

    def key(self) -> tuple[str, str]:
        return self.source, ""

    def mark(self) -> Mark:
        return self.advance(None).end

    def advance(self, start: Mark | None, rows: int | None = None) -> Advance:
        head, size = self._head()
        epoch = hashlib.sha256(head.partition(b"\n")[0]).hexdigest()[:16]
        compressed = _compression(head) is not None
        if start is None:
            start_byte, start_line = 0, 0
        elif start.epoch != epoch or size < start.byte or (compressed and size != start.byte):
            return Advance(start, start, Missing("file_replaced", start.position, 1, size, start.epoch))
        else:
            start_byte, start_line = start.byte, start.position
        if start is not None and start_byte == size:
            return Advance(start, start)
        if compressed:  # how many lines there are shows only when they are read
            return Advance(start, Mark(self.source, epoch, 0, size))
        count, byte = _count(self._path, start_byte, size, rows)
        return Advance(start, Mark(self.source, epoch, start_line + count, byte))

    def spans(self, start: Mark | None, end: Mark, parts: int) -> list[Span]:
        byte, line = (start.byte, start.position) if start is not None else (0, 0)
        if _compression(self._head()[0]) is not None:
            return [Span(end.epoch, 0, 0, 0, end.byte)] if byte < end.byte else []
        parts = max(parts, -(-(end.byte - byte) // SPAN_BYTES), 1)
        target = -(-(end.byte - byte) // parts)
        found = []
        while byte < end.byte:
            count, next_byte = _count(self._path, byte, end.byte, None, target)
            found.append(Span(end.epoch, line, line + count, byte, next_byte))
            byte, line = next_byte, line + count
        return found

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        rows = Rows(self.source, span.epoch, self.source)
        number = 0
        with self._path.open("rb") as file:
            try:
                for number, line in lines(self._lines(file, span), self._limits.event_bytes):
                    if line is None:
                        rows.add(span.after + number, problem=f"event is larger than {self._limits.event_bytes} bytes")
                    else:
                        rows.add(span.after + number, line)
                    if rows.full:
                        yield from rows.take()
            except (EOFError, zlib.error, OSError) as error:
                rows.add(span.after + number + 1, problem=f"the input could not be read to its end: {error}")
        yield from rows.take()

    def _lines(self, file: IO[bytes], span: Span) -> LineReader:
        kind = _compression(file.read(4))
        file.seek(span.byte)
        if kind == "gzip":
            return gzip.GzipFile(fileobj=file)
        if kind == "zstd":
            return unpacked_zstd(file)
        return _Bounded(file, span.byte_end - span.byte)


class _Bounded:
    """The lines of a stretch of a file."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self._left = file, length

    def readline(self, size: int = -1, /) -> bytes:
        line = self._file.readline(self._left if size < 0 else min(size, self._left))
        self._left -= len(line)
        return line


def _compression(head: bytes) -> str | None:
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith(ZSTD_MAGIC) else None


def _count(path: Path, byte: int, end: int, most: int | None, length: int | None = None) -> tuple[int, int]:
    """Lines from a byte on, and where they end: at most so many, or about so many bytes of them."""
    count = 0
    with path.open("rb") as file:
        file.seek(byte)
        at = byte
        while at < end:
            block = file.read(min(BLOCK, end - at))
            if not block:
                break
            found = block.count(b"\n")
            if most is not None and count + found >= most:
                return most, at + _after_line(block, most - count)
            if length is not None and at + len(block) - byte >= length:
                cut = block.find(b"\n", max(0, length - (at - byte) - 1)) + 1
                if cut:
                    return count + block.count(b"\n", 0, cut), at + cut
            count += found
            at += len(block)
            last = block[-1:]
    return (count if at == byte or last == b"\n" else count + 1), at


def _after_line(block: bytes, number: int) -> int:
    """Where the line after so many lines begins."""
    at = 0
    for _ in range(number):
        at = block.index(b"\n", at) + 1
    return at
