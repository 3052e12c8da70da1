"""From the lines of a log to rows: parsed, classified and, where that is asked for, proven.

`read_lines` takes batches of `LOG` and gives batches of `PROVEN`, a row for each line and nothing lost: a line that is
no operation becomes a row with a problem and the line itself. The rules are those of `core`; signatures are checked a
batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.core import clock as clocks
from anabranch.core import nostr
from anabranch.core.nostr import Event, Invalid, Limits
from anabranch.core.operation import KindPolicy, Operation, State, Unsupported, classify
from anabranch.pipeline.schema import ACTIONS, FAMILIES, PROVEN, STATES, Outcome, arrow
from anabranch.store.contract import Facts
from anabranch.store.log_pages import untold

FORGED = "signature does not hold"
EPHEMERAL = "an ephemeral event is not stored"

_SCHEMA = arrow(PROVEN)
_NAMES = _SCHEMA.names


class Rules(msgspec.Struct, frozen=True):
    """What is taken. How old an operation may be is asked of those who publish, not of a history."""

    limits: Limits = Limits()
    kinds: KindPolicy = KindPolicy()
    prove: bool = True

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decoded(cls, text: str) -> Rules:
        return msgspec.json.decode(text, type=cls)


def read_lines(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = _Columns()
        stream, epoch, position, lines, facts, problems, source = (column.to_pylist() for column in batch.columns)
        operations = [None if line is None else _operation(line, rules) for line in lines]
        held = _held(operations) if rules.prove else None
        for at, operation in enumerate(operations):
            place = (stream[at], epoch[at], position[at])
            if isinstance(operation, Operation) and (held is None or held[at]):
                columns.add(place, source[at], Outcome.OPERATION, _of_operation(operation))
            elif isinstance(operation, Operation):
                columns.add(place, source[at], Outcome.REJECTED, _problem(FORGED, lines[at]))
            elif operation is not None:
                columns.add(place, source[at], Outcome.REJECTED, _problem(operation, lines[at]))
            elif facts[at] is not None:
                columns.add(place, source[at], Outcome.FACT, _of_facts(untold(facts[at])))
            else:
                columns.add(place, source[at], Outcome.REJECTED, _problem(problems[at], None))
        yield columns.batch()


def _operation(line: bytes, rules: Rules) -> Operation | str:
    """The operation that a line is, or why it is none."""
    try:
        event, raw = nostr.parse(line, rules.limits)
        operation = classify(event, raw, rules.kinds)
    except (Invalid, Unsupported) as error:
        return str(error)
    return EPHEMERAL if operation.ephemeral else operation


def _held(operations: list[Operation | str | None]) -> list[bool]:
    """For each operation whether its signature holds."""
    events: list[Event] = [one.event for one in operations if isinstance(one, Operation)]
    answers = iter(nostr.verify(events))
    return [isinstance(one, Operation) and next(answers) for one in operations]


def _problem(problem: str | None, line: bytes | None) -> dict[str, Any]:
    return {"problem": problem or "an empty row", "line": line}


def _of_operation(operation: Operation) -> dict[str, Any]:
    event, revision = operation.event, operation.revision
    return {
        "id": event.id,
        "family": FAMILIES[operation.family],
        "kind": event.kind,
        "author": event.pubkey,
        "recipient": None if revision is None else revision.recipient,
        "document": None if operation.document is None else operation.document.hex(),
        "coordinate": operation.coordinate,
        "collection": operation.collection,
        "action": ACTIONS[operation.action],
        **_order(operation.clock, revision),
        "created_at": event.created_at,
        "expires_at": operation.expires_at,
        "tags": event.tags,
        "raw": operation.raw.decode(),
        "size": len(operation.raw),
        "key": known_by(event.id, operation.document, None if revision is None else revision.revision),
        "state": STATES[State.RETAINED],
    }


def _of_facts(facts: Facts) -> dict[str, Any]:
    return {
        "id": facts.id,
        "family": FAMILIES[facts.family],
        "kind": facts.kind,
        "author": facts.author,
        "recipient": None if facts.revision is None else facts.revision.recipient,
        "document": None if facts.document is None else facts.document.hex(),
        "coordinate": facts.coordinate,
        "collection": facts.collection,
        "action": ACTIONS[facts.action],
        **_order(facts.clock, facts.revision),
        "created_at": facts.created_at,
        "expires_at": facts.expires_at,
        "size": facts.size,
        "state": STATES[facts.state],
    }


def known_by(id: str, document: bytes | None, revision: str | None) -> int:
    """A short name of what an operation is known by: its id, or, of a revision, its document and its own id.

    Two that differ may share it, so it only says where a second look is needed.
    """
    key = int.from_bytes(bytes.fromhex((id if revision is None else revision)[:16]), "big", signed=True)
    return key if revision is None or document is None else key ^ int.from_bytes(document[:8], "big", signed=True)


def _order(clock: Any, revision: Any) -> dict[str, Any]:
    """What orders a version among the others of its document."""
    if clock is not None:
        return {"clock": list(clock.items()), "clock_sum": clocks.total(clock)}
    if revision is not None:
        return {"revision": revision.revision, "parents": list(revision.parents), "mtime": revision.mtime}
    return {}


class _Columns:
    """Rows on their way into a batch."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in _NAMES}

    def add(self, place: tuple[str, str, int], source: str, outcome: Outcome, values: dict[str, Any]) -> None:
        stream, epoch, position = place
        row = {"stream": stream, "epoch": epoch, "position": position, "source": source, "outcome": outcome, **values}
        for name, column in self._values.items():
            column.append(row.get(name))

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(self._values[field.name], field.type) for field in _SCHEMA], schema=_SCHEMA
        )
