"""The SQLite store as a file: one holder, epochs, full disks, damage and other people's files."""

import multiprocessing
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import msgspec
import pytest
from histories import event, operation, snapshot

from anabranch.core.filter import Filter
from anabranch.core.operation import State
from anabranch.store import backup, schema
from anabranch.store.contract import AccessKey, Duplicate, Offer, StoreBusy, Stored, StoreError, TooSlow
from anabranch.store.held import LOCK, Holder, read_holder
from anabranch.store.sqlite import DATABASE, SqliteStore
from anabranch.store.sqlite_writer import SqliteWriter


def append(store: SqliteStore, *events) -> list:
    return store.writer.append([Offer(operation(e)) for e in events], 0)


def facts(store: SqliteStore) -> list:
    with store.reader() as reader:
        return reader.facts()


def notes(count: int, size: int = 0, prefix: str = "") -> list:
    return [event(1, content=f"{prefix}{n}" + "x" * size) for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


# --- who holds it ------------------------------------------------------------------------------------------------


def test_a_second_writer_is_turned_away_and_told_who_has_it(folder: Path):
    store = SqliteStore.open(folder, "OFF")
    store.announce("ws://localhost:7447")
    with pytest.raises(StoreBusy, match=rf"ws://localhost:7447 \(process {os.getpid()}\)"):
        SqliteStore.open(folder, "OFF")
    append(store, event(1))
    store.close()
    again = SqliteStore.open(folder, "OFF")
    assert len(facts(again)) == 1
    again.close()


def _try_to_open(folder: Path, answers) -> None:
    try:
        SqliteStore.open(folder, "OFF").close()
        answers.put("opened")
    except StoreBusy:
        answers.put("busy")


def test_what_holds_access_keys_is_for_its_owner_alone(folder: Path, tmp_path: Path):
    store = SqliteStore.open(folder)
    backup.make(store, tmp_path / "copy")
    store.close()
    backup.restore(tmp_path / "copy", tmp_path / "restored")
    modes = [path.stat().st_mode & 0o777 for path in (folder, tmp_path / "copy", tmp_path / "restored")]
    assert modes == [0o700, 0o600, 0o700]


def test_what_has_access_keys_is_for_its_owner_alone_also_in_a_folder_that_is_open(tmp_path: Path):
    folder, restored, copy = tmp_path / "data", tmp_path / "restored", tmp_path / "copy"
    for place in (folder, restored):
        place.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        store = SqliteStore.open(folder, "OFF")
        append(store, event(1))
        backup.make(store, copy)
        backup.restore(copy, restored)
        written = [copy, *folder.iterdir(), *restored.iterdir()]
        assert {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"} <= {path.name for path in written}
        assert {path.name for path in written if path.stat().st_mode & 0o077} == set()
        store.close()
    finally:
        os.umask(before)


def test_a_second_process_is_turned_away(folder: Path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    store = SqliteStore.open(folder, "OFF")
    other = context.Process(target=_try_to_open, args=(folder, answers))
    other.start()
    assert answers.get(timeout=30) == "busy"
    other.join()
    store.close()


def test_a_store_that_failed_to_open_is_not_held(folder: Path):
    SqliteStore.open(folder, "OFF").close()
    _set_schema(folder, 99)
    for _ in range(2):
        with pytest.raises(StoreError) as refusal:
            SqliteStore.open(folder, "OFF")
        assert not isinstance(refusal.value, StoreBusy)


def test_a_store_whose_new_epoch_cannot_be_written_is_not_held(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(self: SqliteWriter, beyond: int) -> str:
        raise StoreError("the disk is full")

    store = grown(folder, 1)
    log = store.log()
    store.close()
    (folder / LOCK).write_bytes(msgspec.json.encode(Holder(stream=log.stream, epoch=log.epoch, tip=9)))
    with monkeypatch.context() as broken:
        broken.setattr(SqliteWriter, "new_epoch", fail)
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full"):
                SqliteStore.open(folder, "OFF")
    again = SqliteStore.open(folder, "OFF")
    assert again.renewed
    again.close()


def test_inspecting_reads_beside_the_writer_and_writes_nothing(folder: Path):
    with pytest.raises(StoreError, match="no store in"):
        SqliteStore.inspect(folder)
    store = SqliteStore.open(folder, "OFF")
    append(store, event(1))
    beside = SqliteStore.inspect(folder)
    assert len(facts(beside)) == 1 and beside.log() == store.log()
    with pytest.raises(StoreError, match="opened for reading"):
        _ = beside.writer
    beside.announce("ws://elsewhere")
    beside.close()
    assert len(append(store, event(1, content="x"))) == 1
    store.close()
    assert read_holder(folder).url == ""


@pytest.mark.parametrize(
    ("error", "may_write", "said"),
    [
        (apsw.CantOpenError("unable to open database file"), False, "a folder that may be written, or on a copy"),
        (apsw.ReadOnlyError("attempt to write"), True, "a folder that may be written, or on a copy"),
        (apsw.CantOpenError("unable to open database file"), True, "unable to open database file"),
    ],
)
def test_a_store_that_may_not_be_written_beside_is_said_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: apsw.Error, may_write: bool, said: str
):
    """As on a file system that is mounted to be read only."""
    SqliteStore.open(folder, "OFF").close()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(apsw, "Connection", fail)
    monkeypatch.setattr(os, "access", lambda *_: may_write)
    with pytest.raises(StoreError, match=said):
        SqliteStore.inspect(folder)


def test_a_folder_that_cannot_be_used_is_said_so(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        SqliteStore.open(tmp_path / "file" / "data", "OFF")


# --- what is on disk -----------------------------------------------------------------------------------------------


def test_a_committed_group_outlives_a_process_that_just_ends(folder: Path):
    """The file as another process would find it, without anybody having closed anything."""
    store = SqliteStore.open(folder)
    append(store, *notes(5))
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    found = SqliteStore.open(copy, "OFF")
    assert len(facts(found)) == 5
    assert append(found, event(1)) == [Stored(6)]
    found.close()
    store.close()


def test_acknowledged_is_on_disk_by_default(folder: Path):
    store = SqliteStore.open(folder)
    connection = store.writer._db
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("journal_mode") == "wal"
    store.close()


def test_returned_space_leaves_the_file(folder: Path):
    store = SqliteStore.open(folder, "OFF")
    append(store, *(snapshot(clock={"a": n}, content="x" * 4_000) for n in range(1, 500)))
    store.writer._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    before = store.path.stat().st_size
    assert store.writer.compact(list(range(1, 500)))[0] == 498
    rounds = 1
    while store.writer.return_space(50):
        rounds += 1
    assert rounds > 2, "a step is bounded"
    assert store.path.stat().st_size < before / 3
    with store.reader() as reader:
        assert reader.damage() == []
        assert reader.statistics().file_bytes >= store.path.stat().st_size
    store.close()


def test_a_checkpoint_that_finds_no_room_is_a_line_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture):
    """Nothing is lost by it, and nothing has failed that anybody asked for."""
    store = SqliteStore.open(folder, "OFF")

    def no_room(**_: object) -> None:
        raise apsw.FullError("database or disk is full")

    store.writer._connection = SimpleNamespace(wal_checkpoint=no_room)
    assert store.writer.return_space(50) is False
    assert "could not be brought into the database" in caplog.text
    store.close()


# --- epochs ------------------------------------------------------------------------------------------------------


def grown(folder: Path, count: int, prefix: str = "") -> SqliteStore:
    store = SqliteStore.open(folder, "OFF")
    append(store, *notes(count, prefix=prefix))
    return store


def put_back(copy: Path, folder: Path) -> None:
    for suffix in ("-wal", "-shm"):
        (folder / (DATABASE + suffix)).unlink(missing_ok=True)
    shutil.copyfile(copy, folder / DATABASE)


def test_an_older_copy_put_back_opens_a_new_epoch_of_the_same_stream(folder: Path, tmp_path: Path):
    store = grown(folder, 3)
    store.backup(tmp_path / "copy")
    append(store, event(1, content="after the copy"))
    first = store.log()
    store.close()
    put_back(tmp_path / "copy", folder)
    restored = SqliteStore.open(folder, "OFF")
    assert restored.renewed
    log = restored.log()
    assert (log.stream, log.tip) == (first.stream, first.tip + 1)
    assert log.epoch != first.epoch
    assert append(restored, event(1, content="other")) == [Stored(first.tip + 2)], "no position is given twice"
    restored.close()


def test_an_ordinary_restart_keeps_the_epoch(folder: Path):
    store = grown(folder, 3)
    log = store.log()
    for _ in range(3):
        store.close()
        store = SqliteStore.open(folder, "OFF")
        assert not store.renewed
        assert store.log() == log
    store.close()


def test_a_restart_after_a_crash_keeps_the_epoch(folder: Path):
    """What the lock file last said is older than the log: that is no restore."""
    store = grown(folder, 3)
    store.announce()
    append(store, *notes(3, prefix="later"))
    log = store.log()
    crashed = folder.with_name("crashed")
    shutil.copytree(folder, crashed)
    store.close()
    found = SqliteStore.open(crashed, "OFF")
    assert not found.renewed and found.log() == log
    found.close()


def test_an_older_copy_put_back_a_second_time_opens_yet_another_epoch(folder: Path, tmp_path: Path):
    """Positions given after the copy was made, in its epoch, must never be given again in that epoch."""
    store = grown(folder, 3)
    store.backup(tmp_path / "copy")
    append(store, event(1, content="first life"))
    epochs = [store.log().epoch]
    store.close()
    for life in ("second life", "third life"):
        put_back(tmp_path / "copy", folder)
        store = SqliteStore.open(folder, "OFF")
        append(store, event(1, content=life))
        epochs.append(store.log().epoch)
        store.close()
    assert len(set(epochs)) == 3


def test_a_copy_as_old_as_the_last_word_of_the_lock_file_is_no_restore(folder: Path, tmp_path: Path):
    store = grown(folder, 3)
    store.backup(tmp_path / "copy")
    epoch = store.log().epoch
    store.close()
    put_back(tmp_path / "copy", folder)
    same = SqliteStore.open(folder, "OFF")
    assert same.log().epoch == epoch
    same.close()


def test_a_restored_backup_opens_in_the_epoch_that_was_told(folder: Path, tmp_path: Path):
    """One restore is one new epoch, also where the lock file still speaks of the old one."""
    store = grown(folder, 3)
    backup.make(store, tmp_path / "copy")
    first = store.log()
    store.close()
    told = backup.restore(tmp_path / "copy", folder, replace=True)
    assert (told.stream, told.tip) == (first.stream, first.tip + 1) and told.epoch != first.epoch
    restored = SqliteStore.open(folder, "OFF")
    assert restored.log() == told
    restored.close()


def as_an_earlier_release(database: Path, version: int) -> None:
    """Take out what later schemas added: tables, here with nothing in them."""
    connection = apsw.Connection(str(database))
    for script in schema.MIGRATIONS[version:]:
        for table in re.findall(r"CREATE TABLE (\w+)", script):
            connection.execute(f"DROP TABLE {table}")
    connection.pragma("user_version", version)
    connection.close()


@pytest.mark.parametrize("version", [3, 4])
def test_a_backup_of_an_earlier_release_is_restored(folder: Path, tmp_path: Path, version: int):
    store = grown(folder, 3)
    backup.make(store, tmp_path / "copy")
    first = store.log()
    store.close()
    as_an_earlier_release(tmp_path / "copy", version)
    told = backup.restore(tmp_path / "copy", tmp_path / "new")
    assert (told.stream, told.tip) == (first.stream, first.tip + 1) and told.epoch != first.epoch
    restored = SqliteStore.open(tmp_path / "new", "OFF")
    assert restored.log() == told and len(facts(restored)) == 3
    with restored.reader() as reader:
        assert reader.damage() == []
    restored.close()


@pytest.mark.parametrize("said", [b"", b"{", b"\0" * 600, b'{"tip":"x"}', b"[]"])
def test_an_unreadable_lock_file_keeps_nobody_out(folder: Path, said: bytes):
    grown(folder, 1).close()
    (folder / LOCK).write_bytes(said)
    store = SqliteStore.open(folder, "OFF")
    assert store.log().tip == 1
    store.close()
    assert read_holder(folder).tip == 1


# --- files of others -----------------------------------------------------------------------------------------------


def _set_schema(folder: Path, version: int) -> None:
    connection = apsw.Connection(str(folder / DATABASE))
    connection.pragma("user_version", version)
    connection.close()


def test_a_file_of_a_later_release_is_refused_and_left_alone(folder: Path):
    grown(folder, 1).close()
    _set_schema(folder, schema.VERSION + 1)
    before = (folder / DATABASE).read_bytes()
    with pytest.raises(StoreError, match=f"schema {schema.VERSION + 1}, and this release knows {schema.VERSION}"):
        SqliteStore.open(folder, "OFF")
    assert (folder / DATABASE).read_bytes() == before
    _set_schema(folder, schema.VERSION)
    store = SqliteStore.open(folder, "OFF")
    assert len(facts(store)) == 1
    store.close()


def test_a_file_that_is_no_database_is_refused(folder: Path):
    folder.mkdir(parents=True)
    (folder / DATABASE).write_bytes(b"hello " * 1_000)
    with pytest.raises(StoreError, match="cannot open"):
        SqliteStore.open(folder, "OFF")
    assert (folder / DATABASE).read_bytes() == b"hello " * 1_000


def test_damage_is_told_in_words(folder: Path):
    store = grown(folder, 3)
    store.writer._db.execute("DELETE FROM operations WHERE position = 2")
    with store.reader() as reader:
        assert reader.damage() == ["1 ids without an operation", "1 payloads without an operation"]
    store.close()


def test_every_table_and_index_is_made_once(folder: Path):
    grown(folder, 1).close()
    store = SqliteStore.open(folder, "OFF")
    assert store.writer._db.pragma("user_version") == schema.VERSION == len(schema.MIGRATIONS)
    assert store.writer._db.pragma("auto_vacuum") == 2
    store.close()


# --- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes, where the tests may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True)
    if made.returncode:
        pytest.skip("may not mount a small disk here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(store: SqliteStore, take: Callable[[], list]) -> int:
    for round in range(10_000):
        try:
            append(store, *take())
        except StoreError:
            return round
    pytest.fail("the disk never became full")


def test_a_full_disk_is_an_answer_and_the_store_goes_on_when_there_is_room(small_disk: Path):
    store = SqliteStore.open(small_disk / "data")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 800_000)
    store.writer.save_access_key(AccessKey("k"))
    number = iter(range(10**9))

    def batch() -> list:
        return [snapshot("doc", {"a": 1 + next(number)}, content="x" * 2_000) for _ in range(10)]

    groups = fill(store, batch)
    assert groups > 3
    log, there = store.log(), facts(store)
    assert log.tip == len(there) == 10 * groups, "all of a group or nothing"
    with store.reader() as reader:
        assert reader.damage() == []
        assert len(reader.select([Filter(limit=1)], 1, 0).positions) == 1
    failed = batch()
    with pytest.raises(StoreError):
        while True:
            append(store, *failed)
            failed = batch()
    tip = store.log().tip
    ballast.unlink()
    assert append(store, *failed) == [Stored(tip + n) for n in range(1, 11)]
    assert [f.id for f in facts(store) if f.head] == [failed[-1].id]
    assert append(store, failed[0]) == [Duplicate(State.RETAINED)]
    store.close()
    again = SqliteStore.open(small_disk / "data")
    assert again.log().tip == tip + 10 and not again.renewed
    with again.reader() as reader:
        assert reader.damage() == []
    again.close()


WRITES = {
    "append": lambda store: append(store, event(1, content="x" * 60_000)),
    "compact": lambda store: store.writer.compact(list(range(1, 1_000))),
    "remove": lambda store: store.writer.remove([f.id for f in facts(store)]),
    "expire": lambda store: store.writer.expire(10, 1_000),
    "raise_floor": lambda store: store.writer.raise_floor(5),
    "forget": lambda store: store.writer.forget([f.document for f in facts(store)]),
    "return_space": lambda store: store.writer.return_space(1_000),
    "new_epoch": lambda store: store.writer.new_epoch(),
    "save_access_key": lambda store: store.writer.save_access_key(AccessKey("k")),
    "delete_access_key": lambda store: store.writer.delete_access_key("k"),
    "save_setting": lambda store: store.writer.save_setting("x", b"y" * 60_000),
}


@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_whatever_cannot_be_written_is_a_store_error_and_changes_nothing(folder: Path, act):
    """The file is made read-only to the writer, which stands for a disk that fails."""
    store = SqliteStore.open(folder, "OFF")
    append(store, *(snapshot(clock={"a": n}, expires_at=5) for n in range(1, 4)))
    before = facts(store), store.log()
    store.writer._db.pragma("query_only", True)
    with pytest.raises(StoreError):
        act(store)
    store.writer._db.pragma("query_only", False)
    assert (facts(store), store.log()) == before
    assert append(store, event(1)) == [Stored(4)]
    store.close()


def test_a_read_that_fails_is_a_store_error(folder: Path):
    store = grown(folder, 3)
    reader = store.open_reader()
    store.writer._db.execute("DROP TABLE payloads")
    with pytest.raises(StoreError):
        reader.payloads([1])
    reader.close()
    store.close()


def test_a_query_that_takes_too_long_is_given_up_and_the_reader_stays_usable(folder: Path):
    store = grown(folder, 3_000)
    with store.reader() as reader:
        reader.give_up = lambda: True
        with pytest.raises(TooSlow):
            reader.select([Filter()], 5_000, 0)
        reader.give_up = None
        assert len(reader.select([Filter()], 5_000, 0).positions) == 3_000
    store.close()


def test_a_reader_cannot_write(folder: Path):
    store = grown(folder, 1)
    with store.reader() as reader, pytest.raises(StoreError):
        reader._rows("DELETE FROM operations")
    store.close()
