"""People with notes, for the tests: a folder each, an editor that does as it is told, commands at a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from anabranch.cli import main


class Device:
    """One folder of notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def unsaved(self) -> Path:
        return self.folder / "unsaved"

    def run(self, *arguments: str, stdin: str | None = None, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["notes", *arguments, "--data", str(self.folder)], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, stdin: str | None = None, code: int = 0) -> dict[str, Any]:
        out = self.run(*arguments, "--json", stdin=stdin, code=code).stdout
        assert out.count("\n") == 1
        return json.loads(out)

    def new(self, text: str) -> str:
        return self.run("new", "--text", text).stdout.strip()

    def titles(self) -> list[str]:
        return [note["title"] for note in self.json("list")["notes"]]


class Editor:
    """What $EDITOR does, a script for each time it is opened; somebody is at the terminal."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "run"
        self.folder.mkdir(mode=0o700)
        self.file = home / "editor"

    def __call__(self, *scripts: str) -> None:
        count = self.file.with_suffix(".count")
        count.write_text("")
        cases = "".join(f"{number}) {script} ;;\n" for number, script in enumerate(scripts, 1))
        self.file.write_text(f"#!/bin/sh\necho >> {count}\ncase $(wc -l < {count}) in\n{cases}esac\n")
        self.file.chmod(0o700)


class Background:
    """A command in a process of its own; with a terminal, it can be asked and interrupted as a person does it."""

    def __init__(self, *arguments: str, terminal: bool = False) -> None:
        command = [sys.executable, "-m", "anabranch", *arguments]
        self._ends = pty.openpty() if terminal else ()
        self.process = subprocess.Popen(
            command,
            stdin=self._ends[1] if terminal else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=terminal,
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while part := os.read(self.process.stdout.fileno(), 4096):
            self.said += part.decode()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 15
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def all_said(self) -> str:
        self._reader.join(10)
        return self.said

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in self._ends:
            os.close(end)
