"""Every test of the command line runs in a folder of its own, without settings from outside."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
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
