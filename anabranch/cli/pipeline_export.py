"""`anabranch pipeline export`: a part of a lake as a file that a fresh node imports."""

from __future__ import annotations

from pathlib import Path

import click

from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.cli.spark import failures, spark_options, start_spark, watched
from anabranch.cli.transfer import selection
from anabranch.node import now
from anabranch.store.transfer import Selector


@click.command("export")
@click.option("--lake", "folder", required=True, metavar="DIR", help="Folder of the tables.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE|DIR",
    help="Where to: .jsonl, .jsonl.gz, .jsonl.zst or .parquet; a folder takes many Parquet files.",
)
@spark_options
@options()
@selection
def export_command(
    shell: Shell,
    selector: Selector,
    folder: str,
    out: Path,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Write a part of the lake to a file that `anabranch import` takes, what a version stands on before it.

    It takes its name when it is whole. Without a condition, all operations are written.
    """
    with failures(shell), shell.progress("Exporting") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import export
        from anabranch.pipeline.lake import Lake

        try:
            export.check(out)
        except export.BadTarget as error:
            raise Failure(str(error), Exit.USAGE) from error
        lake = Lake(folder)
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                done = export.export(lake.on(spark), out, selector, wait)
            taken = now.monotonic() - started
    answer = {"file": str(out), "operations": done.operations, "bytes": done.bytes, "seconds": round(taken, 3)}
    shell.result(answer, rows([("operations", f"{done.operations:,}"), ("bytes", size(done.bytes))]))
    if not done.operations:
        shell.note("nothing in the lake is what was asked for")
    shell.note(f"{out} in {taken:.1f} s; `anabranch import {out}` takes it" if out.is_file() else f"{taken:.1f} s")
