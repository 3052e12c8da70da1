"""The simulated disk under a real SQLite: what is synced stays, and what is not may be lost or torn."""

import contextlib
import random
from itertools import count

import apsw
import pytest

from anabranch.sim import disk as disks
from anabranch.sim.disk import Disk, File

_numbers = count()


@pytest.fixture
def disk() -> Disk:
    made = Disk(f"test-{next(_numbers)}")
    disks.attach(made)
    return made


def opened(disk: Disk, synchronous: str = "FULL") -> apsw.Connection:
    connection = disks.connection(disk, "x.db")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    return connection


def numbers(disk: Disk) -> list[int]:
    connection = opened(disk)
    try:
        return [row[0] for row in connection.execute("SELECT n FROM t ORDER BY n")]
    finally:
        connection.close()


def after_power_loss(disk: Disk, old: apsw.Connection, seed: int) -> Disk:
    disk.down = True
    with contextlib.suppress(apsw.Error):
        old.close(True)
    born = Disk(disk.name)
    born.files = disk.files
    disks.attach(born)
    born.power_lost(random.Random(seed))
    return born


def test_what_was_not_synced_is_undone_or_torn_by_the_sector():
    file = File(b"a" * 2048)
    file.unsynced.clear()
    file.write(1024, b"b" * 2048)
    file.truncate(100)
    seen = set()
    for seed in range(50):
        copy = File(bytes(file.data))
        copy.unsynced = list(file.unsynced)
        copy.lose_power(random.Random(seed))
        seen.add(bytes(copy.data))
        assert copy.data[:1024].startswith(b"a" * 100)
    assert b"a" * 2048 in seen  # nothing of it had reached the disk


@pytest.mark.parametrize("seed", range(30))
def test_a_commit_is_there_after_a_loss_of_power_in_the_middle_of_the_next(disk: Disk, seed: int):
    connection = opened(disk)
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, filling BLOB)")
    for n in range(5):
        connection.execute("INSERT INTO t VALUES (?, randomblob(3000))", (n,))
    disk.writes_left = 1 + seed % 8
    went = True
    try:
        connection.execute("INSERT INTO t VALUES (5, randomblob(3000))")
        went = disk.writes_left is not None
    except apsw.IOError:
        went = False
    found = numbers(after_power_loss(disk, connection, seed))
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found == [0, 1, 2, 3, 4, 5] if went else found in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])


def test_without_syncing_a_loss_of_power_takes_commits_away(disk: Disk):
    connection = opened(disk, "OFF")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    for file in disk.files.values():
        file.unsynced.clear()
    connection.execute("INSERT INTO t VALUES (1)")
    copies = [_copy(disk) for _ in range(20)]
    lost = any(not numbers(after_power_loss(copy, connection, seed)) for seed, copy in enumerate(copies))
    assert lost


def _copy(disk: Disk) -> Disk:
    copy = Disk(f"{disk.name}-{next(_numbers)}")
    for name, file in disk.files.items():
        copy.files[name] = File(bytes(file.data))
        copy.files[name].unsynced = list(file.unsynced)
    return copy


def test_a_full_disk_refuses_and_a_sound_one_takes_it_again(disk: Disk):
    connection = opened(disk)
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, filling BLOB)")
    disk.full = True
    with pytest.raises(apsw.FullError):
        connection.execute("INSERT INTO t VALUES (1, zeroblob(100000))")
    disk.full = False
    connection.execute("INSERT INTO t VALUES (1, zeroblob(100000))")
    connection.close()
    assert numbers(disk) == [1]
