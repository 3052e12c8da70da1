"""Links to relays that others wrote: nostr-sdk's (Rust, NIP-77) and nostr-relay (Python, without NIP-77)."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from authors import Author
from nodes import caught_up, explained, ids, link, shown
from processes import Node
from proxy import Proxy
from sdk_peers import running_relay
from sockets import RelayClient


async def wait(read: Callable[..., Any], *arguments: Any) -> Any:
    """Wait without holding up the loop, which a relay may need."""
    return await asyncio.to_thread(read, *arguments)


async def until(condition: Callable[[], bool], node: Node) -> None:
    for _ in range(400):
        if await wait(condition):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(await wait(explained, node))


async def follow_and_feed(node: Node, url: str, author: Author) -> None:
    """Both ways, what is there and what comes."""
    now = int(time.time())  # three a second: what is more than a relay gives at once of one, nobody can see
    theirs = [author.event(content=f"theirs {number}", created_at=now - number // 3) for number in range(620)]
    ours = [author.event(content=f"ours {number}") for number in range(30)]
    async with RelayClient.open(url) as there, RelayClient.open(node.url) as here:
        await there.store(*theirs)
        await here.store(*ours)
        known = {event["id"] for event in theirs + ours}
        await wait(lambda: link(node, url, direction="both", scope={"authors": [author.pubkey]}))
        await wait(caught_up, node)
        assert await wait(ids, node) == known
        late = [author.event(content="late there"), author.event(content="late here")]
        await there.store(late[0])
        await here.store(late[1])
        known |= {event["id"] for event in late}
        await until(lambda: ids(node) == known, node)
        for _ in range(200):
            if await there.fetch(late[1]["id"]):
                break
            await asyncio.sleep(0.05)
        assert await there.fetch(late[1]["id"]) == [late[1]["id"]]
    assert (await wait(shown, node))["peer_kind"] == "plain"
    assert (await wait(caught_up, node))["dead_letter_count"] == 0


async def test_ours_follows_and_feeds_the_relay_of_nostr_sdk(start_node: Callable[..., Node], author: Author):
    async with running_relay() as url:
        await follow_and_feed(start_node(), url, author)


async def test_what_the_relay_of_nostr_sdk_takes_and_ours_cannot_holds_up_nothing(
    start_node: Callable[..., Node], author: Author
):
    node = start_node()
    async with running_relay() as url, RelayClient.open(url) as there:
        await there.store(author.event(content="before all time ends", created_at=2**60))
        await there.store(*(plain := [author.event(content=f"note {number}") for number in range(20)]))
        await wait(lambda: link(node, url, scope={"authors": [author.pubkey]}))
        await wait(caught_up, node)
        await there.store(author.event(content="once more", created_at=2**60 + 1), late := author.event(content="late"))
        await until(lambda: ids(node) == {event["id"] for event in (*plain, late)}, node)
        assert (await wait(caught_up, node))["dead_letter_count"] == 2


async def test_what_is_fed_to_the_relay_of_nostr_sdk_across_a_cut_arrives_once(
    start_node: Callable[..., Node], author: Author
):
    node = start_node()
    async with running_relay() as url, RelayClient.open(url) as there, RelayClient.open(node.url) as here:
        with Proxy(int(url.rstrip("/").rpartition(":")[2])).running() as proxy:
            known: set[str] = set()
            await wait(lambda: link(node, proxy.url, direction="push", scope={"authors": [author.pubkey]}))
            for turn in range(4):
                events = [author.event(content=f"turn {turn}, {number}") for number in range(50)]
                await here.store(*events)
                known |= {event["id"] for event in events}
                proxy.cut()
                await wait(lambda: node.admin("POST", "links/up/resume"))
            await wait(caught_up, node)
        assert sorted((await there.req({"authors": [author.pubkey]})).ids) == sorted(known)
    assert (await wait(shown, node))["dead_letter_count"] == 0


async def test_ours_follows_and_feeds_a_relay_without_negentropy(
    plain_relay: str, start_node: Callable[..., Node], author: Author
):
    await follow_and_feed(start_node(), plain_relay, author)
