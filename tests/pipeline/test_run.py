"""The pipeline again and again: sources that fail do not stop the others, signals end it, memory stays flat."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from logs import AUTHORS, START, make_store, random_history, snapshot
from processes import children, memory
from pyspark.sql import SparkSession
from test_commands import QUICK

from anabranch.cli.shell import Shell, Terminated
from anabranch.cli.spark import failures, spark_options, watched
from anabranch.core.nostr import serialise
from anabranch.pipeline.jobs import run as running
from anabranch.pipeline.jobs.run import PAUSE_FIRST, PAUSE_MAX, Plan, Run, Stopped
from anabranch.pipeline.lake import Lake


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run_of(spark: SparkSession, new_lake: Callable[[], Lake]) -> Callable[..., tuple[Run, Clock]]:
    def make(*sources: Path, lake: Lake | None = None, **more: object) -> tuple[Run, Clock]:
        clock = Clock()
        plan = Plan([str(source) for source in sources], **more)  # type: ignore[arg-type]
        return Run(lake or new_lake(), plan, lambda: spark, clock, lambda: START), clock

    return make


def line(number: int) -> bytes:
    return serialise(snapshot(AUTHORS[0], f"n{number % 7}", {"laptop": number + 1}, START + number)) + b"\n"


def test_a_cycle_says_what_is_new_and_what_there_is(run_of: Callable[..., tuple[Run, Clock]], tmp_path: Path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"".join(map(line, range(14))) + b"nonsense\n")
    run, _ = run_of(file)
    first = run.cycle()
    assert (first.operations, first.rejected, first.documents, first.lag) == (14, 1, 7, 0)
    idle = run.cycle()
    assert (idle.operations, idle.documents, idle.changed) == (0, 7, False)
    with file.open("ab") as more:
        more.write(serialise(snapshot(AUTHORS[0], "n1", {"phone": 1}, START + 99)) + b"\n")
    third = run.cycle()
    assert (third.cycle, third.operations, third.conflicts) == (3, 1, 1)


def test_a_source_that_fails_is_told_and_tried_later_and_the_others_go_on(
    run_of: Callable[..., tuple[Run, Clock]], tmp_path: Path
):
    away, file = tmp_path / "away.jsonl", tmp_path / "x.jsonl"
    file.write_bytes(line(0))
    run, clock = run_of(away, file)
    status = run.cycle()
    assert status.operations == 1
    (failed,) = status.failed
    assert failed.what == str(away) and "is not there" in failed.reason and failed.again_in == PAUSE_FIRST
    away.write_bytes(line(1))
    assert run.cycle().operations == 0  # it is not due yet
    clock.now += PAUSE_FIRST
    assert run.cycle().operations == 1


def test_pauses_grow_up_to_a_bound_and_a_success_ends_them():
    patience = running._Patience()
    pauses = [patience.failed(100.0) for _ in range(10)]
    assert pauses[:3] == [5, 10, 20] and pauses[-1] == PAUSE_MAX
    assert patience.due == 100 + PAUSE_MAX


def test_a_gap_in_one_log_is_a_reason_and_no_end(run_of: Callable[..., tuple[Run, Clock]], tmp_path: Path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(line(0))
    run, _ = run_of(file)
    run.cycle()
    file.write_bytes(line(1))
    (failed,) = run.cycle().failed
    assert "gaps=bootstrap" in failed.reason


def test_a_lake_that_somebody_else_works_on_is_tried_again(
    run_of: Callable[..., tuple[Run, Clock]], new_lake: Callable[[], Lake], tmp_path: Path
):
    file = tmp_path / "x.jsonl"
    file.write_bytes(line(0))
    lake = new_lake()
    run, clock = run_of(file, lake=lake)
    with Lake(lake.path).lock():
        status = run.cycle()
    assert status.operations == 0 and {failed.what for failed in status.failed} == {str(file), "heads"}
    clock.now += PAUSE_FIRST
    assert run.cycle().operations == 1


def test_what_is_stopped_ends_between_two_batches_and_the_next_run_goes_on(
    spark: SparkSession, new_lake: Callable[[], Lake], tmp_path: Path
):
    folder = tmp_path / "data"
    make_store(folder, random_history(5, 100))
    lake, batches = new_lake(), 0

    def stopping() -> bool:
        nonlocal batches
        batches = lake.table("batches").count()
        return batches >= 2

    plan = Plan([str(folder)], batch_rows=20)
    with pytest.raises(Stopped):
        Run(lake, plan, lambda: spark, Clock(), lambda: START, stopping).cycle()
    assert batches == 2
    before = lake.table("operations").count()
    after = Run(lake, plan, lambda: spark, Clock(), lambda: START).cycle()
    assert before > 0 and after.operations > 0 and not after.failed


def test_a_report_is_written_when_something_is_new_and_not_all_the_time(
    run_of: Callable[..., tuple[Run, Clock]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, written = tmp_path / "x.jsonl", []
    file.write_bytes(line(0))
    run, clock = run_of(file, report=tmp_path / "report.html")

    def write(*given: object) -> None:
        written.append(clock.now)
        clock.now += 3

    monkeypatch.setattr(running.report, "write", write)
    assert run.cycle().report
    assert not run.cycle().report  # nothing new
    with file.open("ab") as more:
        more.write(line(1))
    assert not run.cycle().report  # too soon
    clock.now += 30
    assert run.cycle().report
    assert len(written) == 2


# --- as a process ----------------------------------------------------------------------------------------------------


class Background:
    """A command in a session of its own, as at a terminal: Ctrl-C goes to all of it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "anabranch", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def java(self) -> list[int]:
        return children(self.process.pid, "pyspark-shell")

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        self.process.terminate()

    def terminate_all(self) -> None:
        """As `timeout` does it; Java is there until the command ends it."""
        java = self.java()
        self.process.send_signal(signal.SIGSTOP)
        os.killpg(self.process.pid, signal.SIGTERM)
        time.sleep(1)
        assert java == self.java()
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def background() -> Iterator[Callable[..., Background]]:
    started: list[Background] = []

    def start(*arguments: str) -> Background:
        started.append(Background(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.communicate()


def test_many_cycles_take_no_more_memory_a_java_that_was_killed_is_replaced_and_ctrl_c_leaves_nothing_behind(
    background: Callable[..., Background], tmp_path: Path
):
    file = tmp_path / "x.jsonl"
    file.write_bytes(line(0))
    run = background(
        "pipeline", "run", "--from", str(file), "--lake", str(tmp_path / "lake"), "--continuous", "--json", *QUICK
    )
    sizes = []
    for number in range(30):
        status = json.loads(run.line())
        assert status["cycle"] == number + 1 and not status["failed"]
        sizes.append(memory(run.process.pid))
        if number % 5 == 0:
            with file.open("ab") as more:
                more.write(line(number + 1))
    assert sizes[-1] - sizes[9] < 30 << 20
    (first,) = run.java()
    os.kill(first, signal.SIGKILL)
    with file.open("ab") as more:
        more.write(line(100))
    deadline = time.monotonic() + 60
    while json.loads(run.line())["operations"] == 0:
        assert time.monotonic() < deadline
    java = run.java()
    assert len(java) == 1 and java != [first]
    run.ctrl_c()
    code, errors = run.end()
    assert (code, errors) == (0, "stopped; the lake is whole, and the next run goes on from here\n")
    assert not [pid for pid in java if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("end", "ending"),
    [
        (Background.ctrl_c, (130, "anabranch: interrupted\n")),
        (Background.terminate, (143, "anabranch: ended by SIGTERM\n")),
        (Background.terminate_all, (143, "anabranch: ended by SIGTERM\n")),
    ],
)
def test_what_ends_a_command_in_the_midst_is_one_line_and_leaves_no_java(
    background: Callable[..., Background], tmp_path: Path, end: Callable[[Background], None], ending: tuple[int, str]
):
    make_store(tmp_path / "data", random_history(3, 60))
    lake = tmp_path / "lake"
    Lake(lake, create=True)
    with Lake(lake).lock():  # so it has something to wait for
        command = background(
            "pipeline", "ingest", "--from", str(tmp_path / "data"), "--lake", str(lake), "--wait", "60", *QUICK
        )
        deadline = time.monotonic() + 60
        while not command.java() and time.monotonic() < deadline:
            time.sleep(0.1)
        java = command.java()
        end(command)
        assert command.end() == ending
    assert java and not [pid for pid in java if Path(f"/proc/{pid}").exists()]


def test_what_fails_once_a_command_was_told_to_end_is_that_it_was_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anabranch.pipeline.session.drop", lambda: None)

    @spark_options
    def command(**given: object) -> None:
        with failures(Shell(None, None, False, False)):
            try:
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:  # Spark's own code takes it for something else, and says that a job was dropped
                time.sleep(0.1)
            raise RuntimeError("the job was dropped")

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Terminated):
        command(master=None, conf=(), wait=0.0)


def test_progress_is_told_no_more_once_java_has_ended(monkeypatch: pytest.MonkeyPatch):
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    asked = threading.Event()

    class Ended:
        def getActiveStageIds(self) -> list[int]:
            asked.set()
            raise ConnectionRefusedError

    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Ended))
    with watched(spark, lambda *told: None):  # type: ignore[arg-type]
        assert asked.wait(10)
    assert not raised
