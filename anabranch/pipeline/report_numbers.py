"""What a report says, in plain numbers: what `jobs.report` finds and `report_page` shows."""

from __future__ import annotations

import msgspec

from anabranch.pipeline.jobs.audit import Findings

DEVICES_MAX = 6
"""Documents that so many devices have written, or more, are counted together."""


class Totals(msgspec.Struct):
    operations: int = 0
    bytes: int = 0
    owners: int = 0
    documents: int = 0
    heads: int = 0
    conflicts: int = 0
    tombstones: int = 0
    facts: int = 0
    rejected: int = 0
    gaps: int = 0


class Growth(msgspec.Struct):
    """New operations by family, bin by bin, and how many lie outside of all bins."""

    times: list[int] = []
    families: dict[str, list[int]] = {}
    outside: int = 0


class Conflicts(msgspec.Struct):
    """Documents that came to have several heads, and one again, in the bins of `Growth`."""

    came: list[int] = []
    settled: list[int] = []


class Devices(msgspec.Struct):
    """Documents of snapshots by how many devices have written them, and how many of these are in conflict."""

    devices: int
    documents: int
    conflicts: int


class Device(msgspec.Struct):
    name: str
    documents: int
    edits: int


class Owner(msgspec.Struct):
    """Whose documents they are: the author, or, of revisions, the recipient."""

    pubkey: str
    operations: int
    bytes: int
    conflicts: int


class Saving(msgspec.Struct):
    policy: str
    kept: int
    dropped: int
    dropped_operations: int


class Replica(msgspec.Struct):
    """What one log was seen to have of all operations that any was seen to have."""

    name: str
    tip: int | None
    retained: int = 0
    compacted: int = 0
    removed: int = 0
    lacking: int = 0


class Report(msgspec.Struct):
    lake: str
    made_at: int
    totals: Totals
    growth: Growth
    conflicts: Conflicts
    devices: list[Devices]
    busiest: list[Device]
    owners: list[Owner]
    savings: list[Saving]
    replicas: list[Replica]
    rejected: list[tuple[str, int]]
    gaps: list[tuple[str, str, int]]
    compared: Findings | None = None
