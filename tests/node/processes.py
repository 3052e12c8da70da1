"""A node as an operator has it: `anabranch serve` in a process of its own, on a free loopback port."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANABRANCH = str(Path(sys.executable).parent / "anabranch")
ADMIN_TOKEN = "correct horse battery staple"
ACCESS_KEY = re.compile(r"\bsk_[a-z0-9]{24}\b")
START_SECONDS_MAX = 20
STOP_SECONDS_MAX = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Node:
    """`start`, `stop` (SIGTERM), `kill9`, `restart`, `freeze` and `thaw`; `url` for websockets, `http` for the rest,
    `cli` beside it."""

    def __init__(
        self, data: Path, env: dict[str, str] | None = None, config: str | None = None, token: str | None = None
    ) -> None:
        self.data = data
        self.port = free_port()
        self.token = token
        self.log = data.parent / f"{data.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.config_file = data.parent / f"{data.name}.toml" if config is not None else None
        if self.config_file is not None:
            self.config_file.write_text(config or "")
        bare = {key: value for key, value in os.environ.items() if not key.startswith("ANABRANCH_")}
        self.env = {**bare, **{f"ANABRANCH_{key}": value for key, value in (env or {}).items()}}

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert not self.alive
        command = [ANABRANCH, "serve", "--host", "127.0.0.1", "--port", str(self.port), "--data", str(self.data)]
        if self.config_file is not None:
            command += ["--config", str(self.config_file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._await_ready()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if not self.alive:
                raise AssertionError(f"the node did not start:\n{self.log_tail()}")
            try:
                if self.http("GET", "/readyz", timeout=2).status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.02)
        self.end()
        raise AssertionError(f"the node was not ready within {START_SECONDS_MAX} s:\n{self.log_tail()}")

    def stop(self) -> int:
        """SIGTERM, as a service manager does it; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS_MAX)

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Stop by any means: a test is over."""
        if self.alive:
            try:
                self.thaw()
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill9()

    def restart(self) -> None:
        if self.alive:
            assert self.stop() == 0
        self.start()

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30,
    ) -> Response:
        """One request. A body that is not text goes as JSON; `token` as a bearer."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def admin(self, method: str, path: str, body: Any = None) -> Response:
        return self.http(method, f"/admin/{path}", body, token=self.token)

    def info(self) -> dict[str, Any]:
        """The NIP-11 document."""
        return self.http("GET", "/", headers={"Accept": "application/nostr+json"}).json()

    def min_seq(self) -> int:
        return self.info()["changes_feed"]["min_seq"]

    def max_seq(self) -> int:
        return self.info()["changes_feed"]["max_seq"]

    def compact(self, payload_retention_days: int | None = 0) -> dict[str, Any]:
        """Apply a retention policy at once, over the admin port."""
        answer = self.admin("PATCH", "retention", {"payload_retention_days": payload_retention_days})
        assert answer.status == 200, answer.text
        return answer.json()

    def cli(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Another command on the same data, as `anabranch ARGUMENTS --data DIR`."""
        command = [ANABRANCH, *arguments, "--data", str(self.data)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)

    def verify(self) -> None:
        """The store re-checks as sound."""
        answer = self.cli("verify", "--json")
        assert answer.returncode == 0, (
            f"verify said {answer.returncode}:\n{answer.stdout[-2000:]}\n{answer.stderr[-2000:]}"
        )
        json.loads(answer.stdout)


def memory(pid: int) -> int:
    """What a process holds in memory, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory(pid: int) -> int:
    """The most that it has held."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def children(pid: int, words: str) -> list[int]:
    """The processes that a process has started with these words in their command."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == pid and words.encode() in (status.parent / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(status.parent.name))
        except OSError:  # it has ended meanwhile
            pass
    return sorted(found)


def find_key(document: Any) -> str:
    """The access key in an admin's answer, wherever it stands."""
    found = ACCESS_KEY.search(json.dumps(document))
    assert found, document
    return found.group()


def rows(document: Any) -> list[dict[str, Any]]:
    """The rows of an admin's listing, bare or under one name."""
    return document if isinstance(document, list) else next(v for v in document.values() if isinstance(v, list))
