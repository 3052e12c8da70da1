"""`anabranch notes`: notes of one's own, on this machine first, in step with relays when there is a connection.

Every command works offline but `sync`. What is written is a signed, encrypted version on disk at once, and stands on
what its writer was shown: another version that came meanwhile (`sync --follow` in another window) is a conflict that is
told, never a text that is gone.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import click

from anabranch.cli import notes_refused as refused
from anabranch.cli import notes_view as view
from anabranch.cli.notes_folder import NotesShell, options
from anabranch.cli.notes_init import init
from anabranch.cli.notes_sync import relay, sync
from anabranch.cli.notes_writing import UNSAVED, GivenUp, Writing, at_terminal, interruptible, kept, read_pipe
from anabranch.cli.shell import Exit, Failure
from anabranch.client import Base, Document, DocumentVersion, NotInConflict, Replica
from anabranch.client.now import REAL
from anabranch.core import nostr
from anabranch.core import notes as profile
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Family
from anabranch.core.replica import read as read_version

NOTE = click.argument("note", metavar="ID")
TEXT = click.option("--text", metavar="TEXT", help="The text; without it, what is piped in, or $EDITOR.")

TEXT_BYTES = {"snapshot": 64_000, "revision": 40_000}
"""How long a text may be, about, for a relay with the usual limits. Only said; `too_large` knows."""
BASE_OF_AN_EDIT = "The version your text was written upon: what came since stays, as a conflict."
BASE_OF_A_MERGE = "A version that you have seen; given again for each. Others stay in conflict. [default: all]"


async def find(shell: NotesShell, replica: Replica, beginning: str) -> str:
    """The one note whose id begins so."""
    found = await replica.find(beginning.upper()) or await replica.find(beginning)
    if len(found) > 1 and beginning.upper() not in found:
        listed = ", ".join(one[:12] for one in found[:5])
        raise Failure(f"{beginning!r} is the beginning of several notes ({listed} …); write more of it")
    if not found:
        raise Failure(f"no note begins with {beginning!r}; `{shell.command('list')}` shows them, `sync` may bring it")
    return beginning.upper() if len(found) > 1 else found[0]


async def read(shell: NotesShell, replica: Replica, beginning: str) -> Document:
    d = await find(shell, replica, beginning)
    document = await replica.get(d)
    if document is None:
        short = d[: view.SHORT]
        raise Failure(f"note {short} is deleted; `{shell.command('history', short)}` has what it was")
    return document


async def in_conflict(replica: Replica, d: str) -> bool:
    return any(one.d == d for one in await replica.conflicts())


async def saved(shell: NotesShell, replica: Replica, d: str, version: str, title: str, done: str) -> None:
    """Tell what was written, and where it was overtaken, what to do next."""
    clashes = await in_conflict(replica, d)
    shell.result({"id": d, "version": version, "in_conflict": clashes}, d)
    if shell.json:
        return
    if clashes:
        shell.note(
            f"{done}, but another version came meanwhile: both are kept, and the note is in conflict. Settle it with:\n"
            f"{shell.command('resolve', d[: view.SHORT])}"
        )
    elif sys.stderr.isatty():
        shell.note(f"{done}: {view.visible(title)}")
    if (why := await too_large(replica, d, version)) is not None:
        most = f"a text may have about {TEXT_BYTES[replica.family]:,} bytes"
        shell.note(
            f"this is more than relays take by default ({why}; {most}): it is saved, but may stay on this device only."
            f" Shorten it: {shell.command('edit', d[: view.SHORT])}"
        )


async def too_large(replica: Replica, d: str, version: str) -> str | None:
    """Why a relay with the usual limits would not take a version, if so."""
    found = await replica.in_file(replica.file.some, d, [version])
    try:
        for raw in (one.raw for one in found if one.raw is not None):
            nostr.parse(raw, nostr.Limits(created_at_ahead=None))
    except Invalid as error:
        return str(error)
    return None


def refuse_conflict(shell: NotesShell, d: str, current: Sequence[DocumentVersion]) -> None:
    if len(current) > 1:
        short = d[: view.SHORT]
        raise Failure(f"note {short} is in conflict; settle it first: {shell.command('resolve', short)}")


def refuse_empty(markdown: str, instead: str) -> None:
    if not markdown.strip():
        raise GivenUp(f"an empty note is none; {instead}")


@click.command("list")
@click.option("--deleted", is_flag=True, help="The deleted ones too.")
@click.option("--search", metavar="TEXT", help="Only notes with these words in them.")
@options
async def list_notes(shell: NotesShell, deleted: bool, search: str | None) -> None:
    """List the notes, those last edited first."""
    async with await shell.replica() as replica:
        found = await replica.documents(deleted=deleted)
        stands = await replica.status()
    if search:
        found = [one for one in found if search.casefold() in view.text_of(one.content).casefold()]
    refusers = {one.d: refused.by(stands, one) for one in found}
    answer = [{**view.as_json(one), "refused_by": refusers[one.d]} for one in found]
    rows = (view.row(one, refused.mark(refusers[one.d], len(stands))) for one in found)
    shell.result({"notes": answer}, "\n".join(rows))
    if any(refusers.values()) and not shell.json:
        shell.note(f"{refused.MARK}: a relay does not take the note; `{shell.command('relay', 'list')}` says why")
    if not found and not shell.json:
        shell.note("no notes here" + (" with these words" if search else f"; `{shell.command('new')}` writes one"))
    if (count := kept(shell.folder)) and not shell.json:
        shell.note(f"{count} unsaved in {shell.folder / UNSAVED}: save what you want of it, then delete it there")


@click.command()
@TEXT
@click.option("--tag", "tags", multiple=True, help="A tag; may be given again.")
@options
async def new(shell: NotesShell, text: str | None, tags: tuple[str, ...]) -> None:
    """Write a new note; its id is printed."""
    async with await shell.replica() as replica:  # before anybody writes a long text in vain
        d = REAL.new_uuid().upper()

        async def save(markdown: str) -> tuple[str, str]:
            refuse_empty(markdown, "nothing was saved")
            payload = profile.new(markdown, replica.device, REAL.milliseconds(), tags)
            return await replica.put(d, payload), profile.read(payload).title

        again = shell.command("new", *(word for tag in tags for word in ("--tag", tag)))
        with Writing(shell, "new", again) as writing:
            writing.take(text)
            version, title = await writing.save(save)
        await saved(shell, replica, d, version, title, "saved")


@click.command()
@NOTE
@TEXT
@click.option("--base", metavar="VERSION", help=BASE_OF_AN_EDIT)
@options
async def edit(shell: NotesShell, note: str, text: str | None, base: str | None) -> None:
    """Edit a note in $EDITOR, or replace its text."""
    async with await shell.replica() as replica:
        shown: Base
        if base is None:
            document = await read(shell, replica, note)
            d, ground, shown = document.d, document.versions[0], document
            refuse_conflict(shell, d, document.versions)
        else:
            d = await find(shell, replica, note)
            ground = view.find_version(await replica.history(d), base)
            shown = [ground.id]
        before = view.note_of(ground.content)
        if before is None:
            raise Failure("another app wrote this, and this version cannot read it; update Anabranch")
        if before.readonly:
            raise Failure("this note is marked read-only by the app that wrote it")
        short, unchanged = d[: view.SHORT], before.markdown

        async def save(markdown: str) -> tuple[str, str] | None:
            if markdown == unchanged:
                return None
            refuse_empty(markdown, f"nothing was saved. To delete it: {shell.command('delete', short)}")
            payload = profile.edited(ground.content or {}, replica.device, REAL.milliseconds(), markdown=markdown)
            return await replica.put(d, payload, base=shown), profile.read(payload).title

        again = shell.command("edit", short, "--base", ground.id[: view.SHORT])
        with Writing(shell, short, again) as writing:
            writing.take(text, unchanged)
            done = await writing.save(save)
        if done is None:
            shell.result({"id": d, "version": ground.id, "in_conflict": await in_conflict(replica, d)}, d)
            shell.note("nothing changed")
            return
        await saved(shell, replica, d, *done, "saved")


@click.command()
@NOTE
@click.option("--version", "wanted", metavar="VERSION", help="An older one, by its number or id in `history`.")
@options
async def show(shell: NotesShell, note: str, wanted: str | None) -> None:
    """Print a note's text: on a terminal as Markdown is meant, into a pipe as it was written."""
    async with await shell.replica() as replica:
        if wanted is not None:
            d = await find(shell, replica, note)
            one = view.find_version(await replica.history(d), wanted)
            answer, text = {"id": d, **view.version_as_json(one)}, view.text_of(one.content)
        else:
            document = await read(shell, replica, note)
            answer, text = view.as_json(document), view.text_of(document.content)
            if document.in_conflict and not shell.json:
                count, short = len(document.versions), document.d[: view.SHORT]
                shell.note(f"in conflict: this is one of {count} versions; {shell.command('resolve', short)}")
    if shell.json:
        shell.result(answer, "")
    else:
        view.print_markdown(text, sys.stdout.isatty())


@click.command()
@NOTE
@options
async def delete(shell: NotesShell, note: str) -> None:
    """Delete a note. `notes restore` brings it back for as long as its history is kept."""
    async with await shell.replica() as replica:
        document = await read(shell, replica, note)
        refuse_conflict(shell, document.d, document.versions)
        version = await replica.delete(document.d, base=document)
        await saved(shell, replica, document.d, version, view.title_of(document), "deleted")


@click.command()
@options
async def conflicts(shell: NotesShell) -> None:
    """List the notes that were edited apart."""
    async with await shell.replica() as replica:
        found = await replica.conflicts()
    shell.result({"conflicts": [view.as_json(one) for one in found]}, "\n".join(map(view.row, found)))
    if not shell.json:
        shell.note("no conflicts" if not found else f"settle one with: {shell.command('resolve')} ID")


@click.command()
@NOTE
@click.option("--pick", metavar="VERSION", help="Take this version, by its number or the beginning of its id.")
@click.option("--text", metavar="TEXT", help="Take this merged text; `-` reads it from stdin.")
@click.option("--delete", "gone", is_flag=True, help="Delete the note altogether.")
@click.option("--base", "bases", multiple=True, metavar="VERSION", help=BASE_OF_A_MERGE)
@options
async def resolve(
    shell: NotesShell, note: str, pick: str | None, text: str | None, gone: bool, bases: tuple[str, ...]
) -> None:
    """Settle a conflict: look at the versions side by side, then take one, merge them, or delete the note."""
    if (pick is not None) + (text is not None) + gone > 1:
        raise Failure("only one of --pick, --text and --delete", Exit.USAGE)
    async with await shell.replica() as replica:
        d = await find(shell, replica, note)
        document = next((one for one in await replica.conflicts() if one.d == d), None)
        if document is None:
            short = d[: view.SHORT]
            raise Failure(f"note {short} is not in conflict; to change it: {shell.command('edit', short)}")
        if len(bases) == 1:
            raise Failure("--base names each of the versions that you have seen, two at least", Exit.USAGE)
        if bases:
            kept_versions = await replica.history(d)
            seen = tuple(view.find_version(kept_versions, one) for one in bases)
            document = dataclasses.replace(document, versions=seen)
        if pick is None and text is None and not gone:
            pick, gone = _ask(shell, document)
        try:
            if gone:
                version, title = await replica.resolve(d, base=document, delete=True), "deleted"
            elif pick is not None:
                picked = view.find_version(document.versions, pick)
                version, title = await replica.resolve(d, base=document, pick=picked.id), view.title_of(picked)
            else:
                version, title = await _merge(shell, replica, document, text)
        except NotInConflict:
            raise _settled_elsewhere(shell, d) from None
        await saved(shell, replica, d, version, title, "settled")


async def _merge(shell: NotesShell, replica: Replica, document: Document, text: str | None) -> tuple[str, str]:
    """Settle it with a text, given or written in the editor."""
    d, short = document.d, document.d[: view.SHORT]
    seen = [word for version in document.versions for word in ("--base", version.id[: view.SHORT])]

    async def save(markdown: str) -> tuple[str, str]:
        refuse_empty(markdown, f"the conflict stays. To delete the note: {shell.command('resolve', short, '--delete')}")
        if view.has_marks(markdown, document.versions):
            raise Failure(f"the text still has conflict marks ({view.BEGIN} …, {view.END} …); the conflict stays")
        ground = document.content or profile.new("", replica.device, REAL.milliseconds())
        payload = profile.edited(ground, replica.device, REAL.milliseconds(), markdown=markdown)
        try:
            return await replica.resolve(d, payload, base=document), profile.read(payload).title
        except NotInConflict:
            writing.go_on = shell.command("edit", short)
            raise _settled_elsewhere(shell, d) from None

    with Writing(shell, short, shell.command("resolve", short, *seen, "--text", "-")) as writing:
        writing.take(read_pipe() if text == "-" else text, view.merge_draft(document.versions))
        return await writing.save(save)


def _settled_elsewhere(shell: NotesShell, d: str) -> GivenUp:
    return GivenUp(f"the conflict was settled elsewhere meanwhile; look: {shell.command('show', d[: view.SHORT])}")


def _ask(shell: NotesShell, document: Document) -> tuple[str | None, bool]:
    """Show, ask, and return (pick, delete); neither is a merged text."""
    if not at_terminal():
        raise Failure("say how: --pick VERSION, --text TEXT or --delete; at a terminal you are asked", Exit.USAGE)
    shell.note(view.side_by_side(document.versions))
    numbers = [str(number) for number in range(1, len(document.versions) + 1)]
    with interruptible():
        choice = click.prompt(
            f"\n{'/'.join(numbers)} takes that version, e edits a merged text, d deletes the note, q leaves it",
            type=click.Choice([*numbers, "e", "d", "q"]),
            show_choices=False,
            err=True,
        )
    if choice == "q":
        raise Failure("left as it is; the conflict stays")
    return (choice if choice in numbers else None), choice == "d"


@click.command()
@NOTE
@options
async def history(shell: NotesShell, note: str) -> None:
    """List a note's versions: the current ones, then up to ten older ones."""
    async with await shell.replica() as replica:
        d = await find(shell, replica, note)
        found = await replica.history(d)
        bases = view.bases_of(found, await parents_of(replica, d) if replica.family == "revision" else {})
    shell.result({"id": d, "versions": [view.version_as_json(one) for one in found]}, view.history_rows(found, bases))


async def parents_of(replica: Replica, d: str) -> dict[str, tuple[str, ...]]:
    """What each revision that is kept was written upon, by its event."""
    limits = nostr.Limits(event_bytes=1 << 24, content_characters=1 << 24, created_at_ahead=None)
    kept_versions = await replica.in_file(replica.file.versions, d)
    events = [(one.version.id, nostr.parse(one.raw, limits)[0]) for one in kept_versions if one.raw is not None]
    return {id: read_version(event, Family.REVISION, replica.owner).parents for id, event in events}


@click.command()
@NOTE
@click.argument("version", metavar="VERSION")
@options
async def restore(shell: NotesShell, note: str, version: str) -> None:
    """Bring an older version back, as a new one. VERSION is its number or id in `notes history`."""
    async with await shell.replica() as replica:
        d = await find(shell, replica, note)
        kept_versions = await replica.history(d)
        shown = [one for one in kept_versions if one.current]
        refuse_conflict(shell, d, shown)
        old = view.find_version(kept_versions, version)
        made = await replica.restore(d, old.id, base=[one.id for one in shown])
        await saved(shell, replica, d, made, view.title_of(old), "restored")


COMMANDS: tuple[click.Command, ...] = (
    init,
    list_notes,
    new,
    edit,
    show,
    delete,
    conflicts,
    resolve,
    history,
    restore,
    sync,
    relay,
)
