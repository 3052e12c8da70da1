"""`anabranch export` and `anabranch import`: operations as JSONL, one signed event a line."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from anabranch.cli.shell import Exit, Failure, Shell, options, rows
from anabranch.cli.units import Kinds, Names, PublicKeys, Time
from anabranch.node import now
from anabranch.store import transfer
from anabranch.store.contract import StoreBusy
from anabranch.store.opening import inspect_store, open_store


def selection(command: Callable[..., None]) -> Callable[..., None]:
    """Which operations an export carries; the command gets a `Selector`."""

    @functools.wraps(command)
    def run(shell: Shell, **given: Any) -> None:
        chosen = {name: given.pop(name) for name in transfer.Selector.__struct_fields__}
        command(shell, selector=transfer.Selector(**chosen), **given)

    decorated: Callable[..., None] = run
    for option in (
        click.option("--heads-only", is_flag=True, help="Leave out what something stored supersedes."),
        click.option("--until", type=Time(), metavar="TIME", help="Only what was created at or before."),
        click.option("--since", type=Time(), metavar="TIME", help="Only what was created at or after."),
        click.option(
            "--documents", type=Names(), metavar="NAMES", help="Only these, by key or d tag, comma-separated."
        ),
        click.option("--recipients", type=PublicKeys(), metavar="PUBKEYS", help="Only revisions to these."),
        click.option(
            "--authors", type=PublicKeys(), metavar="PUBKEYS", help="Only these authors, comma-separated, npub or hex."
        ),
        click.option("--kinds", type=Kinds(), metavar="KINDS", help="Only these kinds, as 1,42061."),
    ):
        decorated = option(decorated)
    return decorated


@click.command("export")
@click.option("--json", "told_as_json", is_flag=True, help="End with one JSON object on stderr: how many, of what log.")
@options(json=False)
@selection
def export_command(shell: Shell, selector: transfer.Selector, told_as_json: bool) -> None:
    """Write stored events to stdout, one a line, in the order of the log.

    What is compacted or removed has no payload any more and is left out. Runs beside a node.
    """
    settings = shell.settings()
    out = sys.stdout.buffer
    written = 0
    with inspect_store(Path(settings.data), settings.store).reader() as reader, shell.progress("Exporting") as show:
        for line in transfer.export(reader, selector, lambda position, tip: show(position, tip, "")):
            out.write(line)
            written += 1
        out.flush()
        log = reader.log()
    told = {"exported": written, "stream": log.stream, "epoch": log.epoch, "floor": log.floor, "tip": log.tip}
    shell.note(msgspec.json.encode(told).decode() if told_as_json else f"exported {written:,} events")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="FILE|-")
@click.option(
    "--rejected",
    "rejected_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write each rejected line there as JSON: line, reason, text.",
)
@click.option(
    "--keep-epoch", is_flag=True, help="Append as publications do: followers go on where they are, and compare nothing."
)
@options()
def import_command(shell: Shell, file: str, rejected_file: Path | None, keep_epoch: bool) -> None:
    """Read events from FILE (JSONL, plain, gzip or zstd, or Parquet), prove them and store them; - reads stdin.

    A bad line is counted and told, never the end; running it again is harmless. How old or how far in the future an
    event is does not matter here; one that has expired is rejected. Over a log that has something it opens a new epoch:
    whoever follows compares once, and goes on.
    """
    settings = shell.settings()
    started = now.monotonic()
    with ExitStack() as stack:
        stream: IO[bytes] = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        try:
            store = open_store(Path(settings.data), settings.store, settings.durability)
        except StoreBusy as busy:
            raise Failure(f"{busy}; publish over the wire, or stop the node first", Exit.IN_USE) from None
        stack.callback(store.close)
        rejects = stack.enter_context(rejected_file.open("wb")) if rejected_file is not None else None
        before = store.writer.log()
        show = stack.enter_context(shell.progress("Importing"))
        total = _length(stream)

        def progress(report: transfer.Report) -> None:
            pace = report.lines / max(now.monotonic() - started, 0.001)
            show(
                stream.tell() if total else report.lines,
                total,
                f"{report.lines:,} lines, {report.stored:,} stored, {report.rejected:,} rejected, {pace:,.0f}/s",
            )

        def reject(rejection: transfer.Rejection) -> None:
            if rejects is not None:
                text = None if rejection.text is None else rejection.text.decode(errors="replace")
                entry = {"line": rejection.line, "reason": rejection.reason, "text": text}
                rejects.write(msgspec.json.encode(entry) + b"\n")

        report = transfer.import_lines(
            transfer.decompressed(stream),
            store.writer,
            limits=settings.event_limits(),
            kinds=settings.kind_policy(),
            now_ms=now.milliseconds,
            workers=settings.verify_workers,
            progress=progress,
            rejected=reject,
            epoch=None if keep_epoch else store.epoch_of_an_import(),
        )
        log = store.writer.log()
    renewed = log.epoch != before.epoch
    taken = now.monotonic() - started
    answer: dict[str, Any] = {
        "lines": report.lines,
        "stored": report.stored,
        "duplicate": report.duplicate,
        "superseded": report.superseded,
        "rejected": report.rejected,
        "rejections": [{"line": rejection.line, "reason": rejection.reason} for rejection in report.rejections],
        "broken": report.broken,
        "tip": log.tip,
        "epoch": log.epoch,
        "epoch_is_new": renewed,
        "seconds": round(taken, 3),
    }
    shell.result(
        answer, rows([(name, f"{answer[name]:,}") for name in ("stored", "duplicate", "superseded", "rejected")])
    )
    for rejection in report.rejections:
        shell.note(f"line {rejection.line}: {rejection.reason}")
    if report.rejected > len(report.rejections):
        where = f"{rejected_file} has them" if rejected_file else "--rejected FILE writes them all"
        shell.note(f"… and {report.rejected - len(report.rejections):,} more rejected lines; {where}")
    if renewed:
        shell.note("the log had something: a new epoch is open, and followers compare once (--keep-epoch appends)")
    shell.note(f"{report.lines:,} lines in {taken:.1f} s ({report.lines / max(taken, 0.001):,.0f}/s)")
    if report.broken is not None:
        shell.note(f"anabranch: {report.broken}; what came before it is stored")
        sys.exit(Exit.FAILED)


def _length(stream: IO[bytes]) -> int | None:
    """The bytes of a regular file, so that progress can be told."""
    try:
        return os.fstat(stream.fileno()).st_size if stream.seekable() else None
    except (OSError, io.UnsupportedOperation):
        return None
