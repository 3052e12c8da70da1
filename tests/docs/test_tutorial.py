"""The tutorial does what it says: its script runs against a real node and prints what the page shows."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from processes import Node

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
SCRIPT = TUTORIAL / "first_sync.py"
PAGE = (TUTORIAL / "first-sync.md").read_text()


def shown_blocks() -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def lines(output: str) -> list[str]:
    """Without ids, and without the order, which ids decide where two versions are of the same second."""
    return sorted(re.sub(r"\b([0-9a-f]{64}\b|[0-9a-f]{8}…)", "ID", line).rstrip() for line in output.splitlines())


def test_the_page_shows_the_script_as_it_is():
    assert SCRIPT.read_text() in shown_blocks()


def test_the_script_prints_what_the_page_shows(start_node: Callable[..., Node]):
    node = start_node()
    command = [sys.executable, "-W", "error", str(SCRIPT), node.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    assert run.returncode == 0, run.stderr
    (shown,) = [block for block in shown_blocks() if block.startswith("1. Laptop")]
    assert lines(run.stdout) == lines(shown)
    assert "concurrent: a conflict" in run.stdout
    node.verify()
