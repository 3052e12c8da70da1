"""The command line keeps its promises: data on stdout, the rest on stderr, documented exit codes."""

import pty
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from processes import Node
from stand_ins import DOCS, answer, held

import anabranch
from anabranch.cli import main
from anabranch.cli.shell import EXIT_CODES, Exit
from anabranch.config import Settings
from anabranch.demo import Teller
from anabranch.store.sqlite import DATABASE


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
    return found


def command_of(path: tuple[str, ...]) -> click.Command:
    found: Any = main
    for name in path:
        found = found.commands[name]
    return found


def test_every_command_and_option_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    for path in commands():
        assert f"anabranch {' '.join(path)}\n" in text, path
        for parameter in command_of(path).params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--"):
                    assert f"{option}" in text, (path, option)


def test_the_commands_are_those_that_were_promised() -> None:
    assert {" ".join(path) for path in commands()} == {
        *("serve", "status", "compact", "verify", "export", "import", "backup", "restore", "demo", "config check"),
        *("generate", "sim"),
        *(f"pipeline {name}" for name in ("ingest", "heads", "retention", "audit", "export", "report", "run")),
        *(f"keys {name}" for name in ("list", "create", "revoke", "delete")),
        *(
            f"link {name}"
            for name in ("add", "list", "show", "explain", "pause", "resume", "repair", "reset", "remove")
        ),
        *(f"notes {name}" for name in ("init", "list", "new", "edit", "show", "delete", "conflicts", "resolve")),
        *(f"notes {name}" for name in ("history", "restore", "sync", "relay add", "relay list", "relay remove")),
    }


def test_every_command_but_the_demo_answers_in_json() -> None:
    without = {path for path in commands() if not any("--json" in p.opts for p in command_of(path).params)}
    assert without == {("demo",)}


def test_the_exit_codes_are_documented(run: Callable[..., Result]) -> None:
    help_text, document = run("--help").stdout, (DOCS / "cli.md").read_text()
    for code in EXIT_CODES:
        assert re.search(rf"^\s+{int(code)}\s", help_text, re.M)
        assert f"| {int(code)} |" in document


def test_help_of_every_command_is_there(run: Callable[..., Result]) -> None:
    for path in commands():
        assert run(*path, "--help").exit_code == 0


def test_the_version_is_that_of_the_package(run: Callable[..., Result]) -> None:
    assert run("--version").stdout == f"anabranch {anabranch.__version__}\n"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "anabranch", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"anabranch {anabranch.__version__}\n"


@pytest.mark.parametrize("arguments", [["sail"], ["status", "--sideways"], ["import"], ["serve", "--port", "x"]])
def test_wrong_usage_exits_with_2(run: Callable[..., Result], arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")


@pytest.mark.parametrize("command", ["status", "verify", "export", "compact", "serve"])
def test_a_wrong_setting_is_one_line_and_2(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("ANABRANCH_PRIVAT", "true")
    result = run(command)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert result.stderr == "anabranch: unknown variable ANABRANCH_PRIVAT; did you mean `ANABRANCH_PRIVATE`?\n"


@pytest.mark.parametrize("command", [["status"], ["verify"], ["compact"], ["compact", "--dry-run"], ["keys", "list"]])
def test_a_store_that_is_not_there_is_told_and_not_made(
    run: Callable[..., Result], tmp_path: Path, command: list[str]
) -> None:
    folder = tmp_path / "nowhere"
    failure = answer(run(*command, "--json", "--data", str(folder)), Exit.FAILED)
    assert failure["exit_code"] == 1
    assert "no store in" in failure["error"]
    assert not folder.exists()


def test_a_file_that_is_no_database_fails_in_one_line(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"this is a poem, not a database" * 400)
    for command in ("status", "export", "compact"):
        result = run(command, "--data", str(tmp_path))
        assert result.exit_code == Exit.FAILED
        assert result.stderr.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["status", "--debug", "--data", str(tmp_path)])
    assert result.exception is not None
    assert not isinstance(result.exception, SystemExit)


def test_serve_hands_the_settings_to_the_node(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[Settings] = []
    stand_in = types.ModuleType("anabranch.node.main")
    stand_in.serve = lambda settings, *rest, **how: served.append(settings) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "anabranch.node.main", stand_in)
    (tmp_path / "a.toml").write_text('port = 1\nname = "from file"\n[retention]\npayload_days = 3\n')
    monkeypatch.setenv("ANABRANCH_PORT", "2")
    monkeypatch.setenv("ANABRANCH_HOST", "::1")
    result = run("serve", "--config", "a.toml", "--port", "3", "--data", "there", "--private")
    assert result.exit_code == 0
    settings = served[0]
    assert (settings.port, settings.host, settings.name, settings.data) == (3, "::1", "from file", "there")
    assert settings.private
    assert settings.retention.payload_days == 3


def test_serve_exits_with_4_where_another_node_is(data: str) -> None:
    with held(data, "http://127.0.0.1:1"):
        done = subprocess.run(
            [sys.executable, "-m", "anabranch", "serve", "--port", "0", "--data", data],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == Exit.IN_USE
    assert "in use by the node at http://127.0.0.1:1" in done.stderr


def test_serve_says_where_it_listens_and_what_to_try_next_until_ctrl_c(start_node: Callable[..., Node]) -> None:
    own = start_node()
    assert own.process is not None
    own.process.send_signal(signal.SIGINT)
    assert own.process.wait(20) == Exit.DONE
    greeting, _, farewell = own.log.read_text().partition("  stop       Ctrl-C\n")
    assert greeting.startswith(f"Anabranch listens on {own.url}\n  data       {own.data}")
    http = f"http://127.0.0.1:{own.port}"
    for address in (f"curl -s -H 'Accept: application/nostr+json' {http}/\n", f"{http}/readyz ", f"{http}/metrics\n"):
        assert address in greeting
    to_try = set(re.findall(r"anabranch (\w+)", greeting))
    assert {"demo"} <= to_try <= set(main.commands)
    assert farewell == "stopping …\nstopped; everything acknowledged is on disk\n"


def test_the_demo_tells_a_true_story_without_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", "demo", "--fast"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout.count("✓") >= 12
    assert "✗" not in done.stdout


def test_the_demo_has_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    with open(ours, "rb", 0) as seen, open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        Teller(0).chapter("It begins")
        terminal.flush()
        told = seen.read(1_000).decode()
    assert "\x1b[" in told and "1. It begins" in told
