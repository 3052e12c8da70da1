"""The tutorial of the pipeline does what it says: its commands run as they stand, on fewer operations."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from anabranch.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-answers.md").read_text()
BLOCKS = re.findall(r"^```([a-z]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines() if line.startswith("anabranch ")]
FEWER = {"1000000": "2000", "100000": "200"}
SPARK = ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = main
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one_that_can_be_given(line: str):
    command, words = command_of(shlex.split(line)[1:])
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def labels(text: str) -> list[str]:
    """The first word of every line: what is said, without the numbers."""
    return [line.split()[0] for line in text.splitlines() if line.strip() and line[0].isalpha()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_can_be_followed_from_its_first_command_to_its_last(tmp_path: Path):
    said: list[str] = []
    for kind, text in BLOCKS:
        if kind == "python":
            steps = [[sys.executable, "-W", "error::ResourceWarning", "-c", text]]
        elif text.startswith("anabranch "):
            steps = [[sys.executable, "-m", *shlex.split(line)] for line in text.splitlines()]
        else:
            assert labels(text) == said, text
            continue
        said = []
        for step in steps:
            fewer = [FEWER.get(word, word) for word in step] + (SPARK if "pipeline" in step else [])
            done = subprocess.run(fewer, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, (step, done.stderr)
            assert "WARN" not in done.stderr and "Traceback" not in done.stderr
            said += labels(done.stdout)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
