"""What a person writes: where it stands while they write, and that it is not lost.

The editor works on a file in a folder that only its owner may enter, in $XDG_RUNTIME_DIR (memory, as a rule) or else
beside the notes. The folder goes when the writing ends, however it ends: saved, failed, by SIGTERM or SIGHUP. What was
written and did not become a version is copied to `unsaved/` beside the notes first, on disk and for its owner only; the
person is told where it is and how to go on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

import click

from anabranch.cli.notes_folder import NotesShell
from anabranch.cli.shell import Exit, Failure
from anabranch.client import ReplicaError
from anabranch.client.now import REAL

T = TypeVar("T")

UNSAVED = "unsaved"
ENDING = (signal.SIGTERM, signal.SIGHUP)
EDITOR_SECONDS_MAX = 3.0
"""How long an editor may take to put away what it has, once it was told to end."""
FILE = "note.md"


class GivenUp(Failure):
    """Another try with another text would not help, or is not wanted."""


class Writing:
    """One text, from the moment it is asked for until it is a version. An error that ends the block keeps the text.

    `name` is the beginning of a kept file's name, `go_on` the command that takes such a file from a pipe.
    """

    def __init__(self, shell: NotesShell, name: str, go_on: str) -> None:
        self.go_on = go_on
        self._shell = shell
        self._name = name
        self._given = ""
        self._folder: Path | None = None  # of the editor; None while the text is not a person's
        self._start = b""
        self._last_newline = ""
        self._editor_ended = True
        self._stack = ExitStack()

    @property
    def text(self) -> str:
        if self._folder is None:
            return self._given
        try:
            written = (self._folder / FILE).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Failure("the text is not UTF-8") from None
        return written.replace("\r\n", "\n").removesuffix(self._last_newline)

    def take(self, given: str | None, start: str = "") -> None:
        """From `--text`, from a pipe, or from the person's editor. `GivenUp` where they saved nothing there."""
        if given is not None:
            self._given = given
        elif not at_terminal():
            self._given = read_pipe()
        else:
            self._begin(start)
            if not self._edit():
                raise GivenUp("nothing was saved; all stays as it was")

    async def save(self, attempt: Callable[[str], Awaitable[T]]) -> T:
        """Save the text; where that fails and a person wrote it, they may change it and try again."""
        while True:
            try:
                return await attempt(self.text)
            except GivenUp:
                raise
            except (Failure, ReplicaError, OSError) as error:
                if self._folder is None:
                    raise
                self._shell.note(f"anabranch: {said(error)}")
                with interruptible():
                    again = click.confirm("Open the editor again?", default=True, err=True)
                if not again:
                    raise GivenUp("nothing was saved") from error
                self._edit()

    def __enter__(self) -> Writing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is None:
            return
        with self._stack:  # signals are ours until the text is kept
            told, keeps = (None, None) if error is None else self._keep()
            if keeps is None:
                shutil.rmtree(self._folder, ignore_errors=True)
        if told is None:
            return
        if isinstance(error, Failure | ReplicaError | OSError):
            code = error.code if isinstance(error, Failure) else Exit.FAILED
            raise Failure(f"{said(error)}; {told}", code) from error
        with suppress(OSError):  # after SIGHUP nobody is there to be told
            self._shell.note(told)

    # --- the editor ---

    def _begin(self, start: str) -> None:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._stack.enter_context(_on(number, _end))
        self._last_newline = "" if not start or start.endswith("\n") else "\n"  # editors want one; it is not theirs
        self._start = (start + self._last_newline).encode()
        self._folder = _editors_folder(self._shell.folder)
        _write(self._folder / FILE, self._start)

    def _edit(self) -> bool:
        """Let the person edit; whether they saved."""
        assert self._folder is not None
        file, editor = self._folder / FILE, _editor()
        os.utime(file, (0, 0))  # whatever the file system's clock tells apart, it tells apart from this
        self._editor_ended = False
        with _on(signal.SIGINT, _leave_it_to_the_editor):
            try:
                process = subprocess.Popen([*shlex.split(editor), str(file)])
            except (OSError, ValueError) as error:
                self._editor_ended = True
                why = f"the editor {editor!r} cannot be started ({error}); set $EDITOR, or pipe the text in"
                raise GivenUp(why) from None
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EDITOR_SECONDS_MAX)
                process.kill()
                process.wait()
                raise
        if code != 0:
            raise GivenUp(f"the editor {editor!r} ended with {code}; nothing was saved")
        self._editor_ended = True
        return file.exists() and file.stat().st_mtime_ns != 0

    # --- what is kept ---

    def _written(self) -> bytes:
        """What the person wrote, where it is something and not just what was there."""
        assert self._folder is not None
        try:
            found = (self._folder / FILE).read_bytes()
        except FileNotFoundError:  # taken away in the editor
            return b""
        return found if found.strip() and found != self._start else b""

    def _keep(self) -> tuple[str | None, Path | None]:
        """Copy what was written to where it stays; what to tell, and the editor's folder if that has to stay."""
        assert self._folder is not None
        said_so = []
        try:
            if written := self._written():
                file = shlex.quote(str(keep(self._shell.folder, f"{self._name}.md", written)))
                said_so.append(f"what you wrote is in {file}; once it is as it should be: {self.go_on} < {file}")
            for left in [] if self._editor_ended else _left_behind(self._folder):
                file = shlex.quote(str(keep(self._shell.folder, f"{self._name}{left.name}", left.read_bytes())))
                said_so.append(f"what your editor put away is in {file}")
        except OSError as error:
            return f"what you wrote is still in {self._folder} ({said(error)}); take it from there", self._folder
        return "; ".join(said_so) or None, None


def keep(folder: Path, name: str, text: bytes) -> Path:
    """A file that only its owner can read, on disk when this returns."""
    place = folder.absolute() / UNSAVED
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    file = place / f"{REAL.milliseconds()}-{name}"
    _write(file, text)
    for parent in (place, folder):
        _sync(parent)
    return file


def kept(folder: Path) -> int:
    """How many texts wait to be saved or deleted."""
    place = folder / UNSAVED
    return sum(1 for _ in place.iterdir()) if place.is_dir() else 0


def _write(file: Path, text: bytes) -> None:
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _left_behind(folder: Path) -> list[Path]:
    """What an editor saves of a text when it is ended: a swap file, a `.save`; not its backups of what was there."""
    others = (one for one in folder.iterdir() if one.name != FILE and not one.name.endswith("~"))
    return sorted(one for one in others if stat.S_ISREG(one.lstat().st_mode))


def _editors_folder(beside: Path) -> Path:
    if memory := os.environ.get("XDG_RUNTIME_DIR"):
        with suppress(OSError):  # another user's, as after su
            return Path(tempfile.mkdtemp(prefix="anabranch-", dir=memory))
    return Path(tempfile.mkdtemp(prefix="editing-", dir=beside.absolute()))


def _editor() -> str:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    return named or next((one for one in ("sensible-editor", "vim", "nano") if shutil.which(one)), "vi")


# --- the person ------------------------------------------------------------------------------------------------------


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def read_pipe() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failure("what was piped in is not UTF-8; nothing was saved") from None


def said(error: Exception) -> str:
    """An error in the words of the shell."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a question at once. asyncio would wait for the loop, which waits for the answer."""
    with _on(signal.SIGINT, signal.default_int_handler):
        yield


@contextmanager
def _on(number: signal.Signals, handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)


def _leave_it_to_the_editor(number: int, frame: FrameType | None) -> None:
    """In an editor Ctrl-C means something else. Not SIG_IGN: the editor would inherit it."""


def _end(number: int, frame: FrameType | None) -> NoReturn:
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)  # the keeping that follows is not interrupted
    sys.exit(128 + number)
