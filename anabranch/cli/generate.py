"""`anabranch generate`: a history that never happened and might have, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import click

from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.node import now
from anabranch.pipeline.generate import Plan, generate


@click.command("generate")
@click.option("--operations", type=click.IntRange(1), required=True, metavar="N", help="How many operations.")
@click.option("--documents", type=click.IntRange(1), required=True, metavar="N", help="Of how many documents.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="The same seed, the same bytes.")
@click.option("--content-bytes", type=click.IntRange(64), default=300, show_default=True, help="Payload, on average.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE", help="Where to, as JSONL."
)
@options()
def generate_command(shell: Shell, operations: int, documents: int, seed: int, content_bytes: int, out: Path) -> None:
    """Write signed operations of many documents: devices, offline periods, conflicts, deletions, late parents.

    Half of the authors write snapshots, half revisions. Every operation is valid.
    """
    if not out.absolute().parent.is_dir():
        raise Failure(f"{out.parent} is no folder; make it first", Exit.USAGE)
    if operations < documents:
        raise Failure(f"{documents:,} documents need at least as many operations", Exit.USAGE)
    started = now.monotonic()
    with shell.progress("Generating") as show:
        generate(Plan(operations, documents, seed, content_bytes), out, lambda done, all: show(done, all, f"{done:,}"))
    taken = now.monotonic() - started
    answer = {
        "file": str(out),
        "operations": operations,
        "documents": documents,
        "seed": seed,
        "bytes": out.stat().st_size,
        "seconds": round(taken, 3),
    }
    shell.result(
        answer,
        rows([("operations", f"{operations:,}"), ("documents", f"{documents:,}"), ("bytes", size(out.stat().st_size))]),
    )
