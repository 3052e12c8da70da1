"""The tables of a replica's file.

The file holds signed events as relays hold them: payloads are ciphertext, so whoever finds it learns what a relay
knows (names, clocks, times, sizes) and no text. Access keys of relays stand in it too; its mode is 0600.

`versions` has every version that is known: heads, a bounded history, and of revisions the bare facts of what was let
go (`raw` is null), because edges must outlive bodies. What a relay is owed follows from `seen` and is stored nowhere.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from anabranch.client.errors import FileFailed, WrongReplica

if TYPE_CHECKING:
    from collections.abc import Iterator

APPLICATION = 0x416E6162  # "Anab"
VERSION = 2
BUSY_MILLISECONDS = 10_000

RELAYS = """
CREATE TABLE relays (
  relay INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: who still follows a removed one must notice
  url TEXT NOT NULL UNIQUE,
  access_key TEXT,
  stream TEXT, epoch TEXT, position INTEGER,  -- the checkpoint; null before the first bootstrap
  dropped INTEGER NOT NULL DEFAULT 0,
  last_dropped TEXT
);
"""

INDEXES = """
CREATE INDEX named ON parents (parent);
CREATE INDEX claims ON seen (relay, number) WHERE event IS NULL;
"""

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE versions (
  number INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which this file learned of them
  version TEXT NOT NULL UNIQUE,
  event TEXT NOT NULL,                       -- the id of the signed event that is kept
  d TEXT NOT NULL,
  head INTEGER NOT NULL,
  own INTEGER NOT NULL,                      -- written here
  deletes INTEGER NOT NULL,
  mtime INTEGER NOT NULL,
  collection TEXT,
  weight INTEGER NOT NULL,                   -- the sum of the clock: of two of the same second, the later has more
  clock TEXT,                                -- JSON; null for revisions
  raw BLOB                                   -- the signed event; null once it was let go
);
CREATE INDEX heads ON versions (d) WHERE head = 1;
CREATE INDEX history ON versions (d, mtime, weight, version) WHERE head = 0 AND raw IS NOT NULL;
CREATE INDEX wraps ON versions (event) WHERE clock IS NULL;  -- of revisions: a relay's removals name events
CREATE INDEX tombstones ON versions (mtime) WHERE head = 1 AND deletes = 1;

CREATE TABLE parents (d TEXT, parent TEXT, child TEXT, PRIMARY KEY (d, parent, child)) WITHOUT ROWID;
CREATE INDEX children ON parents (child);
CREATE TABLE missing (version TEXT PRIMARY KEY) WITHOUT ROWID;  -- named as parents and not here

RELAYS
-- What a relay was seen to have: under which event id (null: it says so, and did not show it; of snapshots that is
-- enough), and why it removed it, if it did.
CREATE TABLE seen (relay INTEGER, number INTEGER, event TEXT, removed TEXT, PRIMARY KEY (relay, number)) WITHOUT ROWID;
CREATE TABLE refused (relay INTEGER, number INTEGER, reason TEXT NOT NULL, PRIMARY KEY (relay, number)) WITHOUT ROWID;
-- Ancestors that a relay was asked for in vain.
CREATE TABLE absent (relay INTEGER, version TEXT, status TEXT NOT NULL, PRIMARY KEY (relay, version)) WITHOUT ROWID;
INDEXES""".replace("RELAYS", RELAYS).replace("INDEXES", INDEXES)

AFTER_1 = f"""
ALTER TABLE relays RENAME TO relays_1;
{RELAYS}
INSERT INTO relays SELECT relay, url, access_key, stream, epoch, position, dropped, last_dropped FROM relays_1;
DROP TABLE relays_1;
{INDEXES}
"""


def connect(path: Path) -> apsw.Connection:
    """The file, made if it is not there, readable by its owner only."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = apsw.Connection(str(path), statementcachesize=256)
        db.set_busy_timeout(BUSY_MILLISECONDS)
        if db.pragma("journal_mode") != "wal":
            db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "FULL")  # what put() has returned from is on disk
        db.pragma("cache_size", -16_384)
        db.pragma("temp_store", "memory")
        with transaction(db):
            _migrate(db, path)
    except (apsw.Error, OSError) as error:
        raise FileFailed(f"cannot open {path}: {error}") from error
    return db


def _migrate(db: apsw.Connection, path: Path) -> None:
    found, application = db.pragma("user_version"), db.pragma("application_id")
    if found == 0 and application == 0 and not db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get:
        db.execute(TABLES)
        db.pragma("application_id", APPLICATION)
        db.pragma("user_version", VERSION)
    elif application != APPLICATION:
        raise WrongReplica(f"{path} is a database, but no replica; choose another file")
    elif found > VERSION:
        raise WrongReplica(f"{path} was written by a newer Anabranch; update this one")
    elif found < VERSION:
        db.execute(AFTER_1)
        db.pragma("user_version", VERSION)


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on any exception. What SQLite cannot do is `FileFailed`."""
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise FileFailed(f"nothing was changed: {error}") from error
