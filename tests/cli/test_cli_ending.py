"""What ends a command ends all of it: nothing that it has started goes on, and nothing half-made stays."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from processes import ANABRANCH, children

from anabranch.cli.shell import Exit
from anabranch.store.held import is_held


def descendants(pid: int) -> list[int]:
    found = children(pid, "")
    return [*found, *(one for child in found for one in descendants(child))]


def ended_by(number: signal.Signals, folder: Path, *command: str, once: Callable[[int], bool]) -> tuple[int, str, str]:
    """Start a command, end it once it is well under way, and see that all that it had started ends with it."""
    process = subprocess.Popen(
        [ANABRANCH, *command],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not once(process.pid):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    started = descendants(process.pid)
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    while left := [pid for pid in started if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    return process.returncode, out, errors


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ENDINGS = [
    (signal.SIGTERM, Exit.TERMINATED, "ended by SIGTERM"),
    (signal.SIGINT, Exit.INTERRUPTED, "interrupted"),
]


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
def test_a_history_that_is_being_made_leaves_nothing(
    tmp_path: Path, number: signal.Signals, code: Exit, said: str
) -> None:
    command = ["generate", "--operations", "3000000", "--documents", "1000", "--out", "h.jsonl", "--json"]

    def writes(pid: int) -> bool:
        return any(tmp_path.glob(".generating-*/*"))

    returned, out, errors = ended_by(number, tmp_path, *command, once=writes)
    assert (returned, errors) == (code, f"anabranch: {said}\n")
    assert json.loads(out) == {"error": said, "exit_code": code}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
def test_the_node_of_a_demo_ends_with_it(tmp_path: Path, number: signal.Signals, code: Exit, said: str) -> None:
    def tells(pid: int) -> bool:
        return any(tmp_path.glob("anabranch-demo-*/data/anabranch.db")) and bool(children(pid, "serve"))

    returned, _, errors = ended_by(number, tmp_path, "demo", once=tells)
    assert (returned, errors) == (code, f"anabranch: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
def test_an_import_says_what_ended_it(tmp_path: Path, number: signal.Signals, code: Exit, said: str) -> None:
    made = ["generate", "--operations", "60000", "--documents", "1000", "--out", "h.jsonl"]
    subprocess.run([ANABRANCH, *made], cwd=tmp_path, check=True, capture_output=True)

    def checks(pid: int) -> bool:
        stored = tmp_path / "d" / "anabranch.db-wal"
        return bool(children(pid, "spawn_main")) and stored.exists() and stored.stat().st_size > 100_000

    returned, out, errors = ended_by(number, tmp_path, "import", "h.jsonl", "--data", "d", "--json", once=checks)
    assert (returned, errors) == (code, f"anabranch: {said}\n")
    assert json.loads(out) == {"error": said, "exit_code": code}
    verified = subprocess.run([ANABRANCH, "verify", "--data", "d"], cwd=tmp_path, capture_output=True)
    assert verified.returncode == Exit.DONE


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So long a history that processes share the work on it."""
    file = tmp_path_factory.mktemp("history") / "h.jsonl"
    made = ["generate", "--operations", "5000", "--documents", "100", "--out", str(file)]
    subprocess.run([ANABRANCH, *made], check=True, capture_output=True)
    return file


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
@pytest.mark.parametrize("command", ["import", "verify"])
def test_a_signal_to_all_processes_ends_them_whenever_it_comes(
    tmp_path: Path, history: Path, command: str, number: signal.Signals, code: Exit, said: str
) -> None:
    """As a Ctrl-C at a terminal is, and what many who run services send: also to workers that are just starting."""
    if command == "verify":
        subprocess.run([ANABRANCH, "import", history, "--data", "d"], cwd=tmp_path, check=True, capture_output=True)
    for moment in (0.0, 0.02, 0.05, 0.1, 0.2):
        arguments = (
            ["import", str(history), "--data", f"d{moment}"] if command == "import" else ["verify", "--data", "d"]
        )
        process = subprocess.Popen(
            [ANABRANCH, *arguments],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while not children(process.pid, "spawn_main") and process.poll() is None:
                time.sleep(0.005)
            time.sleep(moment)
            os.killpg(process.pid, number)
            _, errors = process.communicate(timeout=10)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert (process.returncode, errors) in [(code, f"anabranch: {said}\n"), (Exit.DONE, errors)], moment
        assert not is_held(tmp_path / arguments[-1])


def test_a_ctrl_c_at_the_very_beginning_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    early = subprocess.run(
        [ANABRANCH, "status"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (early.returncode, early.stderr) == (Exit.INTERRUPTED, "anabranch: interrupted\n")
