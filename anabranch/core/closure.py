"""Closure: what an operation needs, and the order in which nothing comes before what it needs.

A family says what its operations depend on. Snapshots and revisions apply in any order, so they need nothing; parents
before their revisions is only the better order to send them in: a relay in between never shows a false head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from anabranch.core.nostr import Event
from anabranch.core.revisions import GIFT_WRAP

T = TypeVar("T")


class Dependency(msgspec.Struct, frozen=True):
    """A hard dependency: without the operation of this id, of that class, another cannot be applied."""

    kind: str
    id: str


def dependencies(event: Event) -> tuple[Dependency, ...]:
    """What must be here before the operation that an event is. None of today's families asks for anything."""
    return ()


def blocked(page: Mapping[str, Iterable[Dependency]], here: Collection[str]) -> dict[str, Dependency]:
    """What of a page, by id, cannot be applied, and the need that keeps it back; all the rest can, together.

    What a page does not bring and what is not here is missing; so is, for others, what is itself kept back.
    """
    needed_by: dict[str, list[tuple[str, Dependency]]] = {}
    for id, needs in page.items():
        if id not in here:
            for need in needs:
                needed_by.setdefault(need.id, []).append((id, need))
    missing = deque(id for id in needed_by if id not in here and id not in page)
    found: dict[str, Dependency] = {}
    while missing:
        for id, need in needed_by.get(missing.popleft(), ()):
            if id not in found:
                found[id] = need
                missing.append(id)
    return found


def dependencies_first(
    items: Sequence[T], name: Callable[[T], Hashable], needs: Callable[[T], Iterable[Hashable]]
) -> list[T]:
    """The same items, none before one that it needs and that is among them; otherwise in the order they are in."""
    names = [name(item) for item in items]
    by_name = {named: at for at, named in enumerate(names)}
    done = [False] * len(items)
    ordered: list[T] = []
    for first in range(len(items)):
        path = [first]
        while path:
            at = path[-1]
            open = () if done[at] else needs(items[at])
            before = (by_name[need] for need in open if need in by_name and need != names[at])
            waiting = next((one for one in before if not done[one]), None)
            circular = len(path) > len(items)  # names are hashes of what was before: that is a lie
            if waiting is not None and not circular:
                path.append(waiting)
                continue
            path.pop()
            if not done[at]:
                done[at] = True
                ordered.append(items[at])
    return ordered


def sending_order(events: Sequence[Event]) -> list[Event]:
    """Events in the order in which a peer is best given them: after what they need, revisions after their parents."""
    if not any(map(dependencies, events)):
        return dependencies_first(events, _name, _parents)
    names = {event.id: _name(event) for event in events}

    def needs(event: Event) -> Iterable[Hashable]:
        return [*(names[need.id] for need in dependencies(event) if need.id in names), *_parents(event)]

    return dependencies_first(events, _name, needs)


def _name(event: Event) -> Hashable:
    revision = event.first("r") if event.kind == GIFT_WRAP else None
    return event.id if revision is None else (event.first("p"), event.first("d"), revision)


def _parents(event: Event) -> Iterable[Hashable]:
    if event.kind != GIFT_WRAP:
        return ()
    document = event.first("p"), event.first("d")
    return [(*document, parent) for parent in event.values("prev")]
