"""A replica's process killed with SIGKILL: what `put` returned from is there, and a page is there whole or not."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

from processes import Node
from replicas import OpenReplica, heads, same_heads
from waiting import in_time

from anabranch.client import Keys, Replica
from anabranch.client.now import REAL

WRITER = """
import asyncio, sys
from anabranch.client import Keys, Replica

async def main(path, secret, family, url):
    async with await Replica.open(path, Keys(bytes.fromhex(secret)), family=family, relays=[url]) as replica:
        number = 0
        while True:
            number += 1
            d = f"{sys.argv[5]}-{number % 7}"
            print(await replica.put(d, {"n": number}), d, flush=True)

asyncio.run(main(*sys.argv[1:5]))
"""
READER = """
import asyncio, sys
from anabranch.client import Keys, Replica

async def main(path, secret, family, url):
    async with await Replica.open(path, Keys(bytes.fromhex(secret)), family=family, relays=[url]) as replica:
        print("open", flush=True)
        await replica.caught_up()
        print("caught up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:5]))
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)


def killed_while_writing(path: Path, secret: bytes, family: str, url: str, run: int) -> dict[str, str]:
    """The last version of each document that the process said it had put."""
    process = start(WRITER, str(path), secret.hex(), family, url, str(run))
    assert process.stdout is not None
    said: dict[str, str] = {}
    try:
        stop_at = random.randint(5, 60)
        for _ in range(stop_at):
            version, d = process.stdout.readline().split()
            said[d] = version
    finally:
        process.send_signal(signal.SIGKILL)
    # What it managed to say before the signal counts as well; a line cut off in the middle was not said.
    for line in process.stdout.read().splitlines(keepends=True):
        if line.endswith("\n"):
            version, d = line.split()
            said[d] = version
    process.wait()
    return said


async def test_what_put_returned_from_survives_any_kill(
    node: Node, open_replica: OpenReplica, tmp_path: Path, family: str
):
    secret = REAL.fresh_bytes(32)
    keys = Keys(secret)
    said: dict[str, str] = {}
    for run in range(3):
        said |= killed_while_writing(tmp_path / "laptop.db", secret, family, node.url, run)
    assert len(said) >= 15
    replica = await open_replica("laptop", keys=keys)
    for d, version in said.items():
        known = {one.id for one in await replica.history(d)}
        assert version in known, d  # it is the head, or the one that was being put when the kill came is
    assert await replica.conflicts() == []
    await in_time(replica.caught_up())
    fresh = await open_replica("phone", keys=keys, relays=[node.url], family=family)
    await in_time(fresh.caught_up())
    assert await same_heads(replica, fresh)


async def test_a_bootstrap_that_is_killed_is_there_whole_or_not_at_all(
    node: Node, open_replica: OpenReplica, tmp_path: Path, family: str
):
    secret = REAL.fresh_bytes(32)
    keys = Keys(secret)
    count = 150
    writer = await open_replica("writer", keys=keys, relays=[node.url], family=family)
    for number in range(count):
        await writer.put(f"d{number}", {"n": number})
    await in_time(writer.caught_up())
    outcomes = set()
    for run in range(6):
        path = tmp_path / f"killed-{run}.db"
        process = start(READER, str(path), secret.hex(), family, node.url)
        assert process.stdout is not None
        process.stdout.readline()
        if run == 5:
            process.stdout.readline()
        else:
            await asyncio.sleep(run * 0.03)
        process.kill()
        process.wait()
        found = await Replica.open(path, keys, follow=False)
        (status,) = await found.status()
        held = await heads(found)
        await found.close()
        assert (len(held), status.position is None) in ((0, True), (count, False))
        outcomes.add(len(held))
        again = await open_replica(f"killed-{run}", keys=keys)
        await in_time(again.caught_up())
        assert await same_heads(again, writer)
        await again.close()
    assert count in outcomes
