"""Plans made elsewhere: a node drops of them what it would drop itself, and whatever else they name stays."""

from collections.abc import Callable
from typing import Any

import pytest
from authors import EPOCH, Author, Event, ids, snapshot, versions
from processes import ADMIN_TOKEN, Node, Response
from sockets import RelayClient
from wraps import MTIME, rid, wrap

UNKNOWN = "f" * 64


@pytest.fixture
async def own(start_node: Callable[..., Node]) -> Node:
    """A node that lets superseded payloads go at any age, but not before anybody asks."""
    env = {"RETENTION_PAYLOAD_DAYS": "0", "RETENTION_RECENT_COUNT": "2", "RETENTION_INTERVAL_SECONDS": "100000"}
    return start_node(admin=True, env=env)


@pytest.fixture
async def client(own: Node, connect: Callable) -> RelayClient:
    return await connect(own)


def log_of(node: Node) -> dict[str, Any]:
    feed = node.info()["changes_feed"]
    return {"stream": feed["stream_id"], "epoch": feed["epoch"]}


def hand_over(node: Node, operations: list[tuple[int, str]], **other: Any) -> Response:
    return node.admin("POST", "compact/plan", {**log_of(node), "operations": operations, **other})


async def stored(client: RelayClient, *events: Event) -> list[tuple[int, str]]:
    """Publish, one after another, on a node that has nothing else; what each is called in a plan."""
    for event in events:
        await client.store(event)
    return list(enumerate(ids(list(events)), start=1))


async def retained(client: RelayClient, events: list[Event]) -> set[str]:
    return set((await client.req({"ids": ids(events)})).ids)


async def test_a_node_drops_what_its_own_policy_lets_go_and_says_why_the_rest_stays(
    own: Node, client: RelayClient, author: Author
) -> None:
    history = versions(author, "note", 6)
    other = author.event(content="plain", created_at=EPOCH)
    plan = await stored(client, *history, other)
    answer = hand_over(own, [*plan, (7_000, UNKNOWN), (1, UNKNOWN), plan[0]])
    assert answer.status == 200
    sizes = answer.json().pop("bytes")
    assert answer.json() == {
        "dropped": 4,
        "bytes": sizes,
        "refused": {"head": 1, "kept": 2, "unknown": 2},
    }
    assert sizes > 4 * 300
    assert await retained(client, history) == set(ids(history[-2:]))
    assert hand_over(own, plan[:4]).json() == {"dropped": 0, "bytes": 0, "refused": {"gone": 4}}
    own.verify()


async def test_a_plan_that_has_grown_old_drops_no_head(own: Node, client: RelayClient, author: Author) -> None:
    """Made when others were current: what has become a head since, and whatever is newer, stays."""
    first, second, third = versions(author, "note", 3)
    plan = await stored(client, first, second, third)
    rival = snapshot(author, "other", {"phone": 1}, created_at=EPOCH)
    await client.store(rival)
    for event in (third, second):
        await client.store(author.event(5, tags=[["e", event["id"]]], created_at=EPOCH + 50))
    assert hand_over(own, [plan[0]]).json()["refused"] == {"kept": 1}
    assert await retained(client, [first, rival]) == {first["id"], rival["id"]}


async def test_a_plan_that_names_every_head_changes_no_bootstrap(
    own: Node, client: RelayClient, author: Author
) -> None:
    rivals = [snapshot(author, "note", {device: 1}, created_at=EPOCH + n) for n, device in enumerate("abc")]
    plan = await stored(client, *rivals)
    assert hand_over(own, plan).json() == {"dropped": 0, "bytes": 0, "refused": {"head": 3}}
    assert (await client.bootstrap(author)).snapshots == rivals


async def test_revisions_go_when_they_are_old_and_no_head(own: Node, client: RelayClient, author: Author) -> None:
    one, two, three = rid(1), rid(2), rid(3)
    line = [
        wrap(author, "note", one, m=MTIME),
        wrap(author, "note", two, [one], m=2 * MTIME),
        wrap(author, "note", three, [two], m=MTIME),
    ]
    plan = await stored(client, *line)
    assert hand_over(own, plan).json()["refused"] == {"kept": 1, "head": 1}
    assert await retained(client, line) == set(ids(line[1:]))


async def test_where_the_nodes_policy_keeps_all_no_plan_drops_anything(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client = await connect(own)
    history = versions(author, "note", 9)
    plan = await stored(client, *history)
    assert hand_over(own, plan).json() == {"dropped": 0, "bytes": 0, "refused": {"kept": 8, "head": 1}}
    assert await retained(client, history) == set(ids(history))


@pytest.mark.parametrize("other", [{"stream": "another"}, {"epoch": "another"}, {"stream": None}])
async def test_a_plan_of_another_log_is_refused(
    own: Node, client: RelayClient, author: Author, other: dict[str, Any]
) -> None:
    history = versions(author, "note", 4)
    answer = hand_over(own, await stored(client, *history), **other)
    assert answer.status == 409
    assert answer.json() == {"error": "the plan is of another log", **log_of(own)}
    assert await retained(client, history) == set(ids(history))


async def test_a_plan_that_is_none_is_told_so(own: Node) -> None:
    wrong = "operations must be a list of [position, id]"
    for body, words in (
        ({"operations": None}, wrong),
        ({"operations": [[1]]}, wrong),
        ({"operations": [[1, "x"]]}, wrong),
        ({"operations": [[-1, UNKNOWN]]}, wrong),
        ({"operations": [[2**60, UNKNOWN]]}, wrong),
        ({"operations": [[True, UNKNOWN]]}, wrong),
        ({"operations": [[1, UNKNOWN, 1]]}, wrong),
        ({"operations": [[1, UNKNOWN]] * 1001}, "at most 1000 operations at once"),
        ({"operations": [], "now": 1}, "unknown field 'now'"),
    ):
        answer = own.admin("POST", "compact/plan", {**log_of(own), **body})
        assert (answer.status, answer.json()["error"]) == (400, words)
    assert hand_over(own, [(0, UNKNOWN)]).json() == {"dropped": 0, "bytes": 0, "refused": {"unknown": 1}}


async def test_a_plan_asks_for_the_token(own: Node, node: Node) -> None:
    body = {**log_of(own), "operations": []}
    assert own.http("POST", "/admin/compact/plan", body).status == 401
    assert own.http("POST", "/admin/compact/plan", body, token="wrong").status == 401
    assert own.http("GET", "/admin/compact/plan", token=ADMIN_TOKEN).status == 405
    assert node.http("POST", "/admin/compact/plan", body).status == 503
