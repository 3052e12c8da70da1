"""Driving a follower by hand: what is said to it, and what its effects say."""

import json
from typing import Any

from anabranch.client import effects as do
from anabranch.client.file import Checkpoint
from anabranch.client.follower import Follower, State, Timing
from anabranch.client.ledger import Owed
from anabranch.core.operation import Family

OWNER = "a" * 64
FEED = {"min_seq": 1, "max_seq": 100, "stream_id": "s", "epoch": "e"}
INFO = {
    "changes_feed": FEED,
    "snapshot_sync": {"changes_feed": True},
    "revision_sync": {"changes_feed": True, "batch_fetch": True},
}
AT = Checkpoint("s", "e", 50)


def follower(
    family: Family = Family.SNAPSHOT, checkpoint: Checkpoint | None = None, access_key: str | None = None
) -> Follower:
    return Follower(family, OWNER, access_key, checkpoint, Timing(), lambda: 1.0)


def info(**feed: Any) -> dict[str, Any]:
    return {**INFO, "changes_feed": {**FEED, **feed}}


def dialled(machine: Follower, information: dict[str, Any] = INFO, now: float = 0.0) -> list[do.Effect]:
    assert do.Dial() in machine.tick(now)
    return machine.opened(information, now)


def sent(effects: list[do.Effect]) -> list[Any]:
    return [json.loads(effect.message) for effect in effects if isinstance(effect, do.Send)]


def of(kind: type, effects: list[do.Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def say(machine: Follower, *frame: Any, now: float = 0.0) -> list[do.Effect]:
    return machine.receive(json.dumps(frame).encode(), now)


def event(number: int) -> dict[str, Any]:
    return {"id": f"{number:064}"}


def raws(*numbers: int) -> tuple[bytes, ...]:
    return tuple(json.dumps(event(number)).encode() for number in numbers)


def live(family: Family = Family.SNAPSHOT) -> tuple[Follower, str]:
    """A follower that has caught up at 60, and the name of its feed."""
    machine = follower(family, AT)
    (request,) = sent(dialled(machine))
    say(machine, "CHANGES", request[1], "EOSE", 60)
    assert machine.state is State.LIVE
    machine.owed([], 256, 0.0)
    machine.wanted([], 0.0)
    assert machine.caught_up
    return machine, request[1]


def owed(*numbers: int) -> list[Owed]:
    return [Owed(number, f"v{number}", f"e{number}", b"{%d}" % number) for number in numbers]
