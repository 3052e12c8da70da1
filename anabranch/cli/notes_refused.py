"""Notes that a relay does not take: which, why, and what to do.

Only current versions count. One that was refused and has been written anew since is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anabranch.cli import notes_view as view
from anabranch.cli.notes_folder import NotesShell
from anabranch.client import Document, Refusal, RelayStatus

MARK = "refused"


def by(stands: Iterable[RelayStatus], document: Document) -> list[str]:
    """The relays that refuse a note as it stands."""
    current = {version.id for version in document.versions}
    return [one.url for one in stands if any(refusal.version in current for refusal in one.refused)]


def mark(refusers: Sequence[str], relays: int) -> str:
    if not refusers:
        return ""
    return MARK if len(refusers) == relays else f"{MARK} by {len(refusers)} of {relays} relays"


def as_json(refusals: Iterable[Refusal], documents: Iterable[Document]) -> list[dict[str, Any]]:
    """Each with its note's title, and whether it is how the note stands."""
    known = {one.d: one for one in documents}
    return [_as_json(one, known.get(one.d)) for one in refusals]


def _as_json(one: Refusal, document: Document | None) -> dict[str, Any]:
    current = document is not None and any(version.id == one.version for version in document.versions)
    title = "" if document is None else view.title_of(document)
    return {"version": one.version, "d": one.d, "reason": one.reason, "title": title, "current": current}


def current(refusals: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in refusals if one["current"]]


def lines(refusals: Iterable[dict[str, Any]]) -> list[str]:
    return [
        f"  {view.visible(one['d'][: view.SHORT])}  {view.visible(one['title'])}: {view.visible(one['reason'])}"
        for one in current(refusals)
    ]


def advice(shell: NotesShell) -> str:
    return (
        f"A refused note is on this device only, as far as that relay goes. Shorten one that is too large"
        f" ({shell.command('edit')} ID) and sync; for another reason ask who runs the relay, then:"
        f" {shell.command('sync', '--retry-refused')}"
    )
