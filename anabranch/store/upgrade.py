"""What a newer schema asks of the rows that are there: steps of a migration that SQL alone cannot take."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from anabranch.core import revisions
from anabranch.core.nostr import Event, Invalid
from anabranch.core.operation import Action, Family, document_key
from anabranch.core.revisions import GIFT_WRAP

_decode = msgspec.json.Decoder(Event).decode


def adopt_revisions(db: apsw.Connection) -> None:
    """Gift wraps that were stored before there were revisions, and are some: they join the family where they stand.

    Nobody had followed the feed of revisions before, so no checkpoint can have passed them. What is tagged in part, or
    is the same revision once more, stays the ordinary event that it was.
    """
    adopted: dict[tuple[bytes, str], tuple[int, revisions.Facts]] = {}
    rows: list[Any] = db.execute(
        "SELECT o.position, p.raw FROM operations o JOIN payloads p ON p.position = o.position "
        "WHERE o.kind = ? AND o.family = 0 AND o.state = 0 ORDER BY o.position",
        (GIFT_WRAP,),
    ).fetchall()
    for position, raw in rows:
        event = _decode(raw)
        try:
            facts = revisions.validate(event)
        except Invalid:
            continue
        document = document_key(Family.REVISION, facts.recipient, 0, facts.coordinate)
        adopted.setdefault((document, facts.revision), (position, facts))
    named = {(document, parent) for (document, _), (_, facts) in adopted.items() for parent in facts.parents}
    for (document, revision), (position, facts) in adopted.items():
        head = int((document, revision) not in named)
        action = Action.DELETE if facts.deletes else Action.PUT
        parents = [bytes.fromhex(parent) for parent in facts.parents]
        db.execute(
            "UPDATE operations SET family = ?, document = ?, coordinate = ?, action = ?, head = ? WHERE position = ?",
            (int(Family.REVISION), document, facts.coordinate, int(action), head, position),
        )
        db.execute(
            "INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, 1, ?)",
            (position, document, bytes.fromhex(revision), facts.recipient, facts.mtime, b"".join(parents), head),
        )
        db.executemany("INSERT INTO parents VALUES (?, ?, ?)", [(document, parent, position) for parent in parents])
