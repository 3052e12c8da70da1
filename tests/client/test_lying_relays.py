"""Relays that lie, err or refuse: nothing that does not hold is applied, and the replica goes on."""

import asyncio
from typing import Any

import apsw
import pytest
from authors import Author, snapshot
from processes import Node
from replicas import OpenReplica, at_position, heads
from scripted_relay import ScriptedRelay, Talk, reconciled, serving
from sockets import RelayClient
from waiting import in_time, until
from wraps import rid, wrap

from anabranch.client import ChangeKind, FileFailed, Keys, Replica
from anabranch.client.now import REAL
from anabranch.client.sealing import Draft, Sealer
from anabranch.core.nostr import Event
from anabranch.core.operation import Family


@pytest.fixture
def me() -> Author:
    return Author.random()


@pytest.fixture
def keys(me: Author) -> Keys:
    return Keys(me.key.secret)


def forged(event: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {**event, **other}


def lies(me: Author) -> dict[str, Any]:
    """Events that do not hold, each for another reason."""
    true = snapshot(me, "lie", {"a": 9})
    return {
        "signature": forged(true, sig=snapshot(me, "other", {"a": 1})["sig"]),
        "id": forged(true, id="0" * 64),
        "content": forged(true, content="something else"),
        "author": snapshot(Author.random(), "lie", {"a": 9}),
        "metadata": me.event(42061, tags=[["d", "lie"], ["o", "put"]]),
        "kind": me.event(1, tags=[["d", "lie"], ["o", "put"], ["vc", "a", "1"]]),
        "shape": {"hello": "world"},
        "nothing": None,
        "a list": [1, 2, 3],
    }


async def test_what_does_not_hold_is_dropped_counted_and_told_and_the_rest_is_applied(
    me: Author, open_replica: OpenReplica
):
    true, later = snapshot(me, "true", {"a": 1}), snapshot(me, "later", {"a": 1})
    wrong = list(lies(me).values())
    live = [(20 + number, event) for number, event in enumerate([*wrong, later])]
    async with ScriptedRelay(serving([*wrong, true], live=live)).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        changes = replica.changes()
        await until(lambda: at_position(replica, 20 + len(wrong)))
        assert await heads(replica) == {"true": {true["id"]}, "later": {later["id"]}}
        (status,) = await replica.status()
        assert status.dropped == 2 * len(wrong)
        assert status.last_dropped
        assert status.state == "live"
        await replica.close()
        told = [change async for change in changes if change.kind is ChangeKind.DROPPED]
        assert any("signature" in change.detail for change in told)
        assert any("another author" in change.detail for change in told)


async def test_a_relay_that_counts_backwards_moves_no_checkpoint_backwards(me: Author, open_replica: OpenReplica):
    events = [snapshot(me, f"d{number}", {"a": 1}) for number in range(4)]
    live = [(50, events[0]), (30, events[1]), (12, events[2]), (11, events[3])]
    async with ScriptedRelay(serving([], live=live)).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        await until(lambda: _count(replica, 4))  # all are applied: they hold
        (status,) = await replica.status()
        assert status.position == 50
        await replica.close()
        again = await open_replica("laptop")
        await until(lambda: len(relay.asked("CHANGES")) == 3)
        assert relay.asked("CHANGES")[-1][2]["since"] == 50
        await again.close()


async def _count(replica: Any, count: int) -> bool:
    return len(await heads(replica)) == count


async def test_a_bootstrap_that_contradicts_itself_is_not_applied_even_in_part(me: Author, open_replica: OpenReplica):
    event = snapshot(me, "d", {"a": 1})

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if talk.number > 3:
            await serving([event])(talk, frame)
        elif frame[0] == "CHANGES":
            await talk.say("CHANGES", frame[1], "STATUS", {"mode": "bootstrap", "snapshot_seq": 10})
            await talk.say("CHANGES", frame[1], "SNAPSHOT", event)
            await talk.say("CHANGES", frame[1], "EOSE", 10 + talk.number)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        await until(lambda: relay.connections == 3)
        assert await heads(replica) == {}
        (status,) = await replica.status()
        assert status.position is None
        await in_time(replica.caught_up())  # it behaves at last
        assert await heads(replica) == {"d": {event["id"]}}


async def test_refusals_are_remembered_shown_and_retried_on_command(me: Author, open_replica: OpenReplica):
    refusing = True

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if frame[0] == "EVENT" and refusing:
            await talk.say("OK", frame[1]["id"], False, "blocked: not today")
        else:
            await serving([])(talk, frame)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        version = await replica.put("d", {"text": "a"})
        await in_time(replica.caught_up())
        (status,) = await replica.status()
        assert [(one.version, one.d, one.reason) for one in status.refused] == [(version, "d", "blocked: not today")]
        assert status.owed == 0
        await replica.close()
        replica = await open_replica("laptop")
        await in_time(replica.caught_up())
        assert len(relay.asked("EVENT")) == 1  # not offered again by itself
        refusing = False
        assert await replica.retry(relay.url) == 1
        await in_time(replica.caught_up())
        (status,) = await replica.status()
        assert status.refused == ()
        assert len(relay.asked("EVENT")) == 2


async def test_a_connection_that_breaks_in_the_middle_loses_nothing(me: Author, open_replica: OpenReplica):
    taken: set[str] = set()

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if frame[0] == "EVENT" and talk.number < 4 and len(taken) >= 2 * talk.number:
            await talk.hang_up()
        elif frame[0] == "EVENT":
            taken.add(frame[1]["id"])
            await talk.say("OK", frame[1]["id"], True, "")
        else:
            await serving([])(talk, frame)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        made = {await replica.put(f"d{number}", {"n": number}) for number in range(20)}
        await in_time(replica.caught_up())
        assert taken == made
        assert relay.connections >= 3


async def test_what_a_relay_removed_is_told_and_the_copy_here_stays(me: Author, open_replica: OpenReplica, keys: Keys):
    sealer = Sealer(keys, Family.REVISION, "elsewhere", REAL)
    event = sealer.seal(Draft("d", {"text": "kept"}), [])

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if await reconciled(talk, frame, 10):
            return
        match frame:
            case ["CHANGES", name, _]:
                await talk.say("CHANGES", name, "EOSE", 10)
                await talk.say("CHANGES", name, "EVENT", 11, as_dict(event))
                await talk.say("CHANGES", name, "DELETED", 12, event.id, "removed by the operator")

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url], family="revision")
        changes = replica.changes()
        await until(lambda: at_position(replica, 12))
        await in_time(replica.caught_up())
        assert (await replica.get("d")).content == {"text": "kept"}
        (status,) = await replica.status()
        assert (status.removed, status.owed) == (1, 0)
        assert relay.asked("EVENT") == []
        await replica.close()
        (told,) = [change async for change in changes if change.kind is ChangeKind.REMOVED]
        assert (told.d, told.detail) == ("d", "removed by the operator")


def as_dict(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")}


async def test_nobody_but_the_owner_can_write_a_revision(me: Author, open_replica: OpenReplica, keys: Keys):
    """Whoever knows the public key can sign a gift wrap with any tags. Only what is inside proves it."""
    mine = Sealer(keys, Family.REVISION, "elsewhere", REAL)
    stranger = Sealer(Keys(REAL.fresh_bytes(32)), Family.REVISION, "nowhere", REAL)
    good = mine.seal(Draft("d", {"text": "mine"}), [])
    revision = good.first("r")
    once = Keys(REAL.fresh_bytes(32))
    hostile_tags = [["p", keys.pubkey], ["d", "d"], ["r", "1" * 64], ["prev", revision], ["op", "del"], ["m", "9"]]
    theirs = stranger.seal(Draft("d", {"text": "theirs"}), [])
    moved = [["d", "elsewhere"] if tag[0] == "d" else tag for tag in good.tags]
    hostile = [
        once.sign(1059, [*hostile_tags, ["v", "2"]], good.content, good.created_at),  # a true body, other tags
        once.sign(1059, [*hostile_tags, ["v", "2"]], "garbage", good.created_at),
        once.sign(1059, moved, good.content, good.created_at),
        once.sign(1059, [["p", keys.pubkey], *theirs.tags[1:]], theirs.content, good.created_at),
    ]
    events = [as_dict(good), *map(as_dict, hostile)]

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if await reconciled(talk, frame, 0):
            return
        match frame:
            case ["CHANGES", name, _]:
                for seq, event in enumerate(events, 1):
                    await talk.say("CHANGES", name, "EVENT", seq, event)
                await talk.say("CHANGES", name, "EOSE", len(events))

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url], family="revision")
        await until(lambda: at_position(replica, len(events)))
        assert await heads(replica) == {"d": {revision}}
        assert (await replica.get("d")).content == {"text": "mine"}
        assert (await replica.status())[0].dropped == len(hostile)


async def test_nothing_is_left_running_after_close(open_replica: OpenReplica):
    async with ScriptedRelay(serving([])).running() as relay:
        before = asyncio.all_tasks()
        replica = await open_replica("laptop", relays=[relay.url, "ws://127.0.0.1:9/"])
        await until(lambda: relay.connections)
        await replica.close()
        await replica.close()
        ours = [task for task in asyncio.all_tasks() - before if "follow" in task.get_name()]
        assert ours == []


async def test_a_page_that_could_not_be_written_is_asked_for_again(
    me: Author, open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
):
    """The follower is ahead of the disk when a write fails; it goes on from what is on the disk."""
    events = [snapshot(me, f"d{number}", {"a": 1}) for number in range(3)]

    async def answer(talk: Talk, frame: list[Any]) -> None:
        match frame:
            case ["CHANGES", name, {"since": since}]:
                for seq, event in enumerate(events, 11):
                    if seq > since:
                        await talk.say("CHANGES", name, "EVENT", seq, event)
                await talk.say("CHANGES", name, "EOSE", 13)
            case _:
                await serving([])(talk, frame)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url], follow=False)
        failures = [OSError("the disk is full"), FileFailed("the disk is full"), ValueError("a bug of ours")]
        apply = replica.file.apply

        def failing(arrival: Any, url: str) -> Any:
            if failures and arrival.versions:
                raise failures.pop()
            return apply(arrival, url)

        monkeypatch.setattr(replica.file, "apply", failing)
        replica._follow((await replica.in_file(replica.ledger.relays))[0])
        await in_time(replica.caught_up())
        assert failures == []
        assert set(await heads(replica)) == {"d0", "d1", "d2"}
        assert relay.connections == 4


async def test_a_stranger_who_names_our_heads_hides_nothing_from_a_new_device(node: Node, open_replica: OpenReplica):
    """On a public relay the stranger's revisions are the heads. What they claim to supersede is looked for."""
    laptop = await open_replica("laptop", relays=[node.url], family="revision")
    for number in range(3):
        await laptop.put(f"note {number}", {"text": f"mine {number}"})
    await in_time(laptop.caught_up(node.url))
    async with RelayClient.open(node.url) as stranger:
        for d, current in (await heads(laptop)).items():
            first = wrap(laptop.owner, d, rid(f"junk {d}"), sorted(current), op="del")
            await stranger.store(first, wrap(laptop.owner, d, rid(f"more junk {d}"), [rid(f"junk {d}")]))
    phone = await open_replica("phone", relays=[node.url], family="revision")
    await in_time(phone.caught_up(node.url))
    await until(lambda: alike(laptop, phone))
    assert (await phone.get("note 2")).content == {"text": "mine 2"}
    assert not await phone.conflicts()


async def alike(one: Replica, other: Replica) -> bool:
    return await heads(one) == await heads(other) != {}


async def test_a_relay_that_holds_something_else_under_our_revision_is_not_taken_to_have_it(
    node: Node, second_node: Node, open_replica: OpenReplica
):
    """Revision ids are public: whoever is first on another relay puts junk in the place of ours."""
    laptop = await open_replica("laptop", relays=[node.url], family="revision")
    squatted = await laptop.put("diary", {"text": "the only copy"})
    fine = await laptop.put("letter", {"text": "nobody minds"})
    await in_time(laptop.caught_up())
    async with RelayClient.open(second_node.url) as stranger:
        await stranger.store(wrap(laptop.owner, "diary", squatted))
    await laptop.add_relay(second_node.url)
    await in_time(laptop.caught_up())
    status = {one.url: one for one in await laptop.status()}[f"{second_node.url.rstrip('/')}/"]
    assert [(one.version, one.d) for one in status.refused] == [(squatted, "diary")]
    assert "something else under this revision" in status.refused[0].reason
    phone = await open_replica("phone", relays=[second_node.url], family="revision")
    await in_time(phone.caught_up())
    assert await heads(phone) == {"letter": {fine}}


async def test_a_relay_that_says_duplicate_and_shows_it_has_it(open_replica: OpenReplica, keys: Keys):
    held: list[Any] = []

    async def answer(talk: Talk, frame: list[Any]) -> None:
        if await reconciled(talk, frame, 10):
            return
        match frame:
            case ["CHANGES", name, _]:
                await talk.say("CHANGES", name, "EOSE", 10)
            case ["EVENT", event]:
                held.append(event)
                await talk.say("OK", event["id"], False, "duplicate: have it")
            case ["REQ-BATCH", name, {"#r": [_], "#d": ["d"]}]:
                await talk.say("EVENTS", name, held)
                await talk.say("EOSE", name)

    async with ScriptedRelay(answer).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url], family="revision")
        await in_time(replica.caught_up())
        await replica.put("d", {"text": "a"})
        await until(lambda: relay.asked("REQ-BATCH"))
        await in_time(replica.caught_up())
        (status,) = await replica.status()
        assert (status.owed, status.refused) == (0, ())
        assert len(relay.asked("EVENT")) == len(relay.asked("REQ-BATCH")) == 1


async def test_a_relay_that_another_process_removed_is_followed_no_longer(open_replica: OpenReplica):
    async with ScriptedRelay(serving([])).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url])
        await in_time(replica.caught_up())
        beside = await open_replica("laptop", follow=False)
        await beside.remove_relay(relay.url)
        await beside.add_relay(relay.url)
        await replica.put("d", {"text": "a"})
        following = replica._followings[relay.url]
        await until(lambda: following.follower.state == "stopped")
        await in_time(replica.caught_up())  # there is nothing to wait for
        (status,) = await beside.status()
        assert (status.position, status.owed) == (None, 1)
        assert relay.asked("EVENT") == []


async def test_a_file_that_cannot_be_read_for_a_moment_ends_nothing(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("anabranch.client.replica.OTHERS_SECONDS", 0.01)
    replica = await open_replica("laptop")
    calls, truly = 0, replica.file.data_version

    def failing() -> int:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise apsw.BusyError("held")
        return truly()

    monkeypatch.setattr(replica.file, "data_version", failing)
    await until(lambda: calls > 3)
    changes = replica.changes()
    beside = await open_replica("laptop", follow=False)
    await beside.put("d", {"text": "a"})
    assert (await in_time(anext(changes))).kind is ChangeKind.WRITTEN


async def test_whatever_fails_while_closing_the_file_is_closed(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
):
    async with ScriptedRelay(serving([])).running() as relay:
        replica = await open_replica("laptop", relays=[relay.url, "ws://127.0.0.1:9/"])
        first, second = replica._followings.values()

        async def failing() -> None:
            raise ValueError("a bug of ours")

        stop = first.stop
        monkeypatch.setattr(first, "stop", failing)
        await replica.close()
        assert second.follower.state == "stopped"
        with pytest.raises(apsw.ConnectionClosedError):
            replica.file.data_version()
        await stop()
