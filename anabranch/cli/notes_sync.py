"""`anabranch notes sync` and `anabranch notes relay`: with whom the notes are kept in step, and doing it."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import click
import msgspec

from anabranch.cli import notes_refused as refused
from anabranch.cli.notes_folder import NotesShell, options
from anabranch.cli.notes_follow import Telling
from anabranch.cli.notes_words import of_relay
from anabranch.cli.shell import Exit, Failure
from anabranch.client import Change, ChangeKind, Document, RelayStatus, Replica
from anabranch.core import nip19

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
        changes = replica.changes()
        before = {one.url: one for one in await replica.status()}
        if not before:
            raise Failure(f"no relays yet; add one: {shell.command('relay', 'add')} wss://…")
        if retry_refused:
            for url, one in before.items():
                await replica.retry(url)
                before[url] = dataclasses.replace(one, owed=one.owed + len(one.refused), refused=())
        if follow:
            await _follow(shell, replica, changes)
            return
        received = Counter[str]()
        watching = asyncio.create_task(_watch(changes, received))
        with shell.progress("syncing") as show:
            given_up = await _until_done(replica, before, seconds_max, show)
        watching.cancel()
        after = await replica.status()
        clashing = await replica.conflicts()
        documents = await replica.documents(deleted=True)
        owner, family = nip19.encode("npub", bytes.fromhex(replica.owner)), replica.family
    rows = [_outcome(shell, one, before[one.url], received[one.url], given_up, documents) for one in after]
    text = "\n".join(line for row in rows for line in _lines(row))
    shell.result({"relays": rows, "conflicts": [one.d for one in clashing]}, text)
    fails = not all(row["caught_up"] and not refused.current(row["refused"]) for row in rows)
    if not shell.json:
        if any(refused.current(row["refused"]) for row in rows):
            shell.note(refused.advice(shell))
        if clashing:
            many = "1 note is" if len(clashing) == 1 else f"{len(clashing)} notes are"
            shell.note(f"{many} in conflict; look at them with: {shell.command('conflicts')}")
        if not documents and not fails:
            shell.note(
                "no notes here, and none there. If you have some on another device: was it synced with this relay, has"
                f" it the same key ({owner}), and was it made with `--family {family}` as this one?"
            )
    if fails:
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


async def _watch(changes: AsyncIterator[Change], received: Counter[str]) -> None:
    async for change in changes:
        if change.kind is ChangeKind.WRITTEN and change.relay:
            received[change.relay] += 1


def _outcome(
    shell: NotesShell,
    after: RelayStatus,
    before: RelayStatus,
    received: int,
    given_up: dict[str, str],
    documents: list[Document],
) -> dict[str, Any]:
    error = None if after.caught_up else given_up.get(after.url, after.last_error)
    newly_refused = {one.version for one in after.refused} - {one.version for one in before.refused}
    return {
        "url": after.url,
        "caught_up": after.caught_up,
        "sent": max(0, before.owed - after.owed - len(newly_refused)),
        "received": received,
        "owed": after.owed,
        "refused": refused.as_json(after.refused, documents),
        "dropped": after.dropped - before.dropped,
        "error": None if error is None else of_relay(shell, after.url, error),
    }


def _lines(row: dict[str, Any]) -> list[str]:
    """How a relay stands, and below it the notes that it does not take."""
    untaken = len({one["d"] for one in refused.current(row["refused"])})
    if row["caught_up"]:
        but = f"has all but {'1 note that it refuses' if untaken == 1 else f'{untaken} notes that it refuses'}"
        stands = click.style(but, fg="red") if untaken else click.style("in step", fg="green")
        parts = [f"{row['sent']} sent", f"{row['received']} received"]
    else:
        stands = click.style("not in step", fg="red")
        parts = [str(row["error"] or "still busy")] + ([f"{row['owed']} to send"] if row["owed"] else [])
        parts += [click.style(f"{untaken} refused", fg="red")] if untaken else []
    if row["dropped"]:
        parts.append(click.style(f"{row['dropped']} bad events left out", fg="red"))
    return [f"{row['url']}  {stands}: {', '.join(parts)}", *refused.lines(row["refused"])]


async def _follow(shell: NotesShell, replica: Replica, changes: AsyncIterator[Change]) -> None:
    if not shell.json:
        shell.note("following; Ctrl-C ends it")
    telling = Telling(shell, replica)
    await telling.begin()
    async for change in changes:
        if shell.json:
            click.echo(msgspec.json.encode(change))
        else:
            await telling.tell(change)


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
        documents = await replica.documents(deleted=True) if any(one.refused for one in found) else []
    rows: list[dict[str, Any]] = [
        {"url": one.url, "position": one.position, "owed": one.owed, "refused": len(one.refused)}
        | {"removed": one.removed, "dropped": one.dropped, "last_dropped": one.last_dropped}
        | {"refused_notes": refused.current(refused.as_json(one.refused, documents))}
        for one in found
    ]
    pairs = zip(found, rows, strict=True)
    lines = (line for one, row in pairs for line in _standing(one, row["refused_notes"]))
    shell.result({"relays": rows}, "\n".join(lines))
    if any(row["refused_notes"] for row in rows) and not shell.json:
        shell.note(refused.advice(shell))
    if not found and not shell.json:
        shell.note(f"no relays yet; add one: {shell.command('relay', 'add')} wss://…")


def _standing(one: RelayStatus, untaken: list[dict[str, Any]]) -> list[str]:
    parts = ["never synced" if one.position is None else "synced before", f"{one.owed} to send"]
    if untaken:
        parts.append(f"{len(untaken)} refused")
    if one.dropped:
        parts.append(f"{one.dropped} bad events left out so far")
    return [f"{one.url}  {', '.join(parts)}", *refused.lines(untaken)]


@relay.command()
@click.argument("url")
@options
async def remove(shell: NotesShell, url: str) -> None:
    """Sync with a relay no longer. Notes stay, here and there."""
    async with await shell.replica() as replica:
        await replica.remove_relay(url)
    shell.result({"removed": url}, url)
