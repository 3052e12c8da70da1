"""Config check finds everything that is wrong at once, and the settings page says what the settings are."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from stand_ins import DOCS, TOKEN, answer

from anabranch import config
from anabranch.cli.settings import toml
from anabranch.cli.shell import Exit
from anabranch.config import Setting


def test_config_check_shows_what_is_set_and_from_where(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.toml").write_text('name = "River"\n[retention]\npayload_days = 3\n')
    monkeypatch.setenv("ANABRANCH_PORT", "7000")
    monkeypatch.setenv("ANABRANCH_ADMIN_TOKEN", TOKEN)
    arguments = ("config", "check", "--config", "a.toml", "--data", "here")
    checked = answer(run(*arguments, "--json"))
    assert (checked["ok"], checked["problems"]) == (True, [])
    assert {key: item["source"] for key, item in checked["settings"].items()} == {
        "name": "file",
        "retention.payload_days": "file",
        "port": "environment",
        "admin_token": "environment",
        "data": "flag",
    }
    assert checked["settings"]["port"].keys() == {"key", "variable", "value", "default", "source", "description"}
    everything = run(*arguments, "--all")
    assert TOKEN not in everything.output
    assert everything.stdout.count("\n") == len(config.settings_table())


def test_config_check_finds_everything_that_is_wrong_at_once(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.toml").write_text('prot = 1\n[retention]\nmode = "sometimes"\nrecent_count = 0\n')
    monkeypatch.setenv("ANABRANCH_PRIVATE", "perhaps")
    monkeypatch.setenv("ANABRANCH_LIMITS_TAGZ", "1")
    arguments = ("config", "check", "--config", "a.toml")
    checked = answer(run(*arguments, "--json"), Exit.FOUND_WRONG)
    assert not checked["ok"]
    for part in ("prot", "retention.mode", "retention.recent_count", "ANABRANCH_PRIVATE", "ANABRANCH_LIMITS_TAGZ"):
        assert sum(part in problem for problem in checked["problems"]) == 1, (part, checked["problems"])
    result = run(*arguments)
    assert result.exit_code == Exit.FOUND_WRONG
    assert "did you mean `port`" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("text", ["port = ", "\xff"])
def test_config_check_of_a_file_that_is_no_toml_is_3(run: Callable[..., Result], text: str) -> None:
    Path("a.toml").write_bytes(text.encode("latin-1"))
    assert len(answer(run("config", "check", "--config", "a.toml", "--json"), Exit.FOUND_WRONG)["problems"]) == 1


def test_config_check_says_what_two_settings_say_together(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_LIMITS_EVENT_BYTES", "900000")
    (problem,) = answer(run("config", "check", "--json"), Exit.FOUND_WRONG)["problems"]
    assert "larger than limits.message_bytes" in problem
    monkeypatch.setenv("ANABRANCH_LIMITS_MESSAGE_BYTES", "1000000")
    assert answer(run("config", "check", "--json"))["ok"]


def test_config_check_warns_of_what_may_surprise(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(run("config", "check", "--json"))["warnings"] == []
    for name, value in {"ADMIN_TOKEN": "short", "PRIVATE": "true", "DURABILITY": "normal"}.items():
        monkeypatch.setenv(f"ANABRANCH_{name}", value)
    warnings = answer(run("config", "check", "--json"))["warnings"]
    for part in ("admin_token has fewer", "relay_url", "durability"):
        assert any(part in warning for warning in warnings)
    monkeypatch.delenv("ANABRANCH_ADMIN_TOKEN")  # a private node often stands behind a proxy on its own machine
    warnings = answer(run("config", "check", "--json"))["warnings"]
    for part in ("may change its retention and links", "keys can only be made while the node is stopped"):
        assert any(part in warning for warning in warnings)


def setting_row(setting: Setting) -> str:
    """A setting's line in docs/reference/settings.md."""
    default = msgspec.to_builtins(setting.default)
    shown = "unset" if default is None else f"`{toml(default)}`"
    return f"| `{setting.key}` | `{setting.variable}` | {shown} | {setting.description} |"


def test_the_settings_page_says_what_the_settings_are() -> None:
    rows = [line for line in (DOCS / "settings.md").read_text().splitlines() if line.startswith("| `")]
    assert rows == [setting_row(setting) for setting in config.settings_table()]


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ('[[links]]\npeer = "http://x"', "links: number 1: peer must be the address of a relay"),
        ('[[links]]\npeer = "ws://x"\nscope = { author = ["a"] }', "unknown scope field 'author'"),
        ('[[links]]\npeer = "ws://x"\n[[links]]\npeer = "ws://x"', "two are named 'x'"),
        ('[[links]]\npeer = "ws://x"\ndirection = "up"', "links[0].direction"),
        ('[[links]]\nname = "x"', "missing required field `peer`"),
    ],
)
def test_config_check_says_what_is_wrong_with_a_link(run: Callable[..., Result], links: str, said: str) -> None:
    Path("a.toml").write_text(links)
    result = run("config", "check", "--config", "a.toml", "--json")
    assert said in answer(result, Exit.FOUND_WRONG)["problems"][0]


def test_config_check_tells_an_unknown_key_of_a_link_once(run: Callable[..., Result]) -> None:
    Path("a.toml").write_text('[[links]]\npeer = "ws://x"\npear = 1\n')
    (problem,) = answer(run("config", "check", "--config", "a.toml", "--json"), Exit.FOUND_WRONG)["problems"]
    assert problem == "unknown key `links.pear` in a.toml; did you mean `peer`?"
