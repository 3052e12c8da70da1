"""`anabranch pipeline report`: what a lake holds, as one page to show to somebody."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from anabranch.cli.shell import Exit, Failure, Shell, options, rows
from anabranch.cli.spark import failures, spark_options, start_spark, watched
from anabranch.node import now


@click.command("report")
@click.option("--lake", "folder", required=True, metavar="DIR", help="Folder of the tables.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE.html", help="Where to."
)
@click.option(
    "--compare",
    "others",
    multiple=True,
    metavar="REPLICA",
    help="Compare the lake with this one: a lake, a node or a dump, as for `audit`; may be given again.",
)
@spark_options
@options()
def report_command(
    shell: Shell,
    folder: str,
    out: Path,
    others: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Write one HTML page with plots: growth, conflicts, devices, what retention would save, what each log lacks.

    The page needs no network and holds no content of any document. Heads are brought up to date first.
    """
    if not out.absolute().parent.is_dir():
        raise Failure(f"{out.parent} is no folder; make it first", Exit.USAGE)
    settings = shell.settings()
    with (
        failures(shell),
        shell.progress("Report") as show,
        tempfile.TemporaryDirectory(prefix="anabranch-report-") as work,
    ):
        show(0, None, "starting Spark")
        from anabranch.pipeline import replicas
        from anabranch.pipeline.jobs import report
        from anabranch.pipeline.jobs.audit import audit
        from anabranch.pipeline.lake import Lake
        from anabranch.pipeline.rows import Rules

        lake = Lake(folder)
        token = {"token": settings.admin_token} if settings.admin_token else {}
        reading = replicas.Reading(token, Rules(settings.event_limits(), settings.kind_policy()), wait)
        replicas.check(others, reading)
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                compared = None
                if others:
                    opened = replicas.opened(spark, [folder, *others], Path(work), reading)
                    compared = audit(opened, now.seconds()).findings
                found = report.write(lake.on(spark), out, now.seconds(), wait, compared)
            taken = now.monotonic() - started
    totals = found.totals
    answer = {
        "file": str(out),
        "operations": totals.operations,
        "documents": totals.documents,
        "conflicts": totals.conflicts,
        "replicas": len(found.replicas),
        "converged": None if found.compared is None else found.compared.converged,
        "bytes": out.stat().st_size,
        "seconds": round(taken, 3),
    }
    shown = ("operations", "documents", "conflicts", "replicas")
    shell.result(answer, rows([("file", str(out)), *((name, f"{answer[name]:,}") for name in shown)]))
    shell.note(f"{out.stat().st_size:,} bytes in {taken:.1f} s; open it in a browser")
