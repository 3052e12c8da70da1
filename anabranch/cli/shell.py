"""What every command shares: settings, output, progress, and how it ends.

Data goes to stdout and everything else to stderr. With `--json` stdout holds one JSON object, whatever happens to a
command once its line is understood. An error is one line that says what is wrong and what to do; a traceback is shown
to those who ask with `--debug`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import msgspec

from anabranch import config
from anabranch.store.contract import StoreBusy, StoreError


class Exit(IntEnum):
    """How a command ends. Scripts rely on the numbers: never renumber."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    FOUND_WRONG = 3
    IN_USE = 4
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODES = {
    Exit.DONE: "done",
    Exit.FAILED: "failed; stderr says why",
    Exit.USAGE: "wrong usage or wrong settings; nothing was done",
    Exit.FOUND_WRONG: "done, and something wrong was found (verify, config check, sim, pipeline audit)",
    Exit.IN_USE: "a running node holds the store, or another run the lake",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.TERMINATED: "ended by SIGTERM (serve and pipeline run finish what is under way, and end with 0)",
}


class Failure(Exception):
    """A command cannot go on; the text says why and what to do."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


class Terminated(KeyboardInterrupt):
    """SIGTERM: a command cleans up as it does on Ctrl-C."""


class Shell:
    """One run of one command."""

    def __init__(self, config_file: Path | None, data: str | None, json: bool, debug: bool) -> None:
        self.config_file = config_file
        self.data = data
        self.json = json
        self.debug = debug

    def settings(self, **flags: Any) -> config.Settings:
        """The settings in force; `ConfigError` ends the command with 2."""
        return config.load(self.config_file, os.environ, {"data": self.data, **flags})

    # --- output ------------------------------------------------------------------------------------------------------

    def result(self, value: Any, text: str) -> None:
        """The command's answer: one JSON object, or text for people."""
        try:
            click.echo(msgspec.json.encode(value) if self.json else text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failure(f"the answer could not be written to stdout: {error.strerror}") from error

    def note(self, text: str) -> None:
        """Something for the person at the terminal, never part of the answer."""
        click.echo(text, err=True)

    @contextmanager
    def progress(self, what: str, unit: str = "") -> Iterator[Callable[[float, float | None, str], None]]:
        """A bar on stderr when that is a terminal: call with done, total (None: unknown) and a remark."""
        if not sys.stderr.isatty():
            yield lambda done, total, remark: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None, remark="")

            def show(done: float, total: float | None, remark: str) -> None:
                bar.update(task, completed=done, total=total, remark=remark)

            yield show

    # --- ending ------------------------------------------------------------------------------------------------------

    def run(self, command: Callable[[], None]) -> None:
        """Carry out a command; whatever goes wrong becomes one line and an exit code."""
        try:
            with _terminable():
                command()
        except (click.ClickException, click.exceptions.Exit, SystemExit):
            raise
        except BrokenPipeError:
            # Whoever read our output has had enough. Nothing more may be written, not even while exiting.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.FAILED)
        except Terminated:
            self.end("ended by SIGTERM", Exit.TERMINATED)
        except (KeyboardInterrupt, click.Abort):
            self.end("interrupted", Exit.INTERRUPTED)
        except Exception as error:
            if self.debug:
                raise
            self.end(*_explain(error))

    def end(self, text: str, code: Exit) -> NoReturn:
        if self.json:
            with suppress(OSError):  # it may be stdout itself that fails
                click.echo(msgspec.json.encode({"error": text, "exit_code": int(code)}))
        with suppress(OSError):
            click.echo(f"anabranch: {text}", err=True)
        sys.exit(code)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is raised where we are; a command that hears it by itself does not get here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _explain(error: Exception) -> tuple[str, Exit]:
    match error:
        case Failure():
            return str(error), error.code
        case config.ConfigError():
            return str(error), Exit.USAGE
        case StoreBusy():
            return f"{error}; stop it first", Exit.IN_USE
        case StoreError():
            return str(error), Exit.FAILED
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else str(error), Exit.FAILED
    return f"unexpected {type(error).__name__}: {error}; run it again with --debug and report it", Exit.FAILED


def options(json: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that commands share; the command gets a `Shell` first."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(
            config_file: Path | None = None,
            data: str | None = None,
            as_json: bool = False,
            debug: bool = False,
            **rest: Any,
        ) -> None:
            shell = Shell(config_file, data, as_json, debug)
            shell.run(lambda: command(shell, **rest))

        decorated: Callable[..., None] = click.option(
            "--debug", is_flag=True, help="Show a traceback where something fails."
        )(run)
        if json:
            decorated = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")(decorated)
        decorated = click.option("--data", metavar="DIR", help="Folder of the store. [default: ./data]")(decorated)
        return click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Settings file (TOML).",
        )(decorated)

    return decorate


# --- how things are shown --------------------------------------------------------------------------------------------


def rows(pairs: list[tuple[str, str]]) -> str:
    """Names and values, aligned."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{click.style(name.ljust(width), bold=True)}  {value}".rstrip() for name, value in pairs)


def size(count: int | float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def seconds(count: int | None) -> str:
    if count is None:
        return "any"
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if count >= 2 * length and count % length == 0:
            return f"{count // length} {unit}"
    return f"{count} seconds"
