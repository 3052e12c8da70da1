"""`anabranch pipeline audit`: what replicas lack of each other, and closing it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from anabranch.cli.feeds import feed_options
from anabranch.cli.shell import Exit, Failure, Shell, options
from anabranch.cli.spark import failures, spark_options, start_spark, watched
from anabranch.node import now

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.audit import Audit, Findings
    from anabranch.pipeline.jobs.repair import Repaired
    from anabranch.pipeline.replicas import Replica

COUNTED = ("operations", "missing", "compacted", "removed", "withdrawn", "forged", "rejected")
"""What is counted for each replica, in the order in which it is shown."""


@click.command("audit")
@click.argument("names", nargs=-1, metavar="REPLICA REPLICA…")
@click.option("--repair", "repairs", is_flag=True, help="Give each replica what it lacks, then look again.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write all that was found into this folder."
)
@click.option("--token", metavar="TOKEN", help="The nodes' admin token. [ANABRANCH_ADMIN_TOKEN]")
@spark_options
@options()
@feed_options
def audit_command(
    shell: Shell,
    feeds: Mapping[str, str],
    names: tuple[str, ...],
    repairs: bool,
    out: Path | None,
    token: str | None,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Say what each replica lacks, whose heads differ and where they contradict; exit 3 when they have not converged.

    A REPLICA is a lake, a node's address, data folder or database, or a JSONL dump. Everything is proven before it is
    compared.
    """
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise Failure("name two or more different replicas", Exit.USAGE)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Failure(f"{out} is there already and not empty; name a new folder", Exit.USAGE)
    settings = shell.settings()
    with (
        failures(shell),
        shell.progress("Audit") as show,
        tempfile.TemporaryDirectory(prefix="anabranch-audit-") as work,
    ):
        show(0, None, "starting Spark")
        from anabranch.pipeline import replicas
        from anabranch.pipeline.jobs.audit import audit
        from anabranch.pipeline.rows import Rules
        from anabranch.pipeline.sources import without_passwords

        given, feeds = without_passwords(names, feeds if token is None else {**feeds, "token": token})
        reading = replicas.Reading(feeds, Rules(settings.event_limits(), settings.kind_policy()), wait)
        scope = replicas.Scope.of(feeds)
        replicas.check(given, reading)
        before, done = None, {}
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                opened = replicas.opened(spark, given, Path(work), reading)
                found = audit(opened, now.seconds(), scope)
                if repairs and any(found.findings.missing.values()):
                    before, done = found.findings, _repair(found, opened, Path(work), reading)
                    replicas.read_again(opened, reading)
                    found = audit(opened, now.seconds(), scope)
                if out is not None:
                    _write(found, opened, out)
            taken = now.monotonic() - started
    answer: dict[str, Any] = {
        **msgspec.to_builtins(found.findings),
        "before_repair": None if before is None else {"missing": before.missing, "heads": before.heads},
        "repaired": msgspec.to_builtins(done),
        "seconds": round(taken, 3),
    }
    shell.result(answer, _text(found.findings, before, done))
    shell.note(f"{sum(found.findings.operations.values()):,} operations in {taken:.1f} s")
    if not found.findings.converged:
        sys.exit(Exit.FOUND_WRONG)


def _repair(found: Audit, opened: list[Replica], work: Path, reading: Any) -> dict[str, Repaired]:
    from anabranch.pipeline.jobs import repair

    done = {}
    for number, replica in enumerate(opened):
        if found.findings.missing[replica.name]:
            lines = work / f"lacks-{number}.jsonl"
            count = repair.write_missing(found, opened, number, lines)
            done[replica.name] = repair.repair(replica, lines, count, reading, now.milliseconds())
            lines.unlink()
    return done


def _write(found: Audit, opened: list[Replica], out: Path) -> None:
    """All that was found: lists as Parquet, what each replica lacks as lines that it can import."""
    from anabranch.pipeline.jobs import repair

    out.mkdir(parents=True, exist_ok=True)
    for name in ("missing", "heads", "positions", "forged"):
        getattr(found, name).coalesce(1).write.parquet(str(out / name))
    for number, replica in enumerate(opened):
        if found.findings.missing[replica.name]:
            repair.write_missing(found, opened, number, out / f"lacks-{number}.jsonl")


# --- words -----------------------------------------------------------------------------------------------------------


def _text(findings: Findings, before: Findings | None, done: dict[str, Repaired]) -> str:
    verdict = click.style("converged", fg="green", bold=True)
    if not findings.converged:
        verdict = click.style("not converged", fg="red", bold=True)
    shown = [name for name in COUNTED if name in ("operations", "missing") or any(getattr(findings, name).values())]
    lines = [f"{verdict}: {findings.scopes_differing:,} of {findings.scopes:,} authors and recipients differ"]
    lines += _table(
        [
            ["", *shown],
            *([name, *(f"{getattr(findings, what)[name]:,}" for what in shown)] for name in findings.missing),
        ]
    )
    for name, result in done.items():
        lines.append(f"repaired {name}: {result.problem or _outcome(result)}")
    if before is not None:
        lines.append(f"before the repair {sum(before.missing.values()):,} were missing")
    lines += [
        f"{count:,} {words}"
        for count, words in (
            (findings.heads, "documents have other heads"),
            (findings.positions, "places of a log hold different operations"),
            (findings.resigned, "operations have two signatures, both of which hold"),
        )
        if count
    ]
    lines += [f"stream {stream}: no epoch in common; one of them was restored" for stream in findings.epochs]
    for log in findings.behind:
        lines.append(f"stream {log.stream}: read up to " + ", ".join(f"{t:,} by {n}" for n, t in log.tips.items()))
    for what in ("missing", "forged"):
        for name, ids in findings.examples.get(what, {}).items():
            lines += [f"{what} in {name}: {id}" for id in ids[:3]]
    return "\n".join(lines)


def _outcome(result: Repaired) -> str:
    refused = "".join(f"; {count:,} refused: {reason}" for reason, count in result.refused.items())
    return f"{result.accepted:,} of {result.lacked:,}{refused}"


def _table(cells: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
