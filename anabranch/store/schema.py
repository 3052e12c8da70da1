"""The tables of the SQLite store, as migrations that only ever go forward.

`operations` has the facts, which outlive compaction; `payloads` has the signed bytes. The indexes that serve
queries are partial: they hold only what is retained, so that compaction pays for itself at once. The tables that
every event is written to are not STRICT: checking the types of what our one writer writes took a quarter of its time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import apsw

from anabranch.store import upgrade

MIGRATIONS = [
    """
    CREATE TABLE log (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        stream TEXT NOT NULL,
        epoch TEXT NOT NULL,
        floor INTEGER NOT NULL,       -- the first position that is still replayable
        tip INTEGER NOT NULL,         -- the last position given; never reused, even when its row is gone
        bytes INTEGER NOT NULL        -- payload bytes ever appended: the log's length
    ) STRICT;

    CREATE TABLE operations (
        position INTEGER PRIMARY KEY,
        id BLOB NOT NULL,
        author BLOB NOT NULL,
        kind INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        family INTEGER NOT NULL,
        state INTEGER NOT NULL,
        head INTEGER NOT NULL,
        action INTEGER NOT NULL,
        document BLOB,
        coordinate TEXT,
        collection TEXT,
        clock BLOB,                   -- JSON object, snapshots only
        expires_at INTEGER,
        size INTEGER NOT NULL,
        reach INTEGER NOT NULL,       -- the log's length in bytes with this operation
        received_at INTEGER NOT NULL, -- milliseconds
        access_key TEXT
    );
    CREATE INDEX operation_by_author ON operations (author, created_at) WHERE state = 0;
    CREATE INDEX operation_by_kind ON operations (kind, created_at) WHERE state = 0;
    CREATE INDEX operation_by_time ON operations (created_at) WHERE state = 0;
    CREATE INDEX operation_expiring ON operations (expires_at) WHERE state = 0 AND expires_at IS NOT NULL;
    CREATE INDEX feed ON operations (author) WHERE family = 1;
    CREATE INDEX history ON operations (document, state) WHERE family = 1 AND head = 0;
    CREATE INDEX head_by_document ON operations (document) WHERE head = 1;
    CREATE INDEX head_by_author ON operations (author, created_at, id) WHERE head = 1 AND family = 1 AND state = 0;
    CREATE INDEX tombstone_by_author ON operations (author, document)
        WHERE head = 1 AND family = 1 AND action = 1 AND state = 0;

    -- Which position an id has: its first eight bytes, in two tables. Ids are random, so every one of a group falls on
    -- another page of a large index, and all those pages would be written with every commit. New ids go into the small
    -- table, and from there into the large one, thousands at a time. The writer sees to it that ids are unique.
    CREATE TABLE fresh_ids (
        short BLOB NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (short, position)
    ) WITHOUT ROWID;
    CREATE TABLE settled_ids (
        short BLOB NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (short, position)
    ) WITHOUT ROWID;

    CREATE TABLE payloads (
        position INTEGER PRIMARY KEY,
        raw BLOB NOT NULL
    );

    CREATE TABLE tags (
        tag BLOB NOT NULL,            -- the name's letter and the value
        created_at INTEGER NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (tag, created_at, position)
    ) WITHOUT ROWID;

    CREATE TABLE deletions (          -- what an author has deleted, seen or not (NIP-09)
        target BLOB NOT NULL,         -- an operation's id, or a document
        author BLOB NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (target, author)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE access_keys (
        key TEXT PRIMARY KEY,
        label TEXT NOT NULL,
        pubkey TEXT,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked INTEGER NOT NULL,
        storage_limit_bytes INTEGER,
        used_bytes INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE settings (
        name TEXT PRIMARY KEY,
        value BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE revisions (          -- what a revision is beside an operation
        position INTEGER PRIMARY KEY,
        document BLOB NOT NULL,
        revision BLOB NOT NULL,
        recipient TEXT NOT NULL,
        mtime INTEGER NOT NULL,       -- milliseconds
        parents BLOB NOT NULL,        -- 32 bytes each
        retained INTEGER NOT NULL,    -- its payload is there
        current INTEGER NOT NULL      -- and it is a head
    );
    CREATE INDEX revision_identity ON revisions (document, revision);
    CREATE INDEX revision_feed ON revisions (recipient);
    CREATE INDEX revision_by_name ON revisions (revision);
    CREATE INDEX revision_current ON revisions (recipient, mtime, revision) WHERE current = 1;
    CREATE INDEX revision_history ON revisions (mtime) WHERE retained = 1 AND current = 0;
    CREATE INDEX revision_retained ON revisions (mtime) WHERE retained = 1;

    CREATE TABLE parents (            -- which revisions of a document are named as parents, there or not, and by whom
        document BLOB NOT NULL,
        parent BLOB NOT NULL,
        child INTEGER NOT NULL,       -- its position
        PRIMARY KEY (document, parent, child)
    ) WITHOUT ROWID;

    CREATE TABLE removals (           -- hard removals of revisions, each at a position of its own
        position INTEGER PRIMARY KEY,
        target INTEGER NOT NULL,      -- the position of what was removed
        recipient TEXT NOT NULL,
        reason TEXT NOT NULL
    );
    CREATE INDEX removal_feed ON removals (recipient);

    CREATE TABLE vanished (           -- who has asked to vanish, and until when (NIP-62)
        author TEXT PRIMARY KEY,
        until INTEGER NOT NULL,
        done INTEGER NOT NULL         -- everything of theirs up to then is gone
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE hard_removals (      -- of every family, each at a position of its own
        position INTEGER PRIMARY KEY,
        target INTEGER NOT NULL,      -- the position of what was removed
        recipient TEXT,               -- of a revision, whose feed tells of it
        reason TEXT NOT NULL
    );
    INSERT INTO hard_removals SELECT position, target, recipient, reason FROM removals;
    DROP TABLE removals;
    ALTER TABLE hard_removals RENAME TO removals;
    CREATE INDEX removal_feed ON removals (recipient) WHERE recipient IS NOT NULL;
    CREATE INDEX removal_by_target ON removals (target);
    """,
    """
    CREATE TABLE links (              -- whom this node follows and feeds
        name TEXT PRIMARY KEY,
        record BLOB NOT NULL,         -- JSON: what it is, and how it stands
        pull BLOB NOT NULL,           -- JSON: how far each direction has come, and what is pending
        push BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE link_transitions (   -- the last few of each link
        number INTEGER PRIMARY KEY,
        link TEXT NOT NULL,
        transition BLOB NOT NULL      -- JSON
    ) STRICT;
    CREATE INDEX transition_by_link ON link_transitions (link, number);

    CREATE TABLE dead_letters (       -- what one side of a link refuses for good
        link TEXT NOT NULL,
        direction TEXT NOT NULL,
        id TEXT NOT NULL,
        reason TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (link, direction, id)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE echoes (             -- what came from the peer that a link feeds, until the link has passed it
        link TEXT NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (link, position)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE told (               -- revisions that are only heard of, from a peer that has compacted them
        number INTEGER PRIMARY KEY,   -- among the parents' children it is negative, where others have a position
        document BLOB NOT NULL,
        revision BLOB NOT NULL,
        recipient TEXT NOT NULL,
        coordinate TEXT NOT NULL,
        parents BLOB NOT NULL,        -- 32 bytes each
        UNIQUE (document, revision)
    ) STRICT;
    CREATE INDEX told_by_name ON told (revision);
    """,
]
VERSION = len(MIGRATIONS)


class NewerSchema(Exception):
    """The file was written by a later release."""


def unreadable(place: str, version: int, known: int = VERSION) -> str:
    """Why a store of another version is not read, and what to do."""
    return f"{place} has schema {version}, and this release reads {known}: " + (
        "use the newer release" if version > known else "start a node on it once to bring it up"
    )


@cache
def parts() -> dict[str, str]:
    """Every table and index that a store of this release has, by name, and how it is defined."""
    connection = apsw.Connection(":memory:")
    try:
        migrate(connection, stream="", epoch="")
        return defined(connection)
    finally:
        connection.close()


def defined(connection: apsw.Connection) -> dict[str, str]:
    """The tables and indexes that somebody has defined, by name."""
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'")
    return {str(name): str(sql) for name, sql in rows}


def check(path: Path) -> None:
    """Raise `NewerSchema` for a file that a later release has written, before anything touches it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        version = int(connection.pragma("user_version"))
    finally:
        connection.close()
    if version > VERSION:
        raise NewerSchema(f"schema {version}, and this release knows {VERSION}; use the newer release")


def migrate(connection: apsw.Connection, stream: str, epoch: str) -> None:
    """Bring the file to this release's schema; each step is a transaction of its own."""
    version = int(connection.pragma("user_version"))
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        with connection:
            for _ in connection.execute(script):
                pass
            if number == 1:
                connection.execute("INSERT INTO log VALUES (1, ?, ?, 1, 0, 0)", (stream, epoch))
            if number == 2:
                upgrade.adopt_revisions(connection)
            connection.pragma("user_version", number)
