"""Verify finds what was changed behind the store's back, names the place, and says what to do."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Keys, Limits, parse, serialise
from anabranch.core.operation import KindPolicy, classify
from anabranch.store import integrity, signatures
from anabranch.store.contract import Offer, StoreError
from anabranch.store.integrity import Findings
from anabranch.store.sqlite import DATABASE, SqliteStore

AUTHOR = Keys(b"\x07" * 32)
START = 1_700_000_000


def snapshot(d: str, clock: dict[str, int], at: int, action: str = "put", content: str = "sealed") -> Event:
    return AUTHOR.sign(42061, [["d", d], ["o", action], *clocks.tags(clock), ["c", "notes"]], content, at)


def fill(store: SqliteStore, events: list[Event], kinds: KindPolicy | None = None) -> None:
    offers = [Offer(classify(*parse(serialise(event), Limits()), kinds or KindPolicy())) for event in events]
    store.writer.append(offers, START * 1000)


def history() -> list[Event]:
    """Six versions of one note, a conflict on another, a replaced profile, a deletion and two plain notes."""
    return [
        *(snapshot("straight", {"laptop": n}, START + n) for n in range(1, 7)),
        snapshot("forked", {"laptop": 1}, START + 10),
        snapshot("forked", {"laptop": 2}, START + 11),
        snapshot("forked", {"laptop": 1, "phone": 1}, START + 12),
        AUTHOR.sign(0, [], "first profile", START + 20),
        AUTHOR.sign(0, [], "second profile", START + 21),
        AUTHOR.sign(1, [["t", "rivers"], ["t", "deltas"]], "a plain note", START + 30),
        gone := AUTHOR.sign(1, [["t", "mistakes"]], "a mistake", START + 31),
        AUTHOR.sign(5, [["e", gone.id]], "", START + 32),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = SqliteStore.open(tmp_path / "data")
    fill(store, history())
    store.writer.compact([1, 2])
    store.close()
    return tmp_path / "data"


@pytest.fixture
def change(folder: Path) -> Iterator[Callable[..., None]]:
    """Change the file behind the store's back."""

    def execute(sql: str, *bindings: object) -> None:
        connection = apsw.Connection(str(folder / DATABASE))
        connection.execute(sql, bindings)
        assert connection.changes() > 0, "the test changed nothing"
        connection.close()

    yield execute


def verify(folder: Path) -> Findings:
    with SqliteStore.inspect(folder).reader() as reader:
        return integrity.verify(reader, workers=0)


def only(findings: Findings) -> tuple[int | None, str]:
    assert findings.count == 1, findings.found
    assert findings.found[0].advice
    return findings.found[0].position, findings.found[0].what


def test_a_store_with_history_conflicts_compaction_and_deletions_is_sound(folder: Path) -> None:
    findings = verify(folder)
    assert findings.sound, findings.found
    assert findings.checked == 14
    assert findings.signatures == 10  # two compacted, one replaced, one deleted
    assert findings.documents == 2


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path).close()
    assert verify(tmp_path).sound


def test_progress_ends_at_the_tip(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    with SqliteStore.inspect(folder).reader() as reader:
        integrity.verify(reader, lambda position, tip: told.append((position, tip)), workers=0)
    assert told[-1] == (15, 15)


def test_a_changed_payload_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE payloads SET raw = CAST(replace(raw, 'sealed', 'forged') AS BLOB) WHERE position = 6")
    position, what = only(verify(folder))
    assert position == 6
    assert "id does not match" in what


def test_a_payload_of_another_operation_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE payloads SET raw = (SELECT raw FROM payloads WHERE position = 5) WHERE position = 6")
    findings = verify(folder)
    assert {(found.position, found.what[:36]) for found in findings.found} == {
        (6, "payload is that of another operation")
    }


def test_a_forged_signature_is_found(folder: Path, change: Callable[..., None]) -> None:
    event = snapshot("straight", {"laptop": 6}, START + 6)
    forged = serialise(event).replace(event.sig.encode(), b"0" * 128)
    change("UPDATE payloads SET raw = ? WHERE position = 6", forged)
    assert only(verify(folder)) == (6, "signature does not hold")


def test_signatures_are_found_wrong_by_worker_processes_too(
    folder: Path, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = snapshot("straight", {"laptop": 6}, START + 6)
    change("UPDATE payloads SET raw = ? WHERE position = 6", serialise(event).replace(event.sig.encode(), b"1" * 128))
    monkeypatch.setattr(signatures, "INLINE_FIRST", 0)
    monkeypatch.setattr(integrity, "PAGE", 3)
    with SqliteStore.inspect(folder).reader() as reader:
        findings = integrity.verify(reader, workers=1)
    assert findings.signatures == 10
    assert only(findings) == (6, "signature does not hold")


def test_a_missing_payload_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("DELETE FROM payloads WHERE position = 5")
    assert only(verify(folder)) == (5, "payload is missing")


def test_a_payload_that_should_be_gone_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("INSERT INTO payloads VALUES (1, x'7b7d')")
    findings = verify(folder)
    assert (1, "is compacted and yet has a payload") in {(found.position, found.what) for found in findings.found}


def test_a_missing_head_mark_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET head = 0 WHERE position = 9")
    assert only(verify(folder)) == (9, "is a head of its document and not marked as one")


def test_a_document_without_any_head_mark_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET head = 0 WHERE position = 6")
    assert only(verify(folder)) == (6, "is a head of its document and not marked as one")


def test_a_wrong_head_mark_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET head = 1 WHERE position = 7")
    assert only(verify(folder)) == (7, "is marked as a head and another one supersedes it")


def test_a_head_mark_on_what_is_compacted_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET head = 1 WHERE position = 2")
    findings = verify(folder)
    assert (2, "is compacted and yet marked as a head") in {(found.position, found.what) for found in findings.found}


def test_a_missing_mark_on_a_replaceable_event_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET head = 0 WHERE position = 11")
    assert only(verify(folder)) == (11, "head mark is missing")


def test_a_missing_tag_row_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("DELETE FROM tags WHERE position = 12 AND tag = ?", b"trivers")
    assert only(verify(folder)) == (12, "1 of its 2 tag rows are missing")


def test_a_tag_row_too_many_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("INSERT INTO tags VALUES (?, ?, 12)", b"tswamps", START + 30)
    assert only(verify(folder)) == (None, "1 tag rows that no event asks for")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("family", 2),
        ("author", b"\x01" * 32),
        ("kind", 1),
        ("created_at", 5),
        ("document", b"\x02" * 16),
        ("coordinate", "elsewhere"),
        ("collection", None),
        ("action", 1),
        ("clock", b'{"laptop":60}'),
        ("size", 3),
        ("expires_at", 99),
    ],
)
def test_every_changed_column_is_found(folder: Path, change: Callable[..., None], column: str, value: object) -> None:
    change(f"UPDATE operations SET {column} = ? WHERE position = 6", value)
    told = {(found.position, found.what.split(" is ")[0]) for found in verify(folder).found}
    assert (6, column) in told or (column == "kind" and any(position == 6 for position, _ in told))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("clock", None, "has no clock"),
        ("family", 2, "has no facts of a revision"),
        ("family", 0, "its coordinate says"),
        ("author", b"\x01" * 32, "its coordinate says"),
        ("document", None, "document is None and its coordinate says"),
        ("coordinate", "elsewhere", "its coordinate says"),
    ],
)
def test_a_changed_column_is_found_where_only_facts_are_left(
    folder: Path, change: Callable[..., None], column: str, value: object, said: str
) -> None:
    change(f"UPDATE operations SET {column} = ? WHERE position = 2", value)
    assert any(found.position == 2 and said in found.what for found in verify(folder).found)


def test_a_document_whose_heads_cannot_be_worked_out_is_not_sound(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET clock = NULL WHERE position = 2")
    change("UPDATE operations SET head = 0 WHERE position = 6")
    assert any("could not be checked" in found.what for found in verify(folder).found)


@pytest.mark.parametrize("position", [5, 6])
def test_a_head_mark_that_is_none_is_found(folder: Path, change: Callable[..., None], position: int) -> None:
    change(f"UPDATE operations SET head = 2 WHERE position = {position}")
    said = "the file itself: 1 operations whose head mark is neither 0 nor 1"
    assert (None, said) in {(found.position, found.what) for found in verify(folder).found}


def test_another_id_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET id = ? WHERE position = 6", b"\x03" * 32)
    findings = verify(folder)
    assert any(found.position == 6 and "another operation" in found.what for found in findings.found)


def test_an_operation_that_vanished_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("DELETE FROM tags WHERE position = 12")
    change("DELETE FROM payloads WHERE position = 12")
    change("DELETE FROM operations WHERE position = 12")
    change("DELETE FROM fresh_ids WHERE position = 12")
    assert only(verify(folder)) == (12, "position 12 above the floor: no operation there")


def test_a_vanished_end_of_the_log_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE log SET tip = 16")
    assert only(verify(folder)) == (15, "positions 15 to 16 above the floor: no operation there")


def test_an_operation_beyond_the_tip_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE log SET tip = 13")
    findings = verify(folder)
    assert any(found.position == 14 and "beyond the tip" in found.what for found in findings.found)


def test_a_removal_beyond_the_tip_is_found(folder: Path, change: Callable[..., None]) -> None:
    """The last position is that of the deletion's removal."""
    change("UPDATE log SET tip = 14")
    assert only(verify(folder)) == (15, "lies beyond the tip, where the next operation will want to be")


def test_a_log_that_lost_the_row_that_tells_of_it_is_said_so(folder: Path, change: Callable[..., None]) -> None:
    change("DELETE FROM log")
    assert only(verify(folder)) == (None, "the log cannot be read: the row that tells of the log is missing")
    with pytest.raises(StoreError, match="the row that tells of the log is missing"):
        SqliteStore.open(folder)


def test_what_was_deleted_and_is_not_remembered_as_deleted_is_found(folder: Path, change: Callable[..., None]) -> None:
    """The store would take it again."""
    change("DELETE FROM deletions")
    assert only(verify(folder)) == (14, "1 of what it deletes are not remembered as deleted")


def test_what_was_deleted_for_a_shorter_time_than_asked_for_is_found(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    fill(
        store,
        [
            AUTHOR.sign(30_023, [["d", "a"]], "", START),
            AUTHOR.sign(5, [["a", f"30023:{AUTHOR.pubkey}:a"]], "", START + 1),
        ],
    )
    assert verify(tmp_path).sound
    store.writer._db.execute("UPDATE deletions SET until = until - 1")
    store.close()
    assert only(verify(tmp_path)) == (2, "1 of what it deletes are not remembered as deleted")


@pytest.mark.parametrize("of", ["id", "document"])
def test_what_its_author_has_deleted_and_is_still_there_is_found(
    folder: Path, change: Callable[..., None], of: str
) -> None:
    position = {"id": 12, "document": 11}[of]
    change(f"INSERT INTO deletions SELECT {of}, author, created_at FROM operations WHERE position = {position}")
    what = "the file itself: 1 operations that their author has deleted, and that are still there"
    assert only(verify(folder)) == (None, what)


HERE = "wss://relay.example"
LEAVING = Keys(b"\x08" * 32)


@pytest.fixture(params=["ALL_RELAYS", HERE])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where somebody has vanished, and what they wrote and what was wrapped for them is gone."""
    store = SqliteStore.open(tmp_path / "left")
    events = [
        LEAVING.sign(1, [], "written", START),
        AUTHOR.sign(1059, [["p", LEAVING.pubkey]], "wrapped", START),
        AUTHOR.sign(1, [["p", LEAVING.pubkey]], "about them", START),
        LEAVING.sign(62, [["relay", request.param]], "", START + 9),
        LEAVING.sign(1, [], "back again", START + 10),
    ]
    for event in events:
        fill(store, [event], KindPolicy(relay_url=HERE))
    store.close()
    return tmp_path / "left"


def verify_here(folder: Path) -> Findings:
    with SqliteStore.inspect(folder).reader() as reader:
        return integrity.verify(reader, workers=0, kinds=KindPolicy(relay_url=HERE))


def test_a_store_that_somebody_has_left_is_sound(left: Path) -> None:
    findings = verify_here(left)
    assert findings.sound, findings.found
    assert (findings.checked, findings.signatures) == (5, 3)


@pytest.mark.parametrize("how", ["DELETE FROM vanished", "UPDATE vanished SET until = until - 1"])
def test_a_request_to_vanish_that_is_not_remembered_is_found(left: Path, how: str) -> None:
    """The store would take again what has gone."""
    connection = apsw.Connection(str(left / DATABASE))
    connection.execute(how)
    connection.close()
    assert only(verify_here(left)) == (4, "this request to vanish is not remembered")


def test_a_request_to_vanish_from_elsewhere_is_nothing_to_remember(tmp_path: Path) -> None:
    """It was stored where such events are kept for others, and not heeded."""
    request = LEAVING.sign(62, [["relay", "wss://elsewhere.example"]], "", START)
    store = SqliteStore.open(tmp_path)
    fill(store, [request], KindPolicy(pass_through=frozenset({62})))
    store.close()
    assert verify_here(tmp_path).sound


def test_what_is_still_there_of_somebody_who_has_vanished_is_found(left: Path) -> None:
    """Nothing looks for it any more."""
    connection = apsw.Connection(str(left / DATABASE))
    connection.execute("UPDATE vanished SET until = until + 1")
    assert only(verify_here(left)) == (7, "belongs to somebody who has vanished")
    connection.execute("UPDATE vanished SET done = 0")
    connection.close()
    assert verify_here(left).sound  # it is on its way


@pytest.mark.parametrize("by", [-1, 1])
def test_an_operation_out_of_its_place_in_the_logs_length_is_found(
    folder: Path, change: Callable[..., None], by: int
) -> None:
    change(f"UPDATE operations SET reach = reach + {by} WHERE position = 6")
    assert "operations whose place in the log's length is wrong" in only(verify(folder))[1]


def test_an_operation_beyond_the_logs_length_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE log SET bytes = bytes - 1")
    assert only(verify(folder)) == (None, "the file itself: 1 operations beyond the log's length in bytes")


def test_an_operation_that_came_before_the_one_before_it_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE operations SET received_at = received_at + 1 WHERE position = 6")
    assert "have come before what stands before them" in only(verify(folder))[1]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP INDEX operation_by_time", "operation_by_time is missing"),
        ("DROP TABLE echoes", "echoes is missing"),
        ("ALTER TABLE echoes ADD COLUMN more TEXT", "echoes is not what this release makes of it"),
    ],
)
def test_a_table_or_index_that_is_missing_or_another_is_found(folder: Path, statement: str, said: str) -> None:
    connection = apsw.Connection(str(folder / DATABASE))
    connection.execute(statement)
    connection.close()
    assert only(verify(folder)) == (None, f"the file itself: {said}")


def test_a_floor_out_of_place_is_found(folder: Path, change: Callable[..., None]) -> None:
    change("UPDATE log SET floor = 99")
    assert only(verify(folder)) == (None, "floor 99 is outside 1 to 16")


def test_rows_that_cannot_be_read_are_named_and_the_rest_is_still_checked(
    folder: Path, change: Callable[..., None]
) -> None:
    change("UPDATE operations SET clock = ? WHERE position IN (4, 5)", b"not json")
    findings = verify(folder)
    assert findings.checked == 12
    assert [found.position for found in findings.found if "cannot be read" in found.what] == [4, 5]


def test_forgotten_documents_leave_a_sound_store(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    fill(store, [snapshot("gone", {"a": 1}, START), snapshot("gone", {"a": 2}, START + 1, "del")])
    fill(store, [snapshot("kept", {"a": 1}, START + 2)])
    with store.reader() as reader:
        document = reader.facts()[0].document
    store.writer.raise_floor(3)
    assert store.writer.forget([document]) == 1
    store.close()
    findings = verify(tmp_path)
    assert findings.sound, findings.found
    assert findings.checked == 1


def test_a_torn_file_is_found(folder: Path) -> None:
    path = folder / DATABASE
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2 // 8192 * 8192  # where a page begins
    whole[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(whole)
    assert not verify(folder).sound


def test_verify_beside_a_busy_writer_raises_no_false_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "PAGE", 20)
    store = SqliteStore.open(tmp_path, "OFF")
    fill(store, [snapshot(f"note {n % 10}", {"laptop": n // 10 + 1}, START + n) for n in range(100)])
    done = threading.Event()

    def write() -> None:
        for n in range(100, 600, 4):
            if done.is_set():
                return
            later = [snapshot(f"note {m % 10}", {"laptop": m // 10 + 1}, START + m) for m in range(n, n + 4)]
            fill(store, [*later, AUTHOR.sign(0, [["t", "profile"]], str(n), START + n)])
            store.writer.compact(list(range(1, n - 60)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            findings = verify(tmp_path)
            assert findings.sound, findings.found
    finally:
        done.set()
        writer.join()
        store.close()
