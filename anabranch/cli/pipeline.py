"""`anabranch pipeline …`: logs into a lake of tables, and what the tables say.

Spark is loaded when a command runs, not before: every other command starts without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.shell import Exit, Failure, Shell, options, rows
from anabranch.cli.units import PublicKeys
from anabranch.node import now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.3
Show = Callable[[float, float | None, str], None]


@click.group()
def pipeline() -> None:
    """Logs into a lake of tables, and what the tables say; on Spark."""


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where Spark runs, and how long to wait for a lake that is in use."""
    for option in (
        click.option(
            "--wait",
            type=click.FloatRange(0),
            default=0.0,
            metavar="SECONDS",
            help="Wait so long for another run on the lake.",
        ),
        click.option(
            "--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be given again."
        ),
        click.option("--master", metavar="URL", help="Where Spark runs. [default: all cores of this machine]"),
    ):
        command = option(command)
    return command


@pipeline.command("ingest")
@click.option(
    "--from",
    "sources",
    multiple=True,
    required=True,
    metavar="SOURCE",
    help="A node's folder, a JSONL file or a folder of them, ws://host:port, or postgresql://…; may be given again.",
)
@click.option("--lake", "folder", required=True, metavar="DIR", help="Folder of the tables; made when it is not there.")
@click.option("--gaps", type=click.Choice(["error", "bootstrap"]), default="error", help="What to do about a gap.")
@click.option("--authors", type=PublicKeys(), metavar="PUBKEYS", help="Over CHANGES: the snapshots of these authors.")
@click.option("--recipients", type=PublicKeys(), metavar="PUBKEYS", help="Over CHANGES: revisions to these recipients.")
@click.option("--batch-rows", type=click.IntRange(1), metavar="N", help="At most so many lines at once. [1000000]")
@spark_options
@options()
def ingest_command(
    shell: Shell,
    sources: tuple[str, ...],
    folder: str,
    gaps: str,
    authors: frozenset[str] | None,
    recipients: frozenset[str] | None,
    batch_rows: int | None,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Bring what is new in the sources into the lake: every operation once, proven; the rest with a reason.

    Running it again is harmless, also after it was killed. `ANABRANCH_ADMIN_TOKEN` opens a node's whole log.
    """
    settings = shell.settings()
    with _failures(shell), shell.progress("Ingesting") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import ingest
        from anabranch.pipeline.lake import Lake
        from anabranch.pipeline.rows import Rules
        from anabranch.pipeline.sources import open_feeds

        rules = Rules(settings.event_limits(), settings.kind_policy())
        feed_options = {
            "token": settings.admin_token or "",
            "authors": ",".join(sorted(authors or ())),
            "recipients": ",".join(sorted(recipients or ())),
        }
        for source in sources:
            open_feeds(source, feed_options, rules.limits)  # what is written wrong is told before Spark starts
        with _spark(master, conf) as spark:
            started = now.monotonic()
            with _watched(spark, show):
                lake = Lake(folder, spark, create=True)
                done = ingest.ingest(
                    lake,
                    sources,
                    options=feed_options,
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
    with _failures(shell), shell.progress("Heads") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import heads
        from anabranch.pipeline.lake import Lake

        lake = Lake(folder)
        with _spark(master, conf) as spark:
            started = now.monotonic()
            with _watched(spark, show):
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


# --- Spark, as the commands use it ------------------------------------------------------------------------------------


@contextmanager
def _spark(master: str | None, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    from anabranch.pipeline.session import session

    spark = session(master, _conf(conf))
    try:
        yield spark
    finally:
        spark.stop()


def _conf(pairs: tuple[str, ...]) -> Mapping[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise Failure(f"--conf takes NAME=VALUE, not {pair!r}", Exit.USAGE)
    return dict(pair.split("=", 1) for pair in pairs)


@contextmanager
def _watched(spark: SparkSession, show: Show) -> Iterator[None]:
    """Show how far the tasks of what Spark is doing have come."""
    over = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if known := [stage for stage in stages if stage is not None]:
                done, tasks = (sum(getattr(s, name) for s in known) for name in ("numCompletedTasks", "numTasks"))
                show(done, tasks, f"{known[0].name.partition(' ')[0]}: {done} of {tasks} tasks")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _failures(shell: Shell) -> Iterator[None]:
    """What the pipeline raises, as the end of a command."""
    from pyspark.errors import PySparkException

    from anabranch.pipeline.feed import FeedError, GapFound
    from anabranch.pipeline.java import NoJava
    from anabranch.pipeline.lake import LakeBusy, NoLake

    try:
        yield
    except LakeBusy as error:
        raise Failure(str(error), Exit.IN_USE) from error
    except (FeedError, GapFound, NoJava, NoLake) as error:
        raise Failure(str(error)) from error
    except PySparkException as error:
        if shell.debug:
            raise
        raise Failure(f"{_last_words(error)}; run it again with --debug to see where") from error


def _last_words(error: Any) -> str:
    """What the Python worker raised, out of all that Spark says about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (raised or lines or [type(error).__name__])[-1]
