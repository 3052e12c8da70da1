"""What a link asks our own store, for the machine to go on with: in parts, so that no single look-up takes long."""

from __future__ import annotations

from functools import partial

import msgspec

from anabranch.core.changes import LogQuery
from anabranch.core.closure import sending_order
from anabranch.core.filter import Filter
from anabranch.core.nostr import Event
from anabranch.core.revisions import Name
from anabranch.core.token import Position
from anabranch.replicate.applying import Host
from anabranch.replicate.effects import Owed
from anabranch.replicate.spec import LinkSpec
from anabranch.store.contract import Reader

KNOWN_AT_ONCE = 10_000
PAYLOADS_AT_ONCE = 10
_event = msgspec.json.Decoder(Event).decode


async def unknown(host: Host, ids: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(ids), KNOWN_AT_ONCE):
        part = ids[start : start + KNOWN_AT_ONCE]
        known = await host.read(lambda reader, part=part: reader.known(part))  # type: ignore[misc]
        found += [id for id in part if id not in known]
    return found


async def missing(host: Host, after: Position, also: tuple[Name, ...]) -> tuple[Position, list[Name]]:
    """Page by page, until all has been looked at, or there is much to ask for."""
    names: list[Name] = []
    while True:
        looked, found = await host.read(partial(_missing_parents, after=after, also=also))
        names += found
        if looked == after or len(names) >= KNOWN_AT_ONCE:
            return looked, names
        after, also = looked, ()


async def payloads(host: Host, ids: tuple[str, ...], bytes_max: int) -> tuple[list[tuple[str, bytes]], int]:
    """The first of these, as many as are not too many bytes, in the order in which they are best given; and how many of
    the ids are done with."""

    def read(reader: Reader) -> tuple[list[tuple[str, bytes]], int]:
        raws: list[bytes] = []
        size = done = 0
        while done < len(ids) and (not done or size < bytes_max):
            part = ids[done : done + PAYLOADS_AT_ONCE]
            selection = reader.select([Filter(ids=frozenset(part))], len(part), 0)
            found = [raw for _, raw in reader.payloads(selection.positions)]
            raws += found
            size, done = size + sum(map(len, found)), done + len(part)
        return _ordered(raws), done

    return await host.read(read)


async def owed(host: Host, spec: LinkSpec, after: Position, limit: int, now: int, bytes_max: int) -> Owed:
    query = LogQuery(spec.scope.parsed())

    def read(reader: Reader) -> Owed:
        page = reader.changes(query, after, None, limit, False, now, bytes_max)
        echoes = reader.echoes(spec.name, after, page.complete_to)
        raws = [entry.raw for entry in page.entries if entry.raw is not None and entry.position not in echoes]
        return Owed(after, tuple(_ordered(raws)), page.complete_to, page.log)

    return await host.read(read)


def _missing_parents(reader: Reader, after: Position, also: tuple[Name, ...]) -> tuple[Position, list[Name]]:
    return reader.missing_parents(after, also)


def _ordered(raws: list[bytes]) -> list[tuple[str, bytes]]:
    """(id, bytes) in the order in which a peer is best given them."""
    events = [_event(raw) for raw in raws]
    by_id = {event.id: raw for event, raw in zip(events, raws, strict=True)}
    return [(event.id, by_id[event.id]) for event in sending_order(events)]
