"""`anabranch backup` and `anabranch restore`: a store in one file, and back."""

from __future__ import annotations

import os
from pathlib import Path

import click

from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.config import Settings
from anabranch.store import backup as copies
from anabranch.store.contract import StoreBusy
from anabranch.store.sqlite import SqliteStore


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@options()
def backup(shell: Shell, file: Path, force: bool) -> None:
    """Copy the store of this moment into FILE, also while a node runs on it."""
    settings = shell.settings()
    _refuse_server(settings, "pg_dump --format=custom --file=FILE makes a backup of it, while the node runs")
    store = SqliteStore.inspect(Path(settings.data))
    if file.exists() and not force:
        raise Failure(f"{file} is there already; --force replaces it")
    log = store.log()
    copies.make(store, file)
    written = os.stat(file).st_size
    answer = {"file": str(file), "bytes": written, "stream": log.stream, "epoch": log.epoch, "tip": log.tip}
    shell.result(
        answer, rows([("backup", f"{file}, {size(written)}"), ("stream", log.stream), ("tip", f"at least {log.tip}")])
    )


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Put it in the place of the store that is there.")
@options()
def restore(shell: Shell, file: Path, force: bool) -> None:
    """Make a store out of a backup: the same stream, and a new epoch.

    Consumers see the new epoch and bootstrap again, because positions may mean something else than they did. The
    file is checked for damage first; `anabranch verify` checks all the rest.
    """
    settings = shell.settings()
    _refuse_server(settings, "stop the node, let pg_restore put the backup in place, and start it: a new epoch opens")
    folder = Path(settings.data)
    try:
        log = copies.restore(file, folder, replace=force)
    except StoreBusy as busy:
        raise Failure(f"{busy}; stop it before you restore", Exit.IN_USE) from None
    answer = {"data": str(folder), "stream": log.stream, "epoch": log.epoch, "floor": log.floor, "tip": log.tip}
    shell.result(
        answer,
        rows([("store", str(folder)), ("stream", log.stream), ("epoch", f"{log.epoch} (new)"), ("tip", str(log.tip))]),
    )


def _refuse_server(settings: Settings, instead: str) -> None:
    if settings.store:
        raise Failure(f"the log is kept in PostgreSQL, which has its own tools: {instead}")
