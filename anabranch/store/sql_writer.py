"""The one writer of a store in SQL: append in groups, forget by plan.

Each public method is one transaction. `append` decides for a whole group in memory, in order, as if the operations
had come one by one, and then writes it with few, wide statements: the engine works on many rows a call, without the
interpreter's lock. What differs between SQLite and PostgreSQL is left to `SqliteWriter` and `PostgresWriter`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from anabranch.core import nostr, snapshots
from anabranch.core.nostr import Event
from anabranch.core.operation import Family, Operation, Removal, Standing, State, deleted_by, owners
from anabranch.core.token import START, Log, Position
from anabranch.store.contract import Advance, Duplicate, Lacking, Offer, Outcome, Refused, Stored, Superseded
from anabranch.store.sql import (
    NAMED_BY_MORE_THAN_HEARSAY,
    SHORT,
    SNAPSHOTS_OF_DOCUMENT,
    Database,
    belongings,
    chunks,
    decode_clock,
    evened,
    insert,
    marks,
    operations_by_id,
    reading,
    tag_keys,
    the_log,
    transaction,
)
from anabranch.store.sql_books import BookKeeper
from anabranch.store.sql_revisions import Edges, RevisionsOfGroup
from anabranch.store.sql_told import ToldKeeper

STORAGE_SPENT = Refused("restricted", "the access key's storage limit is reached")
DELETED = Refused("blocked", "deleted by its author")
VANISHED = Refused("blocked", "whom it belongs to has asked to vanish")
VANISH_AT_ONCE = 2_000  # operations; what is more goes in steps
HEADS_MAX = 1_000
FRESH_MAX = 8_192  # ids that are still in the small table
CROWDED = Refused("restricted", f"the document has {HEADS_MAX} concurrent versions already; merge them first")

_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(Event).decode

_OPERATION_COLUMNS = 18
_RETAINED = int(State.RETAINED)
_HEAD = 7  # the place in a row that a later operation of the same group may change


class _Head(msgspec.Struct, frozen=True, gc=False):
    position: int
    id: str
    created_at: int
    clock: Mapping[str, int]


class _Dropped(msgspec.Struct, frozen=True):
    """What has just lost its payload."""

    position: int
    size: int
    removal: Removal


def _sum(dropped: Sequence[_Dropped]) -> tuple[int, int]:
    return len(dropped), sum(one.size for one in dropped)


_MAY_BE_COMPACTED = f"head = 0 AND family <> 0 AND (r.position IS NULL OR {NAMED_BY_MORE_THAN_HEARSAY})"


class SqlWriter(BookKeeper, ToldKeeper):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._removals: list[Removal] = []
        self._remember()

    def _remember(self) -> None:
        """Read what every group would have to ask for."""
        self._fresh = int(self._value("SELECT count(*) FROM fresh_ids"))
        self._anything_deleted = bool(self._value("SELECT EXISTS (SELECT 1 FROM deletions)"))
        self._anything_removed = bool(
            self._value("SELECT EXISTS (SELECT 1 FROM removals) OR EXISTS (SELECT 1 FROM told)")
        )
        self._vanished: dict[str, int] = dict(self._all("SELECT author, until FROM vanished"))

    def close(self) -> None:
        self._db.close()

    def log(self) -> Log:
        with reading():
            return the_log(self._all("SELECT stream, epoch, floor, tip FROM log"))

    def make_ready(self) -> None:
        """Nothing, where a server sees to it."""

    def _all(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        return self._db.execute(sql, bindings).fetchall()

    def _value(self, sql: str, bindings: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, bindings)
        return rows[0][0] if rows else None

    # --- append ---

    def append(
        self, offers: Sequence[Offer], received_at: int, advance: Advance | None = None, epoch: str | None = None
    ) -> list[Outcome]:
        """Store a group. One outcome an offer, in order; when this returns, what is `Stored` is on disk.

        What `advance` makes of the outcomes is in the same transaction: a link's page and its checkpoint are one. So is
        the `epoch` that an import opens with the first that it stores; positions go on, and keep what they mean.
        """
        try:
            with self._changing():
                outcomes = _Group(self._db, received_at, self).append(offers)
                if self._fresh >= FRESH_MAX:
                    self._db.execute("INSERT INTO settled_ids SELECT short, position FROM fresh_ids ORDER BY short")
                    self._db.execute("DELETE FROM fresh_ids")
                    self._fresh = 0
                if advance is not None:
                    self._note(advance(outcomes))
                if epoch is not None and any(isinstance(outcome, Stored) for outcome in outcomes):
                    self._db.execute("UPDATE log SET epoch = ?", (epoch,))
                return outcomes
        except BaseException:
            self._remember()
            raise

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction; of what was rolled back nobody is told."""
        told = len(self._removals)
        try:
            with self._transaction():
                yield
        except BaseException:
            del self._removals[told:]
            raise

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    def take_removals(self) -> list[Removal]:
        """What has lost its payload since this was last asked, in the order of the log."""
        removals, self._removals = self._removals, []
        return removals

    # --- forgetting ---

    def compact(self, positions: Sequence[Position]) -> tuple[int, int]:
        """Drop the payloads at these positions, but of no head: a plan may have grown old. How many went, and bytes."""
        with self._changing():
            return _sum(self._drop(positions, State.COMPACTED, "compacted", _MAY_BE_COMPACTED))

    def remove(self, ids: Sequence[str]) -> int:
        """Remove operations for good: the operator's word."""
        with self._changing():
            positions = [
                row[0]
                for chunk in chunks([bytes.fromhex(id) for id in ids], 500)
                for row in self._all(f"SELECT o.position FROM {operations_by_id(len(chunk))}", chunk)
            ]
            return self._remove(positions, "removed by the relay's operator")

    def expire(self, now: int, limit: int) -> int:
        """Remove what has expired (NIP-40), at most `limit`."""
        with self._changing():
            rows = self._all(
                "SELECT position FROM operations INDEXED BY operation_expiring "
                "WHERE state = 0 AND expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at, position LIMIT ?",
                (now, limit),
            )
            return self._remove(sorted(row[0] for row in rows), "expired")

    def vanish(self, limit: int) -> int:
        """Remove what belongs to those who have asked to vanish (NIP-62), at most so much; 0 when all of it is gone."""
        with self._changing():
            tip, dropped = self._vanish(limit, self.log().tip)
            self._db.execute("UPDATE log SET tip = ?", (tip,))
            return len(dropped)

    def _vanish(self, limit: int, tip: int) -> tuple[int, list[_Dropped]]:
        """The tip after it, and what went."""
        gone: list[_Dropped] = []
        for author, until in self._all("SELECT author, until FROM vanished WHERE done = 0 ORDER BY author"):
            sql, bindings = belongings(author, until)
            rows = self._all(f"{sql} ORDER BY 1 LIMIT ?6", [*bindings, limit - len(gone)])
            dropped, tip = self._remove_for_good([row[0] for row in rows], "vanished", tip)
            gone += dropped
            if len(gone) >= limit:
                break
            self._db.execute("UPDATE vanished SET done = 1 WHERE author = ?", (author,))
        return tip, gone

    def _remove(self, positions: Sequence[int], reason: str) -> int:
        """Remove for good, within a transaction of its own."""
        dropped, tip = self._remove_for_good(positions, reason, self.log().tip)
        self._db.execute("UPDATE log SET tip = ?", (tip,))
        return len(dropped)

    def raise_floor(self, floor: Position) -> Position:
        """Move the floor up, never down, and at most to just above the tip. Where it stands now."""
        with self._changing():
            log = self.log()
            raised = max(log.floor, min(floor, Position(log.tip + 1)))
            self._db.execute("UPDATE log SET floor = ?", (raised,))
            return raised

    def forget(self, documents: Sequence[bytes]) -> int:
        """Let documents go altogether, facts and all, if still fully deleted and below the floor. How many went."""
        with self._changing():
            floor, forgotten = self.log().floor, 0
            for document in documents:
                rows = self._all(
                    f"SELECT position, head = 0 OR action = 1 OR state = 2 FROM {SNAPSHOTS_OF_DOCUMENT}", (document,)
                )
                positions = [row[0] for row in rows]
                told = self._value(
                    f"SELECT max(m.position) FROM {SNAPSHOTS_OF_DOCUMENT} "
                    "JOIN removals m ON m.target = snapshots.position",
                    (document,),
                )
                if positions and max(*positions, told or 0) < floor and all(deletes for _, deletes in rows):
                    self._drop(positions, State.REMOVED, "forgotten", "family = 1")
                    for chunk in chunks(positions, 500):
                        for table in ("fresh_ids", "settled_ids"):
                            self._db.execute(
                                f"DELETE FROM {table} WHERE (short, position) IN "
                                f"(SELECT substr(id,1,{SHORT}), position FROM operations "
                                f"WHERE position IN ({marks(chunk)}))",
                                chunk,
                            )
                        self._db.execute(f"DELETE FROM removals WHERE target IN ({marks(chunk)})", chunk)
                        self._db.execute(f"DELETE FROM operations WHERE position IN ({marks(chunk)})", chunk)
                    forgotten += 1
            return forgotten

    def new_epoch(self, beyond: Position = START) -> str:
        """Open a new epoch whose positions lie beyond all that were given before, so that no old checkpoint fits.

        The floor stands above the tip: who comes with a checkpoint of the old epoch is told to bootstrap.
        """
        epoch = str(uuid.uuid4())
        with self._changing():
            tip = max(self.log().tip, beyond) + 1
            self._db.execute("UPDATE log SET epoch = ?, tip = ?, floor = ?", (epoch, tip, tip + 1))
        return epoch

    def _drop(
        self, positions: Sequence[int], state: State, reason: str, condition: str = "1 = 1", hard: bool = False
    ) -> list[_Dropped]:
        """Take the payloads and the tag rows away from what meets the condition and is retained.

        A snapshot that was a head stays marked: it is known, and what its clock has superseded does not come back. A
        revision that is removed names nobody any more. A replaceable event has one version, and none when that is gone.
        """
        dropped: list[_Dropped] = []
        for chunk in chunks(positions, 200):
            rows = self._all(
                "SELECT o.position, o.created_at, o.size, o.access_key, p.raw, o.id, o.author, o.coordinate, "
                "r.recipient, r.revision, r.document FROM operations o JOIN payloads p ON p.position = o.position "
                "LEFT JOIN revisions r ON r.position = o.position "
                f"WHERE o.state = 0 AND ({condition}) AND o.position IN ({marks(chunk)}) ORDER BY o.position",
                chunk,
            )
            if not rows:
                continue
            gone = [row[0] for row in rows]
            those = marks(gone)
            self._db.executemany(
                "DELETE FROM tags WHERE tag = ? AND created_at = ? AND position = ?",
                [(key, row[1], row[0]) for row in rows for key in tag_keys(_decode_event(row[4]))],
            )
            self._db.execute(f"DELETE FROM payloads WHERE position IN ({those})", gone)
            self._db.execute(
                "UPDATE operations SET state = ?, head = CASE family WHEN 1 THEN head ELSE 0 END "
                f"WHERE position IN ({those})",
                (int(state), *gone),
            )
            self._db.execute(f"UPDATE revisions SET retained = 0, current = 0 WHERE position IN ({those})", gone)
            self._db.executemany(
                "UPDATE access_keys SET used_bytes = CASE WHEN used_bytes > ?1 THEN used_bytes - ?1 ELSE 0 END "
                "WHERE key = ?2",
                [(row[2], row[3]) for row in rows if row[3] is not None],
            )
            for row in rows:
                revision = None if row[9] is None else row[9].hex()
                removal = Removal(row[5].hex(), row[1], row[6].hex(), reason, None, row[8], row[7], revision, row[0])
                dropped.append(_Dropped(row[0], row[2], removal))
                if hard and revision is not None:
                    self._anything_removed = True
                    Edges(self._db, row[10]).removed(row[0])
                elif not hard:
                    self._removals.append(removal)
        return dropped

    def _remove_for_good(self, positions: Sequence[int], reason: str, tip: int) -> tuple[list[_Dropped], int]:
        """Remove what is retained at these positions; each removal takes a position after the tip. The tip after it."""
        dropped = self._drop(positions, State.REMOVED, reason, hard=True)
        rows: list[Any] = []
        for at, one in enumerate(dropped, start=tip + 1):
            rows += (at, one.position, one.removal.recipient, reason)
            self._removals.append(msgspec.structs.replace(one.removal, position=Position(at)))
        insert(self._db, "removals", 4, rows)
        return dropped, tip + len(dropped)


class _Group:
    """The decisions for one group, taken in order and written at once."""

    def __init__(self, db: Database, received_at: int, writer: SqlWriter) -> None:
        self._db = db
        self._writer = writer
        self._tip, self._reach, before = writer._all(
            "SELECT tip, bytes, (SELECT received_at FROM operations ORDER BY position DESC LIMIT 1) FROM log"
        )[0]
        self._received_at = max(received_at, before or 0)  # along the log time never goes back, whatever a clock does
        self._rows: list[Any] = []  # what this group adds, row after row
        self._row_of: dict[int, int] = {}  # where the row of a version begins, by position
        self._raws: list[Any] = []
        self._ids: list[Any] = []
        self._tags: list[Any] = []
        self._known: dict[bytes, State] = {}
        self._heads: dict[bytes, list[_Head]] = {}
        self._deletions: dict[tuple[bytes, bytes], int] = {}  # (target, author) → until when
        self._revisions = RevisionsOfGroup(db)
        self._to_vanish = VANISH_AT_ONCE  # however many ask in one group
        self._wrapped = False  # whether there is a revision in this group
        self._demoted: list[int] = []  # stored before this group, no head any more
        self._superseded: list[int] = []  # stored before this group, replaced by a newer version
        self._room: dict[str, int] = {}
        self._used: dict[str, int] = {}

    def append(self, offers: Sequence[Offer]) -> list[Outcome]:
        ids = [bytes.fromhex(offer.operation.event.id) for offer in offers]
        self._look_up(offers, ids)
        outcomes = [self._take(offer, id) for offer, id in zip(offers, ids, strict=True)]
        self._write()
        self._db.execute("UPDATE log SET tip = ?, bytes = ?", (self._tip, self._reach))
        return outcomes

    def _look_up(self, offers: Sequence[Offer], ids: Sequence[bytes]) -> None:
        """Read, with few statements, all that the decisions depend on."""
        for chunk in evened(ids):
            for row in self._writer._all(f"SELECT o.id, o.state FROM {operations_by_id(len(chunk))}", chunk):
                self._known[row[0]] = State(row[1])
        self._wrapped = any(offer.operation.revision is not None for offer in offers)
        if self._wrapped:
            self._revisions.look_up(offers, self._writer._anything_removed)
        documents = list(
            {op.document for offer in offers if (op := offer.operation).document is not None and op.revision is None}
        )
        for chunk in evened(documents):
            for row in self._writer._all(
                "SELECT document, position, id, created_at, clock FROM operations INDEXED BY head_by_document "
                f"WHERE head = 1 AND document IN ({marks(chunk)})",
                chunk,
            ):
                clock = {} if row[4] is None else decode_clock(row[4])
                self._heads.setdefault(row[0], []).append(_Head(row[1], row[2].hex(), row[3], clock))
        if self._writer._anything_deleted:
            targets = [*ids, *{op.document for offer in offers if (op := offer.operation).document is not None}]
            for some in evened(targets):
                for target, author, until in self._writer._all(
                    f"SELECT target, author, until FROM deletions WHERE target IN ({marks(some)})", some
                ):
                    self._deletions[target, author] = until
        for key in {offer.access_key for offer in offers if offer.access_key is not None}:
            for limit, used in self._writer._all(
                "SELECT storage_limit_bytes, used_bytes FROM access_keys WHERE key = ?", (key,)
            ):
                if limit is not None:
                    self._room[key] = limit - used

    def _take(self, offer: Offer, id: bytes) -> Outcome:
        operation, event = offer.operation, offer.operation.event
        state = self._known.get(id)
        if self._deletions and state in (None, State.REMOVED) and self._is_deleted(operation, id):
            return DELETED
        if state is None and operation.revision is not None:
            if self._revisions.is_stale(operation):
                self._write()
                self._revisions.look_again(operation)
            state = self._revisions.state(operation)
        if state is not None:
            return Duplicate(state)
        if self._writer._vanished and self._has_vanished(event):
            return VANISHED
        if offer.access_key is not None and self._room.get(offer.access_key, len(operation.raw)) < len(operation.raw):
            return STORAGE_SPENT
        for need in offer.needs:
            if bytes.fromhex(need) not in self._known:
                return Lacking("error", "what it needs is not stored", need)
        head = 0
        if operation.revision is not None:
            remaining_heads, demoted = self._revisions.advance(operation, self._tip + 1)
            if len(remaining_heads) > HEADS_MAX:
                return CROWDED
            head = int(self._revisions.add(operation, self._tip + 1, remaining_heads, demoted))
            self._demote(demoted)
        elif operation.document is not None:
            current = self._heads.get(operation.document, [])
            position = self._tip + 1
            version = _Head(position, event.id, event.created_at, operation.clock or {})
            if operation.family is Family.SNAPSHOT:
                remaining = snapshots.advance(current, version)
                head = int(remaining[-1:] == [version])
                if head and len(remaining) > HEADS_MAX:
                    return CROWDED
                kept = {one.position for one in remaining}
                self._demote(one.position for one in current if one.position not in kept)
                self._heads[operation.document] = remaining
            else:
                if any(nostr.newer(one.created_at, one.id, event.created_at, event.id) for one in current):
                    return Superseded()
                head = 1
                self._supersede(current)
                self._heads[operation.document] = [version]
        self._add(operation, id, head, offer.access_key)
        if operation.revision is not None and self._revisions.meets_removed(operation):
            self._write()
            self._revisions.settle(operation)
        if event.kind == nostr.DELETION and operation.family is Family.PLAIN:
            position = self._tip
            self._delete(event)
            return Stored(Position(position))
        if event.kind == nostr.VANISH and operation.standing is Standing.ORDINARY:
            position = self._tip
            self._vanish(event)
            return Stored(Position(position))
        return Stored(Position(self._tip))

    def _add(self, operation: Operation, id: bytes, head: int, access_key: str | None) -> None:
        event, size = operation.event, len(operation.raw)
        self._tip += 1
        self._reach += size
        self._known[id] = State.RETAINED
        if operation.document is not None:
            self._row_of[self._tip] = len(self._rows)
        self._rows += (
            self._tip,
            id,
            bytes.fromhex(event.pubkey),
            event.kind,
            event.created_at,
            int(operation.family),
            _RETAINED,
            head,
            int(operation.action),
            operation.document,
            operation.coordinate,
            operation.collection,
            None if operation.clock is None else _encode(operation.clock),
            operation.expires_at,
            size,
            self._reach,
            self._received_at,
            access_key,
        )
        self._raws += (self._tip, operation.raw)
        self._ids += (id[:SHORT], self._tip)
        if event.tags:
            for key in tag_keys(event):
                self._tags += (key, event.created_at, self._tip)
        if access_key is not None:
            self._used[access_key] = self._used.get(access_key, 0) + size
            if access_key in self._room:
                self._room[access_key] -= size

    def _demote(self, positions: Iterable[int]) -> None:
        for position in positions:
            if (row := self._row_of.get(position)) is not None:
                self._rows[row + _HEAD] = 0
            else:
                self._demoted.append(position)

    def _supersede(self, versions: Sequence[_Head]) -> None:
        if any(version.position in self._row_of for version in versions):
            self._write()  # replaced within its own group: rare, so it is written first and then replaced
        for version in versions:
            self._superseded.append(version.position)
            self._known[bytes.fromhex(version.id)] = State.REMOVED

    def _is_deleted(self, operation: Operation, id: bytes) -> bool:
        if operation.event.kind in (nostr.DELETION, nostr.VANISH):
            return False
        owners = {operation.event.pubkey}
        if operation.revision is not None and nostr.is_hex(operation.revision.recipient, 64):
            owners.add(operation.revision.recipient)
        for target in (id, operation.document):
            if target is not None:
                for author in owners:
                    until = self._deletions.get((target, bytes.fromhex(author)))
                    if until is not None and (target is id or operation.event.created_at <= until):
                        return True
        return False

    def _has_vanished(self, event: Event) -> bool:
        """Whether it belongs to somebody who has asked to vanish since: written by them, or wrapped for them."""
        return any(event.created_at <= self._writer._vanished.get(owner, -1) for owner in owners(event))

    def _vanish(self, request: Event) -> None:
        """Carry out a request to vanish (NIP-62): what was theirs goes, and does not come back."""
        self._write()
        until = max(request.created_at, self._writer._vanished.get(request.pubkey, -1))
        self._writer._vanished[request.pubkey] = until
        self._db.execute(
            "INSERT INTO vanished VALUES (?, ?, 0) "
            "ON CONFLICT (author) DO UPDATE SET until = excluded.until, done = excluded.done",
            (request.pubkey, until),
        )
        if self._to_vanish > 0:
            self._tip, dropped = self._writer._vanish(self._to_vanish, self._tip)
            self._to_vanish -= len(dropped)
            self._gone(dropped)

    def _gone(self, dropped: Sequence[_Dropped]) -> None:
        """What this group knew of may just have lost its payload."""
        positions = {one.position for one in dropped}
        for one in dropped:
            self._known[bytes.fromhex(one.removal.id)] = State.REMOVED
        if removed := [one.removal for one in dropped if one.removal.revision is not None]:
            self._revisions.removed(removed)
        for document, current in self._heads.items():  # of what can be replaced; snapshots stay where they are
            if any(head.position in positions for head in current) and not any(head.clock for head in current):
                self._heads[document] = [head for head in current if head.position not in positions]

    def _delete(self, deletion: Event) -> None:
        """Carry out a deletion (NIP-09): one's own events by id, one's own documents up to its time."""
        self._write()
        author = bytes.fromhex(deletion.pubkey)
        positions: list[int] = []
        targets: list[tuple[bytes, bytes, int]] = []
        ids, documents = deleted_by(deletion)
        for target in ids:
            targets.append((target, author, nostr.TIMESTAMP_MAX))
            positions += [
                row[0]
                for row in self._writer._all(
                    f"SELECT o.position FROM {operations_by_id(1)} AND o.kind NOT IN (?2, ?3) AND o.state = 0 AND "
                    "(o.author = ?4 OR (SELECT r.recipient FROM revisions r WHERE r.position = o.position) = ?5)",
                    (target, nostr.DELETION, nostr.VANISH, author, deletion.pubkey),
                )
            ]
        for target in documents:
            targets.append((target, author, deletion.created_at))
            positions += [
                row[0]
                for row in self._writer._all(
                    "SELECT position FROM operations INDEXED BY head_by_document "
                    "WHERE head = 1 AND document = ? AND created_at <= ?",
                    (target, deletion.created_at),
                )
            ]
        self._db.executemany(
            "INSERT INTO deletions VALUES (?, ?, ?) "
            "ON CONFLICT (target, author) DO UPDATE SET until = excluded.until WHERE excluded.until > deletions.until",
            targets,
        )
        for target, _, until in targets:
            self._deletions[target, author] = max(until, self._deletions.get((target, author), until))
        self._writer._anything_deleted |= bool(targets)
        dropped, self._tip = self._writer._remove_for_good(positions, DELETED.reason, self._tip)
        if dropped:
            self._gone(dropped)

    def _write(self) -> None:
        db = self._db
        insert(db, "operations", _OPERATION_COLUMNS, self._rows)
        insert(db, "payloads", 2, self._raws)
        insert(db, "fresh_ids", 2, self._ids)
        insert(db, "tags", 3, self._tags)
        if self._wrapped:
            self._revisions.write()
        for chunk in evened(self._demoted):
            db.execute(f"UPDATE operations SET head = 0 WHERE position IN ({marks(chunk)})", chunk)
        if self._superseded:
            self._writer._drop(self._superseded, State.REMOVED, "superseded")
        for key, used in self._used.items():
            db.execute("UPDATE access_keys SET used_bytes = used_bytes + ? WHERE key = ?", (used, key))
        self._writer._fresh += len(self._ids) // 2
        self._rows, self._row_of, self._raws, self._ids, self._tags = [], {}, [], [], []
        self._demoted, self._superseded, self._used = [], [], {}
