"""`anabranch link`: whom a running node follows and feeds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from anabranch.cli.admin import Admin
from anabranch.cli.shell import Exit, Failure, Shell, options, rows
from anabranch.cli.units import date
from anabranch.core.nip19 import parse_public
from anabranch.core.nostr import Invalid
from anabranch.replicate.refusals import refused_count
from anabranch.store.held import is_held

POLL_SECONDS = 0.2
_KEY_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.group()
def link() -> None:
    """Follow, feed and repair other nodes and relays.

    A link is a peer, a scope and a direction. The commands speak with the node that runs on the store (--data), from
    the same machine or with its admin token. Links can stand in the settings file, too: [[links]].
    """


def _node(shell: Shell) -> Admin:
    settings = shell.settings()
    if not is_held(Path(settings.data)):
        raise Failure(f"no node runs on {settings.data}; start one: anabranch serve --data {settings.data}")
    return Admin.of_holder(settings)


def _path(name: str, verb: str = "") -> str:
    if not name:
        raise Failure("a link has a name; `anabranch link list` shows them", Exit.USAGE)
    return f"/admin/links/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


_wait = [
    click.option("--wait", "wait", is_flag=True, help="Return only when the link has caught up."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=300,
        show_default=True,
        help="Seconds that --wait waits.",
    ),
]


def _waiting(command: Any) -> Any:
    for option in reversed(_wait):
        command = option(command)
    return command


@link.command()
@click.argument("peer")
@click.option("--name", help="What to call it. [default: after the peer]")
@click.option(
    "--direction", type=click.Choice(["pull", "push", "both"]), default="pull", show_default=True, help="Which way."
)
@click.option("--author", "authors", multiple=True, metavar="PUBKEY", help="Only of this author; repeatable.")
@click.option("--kind", "kinds", multiple=True, type=int, help="Only of this kind; repeatable.")
@click.option("--document", "documents", multiple=True, metavar="D", help="Only this document; repeatable.")
@click.option("--collection", "collections", multiple=True, metavar="C", help="Only this collection; repeatable.")
@click.option("--recipient", "recipients", multiple=True, metavar="PUBKEY", help="Only for this one; repeatable.")
@click.option("--key-file", type=_KEY_FILE, help="To a private peer: the file with our secret key (nsec or hex).")
@click.option("--access-key-file", type=_KEY_FILE, help="The file with our access key, where the peer asks for one.")
@_waiting
@options()
def add(
    shell: Shell,
    peer: str,
    name: str | None,
    direction: str,
    key_file: str | None,
    access_key_file: str | None,
    wait: bool,
    timeout: float,
    **scope: tuple[Any, ...],
) -> None:
    """Begin to follow or feed PEER, a websocket address. Without a scope it is everything.

    With --kind the requests to delete and to vanish of the same authors come too, but not where it is narrowed by
    document, collection or recipient: these requests name none.

    The node reads the key files itself, for each connection anew, and keeps only where they are.
    """
    try:
        people = {name: tuple(map(parse_public, scope[name])) for name in ("authors", "recipients")}
    except Invalid as error:
        raise Failure(f"--author and --recipient: {error}", Exit.USAGE) from None
    body = {
        "peer": peer,
        "direction": direction,
        "scope": {name: list(values) for name, values in (scope | people).items() if values},
        **{
            field: value
            for field, value in (("name", name), ("key_file", key_file), ("access_key_file", access_key_file))
            if value is not None
        },
    }
    from anabranch.replicate.links import LinkError, spec_of  # here, and not above: no other command is to wait for it

    try:
        spec_of(body)
    except LinkError as error:
        raise Failure(str(error), Exit.USAGE) from error
    node = _node(shell)
    _finish(shell, node, node.request("POST", "/admin/links", body), wait, timeout)


@link.command("list")
@options()
def list_command(shell: Shell) -> None:
    """Show every link in a line."""
    answer = _node(shell).request("GET", "/admin/links")
    lines = [_line(one) for one in answer["links"]]
    shell.result(answer, "\n".join(lines) if lines else "There are no links; `anabranch link add wss://…` makes one.")


@link.command()
@click.argument("name")
@options()
def show(shell: Shell, name: str) -> None:
    """Show one link: its checkpoints, dead letters and last transitions."""
    answer = _node(shell).request("GET", _path(name))
    shell.result(answer, _shown(answer))


@link.command()
@click.argument("name")
@options()
def explain(shell: Shell, name: str) -> None:
    """Say in words what a link waits for, since when, and what is probably the matter."""
    answer = _node(shell).request("GET", _path(name, "explain"))
    shell.result(answer, "\n".join(answer["explanation"]))


@link.command()
@click.argument("name")
@options()
def pause(shell: Shell, name: str) -> None:
    """Let go of the peer; the checkpoint stays."""
    node = _node(shell)
    _finish(shell, node, node.request("POST", _path(name, "pause")), False, 0)


@link.command()
@click.argument("name")
@_waiting
@options()
def resume(shell: Shell, name: str, wait: bool, timeout: float) -> None:
    """Go on from the checkpoint; a link that waits for its next try tries now."""
    node = _node(shell)
    _finish(shell, node, node.request("POST", _path(name, "resume")), wait, timeout)


@link.command()
@click.argument("name")
@_waiting
@options()
def repair(shell: Shell, name: str, wait: bool, timeout: float) -> None:
    """Compare everything in scope and close the difference; dead letters are tried again."""
    node = _node(shell)
    _finish(shell, node, node.request("POST", _path(name, "repair")), wait, timeout)


@link.command()
@click.argument("name")
@_waiting
@options()
def reset(shell: Shell, name: str, wait: bool, timeout: float) -> None:
    """Forget the checkpoints and begin as if the link were new. What it brought stays."""
    node = _node(shell)
    _finish(shell, node, node.request("POST", _path(name, "reset")), wait, timeout)


@link.command()
@click.argument("name")
@options()
def remove(shell: Shell, name: str) -> None:
    """Forget a link and its checkpoints. What it brought stays."""
    answer = _node(shell).request("DELETE", _path(name))
    shell.result(answer, f"{name} is removed; what it brought stays")


def _finish(shell: Shell, node: Admin, answer: dict[str, Any], wait: bool, timeout: float) -> None:
    if wait:
        answer = _caught_up(shell, node, answer["name"], timeout)
    shell.result(answer, _line(answer))


def _caught_up(shell: Shell, node: Admin, name: str, timeout: float) -> dict[str, Any]:
    """Ask until the digests are equal and nothing is under way; `Failure` says what it waits for."""
    deadline = time.monotonic() + timeout
    with shell.progress(f"waiting for {name}") as show_progress:
        while True:
            answer: dict[str, Any] = node.request("GET", _path(name))
            if answer["caught_up"]:
                return answer
            if time.monotonic() >= deadline:
                why = " ".join(node.request("GET", _path(name, "explain"))["explanation"])
                raise Failure(f"{name} has not caught up within {timeout:g} s. {why}", Exit.FAILED)
            show_progress(0, None, f"{answer['state']}, {answer['phase']}")
            time.sleep(POLL_SECONDS)


def _line(one: dict[str, Any]) -> str:
    standing = "caught up" if one["caught_up"] else one["last_error"] or one["phase"]
    if one["caught_up"] and one["unkept"]:
        standing += f", but for {one['unkept']} that the peer does not keep"
    if one["caught_up"] and one["untaken"]:
        standing += f", but for {one['untaken']} that our rules refuse"
    return f"{one['name']}  {one['direction']}  {one['peer']}  {one['state']}  {standing}"


_TIMES = ("created at", "last success at", "last failure at")


def _shown(one: dict[str, Any]) -> str:
    pairs = [
        (name.replace("_", " "), _value(value))
        for name, value in one.items()
        if name not in ("dead_letters", "transitions", "pull", "push") and value not in (None, {})
    ]
    pairs = [(name, refused_count(int(value)) if name == "dead letter count" else value) for name, value in pairs]
    pairs = [(name, date(int(value)) if name in _TIMES else value) for name, value in pairs]
    for direction in ("pull", "push"):
        checkpoint = one[direction]
        if checkpoint is not None and checkpoint["contiguous"] is not None:
            pairs.append((direction, f"up to {checkpoint['contiguous']['position']}"))
            pairs += [
                (f"{direction} waits", f"{waits['operation']} for {waits['dependency']} {waits['missing']}")
                for waits in checkpoint["pending"]
            ]
    pairs += [("refused", f"{dead['direction']} {dead['id']}: {dead['reason']}") for dead in one["dead_letters"][:20]]
    pairs += [
        ("was", f"{step['before']} → {step['after']} ({step['cue']}) {step['why']}".rstrip())
        for step in one["transitions"]
    ]
    return rows(pairs)


def _value(value: Any) -> str:
    if isinstance(value, dict) and "oldestAvailable" in value:
        asked, oldest, latest = (value[name] for name in ("requested", "oldestAvailable", "latestAvailable"))
        of = "" if asked["epoch"] == oldest["epoch"] else " of another epoch"
        there = f"{oldest['position']} to {latest['position']}"
        return f"asked for {asked['position']}{of}, there was {there}: {value['reason']}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items() if part is not None) or "–"
    return str(value).lower() if isinstance(value, bool) else str(value)
