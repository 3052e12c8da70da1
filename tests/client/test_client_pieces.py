"""The small pieces of the client: addresses, watchers, and what a payload looks like from outside."""

import asyncio
import json

import pytest

from anabranch.client import BadRelay, Change, ChangeKind, Keys
from anabranch.client.feed import WAITING_MAX, Feed
from anabranch.client.information import normalised
from anabranch.client.now import REAL
from anabranch.client.sealing import Draft, Sealer
from anabranch.core import nostr, replica, revisions, snapshots
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Family

OWNER = Keys(b"\x21" * 32)


@pytest.mark.parametrize(
    "given, one",
    [
        ("ws://relay.example", "ws://relay.example/"),
        ("WSS://Relay.Example:443/", "wss://relay.example/"),
        (" ws://127.0.0.1:7447/ws ", "ws://127.0.0.1:7447/ws"),
        ("ws://[::1]:80", "ws://[::1]/"),
        ("wss://relay.example/a?b=c", "wss://relay.example/a?b=c"),
    ],
)
def test_one_relay_has_one_address(given: str, one: str):
    assert normalised(given) == one
    assert normalised(one) == one


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "relay.example", "http://x", "ws://", "ws://x:port", "ws://u:p@x/", "ws://[::1"),
        *("ws://h h/", "ws://x:0/", "ws://..../", "ws://x/a b", "ws://x\n.y/"),
    ],
)
def test_what_is_no_address_is_refused(wrong: str):
    with pytest.raises(BadRelay):
        normalised(wrong)


async def test_every_watcher_gets_every_change_from_when_it_asked():
    feed = Feed()
    first = feed.watch()
    feed.tell([Change(ChangeKind.WRITTEN, "a")])
    second = feed.watch()
    feed.tell([Change(ChangeKind.WRITTEN, "b")])
    waiting = asyncio.ensure_future(_all(second))
    await asyncio.sleep(0)
    feed.close()
    assert [change.d for change in await _all(first)] == ["a", "b"]
    assert [change.d for change in await waiting] == ["b"]


async def _all(changes) -> list[Change]:
    return [change async for change in changes]


async def test_a_watcher_that_does_not_read_is_told_how_much_it_missed():
    feed = Feed()
    slow = feed.watch()
    feed.tell([Change(ChangeKind.WRITTEN, str(number)) for number in range(WAITING_MAX + 5)])
    missed, first = await anext(slow), await anext(slow)
    assert (missed.kind, missed.detail, first.d) == (ChangeKind.MISSED, "5", "5")
    await slow.aclose()
    feed.tell([Change(ChangeKind.WRITTEN, "later")])
    assert (await _all(slow))[-1].d != "later"


@pytest.mark.parametrize("family", [Family.SNAPSHOT, Family.REVISION])
def test_what_is_sealed_says_nothing_outside_and_opens_again(family: Family):
    sealer = Sealer(OWNER, family, "device", REAL)
    first = sealer.seal(Draft("d", {"text": "hidden words"}, "lists"), [])
    version = replica.read(first, family, OWNER.pubkey)
    assert "hidden" not in json.dumps(nostr.serialise(first).decode())
    assert nostr.verify([first]) == [True]
    assert sealer.open(first, version) == {"text": "hidden words"}
    assert version.collection == "lists"
    gone = replica.read(sealer.seal(Draft("d", None), [version]), family, OWNER.pubkey)
    assert gone.deletes
    assert replica.advance(family, [version], gone) == [gone]
    if family is Family.SNAPSHOT:
        assert first.kind == snapshots.NOTE
    else:
        assert first.pubkey != OWNER.pubkey  # who wrote it cannot be seen
        assert [tag[0] for tag in first.tags] == ["p", "d", "r", "op", "m", "type", "v"]
        assert revisions.validate(first).type == "lists"
        again = sealer.seal(Draft("d", {"text": "hidden words"}, "lists"), [])
        assert (again.id != first.id, again.first("r")) == (True, first.first("r"))


def test_a_payload_under_another_key_does_not_open():
    other = Sealer(Keys(b"\x22" * 32), Family.SNAPSHOT, "device", REAL)
    event = Sealer(OWNER, Family.SNAPSHOT, "device", REAL).seal(Draft("d", {"a": 1}), [])
    with pytest.raises(Invalid):
        other.open(event, replica.read(event, Family.SNAPSHOT, OWNER.pubkey))
