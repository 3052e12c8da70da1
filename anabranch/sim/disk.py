"""A disk in memory under a real SQLite: it remembers what was synced, and forgets the rest when the power goes.

A VFS for SQLite. What a process has written it reads back; what it has not synced is, after a loss of power, there in
part or not at all, by the sector. A disk can be full, and it can die at any write: then the process on it is dead too,
in the middle of its commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import apsw

SECTOR = 512
VFS = "anabranch-sim"
_mounts = count()


class File:
    """Its bytes as the process sees them, and for every unsynced change what was there before."""

    __slots__ = ("data", "unsynced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.unsynced: list[tuple[int, bytes | bytearray, int, int]] = []
        """Where, what it was, how long the file was, how long it is."""

    def write(self, at: int, data: bytes) -> None:
        held = self.data
        size, end = len(held), at + len(data)
        if at == size:
            self.unsynced.append((at, b"", size, end))
            held += data
            return
        if at > size:
            held.extend(bytes(at - size))
        self.unsynced.append((at, held[at:end] if at < size else b"", size, end))
        held[at:end] = data

    def truncate(self, size: int) -> None:
        self.unsynced.append((size, self.data[size:], len(self.data), size))
        del self.data[size:]

    def lose_power(self, random: random.Random) -> int:
        """Undo what was not synced, then let some of it have reached the disk after all. How many changes were lost."""
        changes = [(at, bytes(self.data[at:end]), end) for at, _, _, end in self.unsynced]
        for at, before, size, _ in reversed(self.unsynced):
            self.data[at : at + len(before)] = before
            if len(self.data) > size:
                del self.data[size:]
            elif len(self.data) < size:
                self.data.extend(bytes(size - len(self.data)))
        self.unsynced.clear()
        lost = 0
        for at, data, _ in changes:
            kept = random.choice((0, 0, len(data), random.randrange(0, len(data) + 1) // SECTOR * SECTOR))
            lost += kept < len(data)
            if kept:
                self.write(at, data[:kept])
        self.unsynced.clear()
        return lost


class Disk:
    """The files of one host. `died` is called when the disk ends a process in the middle of a write."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mount = f"{name}-{next(_mounts)}"
        """Its name to SQLite; never the same twice, so that nothing old reaches anything new."""
        self.files: dict[str, File] = {}
        self.full = False
        self.refused = 0  # writes that found no room
        self.writes_left: int | None = None  # until it takes its process down
        self.down = False  # nothing gets through: its process is dead
        self.died: Callable[[], None] = lambda: None

    def power_lost(self, random: random.Random) -> int:
        return sum(file.lose_power(random) for file in self.files.values())

    def copy(self) -> dict[str, bytes]:
        return {name: bytes(file.data) for name, file in self.files.items()}

    def put_back(self, files: dict[str, bytes]) -> None:
        self.files = {name: File(data) for name, data in files.items()}

    def touch(self) -> None:
        """Before each change: it may be the one that the process does not survive."""
        if self.down:
            raise apsw.IOError("the machine is down")
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.writes_left = None
                self.down = True
                self.died()
                raise apsw.IOError("the machine went down")


class _OpenFile:
    """What SQLite holds of a file. Written without a base: SQLite calls these directly."""

    def __init__(self, disk: Disk, name: str, file: File) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._disk.down:
            raise apsw.IOError("the machine is down")
        return bytes(self._file.data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        disk, file = self._disk, self._file
        disk.touch()
        # A checkpoint that finds no room is nothing to SQLite, which leaves it for later; but what is raised here comes
        # out of the COMMIT that it went with. So only the write-ahead log feels that the disk is full.
        if disk.full and self._name.endswith("-wal") and offset + len(data) > len(file.data):
            disk.refused += 1
            raise apsw.FullError("no room on the disk")
        file.write(offset, data)

    def xTruncate(self, size: int) -> None:
        self._disk.touch()
        if size < len(self._file.data):
            self._file.truncate(size)

    def xSync(self, flags: int) -> None:
        self._disk.touch()
        self._file.unsynced.clear()

    def xFileSize(self) -> int:
        return len(self._file.data)

    def xClose(self) -> None:
        pass

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        """A torn write harms nothing beside it. SQLite takes that for granted on real disks too."""
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class _Vfs(apsw.VFS):
    """Every simulated disk, by the first part of a file's path."""

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}
        self._temporary = Disk("temporary")
        super().__init__(VFS, base="")

    def _find(self, path: str) -> tuple[Disk, str]:
        _, disk, name = path.split("/", 2)
        return self.disks[disk], name

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        if name is None:
            return _OpenFile(self._temporary, "", File())
        disk, path = self._find(name.filename() if isinstance(name, apsw.URIFilename) else name)
        flags[1] = flags[0]
        if path not in disk.files:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(path)
            disk.files[path] = File()
        return _OpenFile(disk, path, disk.files[path])

    def xDelete(self, path: str, sync: bool) -> None:
        disk, name = self._find(path)
        disk.touch()
        disk.files.pop(name, None)

    def xAccess(self, path: str, flags: int) -> bool:
        disk, name = self._find(path)
        return name in disk.files

    def xFullPathname(self, name: str) -> str:
        return name


_vfs: _Vfs | None = None


def attach(disk: Disk) -> None:
    """Let SQLite reach the disk, under `/<mount>/…`."""
    global _vfs
    if _vfs is None:
        _vfs = _Vfs()
    _vfs.disks[disk.mount] = disk


def detach(disk: Disk) -> None:
    if _vfs is not None:
        _vfs.disks.pop(disk.mount, None)


def connection(disk: Disk, file: str) -> apsw.Connection:
    """A connection to a file of the disk; the only one, as there is no memory that several could share."""
    opened = apsw.Connection(f"/{disk.mount}/{file}", vfs=VFS, statementcachesize=512)
    opened.pragma("locking_mode", "exclusive")
    return opened
