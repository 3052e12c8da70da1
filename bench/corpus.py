"""A log on disk: many snapshots of one author, signed once, loaded into a store before the node starts.

`Corpus.ready()` signs the events into a file in the system's temporary folder and finds it there the next time that
day. `Corpus.served()` starts ours on a store that holds them: by `anabranch import` offline, or, where that fails, by
publishing.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.events import SNAPSHOT, Batch, sign_in_chunks
from bench.load import publish
from bench.peers import Anabranch, Running, say, store

PUBLISH_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Corpus:
    documents: int
    snapshots_per_document: int

    @property
    def operations(self) -> int:
        return self.documents * self.snapshots_per_document

    @property
    def batch(self) -> Batch:
        """The same every time on one day: its file can be found again."""
        today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        run = hashlib.sha256(f"{self.documents}x{self.snapshots_per_document}@{today:%F}".encode()).hexdigest()[:16]
        return Batch(
            self.operations, SNAPSHOT, authors=1, documents=self.documents, run=run, now=int(today.timestamp())
        )

    def ready(self) -> Path:
        """The file, one event a line."""
        folder = Path(tempfile.gettempdir()) / f"anabranch-bench-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        batch = self.batch
        file = folder / f"{batch.run}.jsonl"
        if not file.exists():
            for old in folder.glob("*.jsonl"):
                if old.stat().st_mtime < time.time() - 86_400:
                    old.unlink()
            say(f"  signing {self.operations:,} snapshots of {self.documents:,} documents")
            unfinished = file.with_suffix(".unfinished")
            with unfinished.open("wb") as out:
                for chunk in sign_in_chunks(batch):
                    out.write(b"\n".join(chunk) + b"\n")
            unfinished.rename(file)
        return file

    @contextlib.contextmanager
    def served(self, relay: Anabranch) -> Iterator[Running]:
        file = self.ready()
        with store() as folder:
            data = folder / "data"
            started = time.perf_counter()
            imported = relay.load_offline(file, data)
            if imported:
                say(f"  imported {self.operations:,} operations in {time.perf_counter() - started:.1f} s")
            with relay.start(data) as running:
                if not imported:
                    with file.open("rb") as lines:
                        while events := [line.rstrip() for line in itertools.islice(lines, PUBLISH_AT_ONCE)]:
                            publish(running.url, events)
                yield running
