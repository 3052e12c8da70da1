"""Access keys on a private node: a key opens the door, and the door closes when it is taken back."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from authors import Author, now, snapshot
from processes import Node, find_key, rows
from sockets import ConnectionEnded, RelayClient
from websockets.exceptions import ConnectionClosed

from anabranch.node.access import Access
from anabranch.node.main import SWEEP_SECONDS
from anabranch.store.contract import AccessKey

REQUIRED = "token-required: present a valid access token before authenticating"
REJECTED = "token-invalid: access key rejected"


@pytest.fixture
def keyed_node(start_node: Callable[..., Node]) -> Node:
    """A private node with an admin and, to begin with, one key that nobody uses."""
    own = start_node(admin=True, env={"PRIVATE": "true"})
    make_key(own, label="unused")
    return own


def make_key(node: Node, **fields: Any) -> str:
    answer = node.admin("POST", "keys", fields)
    assert answer.status in (200, 201), answer.text
    return find_key(answer.json())


async def present(client: RelayClient, key: Any) -> list[Any]:
    await client.send("TOKEN", key)
    return await client.next("TOKEN")


async def enter(node: Node, connect: Callable, key: str, author: Author) -> RelayClient:
    """A connection with a key and a proven author."""
    client = await connect(node)
    assert await present(client, key) == ["TOKEN", key, True, ""]
    ok = await client.authenticate(author, await client.challenge(), node.url)
    assert ok.accepted, ok.message
    return client


async def shut_out(client: RelayClient, author: Author) -> bool:
    """Whether this connection can no longer write: refused, or closed."""
    try:
        return not (await client.publish(snapshot(author, f"d{now()}", {"x": 1}), patience=5)).accepted
    except (ConnectionEnded, OSError):
        return True
    except Exception as error:
        if "close" in type(error).__name__.lower() or "close" in str(error).lower():
            return True
        raise


async def test_a_key_comes_before_authentication(keyed_node: Node, connect: Callable, author: Author) -> None:
    client = await connect(keyed_node)
    challenge = await client.challenge()
    ok = await client.authenticate(author, challenge, keyed_node.url)
    assert (ok.accepted, ok.message) == (False, REQUIRED)
    key = make_key(keyed_node)
    assert await present(client, key) == ["TOKEN", key, True, ""]
    assert (await client.authenticate(author, challenge, keyed_node.url)).accepted
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted


@pytest.mark.parametrize("key", ["", "sk_", "sk_" + "a" * 24, "é\u0000😀", "x" * 1000])
async def test_an_unknown_key_is_rejected(keyed_node: Node, connect: Callable, author: Author, key: str) -> None:
    client = await connect(keyed_node)
    assert await present(client, key) == ["TOKEN", key, False, REJECTED]
    ok = await client.authenticate(author, await client.challenge(), keyed_node.url)
    assert (ok.accepted, ok.message) == (False, REQUIRED)


async def test_a_private_node_without_keys_needs_none(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"PRIVATE": "true"})
    client = await connect(own)
    assert (await client.authenticate(author, await client.challenge(), own.url)).accepted


async def test_a_key_opens_nothing_by_itself(keyed_node: Node, connect: Callable, author: Author) -> None:
    client = await connect(keyed_node)
    key = make_key(keyed_node)
    assert (await present(client, key))[2] is True
    assert not (await client.publish(snapshot(author, "note", {"x": 1}))).accepted
    assert (await client.tail(author)).error.startswith("auth-required:")


@pytest.mark.parametrize("how", ["revoked", "deleted"])
async def test_a_key_that_is_taken_back_closes_the_door(
    keyed_node: Node, connect: Callable, author: Author, how: str
) -> None:
    key, other = make_key(keyed_node), make_key(keyed_node)
    client = await enter(keyed_node, connect, key, author)
    bystander_author = Author.random()
    bystander = await enter(keyed_node, connect, other, bystander_author)
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted
    if how == "revoked":
        assert keyed_node.admin("PATCH", f"keys/{key}", {"revoked": True}).status == 200
    else:
        assert keyed_node.admin("DELETE", f"keys/{key}").status in (200, 204)
    assert await shut_out(client, author)
    late = await connect(keyed_node)
    assert await present(late, key) == ["TOKEN", key, False, REJECTED]
    assert (await bystander.publish(snapshot(bystander_author, "note", {"x": 1}))).accepted


async def test_a_live_feed_ends_when_its_key_is_revoked(keyed_node: Node, connect: Callable, author: Author) -> None:
    key, other = make_key(keyed_node), make_key(keyed_node)
    follower = await enter(keyed_node, connect, key, author)
    writer = await enter(keyed_node, connect, other, author)
    feed = await follower.tail(author, live=True)
    keyed_node.admin("PATCH", f"keys/{key}", {"revoked": True})
    await writer.store(snapshot(author, "secret", {"x": 1}))
    control = await writer.tail(author, live=True)
    await writer.store(snapshot(author, "another secret", {"x": 1}))
    await writer.next_change(control.sub)
    assert [frame for frame in follower.waiting(feed.sub) if isinstance(frame, list) and "EVENT" in frame] == []


async def test_a_revoked_key_can_be_given_back(keyed_node: Node, connect: Callable, author: Author) -> None:
    key = make_key(keyed_node)
    keyed_node.admin("PATCH", f"keys/{key}", {"revoked": True})
    keyed_node.admin("PATCH", f"keys/{key}", {"revoked": False})
    client = await enter(keyed_node, connect, key, author)
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted


async def test_a_key_ends_when_it_expires(keyed_node: Node, connect: Callable, author: Author) -> None:
    past = make_key(keyed_node, expires_at=now() - 10)
    future = make_key(keyed_node, expires_at=now() + 1000)
    brief = make_key(keyed_node, expires_at=now() + 2)
    client = await connect(keyed_node)
    assert await present(client, past) == ["TOKEN", past, False, REJECTED]
    assert (await present(client, future))[2] is True
    within = await enter(keyed_node, connect, brief, author)
    await asyncio.sleep(3.1)
    late = await connect(keyed_node)
    assert (await present(late, brief))[2] is False
    await asyncio.sleep(2)
    assert await shut_out(within, author)


async def test_a_key_that_is_extended_goes_on_for_whoever_has_shown_it(
    keyed_node: Node, connect: Callable, author: Author
) -> None:
    ends = now() + 2
    key = make_key(keyed_node, expires_at=ends)
    client = await enter(keyed_node, connect, key, author)
    feed = await client.tail(author, live=True)
    assert keyed_node.admin("PATCH", f"keys/{key}", {"expires_at": ends + 1_000}).status == 200
    await asyncio.sleep(ends + SWEEP_SECONDS + 0.5 - time.time())
    late = snapshot(author, "late", {"x": 1})
    await client.store(late)
    assert (await client.next_change(feed.sub))[1] == late
    keyed_node.admin("PATCH", f"keys/{key}", {"expires_at": now() + 1})
    await asyncio.sleep(1.2)
    assert await shut_out(client, author), "what is cut short ends sooner, too"


def test_keys_that_have_expired_are_looked_at_once_and_together() -> None:
    """However many there are: every open session is passed once for all that are new among them, else not at all."""
    time = now()
    keys = [AccessKey(f"sk_{n}", expires_at=time - 5, revoked=n % 2 == 0) for n in range(100)]
    lost: list[Any] = []
    access = Access([AccessKey("sk_good"), *keys], True, writer=None, changed=lost.append, lost=lost.append)  # type: ignore[arg-type]
    for _ in range(3):
        access.sweep()
    assert lost == [{key.key for key in keys}]


async def test_a_changed_key_is_answered_with_what_it_has_used(
    keyed_node: Node, connect: Callable, author: Author
) -> None:
    key = make_key(keyed_node)
    client = await enter(keyed_node, connect, key, author)
    await client.store(snapshot(author, "note", {"x": 1}, content="x" * 5_000))
    changed = keyed_node.admin("PATCH", f"keys/{key}", {"label": "new"}).json()
    assert changed == keyed_node.admin("GET", f"keys/{key}").json()
    assert changed["label"] == "new" and changed["used_bytes"] > 5_000
    revoked = keyed_node.cli("keys", "revoke", key, "--json")
    assert json.loads(revoked.stdout)["key"]["used_bytes"] == changed["used_bytes"], revoked.stderr


async def test_a_key_for_one_author_is_for_nobody_else(keyed_node: Node, connect: Callable, author: Author) -> None:
    key = make_key(keyed_node, pubkey=author.pubkey)
    client = await connect(keyed_node)
    assert (await present(client, key))[2] is True
    challenge = await client.challenge()
    assert not (await client.authenticate(Author.random(), challenge, keyed_node.url)).accepted
    assert (await client.authenticate(author, challenge, keyed_node.url)).accepted


async def test_a_key_stores_no_more_than_its_limit(keyed_node: Node, connect: Callable, author: Author) -> None:
    key = make_key(keyed_node, storage_limit_bytes=20_000)
    client = await enter(keyed_node, connect, key, author)
    oks = [await client.publish(snapshot(author, f"d{n}", {"x": 1}, content="x" * 3000)) for n in range(10)]
    taken = [ok.accepted for ok in oks]
    assert 3 <= sum(taken) <= 6 and taken == sorted(taken, reverse=True)
    assert all(":" in ok.message for ok in oks)
    assert len((await client.tail(author)).events) == sum(taken)
    keyed_node.admin("PATCH", f"keys/{key}", {"storage_limit_bytes": None})
    assert (await client.publish(snapshot(author, "more", {"x": 1}, content="x" * 3000))).accepted


async def test_the_storage_of_a_key_is_counted_across_connections_and_restarts(
    keyed_node: Node, connect: Callable, author: Author
) -> None:
    key = make_key(keyed_node, storage_limit_bytes=8_000)
    client = await enter(keyed_node, connect, key, author)
    assert (await client.publish(snapshot(author, "a", {"x": 1}, content="x" * 5000))).accepted
    keyed_node.restart()
    client = await enter(keyed_node, connect, key, author)
    assert not (await client.publish(snapshot(author, "b", {"x": 1}, content="x" * 5000))).accepted


async def test_keys_survive_a_restart(keyed_node: Node, connect: Callable, author: Author) -> None:
    key, gone = make_key(keyed_node, label="kept"), make_key(keyed_node)
    keyed_node.admin("PATCH", f"keys/{gone}", {"revoked": True})
    keyed_node.restart()
    await enter(keyed_node, connect, key, author)
    client = await connect(keyed_node)
    assert (await present(client, gone))[2] is False


async def test_connections_show_the_key_and_the_authors(keyed_node: Node, connect: Callable, author: Author) -> None:
    key = make_key(keyed_node)
    client = await enter(keyed_node, connect, key, author)
    await client.tail(author, sub="follow", live=True)
    (row,) = rows(keyed_node.admin("GET", "connections").json())
    assert row["authed_pubkeys"] == [author.pubkey]
    assert row["live_changes_subscription_ids"] == ["follow"]
    assert row["access_key"]


async def test_a_key_in_an_odd_message_does_no_harm(keyed_node: Node, connect: Callable) -> None:
    client = await connect(keyed_node)
    for message in ('["TOKEN"]', '["TOKEN",null]', '["TOKEN",7]', '["TOKEN",["x"]]', '["TOKEN","\\ud800"]'):
        await client.exchange(message)
    assert keyed_node.alive


async def test_a_live_feed_ends_with_its_key_even_when_its_reader_keeps_talking(
    keyed_node: Node, connect: Callable, author: Author
) -> None:
    expires_at = now() + 2
    follower = await enter(keyed_node, connect, make_key(keyed_node, expires_at=expires_at), author)
    writer = await enter(keyed_node, connect, make_key(keyed_node), author)
    feed = await follower.tail(author, live=True)

    async def talk() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await follower.send("CLOSE", "nothing")
                await asyncio.sleep(0.02)

    talking = asyncio.create_task(talk())
    early = snapshot(author, "early", {"x": 1})
    await writer.store(early)
    await asyncio.sleep(expires_at + 0.2 - time.time())
    await writer.store(*(snapshot(author, f"late {n}", {"x": 1}) for n in range(20)))
    await follower.wait_ended(patience=2)
    await talking
    assert [frame[4]["id"] for frame in follower.waiting(feed.sub) if isinstance(frame, list)] == [early["id"]]
    assert "holds no longer" in await follower.notice()


async def test_another_key_ends_what_the_first_had_opened(keyed_node: Node, connect: Callable, author: Author) -> None:
    client = await enter(keyed_node, connect, make_key(keyed_node), author)
    writer = await enter(keyed_node, connect, make_key(keyed_node), author)
    feed = await client.tail(author, live=True)
    query = await client.req({"authors": [author.pubkey]}, live=True)
    other = make_key(keyed_node, pubkey=Author.random().pubkey)
    assert (await present(client, other))[2] is True
    await writer.store(snapshot(author, "secret", {"x": 1}))
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).message.startswith("auth-required:")
    assert (await client.tail(author)).error.startswith("auth-required:")
    assert (await client.req({"authors": [author.pubkey]})).closed.startswith("auth-required:")
    assert client.waiting(feed.sub) == client.waiting(query.sub) == []


async def test_the_first_key_ends_sessions_that_came_in_without(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"PRIVATE": "true"})
    inside, outside = await connect(own), await connect(own)
    assert (await inside.authenticate(author, await inside.challenge(), own.url)).accepted
    feed = await inside.tail(author, live=True)
    key = make_key(own)
    await inside.wait_ended()
    assert await inside.notice() == "token-required: the relay asks for an access key from now on"
    assert inside.connection.close_reason == "access key required"
    assert not any(isinstance(frame, list) for frame in inside.waiting(feed.sub))
    ok = await outside.authenticate(author, await outside.challenge(), own.url)
    assert (ok.accepted, ok.message) == (False, REQUIRED)
    await enter(own, connect, key, author)


async def test_where_the_last_key_was_deleted_nobody_gets_in_until_none_is_asked_for(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"PRIVATE": "true"})
    key = make_key(own)
    inside = await enter(own, connect, key, author)
    assert own.admin("DELETE", f"keys/{key}").status == 200
    await inside.wait_ended()
    for again in (False, True):
        if again:
            own.restart()
        client = await connect(own)
        ok = await client.authenticate(author, await client.challenge(), own.url)
        assert (ok.accepted, ok.message) == (False, REQUIRED)
        assert (await present(client, key))[2] is False
    lost = await enter(own, connect, make_key(own), author)
    assert own.admin("DELETE", "keys/*").status == 200
    await lost.wait_ended()
    assert rows(own.admin("GET", "keys").json()) == []
    for again in (False, True):
        if again:
            own.restart()
        client = await connect(own)
        assert (await client.authenticate(author, await client.challenge(), own.url)).accepted
        assert (await client.publish(snapshot(author, f"note {again}", {"x": 1}))).accepted


@pytest.mark.parametrize("deleted", ["with the node down", "over the air"])
async def test_a_key_that_was_made_with_the_node_down_is_asked_for_after_it_was_deleted_too(
    start_node: Callable[..., Node], connect: Callable, author: Author, deleted: str
) -> None:
    own = start_node(admin=True, env={"PRIVATE": "true"})
    own.stop()
    key = json.loads(own.cli("keys", "create", "--json").stdout)["key"]["key"]
    if deleted == "with the node down":
        assert own.cli("keys", "delete", key).returncode == 0
        own.start()
    else:
        own.start()
        assert own.admin("DELETE", f"keys/{key}").status == 200
        own.restart()
    client = await connect(own)
    ok = await client.authenticate(author, await client.challenge(), own.url)
    assert (ok.accepted, ok.message) == (False, REQUIRED)


async def test_a_key_that_is_given_to_another_author_closes_its_connections(
    keyed_node: Node, connect: Callable, author: Author
) -> None:
    key, other = make_key(keyed_node), make_key(keyed_node)
    client = await enter(keyed_node, connect, key, author)
    bystander = await enter(keyed_node, connect, other, author)
    assert keyed_node.admin("PATCH", f"keys/{key}", {"label": "only a name"}).status == 200
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted
    heir = Author.random()
    assert keyed_node.admin("PATCH", f"keys/{key}", {"pubkey": heir.pubkey}).status == 200
    await client.wait_ended()
    late = await connect(keyed_node)
    assert (await present(late, key))[2] is True
    assert not (await late.authenticate(author, await late.challenge(), keyed_node.url)).accepted
    await enter(keyed_node, connect, key, heir)
    assert (await bystander.publish(snapshot(author, "note", {"x": 2}))).accepted
