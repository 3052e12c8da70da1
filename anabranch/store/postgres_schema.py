"""The tables of the PostgreSQL store, as migrations that only ever go forward.

They are those of `schema`, column by column, in PostgreSQL's types. Where SQLite's indexes end with the position
without saying so, these say so. What would tempt the planner to walk through everything is indexed under an expression
that only those statements have which are to use it (`postgres_connection.translated`). `home` tells where the log was
written last, so that a copy of it is known as one.
"""

from __future__ import annotations

import re
import uuid

from anabranch.store import schema
from anabranch.store.contract import StoreError
from anabranch.store.postgres_connection import PostgresConnection
from anabranch.store.sql import transaction

MIGRATIONS = [
    """
    CREATE TABLE log (
        "only" bigint PRIMARY KEY CHECK ("only" = 1),
        stream text NOT NULL,
        epoch text NOT NULL,
        floor bigint NOT NULL,
        tip bigint NOT NULL,
        bytes bigint NOT NULL
    );
    CREATE TABLE home (
        place text NOT NULL
    );

    CREATE TABLE operations (
        position bigint PRIMARY KEY,
        id bytea NOT NULL,
        author bytea NOT NULL,
        kind bigint NOT NULL,
        created_at bigint NOT NULL,
        family bigint NOT NULL,
        state bigint NOT NULL,
        head bigint NOT NULL,
        action bigint NOT NULL,
        document bytea,
        coordinate text COLLATE "C",
        collection text COLLATE "C",
        clock bytea,
        expires_at bigint,
        size bigint NOT NULL,
        reach bigint NOT NULL,
        received_at bigint NOT NULL,
        access_key text COLLATE "C"
    );
    CREATE INDEX operation_by_author ON operations (author, created_at) WHERE state = 0;
    CREATE INDEX operation_by_kind ON operations ((kind + 0), created_at) WHERE state = 0;
    CREATE INDEX operation_by_time ON operations ((created_at + 0)) WHERE state = 0;
    CREATE INDEX operation_expiring ON operations (expires_at) WHERE state = 0 AND expires_at IS NOT NULL;
    CREATE INDEX feed ON operations (author, position) WHERE family = 1;
    CREATE INDEX history ON operations (document, state) WHERE family = 1 AND head = 0;
    CREATE INDEX head_by_document ON operations (document) WHERE head = 1;
    CREATE INDEX head_by_author ON operations (author, created_at, id) WHERE head = 1 AND family = 1 AND state = 0;
    CREATE INDEX tombstone_by_author ON operations (author, document)
        WHERE head = 1 AND family = 1 AND action = 1 AND state = 0;

    CREATE TABLE fresh_ids (
        short bytea NOT NULL,
        position bigint NOT NULL,
        PRIMARY KEY (short, position)
    );
    CREATE TABLE settled_ids (
        short bytea NOT NULL,
        position bigint NOT NULL,
        PRIMARY KEY (short, position)
    );

    CREATE TABLE payloads (
        position bigint PRIMARY KEY,
        raw bytea NOT NULL
    );

    CREATE TABLE tags (
        tag bytea NOT NULL,
        created_at bigint NOT NULL,
        position bigint NOT NULL,
        PRIMARY KEY (tag, created_at, position)
    );

    CREATE TABLE deletions (
        target bytea NOT NULL,
        author bytea NOT NULL,
        until bigint NOT NULL,
        PRIMARY KEY (target, author)
    );

    CREATE TABLE access_keys (
        key text COLLATE "C" PRIMARY KEY,
        label text NOT NULL,
        pubkey text,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked bigint NOT NULL,
        storage_limit_bytes bigint,
        used_bytes bigint NOT NULL DEFAULT 0
    );

    CREATE TABLE settings (
        name text COLLATE "C" PRIMARY KEY,
        value bytea NOT NULL
    );

    CREATE TABLE revisions (
        position bigint PRIMARY KEY,
        document bytea NOT NULL,
        revision bytea NOT NULL,
        recipient text COLLATE "C" NOT NULL,
        mtime bigint NOT NULL,
        parents bytea NOT NULL,
        retained bigint NOT NULL,
        current bigint NOT NULL
    );
    CREATE INDEX revision_identity ON revisions (document, revision);
    CREATE INDEX revision_feed ON revisions (left(recipient, 64), position);
    CREATE INDEX revision_by_name ON revisions (revision);
    CREATE INDEX revision_current ON revisions (left(recipient, 64), mtime, revision) WHERE current = 1;
    CREATE INDEX revision_history ON revisions (mtime) WHERE retained = 1 AND current = 0;
    CREATE INDEX revision_retained ON revisions (mtime) WHERE retained = 1;

    CREATE TABLE parents (
        document bytea NOT NULL,
        parent bytea NOT NULL,
        child bigint NOT NULL,
        PRIMARY KEY (document, parent, child)
    );

    CREATE TABLE removals (
        position bigint PRIMARY KEY,
        target bigint NOT NULL,
        recipient text COLLATE "C",
        reason text NOT NULL
    );
    CREATE INDEX removal_feed ON removals (left(recipient, 64), position) WHERE recipient IS NOT NULL;
    CREATE INDEX removal_by_target ON removals (target);

    CREATE TABLE vanished (
        author text COLLATE "C" PRIMARY KEY,
        until bigint NOT NULL,
        done bigint NOT NULL
    );

    CREATE TABLE links (
        name text COLLATE "C" PRIMARY KEY,
        record bytea NOT NULL,
        pull bytea NOT NULL,
        push bytea NOT NULL
    );

    CREATE TABLE link_transitions (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        link text COLLATE "C" NOT NULL,
        transition bytea NOT NULL
    );
    CREATE INDEX transition_by_link ON link_transitions (link, number);

    CREATE TABLE dead_letters (
        link text COLLATE "C" NOT NULL,
        direction text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        reason text NOT NULL,
        at bigint NOT NULL,
        PRIMARY KEY (link, direction, id)
    );

    CREATE TABLE echoes (
        link text COLLATE "C" NOT NULL,
        position bigint NOT NULL,
        PRIMARY KEY (link, position)
    );
    """,
    """
    CREATE TABLE told (
        number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        document bytea NOT NULL,
        revision bytea NOT NULL,
        recipient text COLLATE "C" NOT NULL,
        coordinate text COLLATE "C" NOT NULL,
        parents bytea NOT NULL,
        UNIQUE (document, revision)
    );
    CREATE INDEX told_by_name ON told (revision);
    """,
]
VERSION = len(MIGRATIONS)
INDEXES = re.findall(r"CREATE INDEX (\w+)", "".join(MIGRATIONS))
TABLES = re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS))


def version_of(db: PostgresConnection) -> int:
    """Which schema is there; 0 for none."""
    if db.execute("SELECT to_regclass('anabranch_schema') IS NULL").fetchall()[0][0]:
        return 0
    return int(db.execute("SELECT version FROM anabranch_schema").fetchall()[0][0])


def migrate(db: PostgresConnection) -> None:
    """Bring the database to this release's schema; each step is a transaction of its own."""
    version = version_of(db)
    if version > VERSION:
        raise StoreError(schema.unreadable(db.address.place, version, VERSION))
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        with transaction(db):
            db.script(script)
            if number == 1:
                db.execute("CREATE TABLE anabranch_schema (version bigint NOT NULL)")
                db.execute("INSERT INTO anabranch_schema VALUES (0)")
                db.execute("INSERT INTO log VALUES (1, ?, ?, 1, 0, 0)", (str(uuid.uuid4()), str(uuid.uuid4())))
            db.execute("UPDATE anabranch_schema SET version = ?", (number,))
