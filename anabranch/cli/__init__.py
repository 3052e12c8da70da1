"""The command line: `anabranch serve` and what an operator needs around it.

Each command is a module of its own; `shell` has what they share. `docs/reference/cli.md` is tested to name them all.
"""

from __future__ import annotations

import click

from anabranch import __version__
from anabranch.cli import backup, compact, keys, serve, settings, status, transfer, verify
from anabranch.cli.shell import EXIT_CODES

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code):<3} {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="anabranch", message="%(prog)s %(version)s")
def main() -> None:
    """Signed histories that part and join again: a Nostr relay with a snapshot changes feed.

    `anabranch serve` starts a node. Every setting can stand in a TOML file (--config), in the environment
    (ANABRANCH_...) or, where there is one, in a flag; the later rules over the earlier.
    """


for _command in (
    serve.serve,
    status.status,
    compact.compact,
    verify.verify,
    transfer.export_command,
    transfer.import_command,
    keys.keys,
    settings.config_group,
    backup.backup,
    backup.restore,
    serve.demo,
):
    main.add_command(_command)

__all__ = ["main"]
