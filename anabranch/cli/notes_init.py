"""`anabranch notes init`: the folder, with a new key or one that there is.

What fails leaves nothing behind. A key is on disk before there is a database for it; a database that is there already
has to open with the key before that is saved, so a wrong key never stands beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from anabranch.cli.notes_folder import KEY, REPLICA, NotesShell, holds_something, new_secret, options
from anabranch.cli.notes_writing import at_terminal, interruptible
from anabranch.cli.shell import Exit, Failure
from anabranch.client import BadRelay, Keys, WrongReplica
from anabranch.client.information import normalised
from anabranch.core import nip19
from anabranch.core.nostr import Invalid


@click.command()
@click.option("--import", "import_key", is_flag=True, help="Use a key of yours (nsec or hex), asked for or piped in.")
@click.option(
    "--family",
    type=click.Choice(["snapshot", "revision"]),
    show_default="snapshot",
    help="How versions are ordered: by clocks, or by their parents. All your devices need the same.",
)
@click.option("--relay", "relays", multiple=True, metavar="URL", help="A relay to sync with; may be given again.")
@options
async def init(shell: NotesShell, import_key: bool, family: str | None, relays: tuple[str, ...]) -> None:
    """Make the folder, with a new key or one of yours.

    Your other devices need the same key: `anabranch notes init --import` there, with what the key file here says.
    """
    key, database = shell.folder / KEY, shell.folder / REPLICA
    try:
        relays = tuple(normalised(url) for url in relays)
    except BadRelay as error:
        raise Failure(str(error), Exit.USAGE) from None
    has_key, has_notes = key.exists(), holds_something(database)
    if has_key and has_notes:
        raise Failure(f"{shell.folder} has notes already; another folder: --data DIR", Exit.USAGE)
    if has_notes and not import_key:
        why = f"{database} is there, but not the key to it; bring the key: {shell.command('init', '--import')}"
        raise Failure(why, Exit.USAGE)
    secret = _asked_for() if import_key else None
    if has_key:
        there = shell.secret()
        if secret is not None and secret != there:
            raise Failure(f"{key} is another key; move it away if you want this one", Exit.USAGE)
        secret = there
    secret = secret or new_secret()
    keys = Keys(secret)
    with _nothing_left_of_a_failure(shell.folder):
        if not has_key and not has_notes:
            shell.save_key(secret)
        try:
            replica = await shell.open(keys, family=family, relays=relays)
        except WrongReplica as error:
            raise Failure(f"{error}; nothing was changed", Exit.USAGE) from None
        async with replica:
            if has_notes:
                shell.save_key(secret)
            npub = nip19.encode("npub", bytes.fromhex(keys.pubkey))
            answer: dict[str, Any] = {
                "data": str(shell.folder),
                "pubkey": keys.pubkey,
                "npub": npub,
                "key_file": str(key),
            }
            answer |= {"device": replica.device, "family": replica.family, "relays": list(relays)}
    shell.result(answer, npub)
    if shell.json:
        return
    if has_key:
        shell.note(f"The key that was in {key} is used.")
    shell.note(f"Your notes live in {shell.folder}; the key to them is {key}: keep a copy in a safe place.")
    to_relays = "" if relays else f"{shell.command('relay', 'add')} wss://…; "
    to_notes = "" if import_key or has_key else f"{shell.command('new')}; "
    shell.note(f"Next: {to_notes}{to_relays}{shell.command('sync')}")


def _asked_for() -> bytes:
    if at_terminal():
        with interruptible():
            asked = click.prompt("Secret key", hide_input=True, err=True)
    else:
        asked = sys.stdin.readline()
    try:
        return nip19.parse_secret(asked)
    except Invalid as error:
        raise Failure(f"this is no secret key: {error}", Exit.USAGE) from None


@contextmanager
def _nothing_left_of_a_failure(folder: Path) -> Iterator[None]:
    """Whatever was not there before is taken away again."""
    database = () if (folder / REPLICA).exists() else (REPLICA, f"{REPLICA}-wal", f"{REPLICA}-shm")
    made = [folder / name for name in (*(() if (folder / KEY).exists() else (KEY,)), *database)]
    is_new = not folder.exists()
    try:
        yield
    except FileExistsError:  # another init was quicker: what is there is its own
        raise
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
