"""Relays as they are: private ones, restored ones, ones that have forgotten, ones that go away and come back."""

from collections.abc import Callable

import pytest
from authors import Author, snapshot
from processes import Node, find_key
from replicas import OpenReplica, at_position, content, heads, reads, same_heads
from waiting import in_time, until

from anabranch.client import BadRelay, ChangeKind, Keys, NoSuchRelay, Replica, Unreadable

StartNode = Callable[..., Node]


async def told(replica: Replica, changes, kind: ChangeKind) -> list[str]:
    await replica.close()
    return [change.detail async for change in changes if change.kind is kind]


async def test_a_private_relay_is_authenticated_with(start_node: StartNode, open_replica: OpenReplica, family: str):
    node = start_node(env={"PRIVATE": "true"})
    laptop = await open_replica("laptop", relays=[node.url], family=family)
    await laptop.put("d", {"text": "private"})
    await in_time(laptop.caught_up())
    phone = await open_replica("phone", relays=[node.url], family=family)
    await in_time(phone.caught_up())
    assert await content(phone, "d") == {"text": "private"}


async def test_an_access_key_opens_a_relay_that_asks_for_one(start_node: StartNode, open_replica: OpenReplica):
    node = start_node(env={"PRIVATE": "true"}, admin=True)
    key = find_key(node.admin("POST", "keys", {"label": "mine"}).json())
    replica = await open_replica("laptop", relays=[node.url])
    await replica.put("d", {"text": "private"})
    status = await until(lambda: _with_error(replica))
    assert "token-required" in status.last_error
    assert (status.owed, status.state == "live") == (1, False)
    await replica.add_relay(node.url, access_key="sk_" + "x" * 24)
    status = await until(lambda: _with_error(replica))
    assert "token-invalid" in status.last_error
    await replica.add_relay(node.url, access_key=key)
    await in_time(replica.caught_up())
    await replica.close()
    again = await open_replica("laptop")  # the file remembers the key
    await in_time(again.caught_up())


async def _with_error(replica: Replica):
    (status,) = await replica.status()
    return status if status.last_error else None


async def test_a_restored_relay_is_bootstrapped_from_again_and_gets_back_what_it_lost(
    start_node: StartNode, open_replica: OpenReplica, family: str, tmp_path
):
    node = start_node()
    replica = await open_replica("laptop", relays=[node.url], family=family)
    await replica.put("a", {"n": 1})
    await in_time(replica.caught_up())
    backup = str(tmp_path / "backup.db")
    assert node.cli("backup", backup).returncode == 0
    await replica.put("a", {"n": 2})
    await replica.put("b", {"n": 3})
    await in_time(replica.caught_up())
    epoch = (await replica.status())[0].epoch
    changes = replica.changes()
    node.stop()
    assert node.cli("restore", backup, "--force").returncode == 0
    node.start()
    await until(lambda: _in_another_epoch(replica, epoch))
    await in_time(replica.caught_up())
    fresh = await open_replica("phone", relays=[node.url], family=family)
    await in_time(fresh.caught_up())
    assert await same_heads(fresh, replica)
    assert await content(fresh, "a") == {"n": 2}
    assert await content(fresh, "b") == {"n": 3}
    assert len(await told(replica, changes, ChangeKind.NEW_LOG)) == 1


async def _in_another_epoch(replica: Replica, epoch: str) -> bool:
    (status,) = await replica.status()
    return status.epoch not in (None, epoch)


async def test_a_replica_that_was_away_too_long_bootstraps_again_and_says_so(
    start_node: StartNode, open_replica: OpenReplica, family: str
):
    node = start_node(config="[retention]\nreplay_count = 10\n", admin=True)
    writer = await open_replica("writer", relays=[node.url], family=family)
    reader = await open_replica("reader", relays=[node.url], family=family)
    await writer.put("a", {"n": 1})
    await until(lambda: reads(reader, "a", {"n": 1}))
    await reader.close()
    for number in range(40):
        await writer.put(f"b{number}", {"n": number})
    await in_time(writer.caught_up())
    node.compact()
    await until(lambda: node.min_seq() > 20)
    reader = await open_replica("reader", relays=[])
    changes = reader.changes()
    await in_time(reader.caught_up())
    assert await same_heads(writer, reader)
    states = await told(reader, changes, ChangeKind.RELAY)
    assert any(state.startswith("bootstrapping: the relay keeps its log from") for state in states), states


async def test_a_relay_that_goes_away_is_found_again(start_node: StartNode, open_replica: OpenReplica, family: str):
    node = start_node()
    replica = await open_replica("laptop", relays=[node.url], family=family)
    await in_time(replica.caught_up())
    node.kill9()
    await until(lambda: _is(replica, "offline"))
    await replica.put("d", {"n": 1})
    (status,) = await replica.status()
    assert status.owed == 1
    assert status.last_error
    node.start()
    await in_time(replica.caught_up())
    assert (await replica.status())[0].owed == 0


async def _is(replica: Replica, state: str) -> bool:
    (status,) = await replica.status()
    return status.state == state


async def test_relays_are_added_and_removed_while_it_runs(
    node: Node, second_node: Node, open_replica: OpenReplica, family: str
):
    replica = await open_replica("laptop", family=family)
    await replica.put("d", {"n": 1})
    await in_time(replica.caught_up())  # there is nobody to catch up with
    assert await replica.add_relay(node.url.rstrip("/")) == node.url
    await in_time(replica.caught_up(node.url))
    await replica.add_relay(second_node.url)
    await in_time(replica.caught_up())
    await replica.remove_relay(node.url)
    with pytest.raises(NoSuchRelay):
        await replica.caught_up(node.url)
    with pytest.raises(NoSuchRelay):
        await replica.remove_relay(node.url)
    with pytest.raises(BadRelay):
        await replica.add_relay("https://relay.example")
    assert [status.url for status in await replica.status()] == [second_node.url]


async def test_a_relay_that_cannot_be_reached_is_told_in_words(open_replica: OpenReplica):
    replica = await open_replica("laptop", relays=["ws://127.0.0.1:9/"])
    status = await until(lambda: _with_error(replica))
    assert status.last_error == "nothing answers at this address"
    assert status.retry_in is not None or status.state == "connecting"


async def test_ancestors_that_no_head_brings_are_fetched_so_that_another_relay_shows_the_right_heads(
    node: Node, second_node: Node, open_replica: OpenReplica
):
    """One relay has the first revision, the other the whole chain: who bootstraps over heads gets only its end."""
    first = await open_replica("first", relays=[second_node.url], family="revision")
    await first.put("d", {"n": 0})
    await in_time(first.caught_up())
    await first.remove_relay(second_node.url)
    await first.add_relay(node.url)
    for number in range(1, 9):
        await first.put("d", {"n": number})
    await in_time(first.caught_up())
    both = await open_replica("both", relays=[node.url, second_node.url], family="revision")
    await in_time(both.caught_up())
    fresh = await open_replica("fresh", relays=[second_node.url], family="revision")
    await in_time(fresh.caught_up())
    await until(lambda: same_heads(first, both, fresh))
    assert len((await heads(fresh))["d"]) == 1
    assert len(await both.history("d")) == 9


async def test_what_another_client_publishes_arrives_live(node: Node, open_replica: OpenReplica, connect):
    author = Author.random()
    replica = await open_replica("laptop", keys=Keys(author.key.secret), relays=[node.url])
    await in_time(replica.caught_up())
    socket = await connect(node)
    event = snapshot(author, "d", {"elsewhere": 1})
    await socket.send("EVENT", event)
    await until(lambda: _has(replica, event["id"]))
    await until(lambda: at_position(replica, node.max_seq()))
    with pytest.raises(Unreadable):  # its payload is none of ours; following goes on
        await replica.get("d")
    await replica.put("e", {"n": 1})
    found = {document.d: document for document in await replica.documents()}
    assert found["e"].content == {"n": 1}
    assert found["d"].content is None
    assert "encrypted payload" in found["d"].problem
    assert (await replica.history("d"))[0].problem
    with pytest.raises(Unreadable):
        await replica.restore("d", event["id"])


async def _has(replica: Replica, version: str) -> bool:
    return version in (await heads(replica)).get("d", set())
