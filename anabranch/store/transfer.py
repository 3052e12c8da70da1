"""Operations out and in as JSONL: one signed event a line, as strfry and others write and read it.

Export gives the signed bytes as they came, in the order of the log. Import believes nothing: every line is parsed,
proven, classified and offered to the store in groups, each one transaction; a bad line is counted and told, never the
end. Running an import again is harmless, because what is known already is a duplicate. Memory stays flat on both ways.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import msgspec

from anabranch.core import nostr
from anabranch.core.nostr import Invalid, Limits
from anabranch.core.operation import KindPolicy, Operation, State, Unsupported, classify
from anabranch.core.token import START, Position
from anabranch.store.contract import Duplicate, Facts, Offer, Reader, Refused, Stored, Superseded, Writer
from anabranch.store.signatures import Answer, Signatures

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PAGE = 500
GROUP = 1_000
GROUP_BYTES = 8 << 20
REJECTIONS_TOLD = 20
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC = b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# --- export ----------------------------------------------------------------------------------------------------------


class Selector(msgspec.Struct, frozen=True):
    """What an export carries; None is no condition. `heads_only` leaves out what something stored supersedes.

    `documents` names them by their key, hex, or by their coordinate.
    """

    kinds: frozenset[int] | None = None
    authors: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None
    heads_only: bool = False
    recipients: frozenset[str] | None = None
    documents: frozenset[str] | None = None

    def takes(self, facts: Facts) -> bool:
        return (
            facts.state is State.RETAINED
            and (self.kinds is None or facts.kind in self.kinds)
            and (self.authors is None or facts.author in self.authors)
            and (self.recipients is None or (facts.revision and facts.revision.recipient) in self.recipients)
            and (self.documents is None or self._names(facts))
            and (self.since is None or facts.created_at >= self.since)
            and (self.until is None or facts.created_at <= self.until)
            # What is no version of anything is not superseded by anything either.
            and (not self.heads_only or facts.head or facts.document is None)
        )

    def _names(self, facts: Facts) -> bool:
        key = None if facts.document is None else facts.document.hex()
        return self.documents is not None and (key in self.documents or facts.coordinate in self.documents)


EVERYTHING = Selector()


def export(
    reader: Reader,
    selector: Selector = EVERYTHING,
    progress: Callable[[Position, Position], None] = lambda position, tip: None,
) -> Iterator[bytes]:
    """The retained events up to the tip of now, by position, each a line with its line end."""
    after, tip = START, reader.log().tip
    while after < tip and (page := reader.facts(after, PAGE)):
        for facts in page:
            if facts.position <= tip and facts.raw is not None and selector.takes(facts):
                yield facts.raw + b"\n"
        after = page[-1].position
        progress(after, tip)


# --- import ----------------------------------------------------------------------------------------------------------


class Rejection(msgspec.Struct, frozen=True):
    """A line that was not stored, and why. `text` is None when the line was too long to be held."""

    line: int
    reason: str
    text: bytes | None = None


class Report(msgspec.Struct):
    """What became of the lines. `broken` says why the input ended before its end, if it did."""

    lines: int = 0
    stored: int = 0
    duplicate: int = 0
    superseded: int = 0
    rejected: int = 0
    rejections: list[Rejection] = msgspec.field(default_factory=list)  # the first ones, without their text
    broken: str | None = None


class LineReader(Protocol):
    """All that is asked of an input."""

    def readline(self, size: int = -1, /) -> bytes: ...


def decompressed(stream: IO[bytes]) -> LineReader:
    """The stream itself, or the lines in it when it begins as gzip, zstd or Parquet do."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream))
    head = buffered.peek(4)
    if head.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=buffered)
    if head.startswith(ZSTD_MAGIC):
        return unpacked_zstd(buffered)
    return io.BufferedReader(_Column(buffered), 1 << 20) if head.startswith(PARQUET_MAGIC) else buffered


def unpacked_zstd(stream: IO[bytes]) -> LineReader:
    import pyarrow as pa  # type: ignore[import-untyped]  # takes a while, and most inputs are plain

    unpacked = pa.CompressedInputStream(pa.PythonFile(stream), "zstd")
    return io.BufferedReader(cast(io.RawIOBase, unpacked), 1 << 20)


class _Column(io.RawIOBase):
    """The column `raw` of a Parquet file, a line each, with one row at a time in memory beside a page of the file.

    A page may name one long row very often: what is small in the file would be large in memory, read by many rows.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        if not stream.seekable():
            raise OSError("Parquet cannot be read from a pipe; name the file")
        try:
            file = pq.ParquetFile(stream)
            kind = file.schema_arrow.field("raw").type
        except (pa.ArrowException, KeyError) as error:
            raise OSError(f"this Parquet file has no readable column raw: {error}") from None
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise OSError(f"the column raw of this Parquet file holds no texts but {kind}")
        self._pieces = self._read(file)
        self._piece = memoryview(b"")

    def _read(self, file: Any) -> Iterator[memoryview]:
        """The rows with their line ends. Whether a row is text at all is for the parser to say."""
        import pyarrow as pa

        try:
            for batch in file.iter_batches(1, columns=["raw"], use_threads=False):
                for row in batch.column(0).cast(pa.large_binary()):
                    if row.is_valid and (raw := memoryview(row.as_buffer()).cast("B")):
                        yield raw
                        yield memoryview(b"\n")
        except pa.ArrowException as error:
            raise OSError(f"Parquet: {error}") from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer)
        if not self._piece:
            self._piece = next(self._pieces, self._piece)
        size = min(len(target), len(self._piece))
        target[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size


def lines(stream: LineReader, most: int) -> Iterator[tuple[int, bytes | None]]:
    """The non-empty lines with their numbers, without line ends; None for one of more than `most` bytes.

    Such a line is read past in small pieces: it never stands in memory whole.
    """
    number = 0
    while piece := stream.readline(most + 2):
        number += 1
        if not piece.endswith(b"\n") and len(piece) > most:
            while piece and not piece.endswith(b"\n"):
                piece = stream.readline(1 << 16)
            yield number, None
            continue
        if number == 1:
            piece = piece.removeprefix(BYTE_ORDER_MARK)
        if line := piece.strip():
            yield number, line


class _Group:
    """Lines on their way: those that parsed, and those that did not."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, Operation]] = []
        self.rejections: list[Rejection] = []
        self.lines = 0
        self.bytes = 0
        self.held: Answer = bytes

    @property
    def full(self) -> bool:
        return self.lines >= GROUP or self.bytes >= GROUP_BYTES


def import_lines(
    stream: LineReader,
    writer: Writer,
    *,
    limits: Limits,
    kinds: KindPolicy,
    now_ms: Callable[[], int],
    workers: int | None = None,
    progress: Callable[[Report], None] = lambda report: None,
    rejected: Callable[[Rejection], None] = lambda rejection: None,
    epoch: str | None = None,
) -> Report:
    """Store what the lines say. `rejected` is told of each line that was not taken, in order, with its text. From the
    first that is stored on, the log is of `epoch`, if one is given."""
    report = Report()
    with Signatures(workers) as signatures:
        open_groups: deque[_Group] = deque()
        for group in _groups(stream, limits, kinds, now_ms, report):
            proofs = nostr.proofs(operation.event for _, operation in group.operations)
            group.held = signatures.start(proofs)
            open_groups.append(group)
            while len(open_groups) > signatures.open_max:
                _store(open_groups.popleft(), writer, now_ms(), report, rejected, epoch)
                progress(report)
        while open_groups:
            _store(open_groups.popleft(), writer, now_ms(), report, rejected, epoch)
            progress(report)
    return report


def _groups(
    stream: LineReader, limits: Limits, kinds: KindPolicy, now_ms: Callable[[], int], report: Report
) -> Iterator[_Group]:
    group = _Group()
    try:
        for number, line in lines(stream, limits.event_bytes):
            group.lines += 1
            if line is None:
                group.rejections.append(Rejection(number, f"event is larger than {limits.event_bytes} bytes"))
            else:
                group.bytes += len(line)
                try:
                    group.operations.append((number, _operation(line, limits, kinds, now_ms() // 1000)))
                except (Invalid, Unsupported) as error:
                    group.rejections.append(Rejection(number, str(error), line))
            if group.full:
                yield group
                group = _Group()
    except (EOFError, zlib.error, OSError) as error:
        report.broken = f"the input could not be read to its end: {error}"
    if group.lines:
        yield group


def _operation(line: bytes, limits: Limits, kinds: KindPolicy, now: int) -> Operation:
    event, raw = nostr.parse(line, limits)
    # How old or how early an event may be is asked of those who publish, not of an operator's own history.
    if (expires_at := nostr.expiration(event)) is not None and expires_at <= now:
        raise Invalid("event has expired")
    operation = classify(event, raw, kinds)
    if operation.ephemeral:
        raise Unsupported("an ephemeral event is not stored")
    return operation


def _store(
    group: _Group,
    writer: Writer,
    received_at: int,
    report: Report,
    rejected: Callable[[Rejection], None],
    epoch: str | None,
) -> None:
    offers: list[tuple[int, Operation]] = []
    for (number, operation), held in zip(group.operations, group.held(), strict=True):
        if held:
            offers.append((number, operation))
        else:
            group.rejections.append(Rejection(number, "signature does not hold", operation.raw))
    if offers:
        outcomes = writer.append([Offer(operation) for _, operation in offers], received_at, epoch=epoch)
        writer.take_removals()  # nobody follows an import
        for (number, operation), outcome in zip(offers, outcomes, strict=True):
            match outcome:
                case Stored():
                    report.stored += 1
                case Duplicate():
                    report.duplicate += 1
                case Superseded():
                    report.superseded += 1
                case Refused(code, reason):
                    group.rejections.append(Rejection(number, f"{code}: {reason}", operation.raw))
    report.lines += group.lines
    report.rejected += len(group.rejections)
    for rejection in sorted(group.rejections, key=lambda rejection: rejection.line):
        rejected(rejection)
        if len(report.rejections) < REJECTIONS_TOLD:
            report.rejections.append(msgspec.structs.replace(rejection, text=None))
