"""What a store in SQL keeps beside the log: access keys, settings, and the ledger of links.

The writer's half is `BookKeeper`, the reader's `BookReader`; both work on the connection of the class that they belong
to. A step of a link may be written in the transaction of an append: a page and its checkpoint are on disk together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.token import Position
from anabranch.store.contract import (
    DEAD_LETTERS_MAX,
    KEYS_ASKED_FOR,
    TRANSITIONS_KEPT,
    AccessKey,
    DeadLetter,
    LinkChange,
    LinkRecord,
    Transition,
)
from anabranch.store.sql import Database, evened, operations_by_id

_encode = msgspec.json.Encoder().encode
_record = msgspec.json.Decoder(LinkRecord).decode
_checkpoint = msgspec.json.Decoder(Checkpoint).decode
_transition = msgspec.json.Decoder(Transition).decode
_NOWHERE = Checkpoint()


class BookKeeper:
    """Every public method is one transaction."""

    _db: Database

    def _changing(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _all(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError

    def save_access_key(self, key: AccessKey) -> None:
        with self._changing():
            self._set(KEYS_ASKED_FOR, b"true")
            self._db.execute(
                "INSERT INTO access_keys (key, label, pubkey, created_at, expires_at, revoked, storage_limit_bytes) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET label = excluded.label, "
                "pubkey = excluded.pubkey, expires_at = excluded.expires_at, revoked = excluded.revoked, "
                "storage_limit_bytes = excluded.storage_limit_bytes",
                (
                    key.key,
                    key.label,
                    key.pubkey,
                    key.created_at,
                    key.expires_at,
                    int(key.revoked),
                    key.storage_limit_bytes,
                ),
            )

    def delete_access_key(self, key: str) -> bool:
        with self._changing():
            found = bool(self._all("DELETE FROM access_keys WHERE key = ? RETURNING key", (key,)))
            if found:
                self._set(KEYS_ASKED_FOR, b"true")
            return found

    def save_setting(self, name: str, value: bytes) -> None:
        with self._changing():
            self._set(name, value)

    def _set(self, name: str, value: bytes) -> None:
        self._db.execute(
            "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    # --- links ---

    def save_link(self, link: LinkRecord) -> None:
        """Everything but its checkpoints, which move by `note_link` and `append` alone."""
        known = msgspec.structs.replace(link, pull=_NOWHERE, push=_NOWHERE)
        with self._changing():
            self._db.execute(
                "INSERT INTO links VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record",
                (link.name, _encode(known), _encode(link.pull), _encode(link.push)),
            )

    def note_link(self, change: LinkChange) -> None:
        """Write a step of a link; of a link that is not there nothing is written."""
        with self._changing():
            self._note(change)

    def _note(self, change: LinkChange) -> None:
        link = change.link
        if not self._all("SELECT 1 FROM links WHERE name = ?", (link,)):
            return
        if change.pull is not None:
            self._db.execute("UPDATE links SET pull = ? WHERE name = ?", (_encode(change.pull), link))
        if change.push is not None:
            self._db.execute("UPDATE links SET push = ? WHERE name = ?", (_encode(change.push), link))
            if change.push.contiguous is not None:
                passed = change.push.contiguous.position
                self._db.execute("DELETE FROM echoes WHERE link = ? AND position <= ?", (link, passed))
        self._db.executemany(
            "INSERT INTO echoes SELECT name, ? FROM links WHERE name = ? ON CONFLICT (link, position) DO NOTHING",
            [(position, other) for other in change.echo_for for position in change.echoes],
        )
        if change.taken and self._all("SELECT 1 FROM dead_letters WHERE link = ? LIMIT 1", (link,)):
            self._db.executemany(
                "DELETE FROM dead_letters WHERE link = ? AND direction = ? AND id = ?",
                [(link, direction, id) for direction, id in change.taken],
            )
        if change.dead:
            dead = self._with_room(link, change.dead)
            self._db.executemany(
                "INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (link, direction, id) DO UPDATE SET reason = excluded.reason, at = excluded.at",
                [(link, one.direction, one.id, one.reason, one.at) for one in dead],
            )
        if change.transition is not None:
            self._drop_same_before(link, change.transition)
            self._db.execute(
                "INSERT INTO link_transitions (link, transition) VALUES (?, ?)", (link, _encode(change.transition))
            )
            self._db.execute(
                "DELETE FROM link_transitions WHERE link = ?1 AND number NOT IN "
                "(SELECT number FROM link_transitions WHERE link = ?1 ORDER BY number DESC LIMIT ?2)",
                (link, TRANSITIONS_KEPT),
            )

    def _drop_same_before(self, link: str, turn: Transition) -> None:
        """What leads back to where it was, again and again, is one row: those from before it began are not lost."""
        if turn.before != turn.after:
            return
        sql = "SELECT number, transition FROM link_transitions WHERE link = ? ORDER BY number DESC LIMIT 1"
        for number, encoded in self._all(sql, (link,)):
            last = _transition(encoded)
            if (last.before, last.after, last.cue) == (turn.before, turn.after, turn.cue):
                self._db.execute("DELETE FROM link_transitions WHERE number = ?", (number,))

    def _with_room(self, link: str, dead: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those that are there already, with what is new of them, and of the others as many as there is room for."""
        room = DEAD_LETTERS_MAX - self._all("SELECT count(*) FROM dead_letters WHERE link = ?", (link,))[0][0]
        if len(dead) <= room:
            return dead
        sql = "SELECT 1 FROM dead_letters WHERE link = ? AND direction = ? AND id = ?"
        found: dict[bool, list[DeadLetter]] = {True: [], False: []}
        for one in dead:
            found[bool(self._all(sql, (link, one.direction, one.id)))].append(one)
        return found[True] + found[False][: max(room, 0)]

    def delete_link(self, name: str) -> bool:
        with self._changing():
            self._forget(name)
            self._db.execute("DELETE FROM link_transitions WHERE link = ?", (name,))
            return bool(self._all("DELETE FROM links WHERE name = ? RETURNING name", (name,)))

    def forget_link(self, name: str) -> None:
        """Begin anew: no checkpoints, no dead letters, no echoes."""
        with self._changing():
            self._forget(name)

    def _forget(self, name: str) -> None:
        nowhere = _encode(_NOWHERE)
        self._db.execute("UPDATE links SET pull = ?1, push = ?1 WHERE name = ?2", (nowhere, name))
        self._db.execute("DELETE FROM echoes WHERE link = ?", (name,))
        self._db.execute("DELETE FROM dead_letters WHERE link = ?", (name,))

    def retry_dead_letters(self, link: str) -> int:
        """Forget what was refused, so that it is tried again; how many that was."""
        with self._changing():
            return len(self._all("DELETE FROM dead_letters WHERE link = ? RETURNING id", (link,)))


class BookReader:
    def _rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError

    def access_keys(self) -> list[AccessKey]:
        rows = self._rows(
            "SELECT key, label, pubkey, created_at, expires_at, revoked, storage_limit_bytes, used_bytes "
            "FROM access_keys ORDER BY created_at, key"
        )
        return [AccessKey(row[0], row[1], row[2], row[3], row[4], bool(row[5]), row[6], row[7]) for row in rows]

    def setting(self, name: str) -> bytes | None:
        rows = self._rows("SELECT value FROM settings WHERE name = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    # --- links ---

    def links(self) -> list[LinkRecord]:
        rows = self._rows("SELECT record, pull, push FROM links ORDER BY name")
        return [
            msgspec.structs.replace(_record(record), pull=_checkpoint(pull), push=_checkpoint(push))
            for record, pull, push in rows
        ]

    def dead_letters(self, link: str, limit: int = DEAD_LETTERS_MAX) -> list[DeadLetter]:
        rows = self._rows(
            "SELECT direction, id, reason, at FROM dead_letters WHERE link = ? ORDER BY at, id LIMIT ?", (link, limit)
        )
        return [DeadLetter(*row) for row in rows]

    def dead_letter_count(self, link: str) -> int:
        return int(self._rows("SELECT count(*) FROM dead_letters WHERE link = ?", (link,))[0][0])

    def transitions(self, link: str) -> list[Transition]:
        """The last ones, oldest first."""
        rows = self._rows("SELECT transition FROM link_transitions WHERE link = ? ORDER BY number", (link,))
        return [_transition(row[0]) for row in rows]

    def echoes(self, link: str, after: Position, until: Position) -> set[Position]:
        """Which operations of a stretch came from the peer that the link feeds."""
        rows = self._rows(
            "SELECT position FROM echoes WHERE link = ? AND position > ? AND position <= ?", (link, after, until)
        )
        return {Position(row[0]) for row in rows}

    def known(self, ids: Sequence[str]) -> set[str]:
        """Which of these operations are stored, whatever became of their payloads."""
        return {
            row[0].hex()
            for chunk in evened([bytes.fromhex(id) for id in ids])
            for row in self._rows(f"SELECT o.id FROM {operations_by_id(len(chunk))}", chunk)
        }
