"""Log lines, for people and for machines."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from anabranch.node import logs


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """What is set up for these tests is set up for no others."""
    one = logging.getLogger()
    level, handlers = one.level, one.handlers[:]
    yield
    one.setLevel(level)
    one.handlers[:] = handlers


def say_all() -> None:
    log = logging.getLogger("anabranch.test")
    log.debug("unheard")
    log.info("a %s line", "short", extra={"count": 3})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed\nin two lines", extra={"cause": object})


def test_lines_for_machines_are_json_with_time_level_logger_and_message(capsys: pytest.CaptureFixture) -> None:
    logs.set_up("json", "info")
    say_all()
    said = capsys.readouterr()
    first, second = map(json.loads, said.err.splitlines())
    assert said.out == ""
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {"level": "info", "logger": "anabranch.test", "message": "a short line", "count": 3}
    assert (second["level"], second["message"]) == ("error", "failed\nin two lines")
    assert second["exception"].endswith("ValueError: why") and second["cause"]


def test_lines_for_people_have_the_same_and_are_short(capsys: pytest.CaptureFixture) -> None:
    logs.set_up("text", "debug")
    say_all()
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.split()[1:] == ["debug", "unheard"]
    assert second.split(maxsplit=1)[1] == "info    a short line count=3"
