"""The pipeline beside a node: a process of its own, which the node never waits for and never depends on.

It begins when the node is ready and ends with it, also where the node is killed. Where it cannot start or ends by
itself, that is told once, and the node goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

STOP_SECONDS = 20.0
MEMORY = "1g"
"""Beside a node there is little at a time."""


class Beside:
    def __init__(self, data: str, store: str, lake: str, config: Path | None) -> None:
        self._lake = lake
        self._environment = dict(os.environ)
        source = self._named(store) if store else data
        self._command = [sys.executable, "-m", "anabranch", "pipeline", "run", "--from", source, "--lake", lake]
        self._command += ["--gaps", "bootstrap", "--quiet", "--beside", str(os.getpid())]
        self._command += ["--conf", f"spark.driver.memory={MEMORY}"]
        if config is not None:
            self._command += ["--config", str(config)]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def _named(self, store: str) -> str:
        """The address of a database as anybody may see it; the password goes another way."""
        from anabranch.store.postgres_connection import Address

        address = Address(store)
        if address.password is not None:
            self._environment["PGPASSWORD"] = address.password
        return address.place

    @property
    def remarks(self) -> list[str]:
        """What a person is told about it when the node greets."""
        return [
            f"  lake       {Path(self._lake).resolve()}: tables of this log, by the pipeline beside the node",
            f"             anabranch pipeline report --lake {self._lake} --out report.html: what is in it, on a page",
        ]

    def start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=self._environment
            )
        except OSError as error:
            self._tell(str(error))
            return
        threading.Thread(target=self._watch, args=[self._process], daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._stopping:
            self._tell(f"exit code {code}")

    def _tell(self, why: str) -> None:
        print(
            f"anabranch: the pipeline beside this node has ended ({why}); the node goes on without it. "
            f"Start it again with: anabranch pipeline run --from DATA --lake {self._lake}",
            file=sys.stderr,
            flush=True,
        )

    def stop(self) -> None:
        self._stopping = True
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
