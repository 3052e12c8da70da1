"""`anabranch notes sync --follow`, for people: one line a change, with the note's title.

Versions come from relays, and from other commands on the same folder, of which the replica only knows that they wrote:
then all notes are compared with how they stood. What was told is not told again: not by a relay that is still away
after the next try, and not of a note that stands as it was told.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from anabranch.cli import notes_refused as refused
from anabranch.cli import notes_view as view
from anabranch.cli.notes_folder import NotesShell
from anabranch.cli.notes_words import of_relay
from anabranch.client import Change, ChangeKind, Document, DocumentVersion, Replica

Heads = frozenset[str]

OTHERS = "another command"


class Telling:
    def __init__(self, shell: NotesShell, replica: Replica) -> None:
        self._shell = shell
        self._replica = replica
        self._stood: dict[str, Heads] = {}
        self._told: dict[str, Heads] = {}
        self._of_relay: dict[str, str] = {}  # what was last said of each
        self._refused: set[tuple[str, str]] = set()

    async def begin(self) -> None:
        self._stood = {one.d: _heads(one) for one in await self._replica.documents(read=False, deleted=True)}
        self._refused = {(one.url, each.version) for one in await self._replica.status() for each in one.refused}

    async def tell(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.WRITTEN if change.d:
                await self._note(change.d, change.relay or OTHERS)
            case ChangeKind.WRITTEN:
                await self._compare(OTHERS)
            case ChangeKind.CONFLICT_BEGUN | ChangeKind.CONFLICT_ENDED:
                pass  # the line of the version that did it says so
            case ChangeKind.RELAY if change.relay:
                self._relay(change.relay, change.detail)
            case ChangeKind.REFUSED:
                await self._refusals()
            case ChangeKind.REMOVED if change.d:
                title = view.visible(_title(await self._replica.history(change.d)))
                self._remark(f"{change.d[: view.SHORT]}  removed there, kept here: {title}", change)
            case ChangeKind.DROPPED:
                self._remark("bad event left out", change)
            case ChangeKind.NEW_LOG:
                self._remark("reads all anew", change)
            case ChangeKind.MISSED:
                self._shell.note(f"{change.detail} changes came too fast to be told one by one")
                await self._compare("several")

    # --- notes ---

    async def _compare(self, who: str) -> None:
        for one in await self._replica.documents(read=False, deleted=True):
            if _heads(one) != self._stood.get(one.d):
                await self._note(one.d, who)

    async def _note(self, d: str, who: str) -> None:
        kept = await self._replica.history(d)
        heads = frozenset(one.id for one in kept if one.current)
        if self._told.get(d) == heads:
            return
        before = self._stood.get(d)
        self._stood[d] = self._told[d] = heads
        if len(heads) > 1:
            what = click.style("in conflict", fg="red")
        elif kept[0].deleted:
            what = "deleted"
        elif before is None:
            what = "new"
        else:
            what = "settled" if len(before) > 1 else "changed"
        title = view.visible(_title(kept))
        click.echo(f"{click.style(view.visible(d[: view.SHORT]), fg='cyan')}  {what}: {title}  ({who})")

    # --- relays ---

    def _relay(self, url: str, detail: str) -> None:
        state, _, why = detail.partition(": ")
        if state not in ("live", "offline"):
            return
        said = "live" if state == "live" else f"offline: {of_relay(self._shell, url, why)}; it is tried again"
        if self._of_relay.get(url) != said:
            self._of_relay[url] = said
            self._shell.note(f"{url}  {said}")

    async def _refusals(self) -> None:
        documents = await self._replica.documents(deleted=True)
        for stands in await self._replica.status():
            fresh = [one for one in stands.refused if (stands.url, one.version) not in self._refused]
            self._refused |= {(stands.url, one.version) for one in fresh}
            for line in refused.lines(refused.as_json(fresh, documents)):
                self._shell.note(f"{click.style(refused.MARK, fg='red')}{line}  ({stands.url})")

    def _remark(self, what: str, change: Change) -> None:
        detail = f" ({view.visible(change.detail)})" if change.detail else ""
        self._shell.note(f"{change.relay}  {what}{detail}")


def _title(kept: Sequence[DocumentVersion]) -> str:
    """Of a deleted note, what it was."""
    return view.title_of(next((one for one in kept if not one.deleted), kept[0]))


def _heads(document: Document) -> Heads:
    return frozenset(version.id for version in document.versions)
