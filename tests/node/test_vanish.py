"""Requests to vanish (NIP-62): what was theirs goes, followers are told, and it does not come back."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import histories
import pytest
from authors import EPOCH, Author, now, snapshot
from processes import Node
from revision_histories import vanishing
from sockets import RelayClient
from wraps import GIFT_WRAP, check_store, heads_of, reconcile_events, rid, wrap

from anabranch.node.retention import Retention
from anabranch.store.compaction import Report
from anabranch.store.contract import Offer
from anabranch.store.sqlite import SqliteStore

VANISHED = "blocked: whom it belongs to has asked to vanish"


def request(author: Author, *relays: str, created_at: int | None = None) -> dict:
    return author.event(62, "bye", [["relay", relay] for relay in relays or ["ALL_RELAYS"]], created_at)


def mine(author: Author, **rest: object) -> dict:
    return {"kinds": [GIFT_WRAP], "#p": [author.pubkey], **rest}


async def test_who_vanishes_takes_along_what_they_wrote_and_what_was_wrapped_for_them(
    node: Node, client: RelayClient, author: Author
) -> None:
    other = Author.random()
    theirs = [
        author.event(1, "note", created_at=EPOCH),
        author.event(0, "profile", created_at=EPOCH),
        snapshot(author, "note", {"a": 1}, created_at=EPOCH),
        wrap(author, "x", rid("a"), created_at=EPOCH),
        other.event(GIFT_WRAP, "a message", [["p", author.pubkey]], EPOCH),
        author.event(5, tags=[["e", rid("nothing")]], created_at=EPOCH),
    ]
    others = [
        other.event(1, "mentions", [["p", author.pubkey]], EPOCH),
        wrap(other, "x", rid("a"), created_at=EPOCH),
        author.event(1, "later", created_at=EPOCH + 100),
        wrap(author, "x", rid("later"), created_at=EPOCH + 100),
    ]
    await client.store(*theirs, *others)
    filter = {"authors": [author.pubkey]}
    assert len((await reconcile_events(client, filter)).need) == 5
    feed = await client.changes(mine(author, since=node.max_seq(), live=True))
    asked = request(author, created_at=EPOCH + 50)
    ok = await client.publish(asked)
    assert (ok.accepted, ok.message) == (True, "")
    told = ["CHANGES", feed.sub, "DELETED", feed.eose + 5, theirs[3]["id"], "vanished"]  # after three others
    assert await client.next_of(feed.sub) == told
    assert await client.fetch(*(e["id"] for e in theirs)) == []
    assert sorted(await client.fetch(*(e["id"] for e in others))) == sorted(e["id"] for e in others)
    assert await client.fetch(asked["id"]) == [asked["id"]]
    assert await heads_of(client, author) == [rid("later")]
    assert (await client.changes(mine(author, since=feed.eose), sub=feed.sub)).frames[0] == told
    assert sorted((await reconcile_events(client, filter)).need) == sorted([others[2]["id"], asked["id"]])
    assert (await client.bootstrap(author)).snapshots == []
    for event in theirs[:3]:
        ok = await client.publish(event)
        assert not ok.accepted or ok.message.startswith("duplicate:"), "nothing is stored again"
    assert await client.fetch(*(e["id"] for e in theirs)) == []


async def test_what_is_older_than_the_request_is_refused_from_then_on(client: RelayClient, author: Author) -> None:
    await client.store(request(author, created_at=EPOCH))
    late = [
        author.event(1, "old", created_at=EPOCH),
        snapshot(author, "note", {"a": 1}, created_at=EPOCH - 1),
        wrap(author, "x", rid("a"), created_at=EPOCH),
        Author.random().event(GIFT_WRAP, "", [["p", author.pubkey]], EPOCH),
    ]
    for event in late:
        ok = await client.publish(event)
        assert (ok.accepted, ok.message) == (False, VANISHED)
    for event in (author.event(1, "new", created_at=EPOCH + 1), wrap(author, "x", rid("a"), created_at=EPOCH + 1)):
        assert (await client.publish(event)).accepted


@pytest.mark.parametrize("relays", [["wss://another.example"], [], ["all_relays"], [""]], ids=str)
async def test_a_request_that_does_not_name_this_relay_is_refused(
    client: RelayClient, author: Author, relays: list[str]
) -> None:
    event = author.event(1, "stays", created_at=EPOCH)
    await client.store(event)
    ok = await client.publish(author.event(62, "", [["relay", relay] for relay in relays]))
    assert (ok.accepted, ok.message) == (False, "invalid: the request to vanish does not name this relay")
    assert await client.fetch(event["id"]) == [event["id"]]


async def test_a_request_cannot_be_deleted_nor_made_by_another(client: RelayClient, author: Author) -> None:
    event = author.event(1, "stays", created_at=EPOCH)
    await client.store(event, request(Author.random()))
    assert await client.fetch(event["id"]) == [event["id"]]
    asked = request(author)
    await client.store(asked, author.event(5, tags=[["e", asked["id"]]], created_at=now() + 5))
    assert await client.fetch(asked["id"], event["id"]) == [asked["id"]]
    assert (await client.publish(event)).message.startswith(("blocked:", "duplicate:"))
    forged = {**request(Author.random()), "pubkey": Author.random().pubkey}
    assert not (await client.publish(forged)).accepted


async def test_many_vanish_while_others_publish_and_nobody_waits_long(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    """More than goes at once: the rest soon after; followers are told of each once; a kill in between loses nothing."""
    own = start_node(config='relay_url = "wss://relay.example:7447/path"\n')
    writer, other, follower = await connect(own), await connect(own), await connect(own)
    count = 3_000
    for at in range(0, count, 500):
        await writer.store(*(wrap(author, f"{n % 40}", rid(n), created_at=EPOCH) for n in range(at, at + 500)))
    feed = await follower.changes(mine(author, since=own.max_seq(), live=True), sub="feed")
    slowest = 0.0
    stop = asyncio.Event()

    async def publish() -> None:
        nonlocal slowest
        someone, n = Author.random(), 0
        while not stop.is_set():
            started = asyncio.get_running_loop().time()
            await other.store(wrap(someone, "x", rid(f"other {n}")))
            slowest, n = max(slowest, asyncio.get_running_loop().time() - started), n + 1

    publishing = asyncio.create_task(publish())
    await writer.store(request(author, "wss://RELAY.example:7447"))
    told = [await follower.next_of(feed.sub) for _ in range(count)]
    stop.set()
    await publishing
    assert slowest < 3
    assert {frame[2] for frame in told} == {"DELETED"} and len({frame[4] for frame in told}) == count
    seqs = [frame[3] for frame in told]
    assert seqs == sorted(seqs)
    assert await heads_of(follower, author) == []
    own.kill9()
    own.start()
    client = await connect(own)
    assert (await client.req(mine(author))).events == []
    replayed = await client.changes(mine(author, since=feed.eose), sub=feed.sub)
    assert replayed.frames[:-1] == told
    assert (await client.publish(wrap(author, "x", rid("late"), created_at=EPOCH))).message == VANISHED
    check_store(own)


async def test_what_was_left_to_vanish_when_the_node_went_down_goes_soon_after_it_is_back(
    tmp_path: Path, connect: Callable
) -> None:
    """Whoever asked was told that it is done: it must not wait for the next turn of an interval that may be a day."""
    store = SqliteStore.open(tmp_path / "data")
    gone = [histories.event(1, content=str(n), author="ab" * 32) for n in range(2_500)]
    for at in range(0, 2_500, 500):
        store.writer.append([Offer(histories.operation(e)) for e in gone[at : at + 500]], 0)
    store.writer.append([Offer(histories.operation(vanishing("ab" * 32)))], 0)
    store.close()
    own = Node(tmp_path / "data", config="[retention]\ninterval_seconds = 86400\n")
    own.start()
    try:
        client = await connect(own)
        for _ in range(60):
            if (left := await client.count({"authors": ["ab" * 32], "kinds": [1]})) == 0:
                break
            await asyncio.sleep(0.05)
        assert left == 0
    finally:
        own.end()


async def test_a_run_that_is_asked_for_during_a_run_comes_after_it() -> None:
    """Somebody who vanishes while compaction is under way does not wait for the next interval."""
    runs: list[int] = []
    second = asyncio.Event()

    class Counted(Retention):
        def __init__(self) -> None:
            self._due, self._changed, self.interval_seconds = asyncio.Event(), asyncio.Event(), 3_600

        async def run(self) -> Report:
            runs.append(1)
            if len(runs) == 1:
                await asyncio.sleep(0.01)
                self.soon()
            else:
                second.set()
            return Report()

    retention = Counted()
    running = asyncio.create_task(retention.keep_running())
    await asyncio.sleep(0)
    retention.soon()
    try:
        await asyncio.wait_for(second.wait(), 1)
    finally:
        running.cancel()
