"""What a new version stands on: nothing that its writer has not read is ever superseded by it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from replicas import OpenReplica

from anabranch.client import (
    Document,
    Keys,
    NoSuchDocument,
    NoSuchVersion,
    NotInConflict,
    ReadOnly,
    Replica,
)
from anabranch.client.file import Arrival, Proven
from anabranch.client.now import REAL
from anabranch.client.sealing import Draft, Sealer
from anabranch.core import replica as rules
from anabranch.core.nostr import serialise
from anabranch.core.replica import Version


class OtherDevice:
    """Writes versions of the same owner, which arrive as from a relay."""

    def __init__(self, replica: Replica, keys: Keys, name: str = "other") -> None:
        self._replica = replica
        self._sealer = Sealer(keys, replica.file.family, name, REAL)

    async def edits(self, d: str, content: Mapping[str, Any] | None, *on: str) -> str:
        """One more version on top of these, or of what is current."""
        return await self._replica.in_file(self._edit, d, content, on)

    def _edit(self, d: str, content: Mapping[str, Any] | None, on: tuple[str, ...]) -> str:
        file = self._replica.file
        ground = [one.version for one in (file.some(d, on) if on else file.heads(d))]
        event = self._sealer.seal(Draft(d, content), ground)
        version: Version = rules.read(event, file.family, file.owner)
        relay = self._replica.ledger.add("ws://other/", None)
        file.apply(Arrival(relay.relay, [Proven(version, event.id, serialise(event))]), relay.url)
        return version.id


async def opened(open_replica: OpenReplica, keys: Keys, family: str) -> tuple[Replica, OtherDevice, Document]:
    """A replica with a document that was read, and another device."""
    replica = await open_replica("laptop", family=family, follow=False)
    await replica.put("d", {"text": "first"})
    document = await replica.get("d")
    assert document is not None
    return replica, OtherDevice(replica, keys), document


async def texts(replica: Replica, d: str = "d") -> list[str | None]:
    """The contents that are current, the deletions as None."""
    (found,) = [one for one in await replica.documents(deleted=True) if one.d == d]
    return sorted((one.content["text"] if one.content else None for one in found.versions), key=str)


async def test_an_edit_that_was_overtaken_is_a_conflict_and_nothing_is_lost(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, other, read = await opened(open_replica, keys, family)
    await other.edits("d", {"text": "theirs"})
    await replica.put("d", {"text": "mine"}, base=read)
    assert await texts(replica) == ["mine", "theirs"]


async def test_ids_say_the_same_as_the_document(open_replica: OpenReplica, keys: Keys, family: str):
    replica, other, read = await opened(open_replica, keys, family)
    await other.edits("d", {"text": "theirs"})
    await replica.put("d", {"text": "mine"}, base=[read.versions[0].id])
    assert await texts(replica) == ["mine", "theirs"]


async def test_an_edit_that_was_not_overtaken_supersedes_what_was_read(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, _, read = await opened(open_replica, keys, family)
    await replica.put("d", {"text": "second"}, base=read)
    assert await texts(replica) == ["second"]


async def test_a_deletion_that_was_overtaken_is_a_conflict(open_replica: OpenReplica, keys: Keys, family: str):
    replica, other, read = await opened(open_replica, keys, family)
    await other.edits("d", {"text": "theirs"})
    await replica.delete("d", base=read)
    assert await texts(replica) == [None, "theirs"]
    with pytest.raises(NoSuchDocument):
        await replica.delete("d", base=())


async def test_a_restoration_that_was_overtaken_is_a_conflict(open_replica: OpenReplica, keys: Keys, family: str):
    replica, other, read = await opened(open_replica, keys, family)
    await replica.put("d", {"text": "second"}, base=read)
    second = await replica.get("d")
    await other.edits("d", {"text": "theirs"})
    await replica.restore("d", read.versions[0].id, base=second)
    assert await texts(replica) == ["first", "theirs"]


async def test_a_document_that_was_not_there_is_not_superseded(open_replica: OpenReplica, keys: Keys, family: str):
    replica, _, _ = await opened(open_replica, keys, family)
    await replica.put("d", {"text": "another beginning"}, base=())
    assert await texts(replica) == ["another beginning", "first"]


async def test_two_windows_of_one_device_are_a_conflict_and_stay_one(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, other, read = await opened(open_replica, keys, family)
    one = await replica.put("d", {"text": "one window"}, base=read)
    await replica.put("d", {"text": "other window"}, base=read)
    assert await texts(replica) == ["one window", "other window"]
    await other.edits("d", {"text": "after one"}, one)  # has seen one of them only: hides no other
    assert await texts(replica) == ["after one", "other window"]
    (conflict,) = await replica.conflicts()
    await replica.resolve("d", {"text": "all"}, base=conflict)
    assert await texts(replica) == ["all"]
    await replica.put("d", {"text": "on"}, base=await replica.get("d"))
    assert await texts(replica) == ["on"]


async def test_a_resolution_settles_the_versions_that_were_shown_and_no_other(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, other, read = await opened(open_replica, keys, family)
    await other.edits("d", {"text": "theirs"})
    await replica.put("d", {"text": "mine"}, base=read)
    (shown,) = await replica.conflicts()
    third = OtherDevice(replica, keys, "third")
    await third.edits("d", {"text": "a third"}, read.versions[0].id)
    await replica.resolve("d", {"text": "both"}, base=shown)
    assert await texts(replica) == ["a third", "both"]
    with pytest.raises(NoSuchVersion):
        await replica.resolve("d", pick="f" * 64, base=(await replica.conflicts())[0])


async def test_a_resolution_of_what_somebody_else_has_settled_writes_nothing(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, other, read = await opened(open_replica, keys, family)
    await other.edits("d", {"text": "theirs"})
    await replica.put("d", {"text": "mine"}, base=read)
    (shown,) = await replica.conflicts()
    await other.edits("d", {"text": "settled there"})
    with pytest.raises(NotInConflict):
        await replica.resolve("d", {"text": "settled here"}, base=shown)
    with pytest.raises(ReadOnly):
        await replica.put("d", {"text": "an edit"}, base=shown)
    assert await texts(replica) == ["settled there"]


async def test_a_version_that_is_no_longer_kept_can_still_be_stood_on(
    open_replica: OpenReplica, keys: Keys, family: str
):
    replica, other, read = await opened(open_replica, keys, family)
    for number in range(15):
        await other.edits("d", {"text": f"theirs {number}"})
        await asyncio.sleep(0)
    await replica.put("d", {"text": "mine"}, base=read)
    assert await texts(replica) == ["mine", "theirs 14"]


async def test_versions_of_another_document_are_no_base(open_replica: OpenReplica, keys: Keys, family: str):
    replica, _, read = await opened(open_replica, keys, family)
    with pytest.raises(NoSuchVersion):
        await replica.put("e", {"text": "x"}, base=read)
    with pytest.raises(NoSuchVersion):
        await replica.put("d", {"text": "x"}, base=["f" * 64])
