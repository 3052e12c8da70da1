"""The ledger: which relays a replica speaks with, how far it has followed each, and what each has and is owed.

A relay is owed what it was not seen to have: of snapshots the heads and what was written here, of revisions every one
whose body is here, because a relay that lacks one in the middle shows false heads. That follows from `seen`, so there
is no queue to lose or to fill twice. A relay whose log is another than before is unknown again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from anabranch.client.bootstraps import Wanted
from anabranch.client.document import Refusal
from anabranch.client.errors import NoSuchRelay
from anabranch.client.file import Checkpoint, ReplicaFile
from anabranch.client.messages import short
from anabranch.client.schema import transaction
from anabranch.core import replica
from anabranch.core.operation import Family
from anabranch.core.replica import Version


class KnownRelay(msgspec.Struct, frozen=True):
    relay: int
    url: str
    access_key: str | None
    checkpoint: Checkpoint | None
    dropped: int
    last_dropped: str | None


class Owed(msgspec.Struct, frozen=True, gc=False):
    """A version that a relay lacks, ready to be sent."""

    number: int
    version: str
    event: str
    raw: bytes


class Account(msgspec.Struct, frozen=True):
    """What is open between the replica and a relay."""

    owed: int
    wanted: int  # ancestors that it is still to be asked for
    removed: int
    refused: tuple[Refusal, ...]


_UNSEEN = (
    "v.raw IS NOT NULL AND NOT EXISTS (SELECT 1 FROM seen s WHERE s.relay = ?1 AND s.number = v.number)"
    " AND NOT EXISTS (SELECT 1 FROM refused f WHERE f.relay = ?1 AND f.number = v.number)"
)
_WANTED = (
    "FROM missing m WHERE NOT EXISTS"
    " (SELECT 1 FROM absent a WHERE a.relay = ?1 AND a.version = m.version AND a.status <> 'unproven')"
)
_CLAIMED = (
    "FROM seen s JOIN versions v ON v.number = s.number"
    " WHERE s.relay = ?1 AND s.event IS NULL AND s.removed IS NULL AND v.raw IS NOT NULL"
)
SQUATTED = "the relay holds something else under this revision; delete it there, or use a private relay, then retry"


class Ledger:
    def __init__(self, file: ReplicaFile) -> None:
        self._file = file
        self._db = file.db
        if file.family is Family.REVISION:
            self._owed = _UNSEEN
        else:
            self._owed = f"{_UNSEEN} AND (v.head = 1 OR v.own = 1)"

    # --- which relays ---

    def relays(self) -> list[KnownRelay]:
        rows = self._db.execute(
            "SELECT relay, url, access_key, stream, epoch, position, dropped, last_dropped FROM relays ORDER BY relay"
        )
        return [
            KnownRelay(
                relay,
                url,
                access_key,
                None if position is None else Checkpoint(stream, epoch, position),
                dropped,
                last_dropped,
            )
            for relay, url, access_key, stream, epoch, position, dropped, last_dropped in rows
        ]

    def relay(self, relay: int) -> KnownRelay:
        found = next((one for one in self.relays() if one.relay == relay), None)
        if found is None:
            raise NoSuchRelay(f"relay {relay}")
        return found

    def add(self, url: str, access_key: str | None) -> KnownRelay:
        """Known from now on; a new access key takes the place of the old one, none leaves it as it is."""
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO relays (url, access_key) VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET access_key = ifnull(excluded.access_key, access_key)",
                (url, access_key),
            )
        return next(one for one in self.relays() if one.url == url)

    def remove(self, url: str) -> None:
        """Forget a relay and all that is known of it. Versions stay."""
        with transaction(self._db):
            relay = self._db.execute("SELECT relay FROM relays WHERE url = ?", (url,)).get
            if relay is None:
                raise NoSuchRelay(url)
            for table in ("seen", "refused", "absent", "relays"):
                self._db.execute(f"DELETE FROM {table} WHERE relay = ?", (relay,))

    def forget_log(self, relay: int) -> None:
        """The relay's log is another one: what it had and how far we were means nothing any more.

        What it removed for good stays removed: it is not sent there again.
        """
        with transaction(self._db):
            self._file.check_relay(relay)
            self._db.execute("DELETE FROM seen WHERE relay = ? AND removed IS NULL", (relay,))
            self._db.execute("DELETE FROM refused WHERE relay = ?", (relay,))
            self._db.execute("DELETE FROM absent WHERE relay = ?", (relay,))
            self._db.execute("UPDATE relays SET stream = NULL, epoch = NULL, position = NULL WHERE relay = ?", (relay,))

    # --- what a relay is owed ---

    def owed(self, relay: int, after: int, limit: int) -> list[Owed]:
        """The next that it lacks, by the order in which the file learned of them; revisions with parents first."""
        self._file.check_relay(relay)
        rows: list[Any] = self._db.execute(
            "SELECT v.number, v.version, v.event, v.raw, v.d, v.mtime FROM versions v"
            f" WHERE v.number > ?2 AND {self._owed} ORDER BY v.number LIMIT ?3",
            (relay, after, limit),
        ).fetchall()
        found = {row[1]: Owed(*row[:4]) for row in rows}
        if self._file.family is Family.SNAPSHOT:
            return list(found.values())
        versions = [
            Version(version, d, False, mtime, parents=self._parents(version)) for _, version, _, _, d, mtime in rows
        ]
        return [found[version.id] for version in replica.parents_first(versions)]

    def _parents(self, version: str) -> tuple[str, ...]:
        return tuple(parent for (parent,) in self._db.execute("SELECT parent FROM parents WHERE child = ?", (version,)))

    def acknowledge(self, relay: int, taken: Iterable[tuple[str, str | None]]) -> None:
        """The relay has these: (version, the event id it has it under; None: it says so, and is to show it)."""
        with transaction(self._db):
            self._file.check_relay(relay)
            documents, numbers = set(), []
            for version, event in taken:
                row = self._db.execute("SELECT number, d FROM versions WHERE version = ?", (version,)).fetchone()
                if row is not None:
                    numbers.append((row[0], event))
                    documents.add(row[1])
            self._file.note_seen(relay, numbers)
            if self._file.family is Family.REVISION:
                self._file.trim(documents)  # bodies that waited for this may go now

    def refuse(self, relay: int, version: str, reason: str) -> None:
        """The relay will not take it: remembered until `retry`."""
        with transaction(self._db):
            self._file.check_relay(relay)
            self._refuse(relay, version, reason)

    def _refuse(self, relay: int, version: str, reason: str) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO refused SELECT ?, number, ? FROM versions WHERE version = ?",
            (relay, short(reason), version),
        )

    def retry(self, relay: int) -> int:
        """Forget what the relay refused, so that it is offered again; how many that was."""
        with transaction(self._db):
            self._db.execute("DELETE FROM refused WHERE relay = ?", (relay,))
            return self._db.changes()

    def account(self, relay: int) -> Account:
        refused = self._db.execute(
            "SELECT v.version, v.d, f.reason FROM refused f JOIN versions v ON v.number = f.number"
            " WHERE f.relay = ? ORDER BY f.number",
            (relay,),
        )
        return Account(
            self._db.execute(f"SELECT count(*) FROM versions v WHERE {self._owed}", (relay,)).get,
            self._db.execute(f"SELECT count(*) {_WANTED}", (relay,)).get,
            self._db.execute("SELECT count(*) FROM seen WHERE relay = ? AND removed IS NOT NULL", (relay,)).get,
            tuple(Refusal(*row) for row in refused),
        )

    # --- what is wanted of a relay (revisions) ---

    def items(self) -> list[tuple[int, str]]:
        """The heads as negentropy items: (mtime in ms, revision)."""
        return list(self._db.execute("SELECT mtime, version FROM versions WHERE head = 1"))

    def unknown(self, versions: Sequence[str]) -> list[str]:
        """Those that the file has never heard of."""
        known = "SELECT 1 FROM versions WHERE version = ?"
        return [version for version in versions if self._db.execute(known, (version,)).get is None]

    def wanted(self, relay: int, limit: int) -> list[Wanted]:
        """What this relay is to be asked for: ancestors that are named and not here; then, once more and by document,
        those of them that did not come; then what it says to have and has not shown."""
        self._file.check_relay(relay)
        rows: list[Any] = self._db.execute(
            "SELECT m.version FROM missing m WHERE NOT EXISTS"
            " (SELECT 1 FROM absent a WHERE a.relay = ?1 AND a.version = m.version) LIMIT ?2",
            (relay, limit),
        ).fetchall()
        if rows:
            return [Wanted(version) for (version,) in rows]
        rows = self._db.execute(
            "SELECT m.version, (SELECT p.d FROM parents p WHERE p.parent = m.version LIMIT 1) AS d"
            f" {_WANTED} ORDER BY d IS NULL LIMIT ?2",
            (relay, limit),
        ).fetchall()
        if not rows and self._file.family is Family.REVISION:
            rows = self._db.execute(f"SELECT v.version, v.d {_CLAIMED} LIMIT ?2", (relay, limit)).fetchall()
        return [Wanted(str(version), None if d is None else str(d), again=True) for version, d in rows]

    def absent(self, relay: int, versions: Iterable[tuple[str, str]]) -> list[Refusal]:
        """What was asked for and is still not here, or not shown: (version, «unproven», «unknown» or «compacted»).

        The first is asked for once more. What the relay says to have and cannot show is a refusal: those are returned.
        """
        refused: list[Refusal] = []
        with transaction(self._db):
            self._file.check_relay(relay)
            for version, status in versions:
                self._db.execute(
                    "INSERT OR REPLACE INTO absent SELECT ?1, version, ?3 FROM missing WHERE version = ?2",
                    (relay, version, status),
                )
                claims = f"SELECT v.number, v.d {_CLAIMED} AND v.version = ?2"
                rows: list[Any] = self._db.execute(claims, (relay, version)).fetchall()
                for number, d in rows:
                    if status == "compacted":  # it had it, and shows no body any more
                        self._file.note_seen(relay, [(number, "")])
                    else:
                        self._db.execute("DELETE FROM seen WHERE relay = ? AND number = ?", (relay, number))
                        self._refuse(relay, version, SQUATTED)
                        refused.append(Refusal(version, d, SQUATTED))
        return refused
