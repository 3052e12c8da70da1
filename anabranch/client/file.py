"""A replica's file: versions, heads and history, and what is known of every relay.

Every write is one transaction that ends on disk. `write` makes a version in sight of the heads it reads in the same
transaction, so two processes on one file never overlook each other. `apply` takes a page of versions and moves the
relay's checkpoint together with it: either both are there after a crash or neither. What relays have and are owed
is in `ledger`. Not for several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from anabranch.client import schema
from anabranch.client.document import Change, ChangeKind
from anabranch.client.errors import NoSuchRelay, WrongReplica
from anabranch.client.schema import transaction
from anabranch.core import replica
from anabranch.core.nostr import Event, serialise
from anabranch.core.operation import Family
from anabranch.core.replica import DELETED_WITH_HISTORY_COUNT, HISTORY_COUNT, Version

_COLUMNS = "v.number, v.version, v.d, v.deletes, v.mtime, v.collection, v.clock, v.head, v.own, v.raw"
_NEWEST = "v.mtime DESC, v.weight DESC, v.version DESC"  # `Version.recency`
_CHUNK = 256
_encode = msgspec.json.Encoder().encode
_clock = msgspec.json.Decoder(dict[str, int]).decode


class Stored(msgspec.Struct, frozen=True):
    """A version as it stands in the file."""

    number: int
    version: Version
    head: bool
    own: bool
    raw: bytes | None


class Proven(msgspec.Struct, frozen=True, gc=False):
    """A version that came in and holds: its id, its signature, its owner and its metadata."""

    version: Version
    event: str
    raw: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """How far a relay's log has been applied. A position means something in its stream and epoch only."""

    stream: str
    epoch: str
    position: int


class Arrival(msgspec.Struct, frozen=True):
    """What came from a relay and belongs into one transaction."""

    relay: int
    versions: Sequence[Proven] = ()
    dropped: Sequence[str] = ()  # why, one each
    hinted: Sequence[str] = ()  # versions that may be there and are worth asking for
    seen: Sequence[str] = ()  # versions that the relay says it has, although it did not send them
    checkpoint: Checkpoint | None = None
    removed: Sequence[tuple[str, str]] = ()  # events that it removed for good, and why


class ReplicaFile:
    def __init__(self, db: apsw.Connection, family: Family, owner: str, device: str) -> None:
        self.db = db
        self.family = family
        self.owner = owner
        self.device = device

    @classmethod
    def open(
        cls, path: Path, owner: str, family: Family | None, device: str | None, new_device: Callable[[], str]
    ) -> ReplicaFile:
        """The replica in a file, or a new one. `family` None: what the file says, snapshots in a new one."""
        db = schema.connect(path)
        try:
            with transaction(db):
                said = dict(db.execute("SELECT name, value FROM meta"))
                found = said or {"family": (family or Family.SNAPSHOT).name, "owner": owner, "device": new_device()}
                if device is not None:
                    found = {**found, "device": device}
                if found != said:
                    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", found.items())
            if found["owner"] != owner:
                raise WrongReplica(f"{path} belongs to {found['owner']}, not to {owner}; open it with that key")
            if family is not None and found["family"] != family.name:
                raise WrongReplica(f"{path} holds {found['family'].lower()}s; one file speaks one family")
        except BaseException:
            db.close()
            raise
        return cls(db, Family[found["family"]], owner, found["device"])

    def close(self) -> None:
        self.db.close()

    def data_version(self) -> int:
        """Another number whenever another process has written."""
        return int(self.db.pragma("data_version"))

    # --- reading ---

    def heads(self, d: str) -> list[Stored]:
        return self._stored("v.d = ? AND v.head = 1", (d,))

    def versions(self, d: str) -> list[Stored]:
        """Heads and history, the newest first, as far as their bodies are here."""
        return self._stored("v.d = ? AND v.raw IS NOT NULL", (d,), f"v.head DESC, {_NEWEST}")

    def some(self, d: str, ids: Collection[str]) -> list[Stored]:
        """Those of these versions of a document that are known, with or without a body."""
        found: list[Stored] = []
        for few, marks in _chunks(list(ids)):
            found += self._stored(f"v.d = ? AND v.version IN ({marks})", (d, *few))
        return found

    def all_heads(self) -> list[Stored]:
        """Of every document, those of one document together."""
        return self._stored("v.head = 1", (), "v.d, v.version")

    def conflicted(self) -> list[Stored]:
        several = "v.head = 1 AND v.d IN (SELECT d FROM versions WHERE head = 1 GROUP BY d HAVING count(*) > 1)"
        return self._stored(several, (), "v.d, v.version")

    def coordinates(self, beginning: str, limit: int) -> list[str]:
        """Documents whose names begin so."""
        return [
            d
            for (d,) in self.db.execute(
                "SELECT DISTINCT d FROM versions WHERE head = 1 AND substr(d, 1, length(?1)) = ?1 LIMIT ?2",
                (beginning, limit),
            )
        ]

    def _stored(self, where: str, values: Sequence[object], order: str = "v.version") -> list[Stored]:
        rows = self.db.execute(f"SELECT {_COLUMNS} FROM versions v WHERE {where} ORDER BY {order}", values)
        return [as_stored(row) for row in rows]

    # --- writing ---

    def write(self, d: str, make: Callable[[list[Stored]], Event]) -> tuple[Version, list[Change]]:
        """One more version, made in sight of the heads. `make` may refuse by raising."""
        with transaction(self.db):
            event = make(self.heads(d))
            version = replica.read(event, self.family, self.owner)
            changes = self._advance([Proven(version, event.id, serialise(event))], own=True)
        return version, changes

    def apply(self, arrival: Arrival, url: str) -> list[Change]:
        """A page and its checkpoint, in one transaction. What is known already changes nothing but who has it."""
        with transaction(self.db):
            self.check_relay(arrival.relay, url)
            changes = self._advance(arrival.versions, own=False, relay=arrival.relay, url=url)
            self._note_all_seen(arrival.relay, arrival.seen)
            self._miss(arrival.hinted)
            for event, reason in arrival.removed:
                d = self._remove(arrival.relay, event, reason)
                changes.append(Change(ChangeKind.REMOVED, d, url, reason or event))
            if arrival.dropped:
                self.db.execute(
                    "UPDATE relays SET dropped = dropped + ?, last_dropped = ? WHERE relay = ?",
                    (len(arrival.dropped), arrival.dropped[-1], arrival.relay),
                )
                changes += [Change(ChangeKind.DROPPED, None, url, reason) for reason in dict.fromkeys(arrival.dropped)]
            if (at := arrival.checkpoint) is not None:
                # Forward only within one log. Another log begins where its bootstrap says (`forget_log` came before).
                self.db.execute(
                    "UPDATE relays SET position = iif(stream IS ?1 AND epoch IS ?2, max(ifnull(position, 0), ?3), ?3),"
                    " stream = ?1, epoch = ?2 WHERE relay = ?4",
                    (at.stream, at.epoch, at.position, arrival.relay),
                )
        return changes

    def check_relay(self, relay: int, url: str | None = None) -> None:
        """`NoSuchRelay` where it was removed, perhaps by another process: nothing is to be noted of it any more."""
        row = self.db.execute("SELECT url FROM relays WHERE relay = ?", (relay,)).fetchone()
        if row is None or (url is not None and row[0] != url):
            raise NoSuchRelay(url or f"relay {relay}")

    def _remove(self, relay: int, event: str, reason: str) -> str | None:
        """The relay removed an event for good. The document it was a version of, where that is known here."""
        row = (
            self.db.execute(
                "SELECT number, d, version FROM versions WHERE event = ? AND clock IS NULL", (event,)
            ).fetchone()
            # The relay may have had the revision in another wrap than we keep.
            or self.db.execute(
                "SELECT v.number, v.d, v.version FROM seen s JOIN versions v ON v.number = s.number"
                " WHERE s.relay = ? AND s.event = ?",
                (relay, event),
            ).fetchone()
        )
        if row is None:
            return None
        number, d, version = row
        self.db.execute(
            "INSERT INTO seen (relay, number, event, removed) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET removed = excluded.removed",
            (relay, number, event, reason or "removed"),
        )
        # Its parents may be current again there: those that are not here are worth asking for once more.
        parents = [parent for (parent,) in self.db.execute("SELECT parent FROM parents WHERE child = ?", (version,))]
        self.db.executemany("DELETE FROM absent WHERE relay = ? AND version = ?", [(relay, one) for one in parents])
        self._miss(parents)
        return str(d)

    def _advance(
        self, page: Sequence[Proven], own: bool, relay: int | None = None, url: str | None = None
    ) -> list[Change]:
        """Insert what is new, keep the heads right, trim the history; say which documents are others than before."""
        db, revision = self.db, self.family is Family.REVISION
        known = self._numbers([proven.version.id for proven in page])
        heads = self._head_facts({one.version.coordinate for one in page if one.version.id not in known})
        before = {d: frozenset(current) for d, current in heads.items()}
        superseded: set[str] = set()
        numbers: list[tuple[int, str | None]] = []
        for proven in page:
            version = proven.version
            d = version.coordinate
            if version.id not in known:
                current = heads[d]
                named = revision and self._named(version)
                after = {
                    one.id for one in replica.advance(self.family, [v for _, v in current.values()], version, named)
                }
                is_head = version.id in after
                clock = _encode(version.clock).decode() if version.clock else None
                db.execute(
                    "INSERT INTO versions (version, event, d, head, own, deletes, mtime,"
                    " collection, weight, clock, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(version.id, proven.event, d, is_head, own, version.deletes, version.mtime),
                        *(version.collection, version.weight, clock, proven.raw),
                    ),
                )
                known[version.id] = db.last_insert_rowid()
                if revision:
                    self._link(version)
                if is_head:
                    current[version.id] = (known[version.id], version)
                gone = current.keys() - after
                for id in gone:
                    db.execute("UPDATE versions SET head = 0 WHERE number = ?", (current.pop(id)[0],))
                if gone or not is_head:
                    superseded.add(d)
            numbers.append((known[version.id], proven.event))
        if relay is not None:
            self.note_seen(relay, numbers)
        self.trim(superseded)
        changed = {d: [v for _, v in now.values()] for d, now in heads.items() if frozenset(now) != before[d]}
        self._trim_deleted(d for d, now in changed.items() if all(version.deletes for version in now))
        return [change for d, now in changed.items() for change in _told(d, len(before[d]), len(now), url)]

    def _numbers(self, versions: Sequence[str]) -> dict[str, int]:
        """Those that are here, and their numbers."""
        found: dict[str, int] = {}
        for some, marks in _chunks(versions):
            rows = self.db.execute(f"SELECT version, number FROM versions WHERE version IN ({marks})", some)
            found.update(rows)
        return found

    def _head_facts(self, documents: Collection[str]) -> dict[str, dict[str, tuple[int, Version]]]:
        """The heads of each document by id, with their numbers and without their bodies."""
        found: dict[str, dict[str, tuple[int, Version]]] = {d: {} for d in documents}
        for some, marks in _chunks(list(documents)):
            rows: Iterable[Any] = self.db.execute(
                f"SELECT d, number, version, deletes, mtime, clock FROM versions WHERE head = 1 AND d IN ({marks})",
                some,
            )
            for d, number, id, deletes, mtime, clock in rows:
                known = _clock(clock) if clock else {}
                found[d][id] = (number, Version(id, d, bool(deletes), mtime, clock=known))
        return found

    def _link(self, version: Version) -> None:
        """Its edges; and which versions are named somewhere and not here."""
        self.db.execute("DELETE FROM missing WHERE version = ?", (version.id,))
        for parent in version.parents:
            self.db.execute("INSERT OR IGNORE INTO parents VALUES (?, ?, ?)", (version.coordinate, parent, version.id))
        self._miss(version.parents)

    def _miss(self, versions: Iterable[str]) -> None:
        """Ask for those that are not here."""
        self.db.executemany(
            "INSERT OR IGNORE INTO missing SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM versions WHERE version = ?1)",
            [(version,) for version in versions],
        )

    def _named(self, version: Version) -> bool:
        found = self.db.execute(
            "SELECT 1 FROM parents WHERE d = ? AND parent = ? LIMIT 1", (version.coordinate, version.id)
        )
        return found.get is not None

    def note_seen(self, relay: int, numbers: Iterable[tuple[int, str | None]]) -> None:
        """The relay has these, each under the event id that is given; without one it only says so."""
        self.db.executemany(
            "INSERT INTO seen (relay, number, event) VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET event = ifnull(excluded.event, event)",
            [(relay, number, event) for number, event in numbers],
        )
        self.db.execute(
            "DELETE FROM refused WHERE relay = ?1"
            " AND EXISTS (SELECT 1 FROM seen s WHERE s.relay = ?1 AND s.number = refused.number)",
            (relay,),
        )

    def _note_all_seen(self, relay: int, versions: Iterable[str]) -> None:
        self.note_seen(relay, [(number, None) for number in self._numbers(list(versions)).values()])

    # --- a bounded history ---

    def trim(self, documents: Iterable[str]) -> None:
        """Let go of all but the last superseded versions of each document."""
        for d in documents:
            self._let_go(d, HISTORY_COUNT)

    def _trim_deleted(self, documents: Iterable[str]) -> None:
        """Where documents were just deleted: only those deleted last keep a history."""
        if not any(True for _ in documents):
            return
        alone = "NOT EXISTS (SELECT 1 FROM versions o WHERE o.d = v.d AND o.head = 1 AND o.number <> v.number)"
        rows = self.db.execute(
            f"SELECT v.d FROM versions v WHERE v.head = 1 AND v.deletes = 1 AND {alone}"
            f" ORDER BY {_NEWEST} LIMIT -1 OFFSET ?",
            (DELETED_WITH_HISTORY_COUNT,),
        ).fetchall()
        for (d,) in rows:
            self._let_go(str(d), 0)

    def _let_go(self, d: str, keep: int) -> None:
        old = "SELECT v.number FROM versions v WHERE d = ?1 AND head = 0 AND raw IS NOT NULL"
        oldest = f"{old} ORDER BY {_NEWEST} LIMIT -1 OFFSET ?2"
        if self.family is Family.REVISION:
            # A relay that lacks a revision in the middle would show false heads: bodies wait until nobody is owed them.
            self.db.execute(
                f"UPDATE versions SET raw = NULL WHERE number IN ({oldest})"
                " AND NOT EXISTS (SELECT 1 FROM relays r WHERE"
                "   NOT EXISTS (SELECT 1 FROM seen s WHERE s.relay = r.relay AND s.number = versions.number"
                "     AND s.event IS NOT NULL) AND"
                "   NOT EXISTS (SELECT 1 FROM refused f WHERE f.relay = r.relay AND f.number = versions.number))"
                " AND (own = 0 OR EXISTS"
                "   (SELECT 1 FROM seen s WHERE s.number = versions.number AND s.event IS NOT NULL))",
                (d, keep),
            )
            return
        for (number,) in self.db.execute(oldest, (d, keep)).fetchall():
            for table in ("seen", "refused"):
                self.db.execute(
                    f"DELETE FROM {table} WHERE relay IN (SELECT relay FROM relays) AND number = ?", (number,)
                )
            self.db.execute("DELETE FROM versions WHERE number = ?", (number,))


def _chunks(values: Sequence[str]) -> Iterator[tuple[Sequence[str], str]]:
    """A few hundred at a time, each with its marks: one look-up for all of them instead of one for each."""
    for at in range(0, len(values), _CHUNK):
        some = values[at : at + _CHUNK]
        yield some, ",".join("?" * len(some))


def as_stored(row: Sequence[Any]) -> Stored:
    number, id, d, deletes, mtime, collection, clock, head, own, raw = row
    version = Version(id, d, bool(deletes), mtime, collection, _clock(clock) if clock else {})
    return Stored(number, version, bool(head), bool(own), raw)


def _told(d: str, before: int, after: int, url: str | None) -> list[Change]:
    told = [Change(ChangeKind.WRITTEN, d, url)]
    if before <= 1 < after:
        told.append(Change(ChangeKind.CONFLICT_BEGUN, d, url))
    if after <= 1 < before:
        told.append(Change(ChangeKind.CONFLICT_ENDED, d, url))
    return told
