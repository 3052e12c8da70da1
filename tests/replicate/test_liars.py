"""Peers that lie, over a real socket to a real node: named, never believed, and no harm to anybody else."""

import asyncio
import json

import pytest
from link_driving import LogPeer
from nodes import ids, link, named, serving, shown
from processes import memory, peak_memory
from relay_model import items

from anabranch.core import nostr
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.nostr import Event


def note(author, said):
    return nostr.parse(json.dumps(author.event(content=said)).encode(), nostr.Limits())[0]


def forged(author):
    true, other = note(author, "true"), note(author, "other")
    return Event(true.id, true.pubkey, true.created_at, true.kind, true.tags, true.content, other.sig)


class Backwards(LogPeer):
    """Its positions go back."""

    def change(self, name, position, event):
        return super().change(name, 5 if position == 3 else position + 3, event)


class Phantom(LogPeer):
    """Its digest names what nobody has ever seen: the same each time, or something else."""

    changing = False
    opened = 0

    def on_neg_open(self, name, filter, message):
        self.opened += self.changing
        phantom = Event(f"{self.opened:02x}" * 32, "", 1_000, 1, [], "", "")
        self._sessions[name] = Reconciler(items([*self.matching(filter), phantom]), 0)
        return self.on_neg_msg(name, message)


class Endless(Phantom):
    changing = True


class Repeating(LogPeer):
    """What it has is replayed again and again, under ever new positions."""

    def on_changes(self, name, asked):
        return [self.change(name, at, self.log[at % len(self.log)]) for at in range(asked["since"] + 1, 500)]


class Boundless(LogPeer):
    """Its log has come to a number that no machine counts to, and its words are not for a terminal."""

    @property
    def information(self):
        told = super().information
        return {**told, "changes_feed": {**told["changes_feed"], "max_seq": 10**400}}

    def greet(self):
        return [*super().greet(), ["NOTICE", "\x1b]0;yours\x07\n\x1b[31mred"]]

    def on_req(self, name, *filters):
        return [["CLOSED", name, "error: \x1b[31mno\nfeed"]]


class Foreign(LogPeer):
    """Every other connection is to a log of another epoch."""

    @property
    def information(self):
        self.epoch = f"epoch-{self.connections}"
        return super().information


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LogPeer, "whose signature does not hold"),
        (Backwards, "went back to position 5 after 5"),
        (Phantom, "names 1 operations that it does not give or keep"),
        (Endless, "names 1 operations that it does not give or keep"),
        (Repeating, "gives again what it has given, under ever new positions"),
    ],
)
async def test_a_peer_that_lies_is_named_and_the_node_serves_on(start_node, connect, author, kind, words):
    node = start_node()
    honest = [note(author, str(number)) for number in range(3)]
    peer = kind([*honest, forged(author)] if kind is LogPeer else honest)
    async with serving(peer) as url:
        await asyncio.to_thread(link, node, url)
        said = await named(node, words)
        assert "the peer is not to be trusted" in said
        one = await asyncio.to_thread(shown, node)
        assert one["state"] in ("repairing", "degraded_poll")
        assert not one["caught_up"]
        client = await connect(node)
        mine = author.event(content="mine")
        await client.store(mine)
        stored = await asyncio.to_thread(ids, node)
        assert stored <= {event.id for event in honest} | {mine["id"]}
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.verify)


async def test_an_epoch_that_changes_all_the_time_is_a_gap_each_time_and_loses_nothing(start_node, author):
    node = start_node()
    honest = [note(author, str(number)) for number in range(3)]
    async with serving(Foreign(honest)) as url:
        await asyncio.to_thread(link, node, url)
        for _ in range(100):
            if (await asyncio.to_thread(shown, node))["caught_up"]:
                break
            await asyncio.sleep(0.1)
        await asyncio.to_thread(node.admin, "POST", "links/up/pause")
        await asyncio.to_thread(node.admin, "POST", "links/up/resume")
        for _ in range(100):
            one = await asyncio.to_thread(shown, node)
            if one["last_gap"] is not None and one["caught_up"]:
                break
            await asyncio.sleep(0.1)
        assert one["last_gap"]["reason"] == "epoch_mismatch"
        assert one["state"] == "live"
        assert await asyncio.to_thread(ids, node) == {event.id for event in honest}


async def test_a_number_without_measure_and_words_for_a_terminal_harm_nobody(start_node, author):
    node = start_node(admin=True)
    async with serving(Boundless([note(author, "one")])) as url:
        await asyncio.to_thread(link, node, url)
        said = await named(node, "feed")
    assert said.isprintable()
    metrics = node.http("GET", "/metrics")
    assert metrics.status == 200 and "sync_link_state" in metrics.body.decode()


class Boastful(LogPeer):
    """Names three hundred thousand operations that nobody has ever seen."""

    def __init__(self, events):
        super().__init__(events)
        ids = b"".join(number.to_bytes(32, "big") for number in range(1, 300_001))
        self._boast = Items.build([1_000] * 300_000, ids)

    def on_neg_open(self, name, filter, message):
        self._sessions[name] = Reconciler(self._boast, 1_000_000)
        return self.on_neg_msg(name, message)


async def test_a_peer_that_boasts_does_not_fill_the_memory(start_node, connect, author):
    node = start_node()
    client = await connect(node)
    await client.store(author.event(content="mine"))  # with nothing here there would be nothing to compare
    before = memory(node.process.pid)
    async with serving(Boastful([note(author, "one")])) as url:
        await asyncio.to_thread(link, node, url)
        await named(node, "operations that it does not give or keep", seconds=60)
    assert peak_memory(node.process.pid) - before < 80 << 20
