"""`anabranch config check`: the settings in force, where each comes from, and what is wrong with them."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from anabranch import config
from anabranch.cli.shell import Exit, Shell, options
from anabranch.config import RetentionSettings, Setting, Settings

MASK = "********"
TOKEN_CHARACTERS_MIN = 16


@click.group("config")
def config_group() -> None:
    """Look at the settings."""


@config_group.command()
@click.option("--all", "everything", is_flag=True, help="Show every setting, not only those that are set.")
@options()
def check(shell: Shell, everything: bool) -> None:
    """Say what the settings are, where each comes from and what is wrong; exit 3 when something is."""
    flags = {"data": shell.data}
    problems = config.problems(shell.config_file, os.environ, flags)
    settings = None if problems else shell.settings()
    if settings is not None and (wrong := _wrong_links(settings)):
        problems, settings = [wrong], None
    shown = [] if settings is None else [_shown(setting, settings, shell) for setting in config.settings_table()]
    answer: dict[str, Any] = {
        "ok": not problems,
        "problems": problems,
        "warnings": [] if settings is None else warnings(settings),
        "settings": {item["key"]: item for item in shown if everything or item["source"] != "default"},
    }
    if shell.json or not problems:
        shell.result(answer, _text(answer, everything))
    for problem in answer["problems"]:
        shell.note(f"{click.style('wrong', fg='red', bold=True)}    {problem}")
    for warning in answer["warnings"]:
        shell.note(f"{click.style('warning', fg='yellow', bold=True)}  {warning}")
    if problems:
        sys.exit(Exit.FOUND_WRONG)


def _wrong_links(settings: Settings) -> str | None:
    from anabranch.node.linking import link_specs
    from anabranch.replicate.links import LinkError, check_keys

    try:
        for spec in link_specs(settings):
            check_keys(spec)
    except LinkError as error:
        return str(error)
    return None


def _shown(setting: Setting, settings: Settings, shell: Shell) -> dict[str, Any]:
    value: Any = settings
    for name in setting.path:
        value = getattr(value, name)
    source = "default"
    if shell.config_file is not None and setting.key in config.in_file(shell.config_file):
        source = "file"
    if setting.variable in os.environ:
        source = "environment"
    if setting.key == "data" and shell.data is not None:
        source = "flag"
    hidden = setting.key in config.SECRET and bool(value)
    return {
        "key": setting.key,
        "variable": setting.variable,
        "value": MASK if hidden else msgspec.to_builtins(value),
        "default": msgspec.to_builtins(setting.default),
        "source": source,
        "description": setting.description,
    }


def _text(answer: dict[str, Any], everything: bool) -> str:
    lines = [
        f"{item['key']} = {toml(item['value'])}  # {item['source']}"
        + (f": {item['description']}" if everything else "")
        for item in answer["settings"].values()
    ]
    return "\n".join(lines) if lines else "# every setting has its default; --all shows them"


def toml(value: Any) -> str:
    """A value as the settings file writes it."""
    return "(unset)" if value is None else msgspec.json.encode(value).decode().replace(",", ", ")


def warnings(settings: Settings) -> list[str]:
    """What is allowed and may surprise."""
    found = []
    token = settings.admin_token
    if token is not None and len(token) < TOKEN_CHARACTERS_MIN:
        found.append(f"admin_token has fewer than {TOKEN_CHARACTERS_MIN} characters: it can be guessed")
    if settings.private and settings.relay_url is None:
        found.append("private without relay_url: an AUTH made for another relay is taken here too while it is fresh")
    if token is None and (settings.private or not _is_loopback(settings.host)):
        found.append(
            "no admin_token: who reaches the node from this machine, by a proxy too, may change its retention and links"
        )
    if settings.private:
        found.append(
            "private: whoever can sign may write, each their own, until there is an access key (anabranch keys)"
        )
    if settings.private and token is None:
        found.append("private without admin_token: access keys can only be made while the node is stopped")
    if settings.durability == "normal":
        found.append("durability is normal: a power cut may lose the last acknowledged events")
    retention = settings.retention
    if retention.recent_count != RetentionSettings().recent_count and not retention.policy().compacts:
        found.append("retention.recent_count is set and payload_days is not: no payload is ever compacted")
    if retention.mode.value == "full_retention" and retention.payload_days is not None:
        found.append("retention.mode is full_retention: payload_days has no effect")
    if not settings.private and not _is_loopback(settings.host):
        found.append(f"host {settings.host} is reachable from other machines, and everybody may write; see private")
    folder = Path(settings.data)
    if folder.exists() and not os.access(folder, os.W_OK):
        found.append(f"data {folder} is not writable by this user")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
