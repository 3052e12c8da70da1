"""What is laid out for a service manager and for containers fits the commands and settings that there are."""

import configparser
import json
import re
import shlex
from pathlib import Path

import click
import pytest

from anabranch.cli import main
from anabranch.cli.shell import Exit
from anabranch.config import load

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)  # a key may come again
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "anabranch.service").read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    return unit["Service"]


def instructions() -> dict[str, str]:
    """The container file's last word on each instruction, lines that go on joined."""
    text = re.sub(r"\\\n", "", (DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


def can_be_given(words: list[str]) -> None:
    """A command that there is, with options that it has and what they take."""
    command: click.Command = main
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


def test_the_service_starts_a_node_in_words_that_it_knows(service: configparser.SectionProxy):
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute() and Path(program).name == "anabranch"
    assert words[0] == "serve" and f"/var/lib/{service['StateDirectory']}" in words
    can_be_given(words)


def test_the_service_is_ended_in_order_and_not_tried_again_where_that_does_not_help(service: configparser.SectionProxy):
    assert service["RestartPreventExitStatus"].split() == [str(int(Exit.USAGE)), str(int(Exit.IN_USE))]
    assert service["KillSignal"] == "SIGTERM"  # which drains


def test_the_container_starts_a_node_in_words_that_it_knows():
    said = instructions()
    program, *words = json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"])
    assert program == "anabranch" and words[0] == "serve"
    can_be_given(words)


def test_the_containers_settings_are_settings():
    said = instructions()
    environment = dict(pair.split("=", 1) for pair in shlex.split(said["ENV"]))
    settings = load(environment=environment)
    assert settings.data == said["VOLUME"] and str(settings.port) == said["EXPOSE"]
    assert settings.log_format == "json"
    assert "ANABRANCH_PORT" in said["HEALTHCHECK"] and "/readyz" in said["HEALTHCHECK"]
