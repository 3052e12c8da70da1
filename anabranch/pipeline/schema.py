"""The tables, column by column: what a row of each says. `docs/reference/tables.md` is tested to name them all.

One schema serves every family and every source. `PROVEN` is what `spark.read.format("anabranch")` gives, `OPERATIONS`
what the lake holds; what does not apply to a family is null. `LOG` is the same before anything was looked into: the
lines of a log and their places. `batch` is the number of the batch that brought a row.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa
from pyspark.sql import types as t

from anabranch.core.operation import Action, Family, State

FAMILIES = {family: family.name.lower() for family in Family}
ACTIONS = {Action.PUT: "put", Action.DELETE: "del"}
STATES = {state: state.name.lower() for state in State}

_text, _number = t.StringType(), t.LongType()


def _struct(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


_PLACE = {"stream": _text, "epoch": _text, "position": _number}

_FACTS = {
    "id": _text,
    "family": _text,
    "kind": t.IntegerType(),
    "author": _text,
    "recipient": _text,
    "document": _text,
    "coordinate": _text,
    "collection": _text,
    "action": _text,
    "clock": t.MapType(_text, _number),
    "clock_sum": _number,
    "revision": _text,
    "parents": t.ArrayType(_text),
    "mtime": _number,
    "created_at": _number,
    "expires_at": _number,
}

_PAYLOAD = {"tags": t.ArrayType(t.ArrayType(_text)), "raw": _text, "size": _number, "key": _number}

OPERATIONS = _struct(**_PLACE, **_FACTS, **_PAYLOAD, source=_text, batch=_number)
"""Operations whose id and signature hold, each once, and where each was first seen."""

FACTS = _struct(**_PLACE, **_FACTS, state=_text, size=_number, source=_text, batch=_number)
"""What a node still knows of operations whose payload it has no more: believed, for there is nothing to prove."""

REJECTED = _struct(**_PLACE, reason=_text, raw=t.BinaryType(), source=_text)
"""Lines that are no operations, and why."""

SIGHTINGS = _struct(**_PLACE, id=_text, document=_text, revision=_text, state=_text, source=_text)
"""Every place at which an operation was seen, or was said to be removed for good."""

GAPS = _struct(**_PLACE, reason=_text, oldest=_number, latest=_number, was_epoch=_text, batch=_number, source=_text)
"""Stretches of a log that were gone before they were read."""

BATCHES = _struct(batch=_number, path=_text, source=_text, start=_text, end=_text, gap=_text)
"""The ledger of ingest: which stretch of which log each batch is. It is written before the batch begins."""

_VERSION = {
    "document": _text,
    "family": _text,
    "id": _text,
    "author": _text,
    "recipient": _text,
    "coordinate": _text,
    "collection": _text,
    "action": _text,
    "clock": t.MapType(_text, _number),
    "clock_sum": _number,
    "revision": _text,
    "mtime": _number,
    "created_at": _number,
    "size": _number,
    "payload": t.BooleanType(),
}

VERSIONS = _struct(**_VERSION, removed=t.BooleanType(), parents=t.ArrayType(_text), awaited=t.ArrayType(_text))
"""Versions of documents, as what decides about heads sees them: operations, facts, and heads of before.

`removed` marks facts of what was removed for good; the others are stored, with or without a payload."""

HEADS = _struct(
    **_VERSION,
    number=t.IntegerType(),
    heads=t.IntegerType(),
    deleted=t.BooleanType(),
    awaited=t.ArrayType(_text),
)
"""The heads of every document, a row each. Those without a payload supersede others and cannot be had themselves."""

TABLES = {
    "operations": OPERATIONS,
    "facts": FACTS,
    "rejected": REJECTED,
    "sightings": SIGHTINGS,
    "gaps": GAPS,
    "batches": BATCHES,
    "heads": HEADS,
}

LOG = _struct(**_PLACE, line=t.BinaryType(), facts=t.BinaryType(), removed=_text, problem=_text, source=_text)
"""A log as it is read: a signed line, or facts (JSON) where the line is gone, or the id of an operation that is removed
for good at this place, or a problem where it cannot be read."""

PROVEN = _struct(
    **_PLACE,
    **_FACTS,
    **_PAYLOAD,
    source=_text,
    state=_text,
    outcome=_text,
    line=t.BinaryType(),
    problem=_text,
)
"""What reading makes of a log's lines: operations and facts, and beside them what is neither, with the problem."""


BUCKETS = tuple("0123456789abcdef")
"""Documents by the first digit of their key: files of one bucket hold nothing of another."""
MIXED = "mixed"
"""The bucket of files that hold something of each, because there was little."""


class Outcome(StrEnum):
    """What a line of a log turned out to be, and so in which table it lands."""

    OPERATION = "operation"
    FACT = "fact"
    REMOVAL = "removal"
    REJECTED = "rejected"


def arrow(of: t.StructType) -> pa.Schema:
    """The same schema for Arrow, as Spark hands it to Python and takes it back."""
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType)) for field in of.fields])


def _arrow_type(of: t.DataType) -> pa.DataType:
    match of:
        case t.ArrayType():
            return pa.list_(pa.field("element", _arrow_type(of.elementType)))
        case t.MapType():
            return pa.map_(_arrow_type(of.keyType), _arrow_type(of.valueType))
        case t.LongType():
            return pa.int64()
        case t.IntegerType():
            return pa.int32()
        case t.BooleanType():
            return pa.bool_()
        case t.BinaryType():
            return pa.binary()
    return pa.string()
