"""Processes that share a piece of work end with it, also when one of them is killed."""

import subprocess
import sys

KILLED = """
import os, signal, sys, time
from anabranch.store import workers
pool = workers.start(2)
pids = {pool.submit(os.getpid).result() for _ in range(20)}
busy = [pool.submit(time.sleep, 60) for _ in range(2)]
waiting = [pool.submit(len, bytes(1_000_000)) for _ in range(4)]
time.sleep(0.5)
os.kill(pids.pop(), signal.SIGKILL)
if sys.argv[1:]:
    print(type(waiting[-1].exception()).__name__)
workers.end(pool)
"""


def test_work_ends_where_a_worker_was_killed_while_more_was_being_handed_out() -> None:
    found = subprocess.run([sys.executable, "-c", KILLED, "found"], timeout=20, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "BrokenProcessPool\n", "")


def test_work_ends_where_a_worker_was_killed_and_nobody_has_noticed_yet() -> None:
    unseen = subprocess.run([sys.executable, "-c", KILLED], timeout=20, capture_output=True, text=True)
    assert (unseen.returncode, unseen.stderr) == (0, "")
