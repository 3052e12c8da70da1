"""The changes feeds: what a reader asks for, and which operations that is.

A feed carries the snapshots of one author (seed 000), the revisions of one recipient (seed 001), or, in log mode, every
operation that a filter matches, of any family; all follow the same log. What compacted revisions stood on can be asked
for by their names. `parse` turns the filter of a CHANGES message into a request; `matches` is the rule for live
delivery that the store's pages are held equal to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.core import filter as filters
from anabranch.core.filter import FILTER_ROOM, Filter, integer, integers, room, strings
from anabranch.core.nostr import KIND_MAX, TIMESTAMP_MAX, Invalid, is_hex
from anabranch.core.operation import Action, Family, Operation, Removal
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.snapshots import in_range
from anabranch.core.token import START, Gap, GapReason, Log, Position, ProgressToken

ONE_AUTHOR = "snapshot CHANGES currently requires exactly one author"
ONE_RECIPIENT = "revision CHANGES currently requires exactly one #p recipient"
_ACTIONS = {"put": Action.PUT, "del": Action.DELETE}


class Mode(StrEnum):
    BOOTSTRAP = "bootstrap"
    TAIL = "tail"
    LOG = "log"
    COMPACTED = "compacted"


class SnapshotQuery(msgspec.Struct, frozen=True):
    """Which snapshots of one author a feed carries. None is no condition, an empty set matches nothing."""

    author: str
    kinds: frozenset[int] | None = None
    coordinates: frozenset[str] | None = None
    actions: frozenset[Action] | None = None
    collections: frozenset[str] | None = None

    @property
    def conditions(self) -> tuple[Collection[Any] | None, ...]:
        return self.kinds, self.coordinates, self.actions, self.collections


class RevisionQuery(msgspec.Struct, frozen=True):
    """Which revisions of one recipient a feed carries. None is no condition, an empty set matches nothing."""

    recipient: str
    kinds: frozenset[int] | None = None
    authors: frozenset[str] | None = None
    coordinates: frozenset[str] | None = None
    revisions: frozenset[str] | None = None

    @property
    def conditions(self) -> tuple[Collection[Any] | None, ...]:
        return self.kinds, self.authors, self.coordinates, self.revisions


class LogQuery(msgspec.Struct, frozen=True):
    """Which operations a feed of the whole log carries: those of every family that a filter matches."""

    filter: Filter = Filter()

    @property
    def conditions(self) -> tuple[Collection[Any] | None, ...]:
        filter = self.filter
        return filter.ids, filter.authors, filter.kinds, *(values for _, values in filter.tags)


ChangesQuery = SnapshotQuery | RevisionQuery | LogQuery


def size(query: ChangesQuery) -> int:
    """How much room it takes while it is open; see `filter.room`."""
    return FILTER_ROOM + room(query.conditions)


def concerns(query: ChangesQuery, author: str, recipient: str | None) -> bool:
    """Whether a query is about the operations of an author, or about those for a recipient: whoever may ask it may know
    of them."""
    if isinstance(query, SnapshotQuery):
        return author == query.author
    if isinstance(query, RevisionQuery):
        return recipient == query.recipient
    if query.filter.authors is not None:
        return author in query.filter.authors
    return recipient in dict(query.filter.tags).get("p", ())


def impossible(query: ChangesQuery) -> bool:
    """Whether a condition is an empty set, so that nothing can ever match."""
    return any(values is not None and not values for values in query.conditions)


class ChangesRequest(msgspec.Struct, frozen=True):
    mode: Mode
    query: ChangesQuery
    since: Position = START
    until: Position | None = None
    limit: int | None = None
    live: bool = False
    include_compacted: bool = False
    token: ProgressToken | None = None
    """Where `since` is to be understood, if the reader says: the log's own stream and epoch, or it is a gap."""


def for_revisions(raw: Mapping[str, Any]) -> bool:
    """Whether a filter is about the revision family: it names a recipient, a revision, or the kind of gift wraps."""
    kinds = raw.get("kinds")
    return "#p" in raw or "#r" in raw or (isinstance(kinds, list) and GIFT_WRAP in kinds)


def parse(raw: Mapping[str, Any], values_max: int) -> ChangesRequest:
    """The request that a CHANGES filter spells, or `Invalid` with the text for an ERR."""
    fields: dict[str, Any] = {"mode": Mode.TAIL}  # old clients send none
    conditions: dict[str, Any] = {}
    for key, value in raw.items():
        match key:
            case "mode":
                if value not in ("bootstrap", "tail", "log", "compacted"):
                    raise Invalid('mode must be "bootstrap", "tail", "log" or "compacted"')
                fields["mode"] = Mode(value)
            case "since" | "until_seq":
                fields["until" if key == "until_seq" else key] = Position(integer(key, value, TIMESTAMP_MAX))
            case "token":
                fields["token"] = _token(value)
            case "limit":
                fields["limit"] = integer(key, value, TIMESTAMP_MAX)
            case "live" | "include_compacted":
                if not isinstance(value, bool):
                    raise Invalid(f"{key} must be true or false")
                fields[key] = value
            case _:
                conditions[key] = value
    if (token := fields.get("token")) is not None:
        if "since" in fields or fields["mode"] in (Mode.BOOTSTRAP, Mode.COMPACTED):
            raise Invalid("a token stands in the place of since, in a feed that can be resumed")
        fields["since"] = token.position
    if fields["mode"] is Mode.LOG:
        if "until" in conditions:
            raise Invalid("a log feed ends at until_seq; it knows no until")
        return ChangesRequest(query=LogQuery(filters.parse(conditions, values_max)), **fields)
    if fields["mode"] is Mode.COMPACTED:
        query = revision_query(conditions, values_max, ONE_RECIPIENT)
        if query.revisions is None:
            raise Invalid("what is compacted is asked for by its revisions: #r")
        return ChangesRequest(query=query, **fields)
    if for_revisions(raw):
        if fields["mode"] is Mode.BOOTSTRAP:
            raise Invalid("a revision feed has no bootstrap mode; its bootstrap is NEG-OPEN")
        return ChangesRequest(query=revision_query(conditions, values_max, ONE_RECIPIENT), **fields)
    return ChangesRequest(query=_snapshot_query(conditions, values_max), **fields)


def _token(value: Any) -> ProgressToken:
    try:
        token = ProgressToken.from_wire(value)
    except ValueError as error:
        raise Invalid(str(error)) from None
    integer("the position of a token", token.position, TIMESTAMP_MAX)
    return token


def _snapshot_query(raw: Mapping[str, Any], values_max: int) -> SnapshotQuery:
    query: dict[str, Any] = {}
    for key, value in raw.items():
        match key:
            case "authors":
                pass
            case "kinds":
                query["kinds"] = integers(key, value, KIND_MAX, values_max)
                if not all(map(in_range, query["kinds"])):
                    raise Invalid("snapshot CHANGES kinds must be in the sync range 40000 to 49999")
            case "#d":
                query["coordinates"] = strings(key, value, values_max)
            case "#c":
                query["collections"] = strings(key, value, values_max)
            case "#o":
                wanted = strings(key, value, values_max)
                query["actions"] = frozenset(action for name, action in _ACTIONS.items() if name in wanted)
            case _:
                raise Invalid(f"unknown filter field {key[:32]!r}")
    authors = raw.get("authors")
    if not isinstance(authors, list) or len(authors) != 1:
        raise Invalid(ONE_AUTHOR)
    (author,) = _hexes("authors", authors, values_max)
    return SnapshotQuery(author, **query)


def revision_query(raw: Mapping[str, Any], values_max: int, one_recipient: str) -> RevisionQuery:
    """The conditions of a filter on revisions; `one_recipient` is what is said to a filter without exactly one."""
    query: dict[str, Any] = {}
    for key, value in raw.items():
        match key:
            case "#p":
                pass
            case "kinds":
                query["kinds"] = integers(key, value, KIND_MAX, values_max)
                if not query["kinds"] <= {GIFT_WRAP}:
                    raise Invalid(f"revisions are of kind {GIFT_WRAP}")
            case "authors":
                query["authors"] = _hexes(key, value, values_max)
            case "#d":
                query["coordinates"] = strings(key, value, values_max)
            case "#r":
                query["revisions"] = strings(key, value, values_max)
            case _:
                raise Invalid(f"unknown filter field {key[:32]!r}")
    recipients = raw.get("#p")
    if not isinstance(recipients, list) or len(recipients) != 1 or not isinstance(recipients[0], str):
        raise Invalid(one_recipient)
    return RevisionQuery(recipients[0], **query)


def _hexes(key: str, value: Any, values_max: int) -> frozenset[str]:
    found = strings(key, value, values_max)
    if not all(is_hex(one, 64) for one in found):
        raise Invalid(f"{key} must be lower-case hex of 64 characters")
    return found


def matches(query: ChangesQuery, change: Operation | Removal) -> bool:
    """Whether a feed carries an operation, or tells of its removal."""
    if isinstance(query, RevisionQuery):
        return _matches_revision(query, change)
    if isinstance(query, LogQuery):
        return isinstance(change, Operation) and not change.ephemeral and filters.matches(query.filter, change.event)
    return (
        isinstance(change, Operation)
        and change.family is Family.SNAPSHOT
        and change.event.pubkey == query.author
        and (query.kinds is None or change.event.kind in query.kinds)
        and (query.coordinates is None or change.coordinate in query.coordinates)
        and (query.actions is None or change.action in query.actions)
        and (query.collections is None or change.collection in query.collections)
    )


def _matches_revision(query: RevisionQuery, change: Operation | Removal) -> bool:
    if isinstance(change, Removal):
        recipient, coordinate, revision, author = change.recipient, change.coordinate, change.revision, change.author
    elif change.revision is not None:
        recipient, coordinate, author = change.revision.recipient, change.revision.coordinate, change.event.pubkey
        revision = change.revision.revision
    else:
        return False
    return (
        recipient == query.recipient
        and (query.kinds is None or GIFT_WRAP in query.kinds)
        and (query.authors is None or author in query.authors)
        and (query.coordinates is None or coordinate in query.coordinates)
        and (query.revisions is None or revision in query.revisions)
    )


def gap_text(gap: Gap, log: Log) -> str:
    """The words of an ERR for a checkpoint that is of no use; a client then bootstraps."""
    match gap.reason:
        case GapReason.TOKEN_TOO_NEW:
            return f"checkpoint too new: max_seq is {gap.latest}"
        case GapReason.STREAM_MISMATCH:
            return f"checkpoint of another stream: stream_id is {log.stream}"
        case GapReason.EPOCH_MISMATCH:
            return f"checkpoint of another epoch: epoch is {log.epoch}"
        case GapReason.MESSAGE_MISMATCH:
            return f"checkpoint of another history: its operation is not known at or before {gap.requested}"
    return f"checkpoint too old: min_seq is {gap.oldest}"
