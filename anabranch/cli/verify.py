"""`anabranch verify`: prove every operation again, and say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from anabranch.cli.shell import Exit, Shell, options
from anabranch.store import integrity
from anabranch.store.opening import inspect_store

SHOWN = 50


@click.command()
@options()
def verify(shell: Shell) -> None:
    """Check ids, signatures, columns, tag rows, heads and positions again; exit 3 when something is wrong.

    It only reads, and runs beside a node.
    """
    settings = shell.settings()
    with inspect_store(Path(settings.data), settings.store).reader() as reader, shell.progress("Verifying") as show:
        log = reader.log()
        findings = integrity.verify(
            reader,
            lambda position, tip: show(position, tip, f"{position:,} of {tip:,}"),
            settings.verify_workers,
            settings.kind_policy(),
        )
    answer = {
        "sound": findings.sound,
        "checked": findings.checked,
        "signatures": findings.signatures,
        "documents": findings.documents,
        "count": findings.count,
        "findings": msgspec.to_builtins(findings.found),
        "stream": log.stream,
        "epoch": log.epoch,
        "floor": log.floor,
        "tip": log.tip,
    }
    shell.result(answer, _text(findings))
    if not findings.sound:
        sys.exit(Exit.FOUND_WRONG)


def _text(findings: integrity.Findings) -> str:
    looked_at = (
        f"{findings.checked:,} operations, {findings.signatures:,} signatures and {findings.documents:,} documents"
    )
    if findings.sound:
        return f"{click.style('sound', fg='green', bold=True)}: {looked_at} checked"
    lines = [f"{click.style('damaged', fg='red', bold=True)}: {findings.count:,} found wrong in {looked_at}"]
    for finding in findings.found[:SHOWN]:
        where = "store" if finding.position is None else f"position {finding.position}"
        identity = f" ({finding.id[:16]}…)" if finding.id else ""
        lines.append(f"  {where}{identity}: {finding.what}\n    → {finding.advice}")
    if findings.count > SHOWN:
        lines.append(f"  … and {findings.count - SHOWN:,} more")
    return "\n".join(lines)
