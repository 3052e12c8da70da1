"""Finding what a REQ asks for: one index leads, the other conditions follow.

For each filter the most selective index is walked from the newest, key by key; once a filter has its `limit`, later
keys are walked only as far back as the oldest event that still counts. `filter.matches` is the rule this is held
equal to.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from anabranch.core.filter import Filter
from anabranch.core.snapshots import SYNC_RANGE
from anabranch.store.sql import chunks, marks, operations_by_id, tag_key

Rows = Callable[[str, Sequence[Any]], list[Any]]
_PROBE = 2_000  # how far candidates are counted when two indexes could lead


class Select:
    def __init__(self, rows: Rows, now: int) -> None:
        self._rows = rows
        self._now = now

    def run(self, filters: Sequence[Filter], limit_max: int) -> array[int]:
        """Positions of all matches: what is synced ascending by (created_at, id), then the others newest first."""
        possible = [filter for filter in filters if not filter.impossible]
        found = [row for filter in possible for row in self.newest(filter, limit_max)]
        if len(possible) > 1:
            found = sorted({row[0]: row for row in found}.values(), key=_newest_first)
        sync = [row for row in found if row[3]]
        if sync:
            sync.sort(key=lambda row: (row[1], row[2]))
            found = sync + [row for row in found if not row[3]]
        return array("q", [row[0] for row in found])

    def as_set(self, filter: Filter, limit_max: int) -> list[Any]:
        """The same by ascending (created_at, id): what a reconciliation compares."""
        # Where no limit of its own cuts, the rows come in just the other order, and sorting them is one look at each.
        rows = self.newest(filter, limit_max, "DESC" if filter.limit is None else "ASC")
        return sorted(rows, key=itemgetter(1, 2))

    def newest(self, filter: Filter, limit_max: int, ids: str = "ASC") -> list[Any]:
        """The newest matches of one filter as (position, created_at, id, synced), newest first; of equals by id."""
        limit = limit_max if filter.limit is None else min(filter.limit, limit_max)
        if limit == 0:
            return []
        since, until = filter.since or 0, filter.until
        lead, keys = self._lead(filter)
        sql, residual = _walk(lead, filter, ids)
        found: dict[int, Any] = {}
        groups = list(chunks(keys, 256 if lead == "id" else 1))
        for group in groups:
            statement = sql.replace("KEYS", marks(group)).replace("BY_ID", operations_by_id(len(group)))
            bindings = [*group, since, _END if until is None else until, *residual, self._now, limit]
            rows = self._rows(statement, bindings)
            if len(groups) == 1:
                return rows
            found.update((row[0], row) for row in rows)
            if len(found) > limit:
                found = {row[0]: row for row in sorted(found.values(), key=_newest_first)[:limit]}
                since = max(since, min(row[1] for row in found.values()))
        return sorted(found.values(), key=_newest_first)

    def _lead(self, filter: Filter) -> tuple[str, list[Any]]:
        """Which index leads, and the keys to walk in it: the one with the fewest entries for this filter."""
        if filter.ids is not None:
            return "id", [bytes.fromhex(id) for id in sorted(filter.ids)]
        choices: list[tuple[str, list[Any]]] = [
            (f"#{name}", [tag_key(name, value) for value in sorted(values)]) for name, values in filter.tags
        ]
        if filter.authors is not None:
            choices.append(("author", [bytes.fromhex(author) for author in sorted(filter.authors)]))
        if filter.kinds is not None:
            choices.append(("kind", sorted(filter.kinds)))
        if len(choices) > 1:
            choices.sort(key=lambda choice: self._probe(*choice))
        return choices[0] if choices else ("time", [0])

    def _probe(self, lead: str, keys: list[Any]) -> int:
        source = "tags WHERE tag IN (?)" if lead[0] == "#" else _INDEXES[lead]
        counted = 0
        for key in keys:
            counted += self._rows(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {_PROBE}) AS found", (key,))[0][
                0
            ]
            if counted >= _PROBE:
                break
        return counted


_END = 2**62
_INDEXES = {
    name: f"operations o INDEXED BY operation_by_{name} WHERE o.state = 0 AND o.{name} IN (?)"
    for name in ("author", "kind")
}
_SYNCED = f"o.family = 2 OR o.kind BETWEEN {SYNC_RANGE.start} AND {SYNC_RANGE.stop - 1}"


def _newest_first(row: Any) -> tuple[int, bytes]:
    return -row[1], row[2]


def _walk(lead: str, filter: Filter, ids: str) -> tuple[str, list[Any]]:
    """The statement that walks one key of an index from the newest, and the bindings after key and time."""
    tagged = "tags t CROSS JOIN operations o ON o.position = t.position WHERE t.tag IN (KEYS)"
    source, time = {
        "id": ("BY_ID", "o.created_at"),
        "author": ("operations o INDEXED BY operation_by_author WHERE o.author IN (KEYS)", "o.created_at"),
        "kind": ("operations o INDEXED BY operation_by_kind WHERE o.kind IN (KEYS)", "o.created_at"),
        "time": ("operations o INDEXED BY operation_by_time WHERE KEYS = 0", "o.created_at"),
    }.get(lead, (tagged, "t.created_at"))
    conditions, bindings = _conditions(filter, lead)
    return (
        f"SELECT o.position, o.created_at, o.id, {_SYNCED} FROM {source} AND {time} >= ? AND {time} <= ? "
        f"AND {' AND '.join(['o.state = 0', *conditions])} AND (o.expires_at IS NULL OR o.expires_at > ?) "
        f"ORDER BY {time} DESC, o.id {ids} LIMIT ?",
        bindings,
    )


def _conditions(filter: Filter, lead: str) -> tuple[list[str], list[Any]]:
    """The filter's conditions as SQL, without time and without the one that the leading index sees to."""
    conditions: list[str] = []
    bindings: list[Any] = []
    for name, values in (("id", filter.ids), ("author", filter.authors)):
        if values is not None and name != lead:
            conditions.append(f"o.{name} IN ({marks(list(values))})")
            bindings += [bytes.fromhex(value) for value in values]
    if filter.kinds is not None and lead != "kind":
        conditions.append(f"o.kind IN ({marks(list(filter.kinds))})")
        bindings += filter.kinds
    for name, values in filter.tags:
        if f"#{name}" == lead:
            continue
        # A value, not an EXISTS: SQLite would make a join of each, and choose among the orders of many joins for long.
        conditions.append(
            "(SELECT 1 FROM tags x WHERE x.created_at = o.created_at AND x.position = o.position "
            f"AND x.tag IN ({marks(list(values))}) LIMIT 1) = 1"
        )
        bindings += [tag_key(name, value) for value in values]
    return conditions, bindings


def matching_sql(filter: Filter, now: int, first: int = 1) -> tuple[str, list[Any]]:
    """A statement that gives the positions of all that a filter matches, each once; its variables are ?first and on."""
    lead, source = "", "operations o WHERE 1 = 1"
    keys: list[Any] = []
    if filter.ids is not None:
        lead, keys = "id", [bytes.fromhex(id) for id in filter.ids]
        source = operations_by_id(len(keys), first)
    elif filter.tags:
        name, values = min(filter.tags, key=lambda tag: len(tag[1]))
        lead, keys = f"#{name}", [tag_key(name, value) for value in values]
        source = f"operations o WHERE o.position IN (SELECT x.position FROM tags x WHERE x.tag IN ({marks(keys)}))"
    elif filter.kinds is not None and filter.authors is None:
        lead, keys = "kind", list(filter.kinds)
        source = f"operations o INDEXED BY operation_by_kind WHERE o.kind IN ({marks(keys)})"
    conditions, bindings = _conditions(filter, lead)
    return (
        f"SELECT o.position FROM {source} AND o.state = 0 AND (o.expires_at IS NULL OR o.expires_at > ?) "
        f"AND o.created_at BETWEEN ? AND ?{''.join(f' AND {condition}' for condition in conditions)}",
        [*keys, now, filter.since or 0, _END if filter.until is None else filter.until, *bindings],
    )


def is_about(filter: Filter, author: bytes, kind: int, coordinate: str | None, recipient: str | None) -> bool:
    """Whether a filter could have given what is compacted: by author, kind, document and recipient."""
    tags = dict(filter.tags)
    return (
        (filter.authors is None or author.hex() in filter.authors)
        and (filter.kinds is None or kind in filter.kinds)
        and ("d" not in tags or coordinate in tags["d"])
        and ("p" not in tags or recipient in tags["p"])
    )
