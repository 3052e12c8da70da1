"""Spark, as the commands of the pipeline use it: its options, its session, its progress, and what it raises."""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.shell import Exit, Failure, Shell, Terminated
from anabranch.cli.units import Master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.3
Show = Callable[[float, float | None, str], None]


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where Spark runs, and how long to wait for a lake that is in use; Ctrl-C ends the command at any time."""
    return spark_parameters(_interruptible(command))


def spark_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """The same, for a command that hears signals by itself."""
    for option in (
        click.option(
            "--wait",
            type=click.FloatRange(0),
            default=0.0,
            metavar="SECONDS",
            help="Wait so long for another run on the lake.",
        ),
        click.option(
            "--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be given again."
        ),
        click.option(
            "--master", type=Master(), metavar="URL", help="Where Spark runs. [default: all cores of this machine]"
        ),
    ):
        command = option(command)
    return command


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command on a thread of its own, so that the main one can have Spark drop its jobs while it waits for them.

    What waits for Java hears no Ctrl-C, and where it is torn away its connection is of no use any more.
    """

    @functools.wraps(command)
    def run(**given: Any) -> None:
        ended: list[BaseException] = []

        def work() -> None:
            try:
                command(**given)
            except BaseException as error:
                ended.append(error)

        thread = _Command(target=work, name="command", daemon=True)
        thread.start()
        with heard(signal.SIGINT) as interrupted, heard(signal.SIGTERM) as terminated:
            while thread.is_alive() and not (interrupted.is_set() or terminated.is_set()):
                thread.join(POLL_SECONDS)
            if interrupted.is_set() or terminated.is_set():
                _interrupt(thread, Terminated if terminated.is_set() else KeyboardInterrupt)
                drop_until_ended(thread)
        if ended:
            raise ended[0]

    return run


def drop_until_ended(thread: threading.Thread) -> None:
    """Have Spark drop one job after another, until a thread that waits for them has ended."""
    from anabranch.pipeline.session import drop

    while thread.is_alive():
        drop()
        thread.join(POLL_SECONDS)


class _Command(threading.Thread):
    ended_by: type[KeyboardInterrupt] | None = None


def _interrupt(thread: _Command, how: type[KeyboardInterrupt]) -> None:
    """Raise it in a thread, at the next step that is Python's."""
    raised = ctypes.py_object(how)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)
    thread.ended_by = how  # after it: what is raised a second time would be raised where the first is being told


@contextmanager
def heard(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """An event that is set when one of the signals comes, instead of what they do otherwise."""
    come = threading.Event()
    before = {number: signal.signal(number, lambda *_: come.set()) for number in numbers}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def start_spark(master: str | None, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    from anabranch.pipeline.session import end, session

    try:
        yield session(master, conf_of(conf))
    finally:
        end()


def conf_of(pairs: tuple[str, ...]) -> Mapping[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise Failure(f"--conf takes NAME=VALUE, not {pair!r}", Exit.USAGE)
    return dict(pair.split("=", 1) for pair in pairs)


@contextmanager
def watched(spark: SparkSession, show: Show) -> Iterator[None]:
    """Show how far the tasks of what Spark is doing have come."""
    over = threading.Event()

    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:  # its Java has ended: what waits for it says so
                return
            if known := [stage for stage in stages if stage is not None]:
                done, tasks = (sum(getattr(s, name) for s in known) for name in ("numCompletedTasks", "numTasks"))
                show(done, tasks, f"{known[0].name.partition(' ')[0]}: {done} of {tasks} tasks")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _ended_as_told() -> Iterator[None]:
    """What fails once the command was told to end, as jobs do that are dropped, fails because of that."""
    try:
        yield
    except Exception as error:
        thread = threading.current_thread()
        if isinstance(thread, _Command) and thread.ended_by is not None:
            raise thread.ended_by from error
        raise


@contextmanager
def failures(shell: Shell) -> Iterator[None]:
    """What the pipeline raises, as the end of a command."""
    from pyspark.errors import PySparkException

    from anabranch.pipeline.feed import FeedError, GapFound
    from anabranch.pipeline.java import NoJava
    from anabranch.pipeline.lake import LakeBusy, LakeFull, NoLake
    from anabranch.pipeline.session import last_words

    try:
        with _ended_as_told():
            yield
    except LakeBusy as error:
        raise Failure(str(error), Exit.IN_USE) from error
    except (FeedError, GapFound, LakeFull, NoJava, NoLake) as error:
        raise Failure(str(error)) from error
    except PySparkException as error:
        if shell.debug:
            raise
        raise Failure(f"{last_words(error)}; run it again with --debug to see where") from error
