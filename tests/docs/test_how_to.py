"""The scripts of the guides say how they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "sync_with_a_relay.py"


@pytest.mark.parametrize(
    "arguments",
    [[], ["data", "ws://127.0.0.1:7447/", "ws://x"], ["data", "ws://127.0.0.1:7447/", "relay.example", "{}"]],
)
def test_a_script_that_is_used_wrongly_says_how(arguments: list[str]) -> None:
    used = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    assert used.returncode == 1
    assert "sync_with_a_relay.py DATA NODE PEER FILTER" in used.stderr
    assert "Traceback" not in used.stderr
