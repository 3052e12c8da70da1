"""What a feed carries, as SQL: the twin of `changes.matches`, held equal to it by the contract suite."""

from __future__ import annotations

from typing import Any

from anabranch.core.changes import ChangesQuery, LogQuery, RevisionQuery, SnapshotQuery
from anabranch.core.nostr import is_hex
from anabranch.store.sql import tag_key

_COLUMNS = "o.position, o.id, o.state, p.raw, o.expires_at"
_PAYLOAD = "LEFT JOIN payloads p ON p.position = o.position"


def feed_page(query: ChangesQuery | None, compacted: bool) -> tuple[str, list[Any]]:
    """A stretch of the log: position, id, state, payload, expiry, revision and reason, in order.

    ?1, ?2 and ?3 are the positions after and up to which, and how many rows; the bindings given are those after them.
    Without a query it is the whole log, every family.
    """
    state = "o.state <= 1" if compacted else "o.state = 0"
    span = "{0}.position > ?1 AND {0}.position <= ?2"
    if isinstance(query, RevisionQuery):
        conditions, bindings = revision_conditions(query, first=4)
        return (
            f"SELECT {_COLUMNS}, r.revision, NULL FROM revisions r INDEXED BY revision_feed "
            f"JOIN operations o ON o.position = r.position {_PAYLOAD} "
            f"WHERE {' AND '.join(conditions)} AND {state} AND {span.format('r')} "
            "UNION ALL "
            "SELECT m.position, o.id, o.state, NULL, NULL, r.revision, m.reason "
            "FROM removals m INDEXED BY removal_feed "
            "CROSS JOIN operations o ON o.position = m.target JOIN revisions r ON r.position = m.target "
            f"WHERE {' AND '.join(['m.recipient = ?4', *conditions[1:]])} AND {span.format('m')} "
            "ORDER BY 1 LIMIT ?3",
            bindings,
        )
    if isinstance(query, SnapshotQuery):
        conditions, bindings = snapshot_conditions(query, first=4)
        conditions.append("o.family = 1")
    else:
        conditions, bindings = (["1 = 1"], []) if query is None else log_conditions(query, first=4)
    return (
        f"SELECT {_COLUMNS}, NULL, NULL FROM operations o "
        f"{'INDEXED BY feed' if isinstance(query, SnapshotQuery) else 'NOT INDEXED'} {_PAYLOAD} "
        f"WHERE {' AND '.join(conditions)} AND {state} AND {span.format('o')} ORDER BY o.position LIMIT ?3",
        bindings,
    )


def snapshot_conditions(query: SnapshotQuery, first: int = 1) -> tuple[list[str], list[Any]]:
    """Conditions on `operations o`; the variables are numbered from `first`."""
    return _conditions(
        first,
        ("o.author", [bytes.fromhex(query.author)]),
        ("o.kind", query.kinds),
        ("o.coordinate", query.coordinates),
        ("o.action", None if query.actions is None else [int(action) for action in query.actions]),
        ("o.collection", query.collections),
    )


def revision_conditions(query: RevisionQuery, first: int = 1) -> tuple[list[str], list[Any]]:
    """Conditions on `revisions r` and `operations o`, the recipient first; the variables are numbered from `first`."""
    revisions = None if query.revisions is None else [bytes.fromhex(one) for one in query.revisions if is_hex(one, 64)]
    return _conditions(
        first,
        ("r.recipient", [query.recipient]),
        ("o.author", None if query.authors is None else [bytes.fromhex(author) for author in query.authors]),
        ("o.coordinate", query.coordinates),
        ("r.revision", revisions),
    )


def log_conditions(query: LogQuery, first: int = 1) -> tuple[list[str], list[Any]]:
    """Conditions on `operations o`, read in the order of the log; the variables are numbered from `first`."""
    filter = query.filter
    conditions, bindings = _conditions(
        first,
        ("o.id", None if filter.ids is None else [bytes.fromhex(id) for id in filter.ids]),
        ("o.author", None if filter.authors is None else [bytes.fromhex(author) for author in filter.authors]),
        ("o.kind", filter.kinds),
    )
    for name, values in filter.tags:
        tagged, keys = _conditions(first + len(bindings), ("t.tag", [tag_key(name, value) for value in values]))
        conditions.append(
            f"EXISTS (SELECT 1 FROM tags t WHERE {tagged[0]} AND t.created_at = o.created_at "
            "AND t.position = o.position)"
        )
        bindings += keys
    return ["1 = 1", *conditions], bindings


def _conditions(first: int, *wanted: tuple[str, Any]) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    bindings: list[Any] = []
    for column, values in wanted:
        if values is not None:
            start = first + len(bindings)
            variables = [f"?{start + at}" for at in range(len(values))]
            if not variables:  # a constant that SQLite plans around: of `IN ()` and 0 it makes «no query solution»
                conditions.append("NULL")
                continue
            conditions.append(
                f"{column} = {variables[0]}" if len(variables) == 1 else f"{column} IN ({','.join(variables)})"
            )
            bindings += values
    return conditions, bindings
