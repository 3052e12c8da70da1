"""`anabranch pipeline run`: the whole pipeline on a schedule, one line a cycle, until it is stopped.

The work is done on a thread of its own, so that the main one hears signals at once: it then has Spark drop what it is
doing, and the work ends between two commits. What was begun is taken up by the next run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from anabranch.cli.feeds import feed_options, ingest_options
from anabranch.cli.shell import Exit, Shell, options
from anabranch.cli.spark import conf_of, drop_until_ended, failures, heard, spark_parameters
from anabranch.cli.units import Span
from anabranch.node import now

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.run import Run, Status

EVERY_SECONDS = 30
CONTINUOUS_SECONDS = 1.0
POLL_SECONDS = 0.2


@click.command("run")
@ingest_options
@click.option("--every", type=Span(), metavar="SPAN", help="Begin a cycle so often, as 30s or 5m. [default: 30s]")
@click.option("--continuous", is_flag=True, help="Begin the next cycle a second after the last.")
@click.option("--once", is_flag=True, help="One cycle only; exits with 1 where something in it failed.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a report there when something is new.",
)
@click.option("--quiet", is_flag=True, help="A line only where something is new or wrong.")
@click.option("--beside", type=int, metavar="PID", help="End when this process, which started it, has ended.")
@spark_parameters
@options()
@feed_options
def run_command(
    shell: Shell,
    feeds: Mapping[str, str],
    sources: tuple[str, ...],
    folder: str,
    every: int | None,
    continuous: bool,
    once: bool,
    report: Path | None,
    gaps: str,
    quiet: bool,
    beside: int | None,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Ingest, heads and report, again and again, until Ctrl-C or SIGTERM; both end it between two commits.

    Prints a line a cycle. A source that cannot be read is told with the reason and tried again later, after 5 seconds
    at first and 10 minutes at the most; the others go on.
    """
    if sum((every is not None, continuous, once)) > 1:
        raise click.UsageError("--every, --continuous and --once exclude each other")
    settings = shell.settings()
    with failures(shell):
        from anabranch.pipeline.jobs.run import Plan, Run
        from anabranch.pipeline.lake import Lake
        from anabranch.pipeline.rows import Rules
        from anabranch.pipeline.session import session
        from anabranch.pipeline.sources import open_feeds

        rules = Rules(settings.event_limits(), settings.kind_policy())
        for source in sources:
            open_feeds(source, feeds, rules.limits)  # what is written wrong is told before anything starts
        plan = Plan(sources, feeds, rules, gaps, wait=wait, report=report)
        spark_conf = conf_of(conf)
        pause = CONTINUOUS_SECONDS if continuous else float(every or EVERY_SECONDS)
        with heard(signal.SIGINT, signal.SIGTERM) as stop:
            run = Run(
                Lake(folder, create=True),
                plan,
                lambda: session(master, spark_conf),
                now.monotonic,
                now.seconds,
                stop.is_set,
            )
            ended = _work(shell, run, stop, pause, once, continuous, quiet, beside)
    if stop.is_set():
        shell.note("stopped; the lake is whole, and the next run goes on from here")
    elif ended is not None and ended.failed:
        sys.exit(Exit.FAILED)


def _work(
    shell: Shell,
    run: Run,
    stop: threading.Event,
    pause: float,
    once: bool,
    continuous: bool,
    quiet: bool,
    beside: int | None,
) -> Status | None:
    """Cycle after cycle on a thread, until it is told to stop; the last one."""
    from anabranch.pipeline.jobs.run import Stopped
    from anabranch.pipeline.session import end

    last: list[Status] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                began = now.monotonic()
                status = run.cycle()
                last[:] = [status]
                if status.changed or status.report or status.cycle == 1 or not quiet:
                    _tell(shell, status, now.monotonic() - began)
                if once:
                    return
                stop.wait(pause if continuous else max(0.0, began + pause - now.monotonic()))
        except Stopped:
            pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="pipeline", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        if beside is not None and os.getppid() != beside:
            stop.set()
        if stop.is_set():
            drop_until_ended(thread)
    end()
    if raised and not stop.is_set():
        raise raised[0]
    return last[0] if last else None


def _tell(shell: Shell, status: Status, taken: float) -> None:
    at = now.seconds()
    if shell.json:
        click.echo(msgspec.json.encode({"at": at, **msgspec.to_builtins(status), "seconds": round(taken, 3)}))
    else:
        words = [
            f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}",
            f"{status.operations:,} new",
            f"{status.documents:,} documents",
            f"{status.conflicts:,} in conflict",
            f"{status.rejected:,} rejected",
            f"lag {status.lag:,}",
            f"{taken:.1f} s",
        ]
        click.echo("  ".join(words))
    sys.stdout.flush()
    for failed in status.failed:
        shell.note(f"anabranch: {failed.what}: {failed.reason}; trying again in {failed.again_in:.0f} s")
