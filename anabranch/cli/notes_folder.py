"""Where `anabranch notes` keeps things: a folder with a replica and, beside it, the key that reads it.

The key file is readable by its owner only (0600). Without it the replica tells nothing; with it, everything: back it
up apart.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import click

from anabranch.cli.shell import Exit, Failure, Shell
from anabranch.client import Keys, Replica, ReplicaError
from anabranch.client.now import REAL
from anabranch.config import NOTES_FOLDER
from anabranch.core import nip19
from anabranch.core.nostr import Invalid

REPLICA, KEY = "notes.db", "key"


class NotesShell(Shell):
    """One run of one command on one folder."""

    @property
    def folder(self) -> Path:
        if self.data:
            return Path(self.data).expanduser()
        if os.environ.get(NOTES_FOLDER):
            return Path(os.environ[NOTES_FOLDER]).expanduser()
        shared = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(shared).expanduser() / "anabranch" / "notes"

    def command(self, *words: str) -> str:
        """A command on this folder, to be told to the person."""
        return shlex.join(["anabranch", "notes", *words, *(["--data", self.data] if self.data else [])])

    def secret(self) -> bytes:
        file = self.folder / KEY
        try:
            text = file.read_text("utf-8")
        except FileNotFoundError:
            if holds_something(self.folder / REPLICA):
                again = self.command("init", "--import")
                raise Failure(f"the key to the notes in {self.folder} is missing; bring it back: {again}") from None
            where = "" if self.folder == NotesShell(None, None, False, False).folder else f" --data {self.folder}"
            raise Failure(f"no notes in {self.folder}; begin with `anabranch notes init{where}`") from None
        try:
            return nip19.parse_secret(text)
        except (Invalid, UnicodeDecodeError) as error:
            raise Failure(f"{file}: {error}; put a copy of your key there") from None

    def save_key(self, secret: bytes) -> None:
        """Written before anything is encrypted to it, and on disk before it is used."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.folder / KEY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(nip19.encode("nsec", secret) + "\n")
            out.flush()
            os.fsync(out.fileno())

    async def replica(self, follow: bool = False) -> Replica:
        """The notes that `init` made. Where the database is gone, that is said: a new one would look like no notes."""
        keys, file = Keys(self.secret()), self.folder / REPLICA
        if not holds_something(file):
            how = "empty (0 bytes)" if file.exists() else "not there"
            raise Failure(
                f"{file} is {how}, although its key is there. Put a copy of it back;"
                f" or `{self.command('init')}` (with your --relay and --family) makes it anew, and sync brings what"
                " relays have"
            )
        return await self.open(keys, follow=follow)

    async def open(self, keys: Keys, follow: bool = False, **rest: Any) -> Replica:
        return await Replica.open(self.folder / REPLICA, keys, follow=follow, **rest)


def holds_something(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def new_secret() -> bytes:
    while True:  # all but one in 2^128 of them are keys
        secret = REAL.fresh_bytes(32)
        try:
            Keys(secret)
        except ValueError:
            continue
        return secret


def options(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """What the commands on notes share; each is a coroutine that gets a `NotesShell` first."""

    @functools.wraps(command)
    def run(data: str | None = None, as_json: bool = False, debug: bool = False, **rest: Any) -> None:
        shell = NotesShell(None, data, as_json, debug)

        def carry_out() -> None:
            import asyncio

            from anabranch.cli.notes_words import of_file

            try:
                asyncio.run(command(shell, **rest))
            except (ReplicaError, apsw.Error) as error:
                if debug:
                    raise
                cause = error if isinstance(error, apsw.Error) else error.__cause__
                if isinstance(cause, apsw.Error):
                    shell.end(of_file(shell, shell.folder / REPLICA, cause), Exit.FAILED)
                shell.end(str(error), Exit.FAILED)

        shell.run(carry_out)

    decorated: Callable[..., None] = click.option(
        "--debug", is_flag=True, help="Show a traceback where something fails."
    )(run)
    decorated = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")(decorated)
    return click.option(
        "--data", metavar="DIR", help=f"Folder of the notes. [default: ${NOTES_FOLDER}, or ~/.local/share/…]"
    )(decorated)
