"""How the commands of the pipeline are told which logs to read, of whom, as whom, and into which lake."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from anabranch.cli.shell import Shell
from anabranch.cli.units import PublicKeys, SecretKey
from anabranch.config import READER_ACCESS_KEY, READER_KEY


def ingest_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of bringing logs into a lake: `sources`, `folder` and `gaps`."""
    for option in (
        click.option(
            "--gaps", type=click.Choice(["error", "bootstrap"]), default="error", help="What to do about a gap."
        ),
        click.option(
            "--lake", "folder", required=True, metavar="DIR", help="Folder of the tables; made when it is not there."
        ),
        click.option(
            "--from",
            "sources",
            multiple=True,
            required=True,
            metavar="SOURCE",
            help="A node's folder, a JSONL file or a folder of them, ws://host:port, or postgresql://…; may be given "
            "again.",
        ),
    ):
        command = option(command)
    return command


def feed_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of reading a node at an address; the command gets `feeds`, as `sources.open_feeds` takes them."""

    @functools.wraps(command)
    def run(
        shell: Shell,
        authors: frozenset[str] | None,
        recipients: frozenset[str] | None,
        key: str | None,
        access_key: str | None,
        **rest: Any,
    ) -> None:
        given = {
            "token": shell.settings().admin_token,
            "authors": ",".join(sorted(authors or ())),
            "recipients": ",".join(sorted(recipients or ())),
            "key": key,
            "accessKey": access_key,
        }
        command(shell, feeds={name: value for name, value in given.items() if value}, **rest)

    decorated: Callable[..., None] = run
    for option in (
        click.option(
            "--access-key", envvar=READER_ACCESS_KEY, metavar="KEY", help="To a private node: our access key."
        ),
        click.option(
            "--key",
            type=SecretKey(),
            envvar=READER_KEY,
            metavar="KEY",
            help="To a private node: our secret key (nsec or hex), or a file with it.",
        ),
        click.option(
            "--recipients",
            type=PublicKeys(),
            metavar="PUBKEYS",
            help="Only the revisions to these recipients; of a node, over CHANGES.",
        ),
        click.option(
            "--authors",
            type=PublicKeys(),
            metavar="PUBKEYS",
            help="Only the snapshots of these authors; of a node, over CHANGES.",
        ),
    ):
        decorated = option(decorated)
    return decorated
