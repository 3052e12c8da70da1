"""`anabranch pipeline …`: logs into a lake of tables, and what the tables say.

Spark is loaded when a command runs, not before: every other command starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from anabranch.cli.feeds import feed_options, ingest_options
from anabranch.cli.pipeline_audit import audit_command
from anabranch.cli.pipeline_export import export_command
from anabranch.cli.pipeline_report import report_command
from anabranch.cli.pipeline_retention import retention_command
from anabranch.cli.pipeline_run import run_command
from anabranch.cli.shell import Shell, options, rows
from anabranch.cli.spark import failures, spark_options, start_spark, watched
from anabranch.node import now


@click.group()
def pipeline() -> None:
    """Logs into a lake of tables, and what the tables say; on Spark."""


@pipeline.command("ingest")
@ingest_options
@click.option("--batch-rows", type=click.IntRange(1), metavar="N", help="At most so many lines at once. [1000000]")
@spark_options
@options()
@feed_options
def ingest_command(
    shell: Shell,
    feeds: Mapping[str, str],
    sources: tuple[str, ...],
    folder: str,
    gaps: str,
    batch_rows: int | None,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Bring what is new in the sources into the lake: every operation once, proven; the rest with a reason.

    Running it again is harmless, also after it was killed. `ANABRANCH_ADMIN_TOKEN` opens a node's whole log.
    """
    settings = shell.settings()
    with failures(shell), shell.progress("Ingesting") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import ingest
        from anabranch.pipeline.lake import Lake
        from anabranch.pipeline.rows import Rules
        from anabranch.pipeline.sources import open_feeds

        rules = Rules(settings.event_limits(), settings.kind_policy())
        for source in sources:
            open_feeds(source, feeds, rules.limits)  # what is written wrong is told before Spark starts
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                lake = Lake(folder, spark, create=True)
                done = ingest.ingest(
                    lake,
                    sources,
                    options=feeds,
                    rules=rules,
                    gaps=gaps,
                    batch_rows=batch_rows or ingest.BATCH_ROWS,
                    wait=wait,
                )
            taken = now.monotonic() - started
            in_all = {name: lake.table(name).count() for name in ("operations", "rejected")}
    answer = {
        "operations": done.operations,
        "rejected": done.rejected,
        "seconds": round(taken, 3),
        "facts": done.facts,
        "sightings": done.sightings,
        "gaps": done.gaps,
        "batches": done.batches,
        "in_all": in_all,
    }
    shell.result(
        answer,
        rows(
            [
                ("operations", f"{done.operations:,} new, {in_all['operations']:,} in all"),
                ("rejected", f"{done.rejected:,} new, {in_all['rejected']:,} in all"),
                ("facts", f"{done.facts:,} new"),
                ("gaps", f"{done.gaps:,}"),
            ]
        ),
    )
    read = done.sightings + done.rejected
    shell.note(f"{read:,} lines in {taken:.1f} s ({read / max(taken, 0.001):,.0f}/s)")


@pipeline.command("heads")
@click.option("--lake", "folder", required=True, metavar="DIR", help="Folder of the tables.")
@click.option("--full", is_flag=True, help="Look at every document again, not only at those with something new.")
@spark_options
@options()
def heads_command(
    shell: Shell, folder: str, full: bool, master: str | None, conf: tuple[str, ...], wait: float
) -> None:
    """Work out what is current, what is in conflict and what is deleted."""
    with failures(shell), shell.progress("Heads") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import heads
        from anabranch.pipeline.lake import Lake

        lake = Lake(folder)
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                found = heads.update(lake.on(spark), full, wait)
            taken = now.monotonic() - started
    answer = {
        "documents": found.documents,
        "heads": found.heads,
        "conflicts": found.conflicts,
        "tombstones": found.tombstones,
        "seconds": round(taken, 3),
    }
    shell.result(answer, rows([(name, f"{value:,}") for name, value in answer.items() if name != "seconds"]))
    shell.note(f"{found.documents:,} documents in {taken:.1f} s")


pipeline.add_command(audit_command)
pipeline.add_command(export_command)
pipeline.add_command(retention_command)
pipeline.add_command(report_command)
pipeline.add_command(run_command)
