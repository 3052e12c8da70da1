"""Replicas and a real node: what one device writes the others have, and what was written apart is a conflict."""

import json
import os
from pathlib import Path

import pytest
from processes import Node
from replicas import OpenReplica, at_position, content, heads, reads, same_heads
from waiting import in_time, until

from anabranch.client import (
    BadContent,
    ChangeKind,
    Keys,
    NoSuchDocument,
    NotInConflict,
    ReadOnly,
    Replica,
    WrongReplica,
)
from anabranch.client.now import REAL


async def two_apart(open_replica: OpenReplica, node: Node, family: str) -> tuple[Replica, Replica]:
    """Laptop and phone, which both know the document `d` and then edit it apart, the phone offline."""
    laptop = await open_replica("laptop", relays=[node.url], family=family)
    await laptop.put("d", {"text": "first"})
    phone = await open_replica("phone", relays=[node.url], family=family)
    await in_time(laptop.caught_up())
    await in_time(phone.caught_up())
    await until(lambda: content(phone, "d"))
    await phone.close()
    phone = await open_replica("phone", follow=False)
    return laptop, phone


async def back(open_replica: OpenReplica, *replicas: Replica) -> list[Replica]:
    for replica in replicas:
        await replica.close()
    again = [await open_replica(name) for name in ("laptop", "phone")]
    for replica in again:
        await in_time(replica.caught_up())
    await until(lambda: same_heads(*again))
    return again


async def test_what_is_put_on_one_device_is_read_on_the_other(node: Node, open_replica: OpenReplica, family: str):
    laptop = await open_replica("laptop", relays=[node.url], family=family)
    phone = await open_replica("phone", relays=[node.url], family=family)
    await laptop.put("d", {"text": "milk", "count": 3, "nested": {"ü": [1, None, True]}}, collection="lists")
    await in_time(laptop.caught_up(node.url))
    found = await until(lambda: phone.get("d"))
    assert found.content == {"text": "milk", "count": 3, "nested": {"ü": [1, None, True]}}
    assert found.collection == "lists"
    assert not found.in_conflict
    assert not found.versions[0].written_here
    await phone.put("d", {"text": "bread"})
    await until(lambda: reads(laptop, "d", {"text": "bread"}))
    assert (await laptop.get("d")).collection == "lists"
    await laptop.delete("d")
    await until(lambda: reads(phone, "d", None))
    assert await phone.documents() == []
    assert [document.d for document in await phone.documents(deleted=True)] == ["d"]


async def test_edits_made_apart_are_a_conflict_and_nothing_is_lost(node: Node, open_replica: OpenReplica, family: str):
    laptop, phone = await two_apart(open_replica, node, family)
    await laptop.put("d", {"text": "laptop's"})
    await phone.put("d", {"text": "phone's"})
    for replica in await back(open_replica, laptop, phone):
        (conflict,) = await replica.conflicts()
        assert {version.content["text"] for version in conflict.versions} == {"laptop's", "phone's"}


async def test_a_document_in_conflict_is_read_only_until_it_is_resolved(
    node: Node, open_replica: OpenReplica, family: str
):
    laptop, phone = await two_apart(open_replica, node, family)
    await laptop.put("d", {"text": "laptop's"})
    await phone.put("d", {"text": "phone's"})
    laptop, phone = await back(open_replica, laptop, phone)
    before = await heads(laptop)
    with pytest.raises(ReadOnly) as refused:
        await laptop.put("d", {"text": "over it"})
    with pytest.raises(ReadOnly):
        await laptop.put("d", {"text": "over it"}, base=refused.value.conflict)
    assert refused.value.conflict.in_conflict
    with pytest.raises(ReadOnly):
        await laptop.delete("d")
    with pytest.raises(ReadOnly):
        await laptop.restore("d", (await laptop.history("d"))[-1].id)
    assert await heads(laptop) == before
    await laptop.resolve("d", {"text": "both"}, base=refused.value.conflict)
    await laptop.put("d", {"text": "both, and more"})
    await until(lambda: reads(phone, "d", {"text": "both, and more"}))
    assert await phone.conflicts() == []


@pytest.mark.parametrize("how", ["pick", "delete"])
async def test_a_conflict_ends_by_picking_a_version_or_deleting_all(
    node: Node, open_replica: OpenReplica, family: str, how: str
):
    laptop, phone = await two_apart(open_replica, node, family)
    await laptop.put("d", {"text": "laptop's"})
    await phone.put("d", {"text": "phone's"})
    laptop, phone = await back(open_replica, laptop, phone)
    (conflict,) = await phone.conflicts()
    if how == "pick":
        chosen = next(version for version in conflict.versions if version.content == {"text": "laptop's"})
        await phone.resolve("d", pick=chosen.id, base=conflict)
    else:
        await phone.resolve("d", delete=True, base=conflict)
    await until(lambda: same_heads(laptop, phone))
    assert await content(laptop, "d") == ({"text": "laptop's"} if how == "pick" else None)
    assert await laptop.conflicts() == []
    with pytest.raises(NotInConflict):
        await laptop.resolve("d", {"text": "again"}, base=conflict)


@pytest.mark.parametrize("deletes", ["laptop", "phone"])
async def test_a_deletion_against_an_edit_is_a_conflict_both_ways(
    node: Node, open_replica: OpenReplica, family: str, deletes: str
):
    laptop, phone = await two_apart(open_replica, node, family)
    deleting, editing = (laptop, phone) if deletes == "laptop" else (phone, laptop)
    await deleting.delete("d")
    await editing.put("d", {"text": "still wanted"})
    for replica in await back(open_replica, laptop, phone):
        (conflict,) = await replica.conflicts()
        assert sorted(version.deleted for version in conflict.versions) == [False, True]
        assert conflict.content == {"text": "still wanted"}  # shown, because it is there
        assert not conflict.deleted


async def test_two_relays_converge_through_a_replica_on_both(
    node: Node, second_node: Node, open_replica: OpenReplica, family: str
):
    here = await open_replica("here", relays=[node.url], family=family)
    there = await open_replica("there", relays=[second_node.url], family=family)
    for number in range(5):
        await here.put("a", {"n": number})
        await there.put("b", {"n": number})
    await in_time(here.caught_up())
    await in_time(there.caught_up())
    both = await open_replica("both", relays=[node.url, second_node.url], family=family)
    await in_time(both.caught_up())
    await until(lambda: reads(here, "b", {"n": 4}))
    await until(lambda: reads(there, "a", {"n": 4}))
    assert await heads(here) == await heads(there) == await heads(both)


async def test_an_echo_of_our_own_version_changes_nothing(node: Node, open_replica: OpenReplica, family: str):
    replica = await open_replica("laptop", relays=[node.url], family=family)
    await in_time(replica.caught_up())
    changes = replica.changes()
    await replica.put("d", {"text": "once"})
    await in_time(replica.caught_up())
    at = node.max_seq()
    await until(lambda: at_position(replica, at))  # the echo has been applied
    await replica.close()
    told = [change async for change in changes if change.kind is not ChangeKind.RELAY]
    assert [(change.kind, change.d, change.relay) for change in told] == [(ChangeKind.WRITTEN, "d", None)]


async def test_a_restart_resumes_from_the_checkpoint(node: Node, open_replica: OpenReplica, family: str):
    writer = await open_replica("writer", relays=[node.url], family=family)
    reader = await open_replica("reader", relays=[node.url], family=family)
    await writer.put("a", {"n": 1})
    await in_time(writer.caught_up())
    await until(lambda: reads(reader, "a", {"n": 1}))
    await reader.close()
    for number in range(30):
        await writer.put(f"b{number}", {"n": number})
    await in_time(writer.caught_up())
    reader = await open_replica("reader")
    changes = reader.changes()
    await in_time(reader.caught_up())
    assert await heads(reader) == await heads(writer)
    await reader.close()
    states = [change.detail async for change in changes if change.kind is ChangeKind.RELAY]
    assert not any(state.startswith("bootstrapping") for state in states), states


async def test_what_was_written_offline_is_sent_by_whoever_opens_the_file_next(
    node: Node, open_replica: OpenReplica, family: str
):
    offline = await open_replica("laptop", family=family)
    for number in range(20):
        await offline.put(f"d{number % 4}", {"n": number})
    await offline.close()
    online = await open_replica("laptop", relays=[node.url])
    await in_time(online.caught_up())
    assert [status.owed for status in await online.status()] == [0]
    fresh = await open_replica("phone", relays=[node.url], family=family)
    await in_time(fresh.caught_up())
    assert await heads(fresh) == await heads(online)


async def test_a_version_written_by_another_process_on_the_file_is_sent_too(
    node: Node, open_replica: OpenReplica, family: str
):
    follows = await open_replica("laptop", relays=[node.url], family=family)
    await in_time(follows.caught_up())
    beside = await open_replica("laptop", follow=False)
    version = await beside.put("d", {"text": "from beside"})
    phone = await open_replica("phone", relays=[node.url], family=family)
    await until(lambda: reads(phone, "d", {"text": "from beside"}))
    assert (await follows.history("d"))[0].id == version


async def test_history_is_bounded_and_restore_makes_a_new_version(open_replica: OpenReplica, family: str, node: Node):
    replica = await open_replica("laptop", relays=[node.url], family=family)
    made = [await replica.put("d", {"n": number}) for number in range(15)]
    await in_time(replica.caught_up())
    history = await until(lambda: _of_length(replica, "d", 11))
    assert [version.id for version in history] == made[:3:-1]
    assert [version.current for version in history] == [True] + [False] * 10
    again = await replica.restore("d", history[4].id)
    assert again not in made
    assert await content(replica, "d") == {"n": 10}
    await replica.delete("d")
    await replica.restore("d", again)
    assert await content(replica, "d") == {"n": 10}


async def _of_length(replica: Replica, d: str, length: int) -> list | None:
    found = await replica.history(d)
    return found if len(found) == length else None


async def test_the_same_edit_on_two_devices_is_the_same_revision(node: Node, open_replica: OpenReplica):
    laptop, phone = await two_apart(open_replica, node, "revision")
    assert await laptop.put("d", {"b": 1, "a": [1.0]}) == await phone.put("d", {"a": [1], "b": 1})
    assert await laptop.delete("d") == await phone.delete("d")
    for replica in await back(open_replica, laptop, phone):
        assert await replica.conflicts() == []


async def test_the_store_and_the_replica_never_hold_plaintext(
    start_node, open_replica: OpenReplica, family: str, tmp_path: Path
):
    node = start_node()
    secret = "correct horse battery staple lies under the doormat"
    replica = await open_replica("laptop", relays=[node.url], family=family)
    await replica.put("d", {"text": secret, "password-field": secret})
    await replica.put("d", {"text": secret + "!", "password-field": secret})
    await in_time(replica.caught_up())
    assert (await replica.get("d")).content["text"] == secret + "!"  # read, so that a cache would show
    await replica.close()
    node.stop()
    held = files_of(node.data) | files_of(tmp_path, "laptop.db*")
    assert sum(map(len, held.values())) > 8_192
    for file, held_bytes in held.items():
        for words in (b"doormat", b"password-field", json.dumps(secret).encode()):
            assert words not in held_bytes, file


def files_of(folder: Path, pattern: str = "**/*") -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.glob(pattern) if file.is_file()}


async def test_the_file_is_readable_by_its_owner_only(open_replica: OpenReplica, tmp_path: Path):
    await open_replica("laptop")
    for file in files_of(tmp_path, "laptop.db*"):
        assert os.stat(file).st_mode & 0o077 == 0, file


async def test_one_file_speaks_one_family_and_one_key(open_replica: OpenReplica, tmp_path: Path):
    await (await open_replica("laptop", family="revision")).close()
    again = await open_replica("laptop")
    assert again.family == "revision"
    device = again.device
    await again.close()
    with pytest.raises(WrongReplica, match="one family"):
        await open_replica("laptop", family="snapshot")
    with pytest.raises(WrongReplica, match="belongs to"):
        await open_replica("laptop", keys=Keys(REAL.fresh_bytes(32)))
    (tmp_path / "poem.db").write_bytes(b"")
    assert (await open_replica("poem")).family == "snapshot"
    assert (await open_replica("laptop")).device == device


async def test_what_cannot_be_written_is_refused_and_changes_nothing(open_replica: OpenReplica, family: str):
    replica = await open_replica("laptop", family=family)
    for wrong in ({"x": float("nan")}, {"x": 2**60}, {"x": object()}, {"x": "\ud800"}, {"x": "y" * (1 << 21)}):
        with pytest.raises(BadContent):
            await replica.put("d", wrong)
    with pytest.raises(BadContent):
        await replica.put("", {})
    with pytest.raises(NoSuchDocument):
        await replica.delete("d")
    with pytest.raises(NoSuchDocument):
        await replica.history("d")
    assert await replica.documents(deleted=True) == []
