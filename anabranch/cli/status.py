"""`anabranch status`: what is in a store, how far its log has come, and who holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from anabranch.cli.shell import Shell, options, rows, seconds, size
from anabranch.core.retention import Policy, ReplayWindow
from anabranch.store.held import is_held, read_holder
from anabranch.store.opening import inspect_store
from anabranch.store.runtime import RETENTION, policy_in_force, runtime_retention


@click.command()
@options()
def status(shell: Shell) -> None:
    """Say what is in the store, also while a node runs on it."""
    settings = shell.settings()
    folder = Path(settings.data)
    store = inspect_store(folder, settings.store)
    with store.reader() as reader:
        log, statistics, stored = reader.log(), reader.statistics(), reader.setting(RETENTION)
    policy, interval = policy_in_force(settings.retention.policy(), settings.retention.interval_seconds, stored)
    window = settings.retention.window()
    holder, held = read_holder(folder), is_held(folder)
    at_run_time = runtime_retention(stored)
    answer: dict[str, Any] = {
        "data": str(folder),
        "store": store.place,
        "stream": log.stream,
        "epoch": log.epoch,
        "floor": log.floor,
        "tip": log.tip,
        "running": held,
        "holder": {"pid": holder.pid, "url": holder.url} if held else None,
        "statistics": msgspec.to_builtins(statistics),
        "retention": {
            "mode": policy.mode.value,
            "recent_count": policy.recent_count,
            "payload_days": policy.payload_days,
            "deleted_documents": policy.deleted_documents,
            "interval_seconds": interval,
            "source": "settings" if at_run_time is None else "admin API",
        },
        "replay_window": msgspec.to_builtins(window),
    }
    who = holder.name if held else "nobody"
    s = statistics
    room = size(s.file_bytes - s.wal_bytes) + (f" and {size(s.wal_bytes)} of write-ahead log" if s.wal_bytes else "")
    shell.result(
        answer,
        rows(
            [
                ("store", f"{store.place if settings.store else folder}, {room}"),
                ("held by", who),
                ("stream", log.stream),
                ("epoch", log.epoch),
                ("log", f"positions {log.floor} to {log.tip}" if log.tip >= log.floor else f"empty, tip {log.tip}"),
                (
                    "operations",
                    f"{s.operations:,}: {s.retained:,} retained ({size(s.payload_bytes)}), "
                    f"{s.compacted:,} compacted, {s.removed:,} removed",
                ),
                ("documents", f"{s.documents:,}: {s.conflicts:,} in conflict, {s.tombstones:,} deleted"),
                (
                    "retention",
                    describe_policy(policy) + ("" if at_run_time is None else " (set through the admin API)"),
                ),
                ("replay", describe_window(window)),
            ]
        ),
    )


def describe_policy(policy: Policy) -> str:
    if not policy.compacts:
        return f"{policy.mode.value}: no payload goes" + (
            "; payload_days is unset" if policy.mode.value != "full_retention" else ""
        )
    kept = "the heads" if policy.mode.value == "current_only" else f"the heads, and up to {policy.recent_count} in all"
    age = "" if policy.payload_days == 0 else f" of what is older than {policy.payload_days} days"
    return f"{policy.mode.value}: payloads go{age}, but for {kept}"


def describe_window(window: ReplayWindow) -> str:
    bounds = []
    if window.count is not None:
        bounds.append(f"the last {window.count:,} positions")
    if window.age_seconds is not None:
        bounds.append(f"the last {seconds(window.age_seconds)}")
    if window.bytes is not None:
        bounds.append(f"the last {size(window.bytes)}")
    return "the whole log" if not bounds else " and at most ".join(bounds)
