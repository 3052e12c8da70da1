"""The pipeline beside a node: it begins and ends with the node, and the node needs nothing of it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logs import make_store, random_history
from processes import ANABRANCH, Node, children

from anabranch.pipeline.lake import Lake, is_lake

START_SECONDS = 100


class NodeWithLake(Node):
    """`anabranch serve --lake`, in a session of its own as at a terminal."""

    def __init__(self, data: Path, lake: Path) -> None:
        super().__init__(data)
        self.lake = lake

    def start(self) -> None:
        command = [ANABRANCH, "serve", "--port", str(self.port), "--data", str(self.data), "--lake", str(self.lake)]
        quick = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env | quick, stdout=log, stderr=log, start_new_session=True
            )
        self._await_ready()

    def descendants(self) -> list[int]:
        assert self.process is not None
        found = children(self.process.pid, "pipeline run")
        return found + [pid for own in found for pid in children(own, "pyspark-shell")]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], NodeWithLake]]:
    started: list[NodeWithLake] = []

    def make(lake: Path) -> NodeWithLake:
        make_store(tmp_path / "data", random_history(9, 40))
        started.append(NodeWithLake(tmp_path / "data", lake))
        started[-1].start()
        return started[-1]

    yield make
    for node in started:
        node.end()


@pytest.mark.parametrize("how", ["ctrl-c", "kill -9"])
def test_it_fills_the_lake_and_ends_with_the_node(start: Callable[[Path], NodeWithLake], tmp_path: Path, how: str):
    node = start(tmp_path / "lake")
    until(lambda: is_lake(node.lake) and Lake(node.lake).table("heads").count() > 0)
    assert f"lake       {node.lake}" in node.log.read_text()
    below = node.descendants()
    assert len(below) == 2
    if how == "ctrl-c":
        assert node.process is not None
        os.killpg(node.process.pid, signal.SIGINT)
        assert node.process.wait(60) == 0
    else:
        node.kill9()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert "Traceback" not in node.log.read_text()


def test_a_node_goes_on_without_it_and_says_so(start: Callable[[Path], NodeWithLake], tmp_path: Path):
    (tmp_path / "lake").write_text("not a folder")
    node = start(tmp_path / "lake")
    until(lambda: "the node goes on without it" in node.log.read_text())
    assert "anabranch pipeline run" in node.log.read_text()
    assert node.http("GET", "/readyz").status == 200
    assert node.stop() == 0
