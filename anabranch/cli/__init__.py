"""The command line: `anabranch serve` and what an operator needs around it.

Each command is a module of its own; `shell` has what they share. `docs/reference/cli.md` is tested to name them all.
"""

from __future__ import annotations

import click

from anabranch import __version__
from anabranch.cli import (
    backup,
    compact,
    generate,
    keys,
    link,
    pipeline,
    serve,
    settings,
    sim,
    status,
    transfer,
    verify,
)
from anabranch.cli.shell import EXIT_CODES

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code):<3} {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="anabranch", message="%(prog)s %(version)s")
def main() -> None:
    """Signed histories that part and join again: a Nostr relay, and notes that live on it.

    `anabranch serve` starts a node. Every setting can stand in a TOML file (--config), in the environment
    (ANABRANCH_...) or, where there is one, in a flag; the later rules over the earlier.
    """


class _Notes(click.Group):
    """The commands on notes, imported when one of them is asked for: a node's operator need not wait for a client."""

    @property
    def commands(self) -> dict[str, click.Command]:  # type: ignore[override]
        from anabranch.cli.notes import COMMANDS

        return {str(command.name): command for command in COMMANDS}

    @commands.setter
    def commands(self, nothing: object) -> None:
        pass


@click.group(cls=_Notes)
def notes() -> None:
    """Write notes that only you can read, on any number of devices.

    They live in a folder of yours (--data, or ANABRANCH_NOTES) and need no connection; `notes sync` brings them in
    step with your relays. ID is the beginning of a note's id, as `notes list` shows it.
    """


for _command in (
    serve.serve,
    status.status,
    compact.compact,
    verify.verify,
    transfer.export_command,
    transfer.import_command,
    keys.keys,
    link.link,
    settings.config_group,
    backup.backup,
    backup.restore,
    notes,
    generate.generate_command,
    pipeline.pipeline,
    sim.sim_command,
    serve.demo,
):
    main.add_command(_command)

__all__ = ["main"]
