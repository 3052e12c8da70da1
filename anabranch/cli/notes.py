"""`anabranch notes`: notes of one's own, on this machine first, in step with relays when there is a connection.

Every command works offline but `sync`. What is written is a signed, encrypted version on disk at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from anabranch.cli import notes_view as view
from anabranch.cli.notes_folder import KEY, NotesShell, new_secret, options, parse_secret
from anabranch.cli.notes_sync import relay, sync
from anabranch.cli.shell import Exit, Failure
from anabranch.client import Document, Keys, ReadOnly, Replica
from anabranch.client.now import REAL
from anabranch.core import nip19
from anabranch.core import notes as profile
from anabranch.core.nostr import Invalid

NOTE = click.argument("note", metavar="ID")
TEXT = click.option("--text", metavar="TEXT", help="The text; without it, what is piped in, or $EDITOR.")


async def find(replica: Replica, beginning: str) -> str:
    """The one note whose id begins so."""
    found = await replica.find(beginning.upper()) or await replica.find(beginning)
    if len(found) > 1 and beginning.upper() not in found:
        listed = ", ".join(one[:12] for one in found[:5])
        raise Failure(f"{beginning!r} is the beginning of several notes ({listed} …); write more of it")
    if not found:
        raise Failure(f"no note begins with {beginning!r}; `anabranch notes list` shows them, `sync` may bring it")
    return beginning.upper() if len(found) > 1 else found[0]


async def read(replica: Replica, beginning: str) -> Document:
    d = await find(replica, beginning)
    document = await replica.get(d)
    if document is None:
        raise Failure(f"note {d[: view.SHORT]} is deleted; `anabranch notes history {d[: view.SHORT]}` has what it was")
    return document


def saved(shell: NotesShell, d: str, version: str, title: str, done: str) -> None:
    shell.result({"id": d, "version": version}, d)
    if not shell.json and sys.stderr.isatty():
        shell.note(f"{done}: {title}")


def refuse_conflict(document: Document) -> None:
    if document.in_conflict:
        short = document.d[: view.SHORT]
        raise Failure(f"note {short} is in conflict; settle it first: anabranch notes resolve {short}")


@click.command()
@click.option("--import", "import_key", is_flag=True, help="Use a key of yours (nsec or hex), asked for or piped in.")
@click.option(
    "--family",
    type=click.Choice(["snapshot", "revision"]),
    default="snapshot",
    show_default=True,
    help="How versions are ordered: by clocks, or by their parents. All your devices need the same.",
)
@click.option("--relay", "relays", multiple=True, metavar="URL", help="A relay to sync with; may be given again.")
@options
async def init(shell: NotesShell, import_key: bool, family: str, relays: tuple[str, ...]) -> None:
    """Make the folder, with a new key or one of yours.

    Your other devices need the same key: `anabranch notes init --import` there, with what the key file here says.
    """
    file = shell.folder / KEY
    if file.exists():
        raise Failure(f"{shell.folder} has notes already; another folder: --data DIR", Exit.USAGE)
    if import_key:
        asked = click.prompt("Secret key", hide_input=True, err=True) if view.at_terminal() else sys.stdin.readline()
        try:
            secret = parse_secret(asked)
        except Invalid as error:
            raise Failure(f"this is no secret key: {error}", Exit.USAGE) from None
    else:
        secret = new_secret()
    shell.save_key(secret)
    keys = Keys(secret)
    async with await shell.replica(family=family, relays=relays) as replica:
        npub = nip19.encode("npub", bytes.fromhex(keys.pubkey))
        shell.result(
            {"data": str(shell.folder), "pubkey": keys.pubkey, "npub": npub, "key_file": str(file)}
            | {"device": replica.device, "family": replica.family, "relays": list(relays)},
            npub,
        )
    if not shell.json:
        shell.note(f"Your notes live in {shell.folder}; the key to them is {file}: keep a copy in a safe place.")
        if not relays:
            shell.note("Next: anabranch notes new; anabranch notes relay add wss://…; anabranch notes sync")


@click.command("list")
@click.option("--deleted", is_flag=True, help="The deleted ones too.")
@click.option("--search", metavar="TEXT", help="Only notes with these words in them.")
@options
async def list_notes(shell: NotesShell, deleted: bool, search: str | None) -> None:
    """List the notes, those last edited first."""
    async with await shell.replica() as replica:
        found = await replica.documents(deleted=deleted)
    if search:
        found = [one for one in found if search.casefold() in view.text_of(one.content).casefold()]
    shell.result({"notes": [view.as_json(one) for one in found]}, "\n".join(map(view.row, found)))
    if not found and not shell.json:
        shell.note("no notes here" + (" with these words" if search else "; `anabranch notes new` writes one"))


@click.command()
@TEXT
@click.option("--tag", "tags", multiple=True, help="A tag; may be given again.")
@options
async def new(shell: NotesShell, text: str | None, tags: tuple[str, ...]) -> None:
    """Write a new note; its id is printed."""
    shell.keys()  # before anybody writes a long text in vain
    markdown = view.take_text(shell, text)
    if not markdown.strip():
        raise Failure("an empty note is none; nothing was saved")
    async with await shell.replica() as replica:
        d = REAL.new_uuid().upper()
        payload = profile.new(markdown, replica.device, REAL.milliseconds(), tags)
        version = await replica.put(d, payload)
        saved(shell, d, version, profile.read(payload).title, "saved")


@click.command()
@NOTE
@TEXT
@options
async def edit(shell: NotesShell, note: str, text: str | None) -> None:
    """Edit a note in $EDITOR, or replace its text."""
    async with await shell.replica() as replica:
        document = await read(replica, note)
        refuse_conflict(document)
        before = view.note_of(document.content)
        if before is None:
            raise Failure("another app wrote this, and this version cannot read it; update Anabranch")
        if before.readonly:
            raise Failure("this note is marked read-only by the app that wrote it")
        markdown = view.take_text(shell, text, before.markdown)
        if markdown == before.markdown:
            shell.result({"id": document.d, "version": document.versions[0].id}, document.d)
            shell.note("nothing changed")
            return
        payload = profile.edited(document.content or {}, replica.device, REAL.milliseconds(), markdown=markdown)
        try:
            version = await replica.put(document.d, payload)
        except ReadOnly as error:  # a sync in another window brought a conflict while the editor was open
            kept = _keep(shell, document.d, markdown)
            raise Failure(f"{error.conflict.d} came into conflict meanwhile; your text is in {kept}") from None
        saved(shell, document.d, version, profile.read(payload).title, "saved")


def _keep(shell: NotesShell, d: str, text: str) -> Path:
    file = shell.folder / f"unsaved-{d[: view.SHORT]}-{REAL.milliseconds()}.md"
    file.write_text(text, "utf-8")
    return file


@click.command()
@NOTE
@click.option("--version", "wanted", metavar="VERSION", help="An older one, by its number or id in `history`.")
@options
async def show(shell: NotesShell, note: str, wanted: str | None) -> None:
    """Print a note's text: on a terminal as Markdown is meant, into a pipe as it was written."""
    async with await shell.replica() as replica:
        if wanted is not None:
            d = await find(replica, note)
            one = view.find_version(await replica.history(d), wanted)
            answer, text = {"id": d, **view.version_as_json(one)}, view.text_of(one.content)
        else:
            document = await read(replica, note)
            answer, text = view.as_json(document), view.text_of(document.content)
            if document.in_conflict and not shell.json:
                count, short = len(document.versions), document.d[: view.SHORT]
                shell.note(f"in conflict: this is one of {count} versions; anabranch notes resolve {short}")
    if shell.json:
        shell.result(answer, "")
    else:
        view.print_markdown(text)


@click.command()
@NOTE
@options
async def delete(shell: NotesShell, note: str) -> None:
    """Delete a note. `notes restore` brings it back for as long as its history is kept."""
    async with await shell.replica() as replica:
        document = await read(replica, note)
        refuse_conflict(document)
        version = await replica.delete(document.d)
    saved(shell, document.d, version, view.title_of(document), "deleted")


@click.command()
@options
async def conflicts(shell: NotesShell) -> None:
    """List the notes that were edited apart."""
    async with await shell.replica() as replica:
        found = await replica.conflicts()
    shell.result({"conflicts": [view.as_json(one) for one in found]}, "\n".join(map(view.row, found)))
    if not shell.json:
        shell.note("no conflicts" if not found else "settle one with: anabranch notes resolve ID")


@click.command()
@NOTE
@click.option("--pick", metavar="VERSION", help="Take this version, by its number or the beginning of its id.")
@click.option("--text", metavar="TEXT", help="Take this merged text; `-` reads it from stdin.")
@click.option("--delete", "gone", is_flag=True, help="Delete the note altogether.")
@options
async def resolve(shell: NotesShell, note: str, pick: str | None, text: str | None, gone: bool) -> None:
    """Settle a conflict: look at the versions side by side, then take one, merge them, or delete the note."""
    if (pick is not None) + (text is not None) + gone > 1:
        raise Failure("only one of --pick, --text and --delete", Exit.USAGE)
    async with await shell.replica() as replica:
        d = await find(replica, note)
        document = next((one for one in await replica.conflicts() if one.d == d), None)
        if document is None:
            raise Failure(f"note {d[: view.SHORT]} is not in conflict")
        if pick is None and text is None and not gone:
            pick, text, gone = _ask(shell, document)
        if text == "-":
            text = sys.stdin.read()
        if gone:
            version = await replica.resolve(d, delete=True)
        elif pick is not None:
            version = await replica.resolve(d, pick=view.find_version(document.versions, pick).id)
        else:
            ground = document.content or profile.new("", replica.device, REAL.milliseconds())
            payload = profile.edited(ground, replica.device, REAL.milliseconds(), markdown=text)
            version = await replica.resolve(d, payload)
    saved(shell, d, version, view.title_of(document), "settled")


def _ask(shell: NotesShell, document: Document) -> tuple[str | None, str | None, bool]:
    """Show, ask, and return (pick, text, delete)."""
    if not view.at_terminal():
        raise Failure("say how: --pick VERSION, --text TEXT or --delete; at a terminal you are asked", Exit.USAGE)
    shell.note(view.side_by_side(document.versions))
    numbers = [str(number) for number in range(1, len(document.versions) + 1)]
    choice = click.prompt(
        f"\n{'/'.join(numbers)} takes that version, e edits a merged text, d deletes the note, q leaves it",
        type=click.Choice([*numbers, "e", "d", "q"]),
        show_choices=False,
        err=True,
    )
    if choice == "q":
        raise Failure("left as it is; the conflict stays")
    if choice == "d":
        return None, None, True
    if choice != "e":
        return choice, None, False
    text = click.edit(view.merge_draft(document.versions), extension=".md")
    if text is None:
        raise Failure("nothing was saved; the conflict stays")
    if view.has_marks(text):
        raise Failure("the text still has conflict marks (<<<<<<<, =======, >>>>>>>); the conflict stays")
    return None, text, False


@click.command()
@NOTE
@options
async def history(shell: NotesShell, note: str) -> None:
    """List a note's versions: the current ones, then up to ten older ones."""
    async with await shell.replica() as replica:
        d = await find(replica, note)
        found = await replica.history(d)
    shell.result({"id": d, "versions": [view.version_as_json(one) for one in found]}, view.history_rows(found))


@click.command()
@NOTE
@click.argument("version", metavar="VERSION")
@options
async def restore(shell: NotesShell, note: str, version: str) -> None:
    """Bring an older version back, as a new one. VERSION is its number or id in `notes history`."""
    async with await shell.replica() as replica:
        d = await find(replica, note)
        if (document := await replica.get(d)) is not None:
            refuse_conflict(document)
        old = view.find_version(await replica.history(d), version)
        made = await replica.restore(d, old.id)
    saved(shell, d, made, view.title_of(old), "restored")


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
