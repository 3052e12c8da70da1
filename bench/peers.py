"""The relays under test: each in processes of its own, on a free port of the loopback, with a store of its own.

`Relay.start()` gives a `Running` relay that answers, and stops it at the end of the block. A relay that cannot be had
says why (`Unavailable`), and the report shows it. Ours runs with its default settings. The peers run with theirs,
too, except where those would end a benchmark early; each exception stands beside its relay. Stores lie in the project
folder and not in the system's temporary one, which may be in memory: durable should mean a disk.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.load import OK, Connection, LoadError

PROJECT = Path(__file__).resolve().parent.parent
PEERS = PROJECT / ".peers"
READY_SECONDS = 30.0
STOP_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


class Unavailable(Exception):
    """This relay cannot be started here. The text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Running:
    """A relay that answers. `pid` is None for one that somebody else started: its CPU and memory are unknown."""

    name: str
    url: str
    pid: int | None
    messages_max: int

    def cpu_seconds(self) -> float | None:
        """CPU of all its processes so far."""
        return None if self.pid is None else sum(_cpu_seconds(pid) for pid in _family(self.pid))

    def rss_kib(self) -> int | None:
        """Resident memory of all its processes."""
        return None if self.pid is None else sum(_rss_kib(pid) for pid in _family(self.pid))


class Relay:
    """Something that can be started. `messages_max`: how many messages one of its connections may carry."""

    name: str
    slow = False  # an order of magnitude behind: it gets a smaller load, so that a run ends
    stored_max = 1 << 62  # how many stored events one REQ returns
    messages_max = 1 << 62

    def version(self) -> str:
        """Its version; raises Unavailable."""
        raise NotImplementedError

    @contextlib.contextmanager
    def start(self, data: Path | None = None) -> Iterator[Running]:
        raise NotImplementedError
        yield

    def _running(self, command: list[str], port: int, ready: Callable[[int], bool], cwd: Path):
        return _process(self.name, command, port, ready, cwd, self.messages_max)


class Anabranch(Relay):
    name = "anabranch"

    def version(self) -> str:
        if not self._command().exists():
            raise Unavailable("the anabranch command is not installed; run `make setup`")
        return importlib.metadata.version("anabranch")

    @contextlib.contextmanager
    def start(self, data: Path | None = None) -> Iterator[Running]:
        with store() as folder:
            port = _free_port()
            where = data or folder / "data"
            command = [self._command(), "serve", "--host", "127.0.0.1", "--port", str(port), "--data", str(where)]
            with self._running([str(part) for part in command], port, _answers_readyz, folder) as running:
                yield running

    def load_offline(self, file: Path, data: Path) -> bool:
        """Fill a store from a file of events, one a line. False when the command cannot: then publish them instead."""
        done = subprocess.run(
            [str(self._command()), "import", str(file), "--data", str(data)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            say(f"anabranch import failed ({done.stderr.strip()[-200:]}); publishing instead")
        return done.returncode == 0

    @staticmethod
    def _command() -> Path:
        return Path(sys.executable).parent / "anabranch"


class LocalRelay(Relay):
    """nostr-sdk's relay in Rust, in memory. Its rate limit is lifted: by default it refuses all but 60 events a minute.
    Two limits stay whatever its settings say: a REQ returns at most 500 events, and a connection ends after 6,000
    messages, so that connections are renewed before."""

    name = "rust"
    stored_max = 500
    messages_max = 5000

    def version(self) -> str:
        try:
            return importlib.metadata.version("nostr-sdk")
        except importlib.metadata.PackageNotFoundError:
            raise Unavailable("nostr-sdk is not installed; run `make setup`") from None

    @contextlib.contextmanager
    def start(self, data: Path | None = None) -> Iterator[Running]:
        port = _free_port()
        command = [sys.executable, "-m", "bench.localrelay", str(port)]
        with self._running(command, port, _accepts, PROJECT) as running:
            yield running


class NostrRelay(Relay):
    """nostr-relay from PyPI, on SQLite, in an environment of its own and with the configuration it ships, except that
    one REQ may return 20,000 events instead of 6,000. (Its SQLite runs with synchronous=NORMAL: less durable.)"""

    name = "nostr-relay"
    slow = True
    pinned = "1.14"
    _home = PEERS / "nostr-relay"

    def version(self) -> str:
        if not (self._home / "bin" / "nostr-relay").exists():
            say(f"installing nostr-relay {self.pinned} into {self._home.relative_to(PROJECT)} …")
            try:
                subprocess.run([sys.executable, "-m", "venv", str(self._home)], check=True, capture_output=True)
                subprocess.run(
                    [str(self._home / "bin" / "pip"), "install", "--quiet", f"nostr-relay=={self.pinned}"],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            except (OSError, subprocess.CalledProcessError) as error:
                shutil.rmtree(self._home, ignore_errors=True)
                reason = (getattr(error, "stderr", None) or str(error)).strip()[-200:]
                raise Unavailable(f"nostr-relay {self.pinned} could not be installed: {reason}") from None
        return self.pinned

    @contextlib.contextmanager
    def start(self, data: Path | None = None) -> Iterator[Running]:
        with store() as folder:
            port = _free_port()
            shipped = next(self._home.glob("lib/python*/site-packages/nostr_relay/config.yaml")).read_text()
            settings = shipped.replace("127.0.0.1:6969", f"127.0.0.1:{port}").replace(
                "max_limit: 6000", "max_limit: 20000"
            )
            (folder / "config.yaml").write_text(settings)
            command = [str(self._home / "bin" / "nostr-relay"), "-c", "config.yaml", "serve"]
            with self._running(command, port, _accepts, folder) as running:
                yield running


class External(Relay):
    """A relay that somebody else started: `--peer NAME=ws://…`. It keeps what it is given."""

    def __init__(self, name: str, url: str):
        self.name, self._url = name, url

    def version(self) -> str:
        try:
            Connection(self._url, OK).close()
        except (OSError, LoadError) as error:
            raise Unavailable(f"nothing answers at {self._url}: {error}") from None
        return "external"

    @contextlib.contextmanager
    def start(self, data: Path | None = None) -> Iterator[Running]:
        yield Running(self.name, self._url, None, self.messages_max)


def known(peers: list[str]) -> list[Relay]:
    """Ours first, then its peers, then those named on the command line as NAME=URL."""
    external = [External(*peer.split("=", 1)) for peer in peers]
    return [Anabranch(), LocalRelay(), NostrRelay(), *external]


def say(text: str) -> None:
    """Progress goes to stderr: stdout carries only the JSON."""
    print(text, file=sys.stderr, flush=True)


def raise_file_limit() -> int:
    """As many open files as the system allows; the relays inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def store() -> Iterator[Path]:
    """A folder on the project's disk, removed at the end."""
    PEERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="store-", dir=PEERS, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _process(
    name: str, command: list[str], port: int, ready: Callable[[int], bool], cwd: Path, messages_max: int
) -> Iterator[Running]:
    with tempfile.TemporaryFile() as output:
        environment = {**os.environ, "HOME": str(cwd)} if name == NostrRelay.name else None
        process = subprocess.Popen(
            command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise Unavailable(f"{name} did not start: {last[:300] or 'it said nothing'}")
                time.sleep(0.05)
            yield Running(name, f"ws://127.0.0.1:{port}", process.pid, messages_max)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"{name} did not stop on SIGTERM within {STOP_SECONDS:.0f} s; killed")
            # The session is the relay's own: whatever it left behind goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers_readyz(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def _family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return family


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat after the name, which may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _cpu_seconds(pid: int) -> float:
    try:
        return sum(int(ticks) for ticks in _stat(pid)[11:15]) / TICKS
    except OSError:
        return 0.0


def _rss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
