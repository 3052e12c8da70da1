"""From the lines of a log to rows: parsed, classified and, where that is asked for, proven.

`read_lines` takes batches of `LOG` and gives batches of `PROVEN`, a row for each line and nothing lost: a line that is
no operation becomes a row with a problem and the line itself. The rules are those of `core`; signatures are checked a
batch at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.core import clock as clocks
from anabranch.core import nostr, revisions
from anabranch.core.nostr import Event, Invalid, Limits
from anabranch.core.operation import KindPolicy, Operation, State, Unsupported, classify
from anabranch.pipeline.schema import ACTIONS, FAMILIES, PROVEN, STATES, Outcome, arrow
from anabranch.store.contract import Facts
from anabranch.store.log_pages import untold

FORGED = "signature does not hold"
EPHEMERAL = "an ephemeral event is not stored"

RETAINED, REMOVED = STATES[State.RETAINED], STATES[State.REMOVED]

_SCHEMA = arrow(PROVEN)
_PASSED_ON = ("stream", "epoch", "position", "source")
_READ = [name for name in PROVEN.names if name not in _PASSED_ON]
"""The columns that a line is read into; the others are passed on as they come."""
_NOTHING = (None,) * (len(_READ) - len(("state", "outcome", "line", "problem")))


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
        with _uncollected():
            read = _read_batch(batch, rules)
        yield read


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing here refers to itself; looking for what does would take a quarter of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _read_batch(batch: pa.RecordBatch, rules: Rules) -> pa.RecordBatch:
    lines, facts, removed, problems = (
        batch.column(name).to_pylist() for name in ("line", "facts", "removed", "problem")
    )
    operations = [None if line is None else _operation(line, rules) for line in lines]
    held = _held(operations) if rules.prove else None
    rows: list[tuple[Any, ...]] = []
    for at, operation in enumerate(operations):
        if isinstance(operation, Operation) and (held is None or held[at]):
            rows.append((*_of_operation(operation), RETAINED, Outcome.OPERATION, None, None))
        elif operation is None and facts[at] is not None:
            known = untold(facts[at])
            rows.append((*_of_facts(known), STATES[known.state], Outcome.FACT, None, None))
        elif removed[at] is not None:
            rows.append((removed[at], *_NOTHING[1:], REMOVED, Outcome.REMOVAL, None, None))
        else:
            problem = FORGED if isinstance(operation, Operation) else operation or problems[at]
            rows.append((*_NOTHING, None, Outcome.REJECTED, lines[at], problem))
    read = dict(zip(_READ, zip(*rows, strict=True), strict=True)) if rows else {}
    return pa.RecordBatch.from_arrays(
        [
            batch.column(field.name) if field.name in _PASSED_ON else pa.array(read.get(field.name, ()), field.type)
            for field in _SCHEMA
        ],
        schema=_SCHEMA,
    )


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


def _of_operation(operation: Operation) -> tuple[Any, ...]:
    """The columns of `_READ` up to the state."""
    event, clock, revision = operation.event, operation.clock, operation.revision
    return (
        event.id,
        FAMILIES[operation.family],
        event.kind,
        event.pubkey,
        None if revision is None else revision.recipient,
        None if operation.document is None else operation.document.hex(),
        operation.coordinate,
        operation.collection,
        ACTIONS[operation.action],
        *_order(clock, revision),
        event.created_at,
        operation.expires_at,
        event.tags,
        operation.raw,
        len(operation.raw),
        known_by(event.id, operation.document, None if revision is None else revision.revision),
    )


def _of_facts(facts: Facts) -> tuple[Any, ...]:
    revision = facts.revision
    return (
        facts.id,
        FAMILIES[facts.family],
        facts.kind,
        facts.author,
        None if revision is None else revision.recipient,
        None if facts.document is None else facts.document.hex(),
        facts.coordinate,
        facts.collection,
        ACTIONS[facts.action],
        *_order(facts.clock, revision),
        facts.created_at,
        facts.expires_at,
        None,
        None,
        facts.size,
        None,
    )


def _order(clock: Mapping[str, int] | None, revision: revisions.Facts | None) -> tuple[Any, ...]:
    """What orders a version among the others of its document: clock, clock_sum, revision, parents, mtime."""
    if clock is not None:
        return list(clock.items()), clocks.total(clock), None, None, None
    if revision is not None:
        return None, None, revision.revision, revision.parents, revision.mtime
    return None, None, None, None, None


def known_by(id: str, document: bytes | None, revision: str | None) -> int:
    """A short name of what an operation is known by: its id, or, of a revision, its document and its own id.

    Two that differ may share it, so it only says where a second look is needed.
    """
    key = int.from_bytes(bytes.fromhex((id if revision is None else revision)[:16]), "big", signed=True)
    return key if revision is None or document is None else key ^ int.from_bytes(document[:8], "big", signed=True)
