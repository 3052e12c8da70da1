"""A node whose log is in PostgreSQL is the same node: what it takes, serves, keeps over a kill, and says of itself."""

import asyncio
import json
from collections.abc import Callable

import pytest
from authors import Author, ids, versions
from postgres_server import PostgresServer
from processes import Node
from test_relay_crashes import Witness, killed_while_publishing


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.empty_url()


async def test_what_is_published_is_served_live_and_replayed_also_after_a_restart(
    start_node: Callable[..., Node], connect: Callable, author: Author, url: str
) -> None:
    own = start_node(env={"STORE": url})
    client, follower = await connect(own), await connect(own)
    feed = await follower.tail(author, since=0, live=True)
    events = versions(author, "note", 3)
    await client.store(*events)
    live = [await follower.next_change(feed.sub) for _ in events]
    assert [seq for seq, _ in live] == [1, 2, 3] and ids(event for _, event in live) == ids(events)
    stream = own.info()["changes_feed"]["stream_id"]
    own.restart()
    client = await connect(own)
    assert (await client.req({"authors": [author.pubkey], "kinds": [events[0]["kind"]]})).ids == ids(events)
    assert (await client.tail(author, since=1)).ids == ids(events[1:])
    assert own.info()["changes_feed"]["stream_id"] == stream
    own.verify()
    assert not list(own.data.glob("*.db"))


async def test_a_kill_during_ingest_loses_nothing_acknowledged(
    start_node: Callable[..., Node], author: Author, url: str
) -> None:
    await killed_while_publishing(start_node(env={"STORE": url}), Witness(author), rounds=3, clients=1, batches=40)


async def test_a_node_outlives_a_restart_of_its_database(
    start_node: Callable[..., Node], connect: Callable, author: Author, postgres: PostgresServer, url: str
) -> None:
    own = start_node(env={"STORE": url})
    client = await connect(own)
    first, second = versions(author, "note", 2)
    await client.store(first)
    postgres.restart()
    for _ in range(50):
        await client.send("EVENT", second)
        if (await client.next(("OK", second["id"])))[2]:
            break
        await asyncio.sleep(0.1)
    assert (await client.tail(author, since=0)).events == [(1, first), (2, second)]
    assert own.stop() == 0


def test_a_second_node_is_turned_away_whatever_its_folder(start_node: Callable[..., Node], url: str) -> None:
    own = start_node(env={"STORE": url})
    with pytest.raises(AssertionError, match="did not start") as refused:
        start_node(env={"STORE": url})
    assert f"is in use by the node at http://127.0.0.1:{own.port}" in str(refused.value)


async def test_the_commands_work_on_it_and_no_password_is_shown(
    start_node: Callable[..., Node], connect: Callable, author: Author, url: str
) -> None:
    own = start_node(env={"STORE": url}, admin=True)
    events = versions(author, "note", 4)
    await (await connect(own)).store(*events)
    said = [own.log_tail()]
    for words in (
        ("status", "--json"),
        ("export",),
        ("compact", "--payload-days", "0", "--recent-count", "1", "--dry-run", "--json"),
        ("compact", "--json"),
        ("keys", "create", "--label", "laptop", "--json"),
        ("config", "check", "--all"),
        ("verify", "--json"),
    ):
        done = own.cli(*words)
        assert done.returncode == 0, (words, done.stderr)
        said += [done.stdout, done.stderr]
    assert own.stop() == 0
    for words in (("compact", "--payload-days", "0", "--recent-count", "1", "--json"), ("keys", "list", "--json")):
        done = own.cli(*words)
        assert done.returncode == 0, (words, done.stderr)
        said += [done.stdout, done.stderr]
    assert json.loads(said[-4])["compacted_snapshots"] == 3
    for words, hint in ((("backup", "x.db"), "pg_dump"), (("restore", __file__), "pg_restore")):
        done = own.cli(*words)
        assert done.returncode == 1 and hint in done.stderr
        said += [done.stdout, done.stderr]
    assert "not-shown" not in "".join(said)
