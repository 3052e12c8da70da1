"""`anabranch notes sync` and `anabranch notes relay`: with whom the notes are kept in step, and doing it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import msgspec

from anabranch.cli.notes_folder import NotesShell, options
from anabranch.cli.shell import Exit, Failure
from anabranch.client import Change, ChangeKind, RelayStatus, Replica

FAILURES = 2
"""After so many vain tries a relay is given up, until the next sync."""


@click.command()
@click.option("--follow", is_flag=True, help="Stay, and keep in step until Ctrl-C; --json then answers in lines.")
@click.option(
    "--timeout",
    "seconds_max",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="Seconds at most, without --follow.",
)
@click.option("--retry-refused", is_flag=True, help="Offer again what relays refused for good.")
@options
async def sync(shell: NotesShell, follow: bool, seconds_max: float, retry_refused: bool) -> None:
    """Bring the notes in step with the relays.

    Exits with 1 where a relay could not be reached, would not have the notes, or took too long.
    """
    async with await shell.replica(follow=True) as replica:
        before = {one.url: one for one in await replica.status()}
        if not before:
            raise Failure("no relays yet; add one: anabranch notes relay add wss://…")
        if retry_refused:
            for url in before:
                await replica.retry(url)
        if follow:
            await _follow(shell, replica)
            return
        received = Counter[str]()
        watching = asyncio.create_task(_watch(replica, received))
        with shell.progress("syncing") as show:
            given_up = await _until_done(replica, before, seconds_max, show)
        watching.cancel()
        after = await replica.status()
        clashing = await replica.conflicts()
    rows = [_outcome(one, before[one.url], received[one.url], given_up) for one in after]
    text = "\n".join(_row(row) for row in rows)
    shell.result({"relays": rows, "conflicts": [one.d for one in clashing]}, text)
    if clashing and not shell.json:
        many = "1 note is" if len(clashing) == 1 else f"{len(clashing)} notes are"
        shell.note(f"{many} in conflict; look at them with: anabranch notes conflicts")
    if not all(row["caught_up"] and not row["refused"] for row in rows):
        sys.exit(Exit.FAILED)


async def _until_done(
    replica: Replica,
    before: dict[str, RelayStatus],
    seconds_max: float,
    show: Callable[[float, float | None, str], None],
) -> dict[str, str]:
    """Wait for every relay; those that were given up, and why."""
    given_up: dict[str, str] = {}
    failures = Counter[str]()
    changes = replica.changes()
    owed = sum(one.owed for one in before.values())
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                stands = await replica.status()
                if all(one.caught_up or one.url in given_up for one in stands):
                    return given_up
                left = sum(one.owed for one in stands)
                remark = ", ".join(sorted({one.state for one in stands}))
                show(max(0, owed - left), owed or None, remark)
                for change in await _some(changes, 0.2):
                    if change.kind is ChangeKind.RELAY and change.relay and change.detail.startswith("offline"):
                        failures[change.relay] += 1
                        if failures[change.relay] >= FAILURES:
                            given_up[change.relay] = change.detail.partition(": ")[2]
    except TimeoutError:
        waiting = [one.url for one in await replica.status() if not one.caught_up]
        return {**dict.fromkeys(waiting, f"not done within {seconds_max:g} s"), **given_up}
    finally:
        await changes.aclose()


async def _some(changes: Any, seconds_max: float) -> list[Change]:
    """What has come, after waiting a moment for it."""
    found: list[Change] = []
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                found.append(await anext(changes))
    except TimeoutError:
        return found


async def _watch(replica: Replica, received: Counter[str]) -> None:
    async for change in replica.changes():
        if change.kind is ChangeKind.WRITTEN and change.relay:
            received[change.relay] += 1


def _outcome(after: RelayStatus, before: RelayStatus, received: int, given_up: dict[str, str]) -> dict[str, Any]:
    return {
        "url": after.url,
        "caught_up": after.caught_up,
        "sent": max(0, before.owed - after.owed - len(after.refused)),
        "received": received,
        "owed": after.owed,
        "refused": [msgspec.to_builtins(one) for one in after.refused],
        "dropped": after.dropped - before.dropped,
        "error": None if after.caught_up else given_up.get(after.url, after.last_error),
    }


def _row(row: dict[str, Any]) -> str:
    if row["caught_up"]:
        stands = click.style("in step", fg="green")
        parts = [f"{row['sent']} sent", f"{row['received']} received"]
    else:
        stands = click.style("not in step", fg="red")
        parts = [str(row["error"] or "still busy")] + ([f"{row['owed']} to send"] if row["owed"] else [])
    if row["refused"]:
        reasons = sorted({one["reason"] for one in row["refused"]})
        parts.append(click.style(f"{len(row['refused'])} refused ({'; '.join(reasons)})", fg="red"))
    if row["dropped"]:
        parts.append(click.style(f"{row['dropped']} bad events left out", fg="red"))
    return f"{row['url']}  {stands}: {', '.join(parts)}"


async def _follow(shell: NotesShell, replica: Replica) -> None:
    if not shell.json:
        shell.note("following; Ctrl-C ends it")
    async for change in replica.changes():
        if shell.json:
            click.echo(msgspec.json.encode(change))
            continue
        who = change.relay or "here"
        match change.kind:
            case ChangeKind.WRITTEN if change.d:
                click.echo(f"{change.d[:8]}  changed ({who})")
            case ChangeKind.CONFLICT_BEGUN if change.d:
                click.echo(click.style(f"{change.d[:8]}  is in conflict ({who})", fg="red"))
            case ChangeKind.CONFLICT_ENDED if change.d:
                click.echo(f"{change.d[:8]}  is settled ({who})")
            case ChangeKind.WRITTEN:
                pass
            case _:
                shell.note(f"{who}  {change.kind.value.replace('_', ' ')}  {change.detail}".rstrip())


# --- relays ----------------------------------------------------------------------------------------------------------


@click.group()
def relay() -> None:
    """With whom the notes are kept in step."""


@relay.command()
@click.argument("url")
@click.option("--access-key", metavar="KEY", help="For a private relay that asks for one.")
@options
async def add(shell: NotesShell, url: str, access_key: str | None) -> None:
    """Add a relay; the next sync brings everything there. Given again, it takes a new access key."""
    async with await shell.replica() as replica:
        added = await replica.add_relay(url, access_key)
    shell.result({"added": added}, added)


@relay.command("list")
@options
async def list_relays(shell: NotesShell) -> None:
    """List the relays, and what each lacks."""
    async with await shell.replica() as replica:
        found = await replica.status()
    rows = [
        {"url": one.url, "position": one.position, "owed": one.owed, "refused": len(one.refused)}
        | {"removed": one.removed, "dropped": one.dropped, "last_dropped": one.last_dropped}
        for one in found
    ]
    shell.result({"relays": rows}, "\n".join(_standing(one) for one in found))
    if not found and not shell.json:
        shell.note("no relays yet; add one: anabranch notes relay add wss://…")


def _standing(one: RelayStatus) -> str:
    parts = ["never synced" if one.position is None else "synced before", f"{one.owed} to send"]
    if one.refused:
        parts.append(f"{len(one.refused)} refused")
    if one.dropped:
        parts.append(f"{one.dropped} bad events left out so far")
    return f"{one.url}  {', '.join(parts)}"


@relay.command()
@click.argument("url")
@options
async def remove(shell: NotesShell, url: str) -> None:
    """Sync with a relay no longer. Notes stay, here and there."""
    async with await shell.replica() as replica:
        await replica.remove_relay(url)
    shell.result({"removed": url}, url)
