"""Replicas, wherever they are: what is no lake is read into one for as long as it is looked at.

So everything that is compared is proven, and what was no operation is told apart with its reason. Reading it again
brings only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from anabranch.core.operation import Family
from anabranch.pipeline.feed_store import is_store
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake, is_lake
from anabranch.pipeline.rows import Rules
from anabranch.pipeline.schema import FAMILIES
from anabranch.pipeline.sources import ADDRESSES, DATABASES, open_feeds


class Kind(StrEnum):
    LAKE = "lake"
    NODE = "node"
    STORE = "store"
    DATABASE = "database"
    DUMP = "dump"


class Scope(msgspec.Struct, frozen=True):
    """What is looked at: everything, or the snapshots of some authors and the revisions to some recipients."""

    authors: frozenset[str] = frozenset()
    recipients: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Scope:
        """What the options of feeds name."""
        return cls(*(frozenset(filter(None, options.get(name, "").split(","))) for name in ("authors", "recipients")))

    def mask(self, rows: pa.Table) -> pa.Array:
        """Which of the rows are looked at."""
        if not self.authors and not self.recipients:
            return pa.repeat(True, rows.num_rows)
        own = [
            pc.and_(
                pc.equal(rows["family"], FAMILIES[family]), pc.is_in(rows[name], pa.array(sorted(keys), pa.string()))
            )
            for family, name, keys in (
                (Family.SNAPSHOT, "author", self.authors),
                (Family.REVISION, "recipient", self.recipients),
            )
        ]
        return pc.or_(*own)


class Replica(msgspec.Struct, frozen=True):
    """Somebody's copy of the log. `name` is as it was given."""

    name: str
    kind: Kind
    lake: Lake


class Reading(msgspec.Struct, frozen=True):
    """How replicas are read: the options of their feeds, what is taken for an operation, and the wait for a lake."""

    options: Mapping[str, str] = {}
    rules: Rules = Rules()
    wait: float = 0.0


def kind_of(name: str) -> Kind:
    """What a person means by a name."""
    scheme = urlsplit(name).scheme
    if scheme in ADDRESSES:
        return Kind.NODE
    if scheme in DATABASES:
        return Kind.DATABASE
    if scheme not in ("", "file") or is_lake(name):
        return Kind.LAKE
    return Kind.STORE if is_store(Path(name)) else Kind.DUMP


def check(names: Sequence[str], reading: Reading) -> None:
    """Say before Spark starts what cannot be read. Raises `FeedError`."""
    for name in names:
        if kind_of(name) is not Kind.LAKE:
            open_feeds(name, reading.options, reading.rules.limits)


def opened(spark: SparkSession, names: Sequence[str], scratch: Path, reading: Reading) -> list[Replica]:
    """The replicas, read. `scratch` is a folder for the lakes of those that are none."""
    found = []
    for number, name in enumerate(names):
        kind = kind_of(name)
        own = kind is Kind.LAKE
        lake = Lake(name, spark) if own else Lake(scratch / str(number), spark, create=True)
        found.append(Replica(name, kind, lake))
    read_again(found, reading)
    return found


def read_again(replicas: Sequence[Replica], reading: Reading) -> None:
    """Bring in what is new in those that are no lakes."""
    for replica in replicas:
        if replica.kind is not Kind.LAKE:
            ingest(replica.lake, [replica.name], options=reading.options, rules=reading.rules, gaps="bootstrap")
