"""Export and import: what goes out comes in again, and nothing that is not proven comes in at all."""

import functools
import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Keys, Limits, serialise
from anabranch.core.operation import Family, KindPolicy, document_key
from anabranch.store import signatures, transfer
from anabranch.store.sqlite import SqliteStore
from anabranch.store.transfer import Rejection, Report, Selector

AUTHOR, OTHER = Keys(b"\x07" * 32), Keys(b"\x08" * 32)
START = 1_700_000_000
NOW_MS = (START + 1_000_000) * 1000


def snapshot(d: str, clock: dict[str, int], at: int, keys: Keys = AUTHOR) -> Event:
    return keys.sign(42061, [["d", d], ["o", "put"], *clocks.tags(clock)], "sealed", at)


@functools.cache
def history() -> list[Event]:
    return [
        snapshot("a", {"x": 1}, START),
        snapshot("a", {"x": 2}, START + 1),
        snapshot("a", {"x": 1, "y": 1}, START + 2),
        snapshot("b", {"x": 1}, START + 3, OTHER),
        AUTHOR.sign(1, [["t", "water"]], "plain", START + 4),
        AUTHOR.sign(0, [], "profile", START + 5),
    ]


def jsonl(events: Iterable[Event]) -> bytes:
    return b"".join(serialise(event) + b"\n" for event in events)


def load(store: SqliteStore, data: bytes | io.BufferedIOBase, **rest: object) -> Report:
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    options = {"limits": Limits(), "kinds": KindPolicy(), "now_ms": lambda: NOW_MS, "workers": 0, **rest}
    return transfer.import_lines(transfer.decompressed(stream), store.writer, **options)


def dump(store: SqliteStore, selector: Selector = transfer.EVERYTHING) -> list[str]:
    """The ids that an export carries."""
    with store.reader() as reader:
        return [json.loads(line)["id"] for line in transfer.export(reader, selector)]


@pytest.fixture
def store(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "one")
    yield store
    store.close()


@pytest.fixture
def filled(store: SqliteStore) -> SqliteStore:
    assert load(store, jsonl(history())).stored == len(history())
    return store


def ids(*events: Event) -> list[str]:
    return [event.id for event in events]


# --- export ----------------------------------------------------------------------------------------------------------


def test_export_gives_the_signed_bytes_in_the_order_of_the_log(filled: SqliteStore) -> None:
    with filled.reader() as reader:
        assert b"".join(transfer.export(reader)) == jsonl(history())


def test_export_reads_the_log_by_pages(filled: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAGE", 2)
    assert dump(filled) == ids(*history())


def test_export_leaves_out_what_has_no_payload(filled: SqliteStore) -> None:
    filled.writer.compact([1])
    assert dump(filled) == ids(*history()[1:])


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (Selector(kinds=frozenset({1, 0})), [4, 5]),
        (Selector(authors=frozenset({OTHER.pubkey})), [3]),
        (Selector(since=START + 4), [4, 5]),
        (Selector(until=START + 1), [0, 1]),
        (Selector(since=START + 1, until=START + 2), [1, 2]),
        (Selector(heads_only=True), [1, 2, 3, 4, 5]),
        (Selector(kinds=frozenset({42061}), heads_only=True), [1, 2, 3]),
        (Selector(documents=frozenset({"a"})), [0, 1, 2]),
        (Selector(documents=frozenset({document_key(Family.SNAPSHOT, OTHER.pubkey, 0, "b").hex()})), [3]),
        (Selector(recipients=frozenset({AUTHOR.pubkey})), []),
    ],
)
def test_export_takes_what_the_selector_takes(filled: SqliteStore, selector: Selector, expected: list[int]) -> None:
    assert dump(filled, selector) == [history()[index].id for index in expected]


# --- round trip ------------------------------------------------------------------------------------------------------


def test_an_export_imported_elsewhere_has_the_same_heads_and_bytes(filled: SqliteStore, tmp_path: Path) -> None:
    with filled.reader() as reader:
        exported = b"".join(transfer.export(reader))
        documents = {facts.document for facts in reader.facts() if facts.document}
        heads = {document: [facts.id for facts in reader.heads(document)] for document in documents}
    other = SqliteStore.open(tmp_path / "two")
    assert load(other, exported).stored == len(history())
    with other.reader() as reader:
        assert {document: [facts.id for facts in reader.heads(document)] for document in documents} == heads
        assert b"".join(transfer.export(reader)) == exported
    other.close()


def test_the_heads_are_the_same_whatever_the_order_of_the_lines(store: SqliteStore) -> None:
    load(store, jsonl(reversed(history())))
    assert sorted(dump(store, Selector(kinds=frozenset({42061}), heads_only=True))) == sorted(ids(*history()[1:4]))


# --- import ----------------------------------------------------------------------------------------------------------


def test_an_import_run_again_stores_nothing(filled: SqliteStore) -> None:
    report = load(filled, jsonl(history()))
    assert (report.lines, report.stored, report.duplicate) == (6, 0, 6)


def test_an_older_replaceable_event_is_superseded(filled: SqliteStore) -> None:
    report = load(filled, jsonl([AUTHOR.sign(0, [], "old profile", START)]))
    assert (report.stored, report.superseded, report.rejected) == (0, 1, 0)


def test_bad_lines_are_counted_named_and_never_the_end(store: SqliteStore) -> None:
    good = history()
    forged_signature = serialise(good[0]).replace(good[0].sig.encode(), good[1].sig.encode())
    forged_content = serialise(good[1]).replace(b"sealed", b"opened")
    lines = [
        serialise(good[2]),
        b"this is not json",
        forged_signature,
        b"",
        forged_content,
        b'["EVENT", {}]',
        b"\xff\xfe\x00",
        serialise(AUTHOR.sign(42061, [["d", "a"]], "", START)),
        serialise(AUTHOR.sign(45000, [], "", START)),
        serialise(AUTHOR.sign(20001, [], "", START)),
        serialise(AUTHOR.sign(1, [["expiration", str(START)]], "", START)),
        serialise(good[3]),
    ]
    told: list[Rejection] = []
    report = load(store, b"\n".join(lines), rejected=told.append)
    assert (report.lines, report.stored, report.rejected) == (11, 2, 9)
    assert [rejection.line for rejection in report.rejections] == [2, 3, 5, 6, 7, 8, 9, 10, 11]
    reasons = {rejection.line: rejection.reason for rejection in report.rejections}
    assert reasons[3] == "signature does not hold"
    assert reasons[5] == "id does not match the event"
    assert reasons[8] == "missing or malformed snapshot metadata"
    assert reasons[9] == "non-snapshot event kind requires explicit classification"
    assert reasons[10] == "an ephemeral event is not stored"
    assert reasons[11] == "event has expired"
    assert told[0] == Rejection(2, reasons[2], b"this is not json")
    assert sorted(dump(store)) == sorted(ids(good[2], good[3]))


def test_only_the_first_rejections_are_kept_and_all_are_told(store: SqliteStore) -> None:
    told: list[Rejection] = []
    report = load(store, b"{}\n" * 2500, rejected=told.append)
    assert (report.rejected, len(report.rejections), len(told)) == (2500, transfer.REJECTIONS_TOLD, 2500)
    assert [rejection.line for rejection in told] == list(range(1, 2501))


def test_what_its_author_deleted_does_not_come_back(store: SqliteStore) -> None:
    note = AUTHOR.sign(1, [], "a mistake", START)
    load(store, jsonl([note, AUTHOR.sign(5, [["e", note.id]], "", START + 1)]))
    report = load(store, jsonl([note]))
    assert report.rejections[0].reason == "blocked: deleted by its author"


class Watched(io.RawIOBase):
    """An endless-looking line in the middle, and no way to read it whole unnoticed."""

    def __init__(self, before: bytes, filler: int, after: bytes) -> None:
        self._parts = [io.BytesIO(before), None, io.BytesIO(b"\n" + after)]
        self._filler = filler

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        while self._parts:
            part = self._parts[0]
            if part is None:
                size = min(len(buffer), self._filler)
                buffer[:size] = b"x" * size
                self._filler -= size
            else:
                size = part.readinto(buffer)
            if size:
                return size
            self._parts.pop(0)
        return 0


def test_an_oversize_line_is_skipped_without_being_held(store: SqliteStore) -> None:
    import tracemalloc

    good = history()
    stream = io.BufferedReader(Watched(jsonl(good[:1]), 64 << 20, jsonl(good[1:])))
    tracemalloc.start()
    report = load(store, stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (report.stored, report.rejected) == (len(good), 1)
    assert report.rejections[0].line == 2
    assert "larger than" in report.rejections[0].reason
    assert peak < 8 << 20


@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_a_line_is_too_long_exactly_above_the_limit(store: SqliteStore, extra: int) -> None:
    event = history()[0]
    limits = Limits(event_bytes=len(serialise(event)) + 1 - extra)
    report = load(store, jsonl([event, history()[1]]), limits=limits)
    assert report.lines == 2
    assert (report.stored, report.rejected) == ((2, 0) if extra <= 1 else (0, 2))


def test_gzip_is_read_as_what_it_holds(store: SqliteStore) -> None:
    assert load(store, gzip.compress(jsonl(history()))).stored == len(history())


def test_zstd_is_read_as_what_it_holds_however_many_frames_it_has(store: SqliteStore) -> None:
    codec = pa.Codec("zstd")
    packed = b"".join(codec.compress(jsonl([event]), asbytes=True) for event in history())
    assert load(store, packed).stored == len(history())


def test_the_raw_events_of_a_parquet_file_are_read(store: SqliteStore) -> None:
    packed = io.BytesIO()
    pq.write_table(pa.table({"n": range(6), "raw": [serialise(event).decode() for event in history()]}), packed)
    assert load(store, packed.getvalue()).stored == len(history())


def parquet(rows: list[bytes | None], kind: pa.DataType | None = None, **how: object) -> bytes:
    """A Parquet file whose texts are these, UTF-8 or not."""
    packed = io.BytesIO()
    column = pa.array(rows, pa.binary())
    texts = pa.StringArray.from_buffers(len(rows), column.buffers()[1], column.buffers()[2], column.buffers()[0])
    pq.write_table(pa.table({"raw": texts.cast(kind) if kind else texts}), packed, **how)
    return packed.getvalue()


def raws() -> list[bytes]:
    return [serialise(event) for event in history()]


def test_the_rows_of_a_parquet_file_are_lines_whatever_their_size_and_number(store: SqliteStore) -> None:
    more = [serialise(AUTHOR.sign(1, [], "x" * n, START + n)) for n in (10, 100_000, 1)]
    rows = [raws()[0], None, b"", *more, b"\n".join(raws()[1:3]), *raws()[3:]]
    report = load(store, parquet(rows, pa.large_string(), row_group_size=3))
    assert (report.stored, report.lines, report.rejected) == (9, 9, 0)


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
def test_a_long_row_that_a_parquet_file_repeats_is_in_memory_once(store: SqliteStore, encoding: str) -> None:
    how = {"use_dictionary": True} if encoding == "RLE_DICTIONARY" else {"column_encoding": {"raw": encoding}}
    packed = parquet([b"x" * (2 << 20)] * 100 + raws(), compression="zstd", **{"use_dictionary": False, **how})
    assert len(packed) < 10_000
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    most: list[int] = []
    report = load(
        store,
        packed,
        progress=lambda report: most.append(pool.bytes_allocated() - before),
        now_ms=lambda: most.append(pool.bytes_allocated() - before) or NOW_MS,
    )
    assert (report.stored, report.rejected) == (6, 100)
    assert "larger than" in report.rejections[0].reason
    assert max(most) < 16 << 20


def test_a_parquet_row_that_is_not_utf_8_is_a_bad_line_and_not_the_end(store: SqliteStore) -> None:
    good = raws()
    report = load(store, parquet([good[0], b"\xff\xfe\x00bad", *good[1:]]))
    assert (report.stored, report.rejected, report.broken) == (6, 1, None)
    assert report.rejections[0].line == 2


def test_a_damaged_parquet_page_stores_what_came_before_it_and_says_so(store: SqliteStore) -> None:
    good = raws()
    packed = bytearray(parquet(good, row_group_size=3, use_dictionary=False, compression="zstd"))
    chunk = pq.ParquetFile(io.BytesIO(packed)).metadata.row_group(1).column(0)
    end = chunk.data_page_offset + chunk.total_compressed_size
    packed[end - 200 : end] = bytes(200)
    report = load(store, bytes(packed))
    assert report.broken
    assert (report.lines, report.stored) == (3, 3)


def test_what_pyarrow_cannot_read_ends_an_import_in_words(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowInvalid("Parquet data type out of range")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    assert "Parquet data type out of range" in (load(store, parquet(raws())).broken or "")


@pytest.mark.parametrize("table", [pa.table({"n": [1]}), None])
def test_a_parquet_file_without_raw_events_stores_nothing_and_says_so(store: SqliteStore, table: pa.Table) -> None:
    packed = io.BytesIO(b"PAR1 and so on")
    if table is not None:
        pq.write_table(table, packed)
    with pytest.raises(OSError, match="no readable column raw"):
        load(store, packed.getvalue())


def test_a_torn_gzip_stores_what_came_before_the_tear_and_says_so(store: SqliteStore) -> None:
    data = gzip.compress(jsonl(history()))
    report = load(store, data[:-12])
    assert report.broken
    assert report.stored + report.rejected == report.lines
    assert load(store, data).broken is None
    assert len(dump(store)) == len(history())


def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_line_end_are_no_matter(store: SqliteStore) -> None:
    data = b"\xef\xbb\xbf" + jsonl(history()).replace(b"\n", b"\r\n").removesuffix(b"\r\n")
    report = load(store, data)
    assert (report.stored, report.rejected) == (len(history()), 0)


def test_groups_go_through_worker_processes_in_order(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "INLINE_FIRST", 0)
    monkeypatch.setattr(transfer, "GROUP", 7)
    events = [AUTHOR.sign(1, [], f"note {n}", START + n) for n in range(100)]
    forged = serialise(events[50]).replace(events[50].sig.encode(), events[51].sig.encode())
    data = jsonl(events[:50]) + forged + b"\n" + jsonl(events[51:])
    seen: list[int] = []
    report = load(store, data, workers=2, progress=lambda report: seen.append(report.stored))
    assert (report.stored, report.rejected) == (99, 1)
    assert report.rejections == [Rejection(51, "signature does not hold")]
    assert dump(store) == ids(*events[:50], *events[51:])
    assert seen == sorted(seen)


def test_a_group_is_one_transaction(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "GROUP", 4)
    tips: list[int] = []
    load(store, jsonl(history()), progress=lambda report: tips.append(store.writer.log().tip))
    assert tips == [4, 6]
