"""The client: a replica bootstraps 10,000 encrypted notes from a real node, and how fast they are read.

The notes are whole NIP-44 payloads of the note profile, signed, and loaded into the node before the clock starts. The
clock runs from `Replica.open` on an empty file to the end of the one transaction that holds them all: every id and
signature is checked, every write is synced to disk, nothing is decrypted. Beside it: the same notes decrypted, one
thread; the time of a `put` on that file; and the same for revisions, which are opened when they arrive, because only
what is inside proves them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from pathlib import Path

from anabranch.client import Keys, Replica
from anabranch.client.now import REAL
from anabranch.client.sealing import Draft, Sealer
from anabranch.core import notes
from anabranch.core.nostr import serialise
from anabranch.core.operation import Family
from bench.load import STALL_SECONDS, LoadError
from bench.peers import Anabranch, Unavailable, say, store
from bench.report import Report, Round, Setting

TARGET_NOTES_PER_SECOND = 5_000
TEXT = "A line of a note, as long as lines of notes are. " * 8
PUTS = 50
REVISIONS_SHARE = 5  # there are so many fewer: they take longer to make


def run(setting: Setting) -> Report:
    report = Report("client", setting)
    count = setting.sized(10_000, 1_000)
    report.settings = {"notes": count, "revisions": count // REVISIONS_SHARE, "text_bytes": len(TEXT)}
    relays = report.available({"anabranch"})
    if relays and isinstance(relays[0], Anabranch):
        try:
            _measure(report, relays[0], count)
        except (LoadError, Unavailable) as error:
            report.skip("anabranch", error)
            report.rounds.clear()
    rate = report.medians("anabranch").get("notes_per_second")
    report.promise("notes_per_second", rate, at_least=TARGET_NOTES_PER_SECOND)
    return report


def _measure(report: Report, relay: Anabranch, count: int) -> None:
    keys = Keys(os.urandom(32))
    with tempfile.TemporaryDirectory() as temporary, store() as folder:
        file = Path(temporary) / "notes.jsonl"
        for family, many in ((Family.SNAPSHOT, count), (Family.REVISION, count // REVISIONS_SHARE)):
            say(f"  writing {many:,} encrypted notes as {family.name.lower()}s")
            _write(file, keys, family, many)
            if not relay.load_offline(file, folder / "data"):
                raise LoadError("the notes could not be imported")
        with relay.start(folder / "data") as running:
            for number in range(report.setting.rounds):
                say(f"client: round {number + 1} of {report.setting.rounds}")
                report.add("anabranch", asyncio.run(_round(folder / f"{number}.db", keys, running.url, count)))


def _write(file: Path, keys: Keys, family: Family, count: int) -> None:
    sealer = Sealer(keys, family, str(uuid.uuid4()), REAL)
    with file.open("wb") as out:
        for number in range(count):
            content = notes.new(f"# Note {number}\n{TEXT}", sealer.device, REAL.milliseconds())
            out.write(serialise(sealer.seal(Draft(str(uuid.uuid4()).upper(), content), [])) + b"\n")


async def _bootstrap(file: Path, keys: Keys, url: str, family: Family, count: int) -> tuple[Replica, float, float]:
    """A replica with all of them on disk, and the wall and CPU seconds it took."""
    started, cpu = time.perf_counter(), time.process_time()
    replica = await Replica.open(file, keys, relays=[url], family=family.name.lower())
    async with asyncio.timeout(STALL_SECONDS):
        await replica.caught_up()
    wall, used = time.perf_counter() - started, time.process_time() - cpu
    if (found := len(await replica.documents(read=False))) != count:
        raise LoadError(f"{found:,} notes came instead of {count:,}")
    return replica, wall, used


async def _round(file: Path, keys: Keys, url: str, count: int) -> Round:
    replica, applied, used = await _bootstrap(file, keys, url, Family.SNAPSHOT, count)
    async with replica:
        started = time.perf_counter()
        documents = await replica.documents()
        read = time.perf_counter() - started
        started = time.perf_counter()
        for number in range(PUTS):
            await replica.put(documents[number].d, notes.new("edited", replica.device, REAL.milliseconds()))
        put = time.perf_counter() - started
    revisions = count // REVISIONS_SHARE
    replica, opened, _ = await _bootstrap(file.with_suffix(".r.db"), keys, url, Family.REVISION, revisions)
    await replica.close()
    return {
        "notes_per_second": count / applied,
        "bootstrap_ms": applied * 1e3,
        "cpu_us_per_note": used / count * 1e6,
        "decrypted_notes_per_second": count / read,
        "put_ms": put / PUTS * 1e3,
        "revisions_per_second": revisions / opened,
    }
