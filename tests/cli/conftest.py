"""Every test of the command line runs in a folder of its own, without settings from outside."""

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from notes_devices import Background, Device, Editor
from processes import Node
from stand_ins import HISTORY, jsonl

from anabranch.cli import main


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("ANABRANCH_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def data(tmp_path: Path, run: Callable[..., Result]) -> str:
    """A store with a history, a conflict and a plain note."""
    folder = str(tmp_path / "store")
    assert run("import", "-", "--data", folder, stdin=jsonl(HISTORY)).exit_code == 0
    return folder


# --- people with notes ---


@pytest.fixture
def laptop(tmp_path: Path) -> Device:
    device = Device(tmp_path / "laptop")
    device.run("init")
    return device


@pytest.fixture
def two_devices(tmp_path: Path, node: Node) -> tuple[Device, Device]:
    laptop, phone = Device(tmp_path / "laptop"), Device(tmp_path / "phone")
    laptop.run("init", "--relay", node.url)
    phone.run("init", "--import", "--relay", node.url, stdin=(laptop.folder / "key").read_text())
    return laptop, phone


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    made = Editor(tmp_path)
    monkeypatch.setenv("VISUAL", str(made.file))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(made.folder))
    for module in ("notes", "notes_writing"):  # `anabranch.cli.notes` is a command, until its module is imported
        monkeypatch.setattr(importlib.import_module(f"anabranch.cli.{module}"), "at_terminal", lambda: True)
    return made


@pytest.fixture
def run_in_background() -> Iterator[Callable[..., Background]]:
    started: list[Background] = []
    # As at a terminal, also where the tests run in the background and signals are ignored.
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGHUP, signal.SIGINT)}

    def start(*arguments: str, **more: bool) -> Background:
        started.append(Background(*arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.end()
    for number, handler in before.items():
        signal.signal(number, handler)
