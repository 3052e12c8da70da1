"""`anabranch compact`: forget by policy, or say what would go.

On a free store the command does it itself; a node that runs on the store is asked to. A dry run only reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from anabranch.cli.admin import Admin
from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.cli.status import describe_policy
from anabranch.config import Settings
from anabranch.core.retention import Mode, Policy
from anabranch.node import now
from anabranch.store import compaction
from anabranch.store.contract import StoreBusy
from anabranch.store.opening import AnyStore, inspect_store, open_store
from anabranch.store.runtime import RETENTION, policy_in_force

PAGES_A_STEP = 2_000
ASK_SECONDS_MAX = 3_600


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="Use this mode for this run.")
@click.option("--recent-count", type=click.IntRange(1), help="Use this count for this run.")
@click.option("--payload-days", type=click.IntRange(0), help="Use this age for this run; 0: any age.")
@options()
def compact(shell: Shell, dry_run: bool, mode: str | None, recent_count: int | None, payload_days: int | None) -> None:
    """Drop the payloads that retention lets go, and give the space back.

    The policy is that of the settings, or what was set since through the admin API; the options rule over both for
    this run. Heads never go, and the facts of what goes stay.
    """
    settings = shell.settings()
    folder = Path(settings.data)
    inspected = inspect_store(folder, settings.store)  # before anything else: this command makes no store
    overrides = {
        name: value
        for name, value in (("mode", mode), ("recent_count", recent_count), ("payload_days", payload_days))
        if value is not None
    }
    if dry_run:
        answer = _dry_run(inspected, settings, overrides)
    else:
        try:
            store = open_store(folder, settings.store, settings.durability)
        except StoreBusy:
            if overrides:
                raise Failure(
                    "a node holds the store, and it compacts by its own policy: leave the options away, "
                    "change its policy (PATCH /admin/retention), or stop it",
                    Exit.IN_USE,
                ) from None
            answer = _ask(settings)
        else:
            answer = _compact(shell, store, settings, overrides)
    shell.result(answer, _text(answer))
    if not answer["compacts"]:
        shell.note("No payload may go by age: set retention.payload_days, or try --payload-days.")


def _policy(settings: Settings, stored: bytes | None, overrides: dict[str, Any]) -> Policy:
    policy, _ = policy_in_force(settings.retention.policy(), settings.retention.interval_seconds, stored)
    policy = msgspec.convert(msgspec.to_builtins(policy) | overrides, Policy)
    if overrides.get("mode") == Mode.CURRENT_ONLY.value and policy.payload_days is None:
        policy = msgspec.structs.replace(policy, payload_days=0)
    return policy


def _dry_run(store: AnyStore, settings: Settings, overrides: dict[str, Any]) -> dict[str, Any]:
    with store.reader() as reader:
        policy = _policy(settings, reader.setting(RETENTION), overrides)
        before, window = reader.file_bytes(), settings.retention.window()
        report = compaction.foresee(reader, policy, window, now.seconds(), reader.log().floor)
    return _answer(report, policy, dry_run=True, before=before, after=None)


def _compact(shell: Shell, store: AnyStore, settings: Settings, overrides: dict[str, Any]) -> dict[str, Any]:
    before = _file_bytes(store)
    try:
        with store.reader() as reader, shell.progress("Compacting") as show:
            policy = _policy(settings, reader.setting(RETENTION), overrides)
            report = compaction.Report(floor=reader.log().floor)
            for step in compaction.steps(reader, policy, settings.retention.window(), now.seconds()):
                compaction.carry_out(step, store.writer, report)
                show(0, None, f"{_payloads(msgspec.to_builtins(report)):,} payloads, {size(report.compacted_bytes)}")
        # Bounded, should the file have been made without incremental vacuum: then no page ever goes back.
        for _ in range(before // (PAGES_A_STEP * 512) + 10):
            if not store.writer.return_space(PAGES_A_STEP):
                break
    finally:
        store.close()
    return _answer(report, policy, dry_run=False, before=before, after=_file_bytes(store))


def _ask(settings: Settings) -> dict[str, Any]:
    admin = Admin.of_holder(settings)
    reply = admin.request("POST", "/admin/compact", {}, timeout=ASK_SECONDS_MAX)
    report = msgspec.convert(
        {name: reply[name] for name in compaction.Report.__struct_fields__ if name in reply}, compaction.Report
    )
    with inspect_store(Path(settings.data), settings.store).reader() as reader:
        policy = _policy(settings, reader.setting(RETENTION), {})
    before, after = reply.get("file_bytes_before"), reply.get("file_bytes_after")
    return _answer(report, policy, dry_run=False, before=before, after=after) | {"by": admin.url}


def _answer(
    report: compaction.Report, policy: Policy, *, dry_run: bool, before: int | None, after: int | None
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "by": None,
        "policy": msgspec.to_builtins(policy),
        "compacts": policy.compacts,
        **msgspec.to_builtins(report),
        "file_bytes_before": before,
        "file_bytes_after": after,
    }


def _text(answer: dict[str, Any]) -> str:
    before, after = answer["file_bytes_before"], answer["file_bytes_after"]
    pairs = [
        ("policy", describe_policy(msgspec.convert(answer["policy"], Policy))),
        (
            "would go" if answer["dry_run"] else "gone",
            f"{_payloads(answer):,} payloads, {size(answer['compacted_bytes'])}",
        ),
        ("documents", f"{answer['forgotten_documents']:,} fully deleted ones, {size(answer['forgotten_bytes'])}"),
        ("expired", f"{answer['expired']:,}, {size(answer['expired_bytes'])}"),
        ("vanished", f"{answer['vanished']:,}"),
        ("floor", str(answer["floor"])),
    ]
    if before is not None:
        pairs.append(("file", size(before) if after is None else f"{size(before)} → {size(after)}"))
    if answer["by"]:
        pairs.append(("done by", f"the node at {answer['by']}"))
    return rows(pairs)


def _payloads(answer: dict[str, Any]) -> int:
    return int(answer["compacted_snapshots"] + answer["compacted_revisions"])


def _file_bytes(store: AnyStore) -> int:
    with store.reader() as reader:
        return int(reader.file_bytes())
