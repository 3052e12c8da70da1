"""The same pipeline on a real cluster: a master, two workers, and one of them killed in mid-job."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from anabranch.pipeline.generate import Plan, generate
from anabranch.pipeline.java import java_home
from anabranch.pipeline.session import CONF

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE = 180.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (answer := found()) is not None:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"no {what} after {PATIENCE:.0f} s")


class Cluster:
    """A standalone master and its workers, each a process group that can be killed with all it has started."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._port, self._page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page))
        until(self.state, "master")

    def add_worker(self) -> subprocess.Popen[bytes]:
        before = len(self.alive())
        own = ("--host", "127.0.0.1", "--cores", "1", "--memory", "2g", "--webui-port", "0")
        work = str(self._folder / f"worker-{before}")
        worker = self._start("worker.Worker", *own, "--work-dir", work, self.master)
        until(lambda: len(self.alive()) > before or None, "worker")
        return worker

    def state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return None

    def alive(self) -> list[str]:
        state = self.state()
        return [] if state is None else [one["id"] for one in state["workers"] if one["state"] == "ALIVE"]

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(CONF),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        log = self._stack.enter_context((self._folder / f"{name}-{time.monotonic_ns()}.log").open("wb"))
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(kill, process)
        return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """At once, and with everything that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def pipeline(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anabranch", "pipeline", *arguments, "--json"]


def without_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "seconds"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_that_loses_a_worker_in_mid_job_gives_the_same_answer(cluster: Cluster, tmp_path: Path):
    dump = tmp_path / "history.jsonl"
    generate(Plan(operations=60_000, documents=6_000, seed=5, content_bytes=100), dump)
    alone, apart = str(tmp_path / "alone"), tmp_path / "apart"
    expected = without_time(pipeline("ingest", "--from", str(dump), "--lake", alone))
    heads = without_time(pipeline("heads", "--lake", alone))

    doomed, _ = cluster.add_worker(), cluster.add_worker()
    ingest = command("ingest", "--from", str(dump), "--lake", str(apart), "--master", cluster.master)
    with subprocess.Popen(ingest, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        until(lambda: next((apart / "operations").glob("**/*.parquet"), None), "file")
        assert running.poll() is None
        kill(doomed)
        said, complaints = running.communicate(timeout=PATIENCE * 2)
    assert running.returncode == 0, complaints[-2000:]
    assert len(cluster.alive()) == 1 or until(lambda: len(cluster.alive()) == 1 or None, "worker that is missed")
    assert without_time(json.loads(said)) == expected
    assert without_time(pipeline("heads", "--lake", str(apart), "--master", cluster.master)) == heads
