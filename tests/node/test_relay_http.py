"""The same port over HTTP: NIP-11, health, metrics."""

import http.client
import re
import uuid
from collections.abc import Callable

import pytest
from authors import Author, snapshot
from processes import Node
from sockets import RelayClient

NOSTR = {"Accept": "application/nostr+json"}


def test_the_relay_document_has_every_key_a_client_requires(node: Node) -> None:
    info = node.info()
    for key in ("name", "description", "software", "version"):
        assert isinstance(info[key], str) and info[key], key
    assert {1, 9, 11, 40, 42, 45} <= set(info["supported_nips"])
    assert info["supported_nips"] == sorted(info["supported_nips"])
    assert type(info["changes_feed"]["min_seq"]) is int
    sync = info["snapshot_sync"]
    assert sync["changes_feed"] is True and sync["author_scoped"] is True
    assert sync["retention"]["snapshot_retention"] == {
        "mode": "nondominated_plus_recent_history",
        "recent_count": 4,
        "min_created_at": None,
    }


def test_the_relay_document_is_json_for_everybody(node: Node) -> None:
    answer = node.http("GET", "/", headers={**NOSTR, "Origin": "https://app.example"})
    assert answer.status == 200
    assert answer.headers["content-type"].split(";")[0] in ("application/nostr+json", "application/json")
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "accept", ["application/nostr+json, */*", "APPLICATION/NOSTR+JSON", "application/nostr+json;q=0.9"]
)
def test_the_relay_document_is_found_among_other_wishes(node: Node, accept: str) -> None:
    assert "snapshot_sync" in node.http("GET", "/", headers={"Accept": accept}).json()


def test_a_browser_may_ask_first(node: Node) -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "GET"}
    answer = node.http("OPTIONS", "/", headers=headers)
    assert answer.status in (200, 204)
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_the_feed_of_an_empty_node_begins_at_zero_and_is_named(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    feed = own.info()["changes_feed"]
    assert feed["min_seq"] == 0 and feed["max_seq"] == 0
    uuid.UUID(feed["epoch"])
    assert isinstance(feed["stream_id"], str) and feed["stream_id"]
    client: RelayClient = await connect(own)
    await client.store(snapshot(author, "note", {"x": 1}), author.event(1, "plain"))
    after = own.info()["changes_feed"]
    assert (after["min_seq"], after["max_seq"]) == (1, 2)
    assert (after["epoch"], after["stream_id"]) == (feed["epoch"], feed["stream_id"])
    own.kill9()
    own.start()
    again = own.info()["changes_feed"]
    assert again == after


def test_two_nodes_are_two_streams(start_node: Callable[..., Node], node: Node) -> None:
    one, other = start_node().info()["changes_feed"], node.info()["changes_feed"]
    assert one["stream_id"] != other["stream_id"] and one["epoch"] != other["epoch"]


def test_name_and_description_are_settings(start_node: Callable[..., Node]) -> None:
    info = start_node(config='name = "Ünder the bridge"\ndescription = "notes"\n').info()
    assert (info["name"], info["description"]) == ("Ünder the bridge", "notes")


def test_health_is_plain(node: Node) -> None:
    answer = node.http("GET", "/healthz")
    assert (answer.status, answer.text.strip()) == (200, "ok")
    assert node.http("GET", "/livez").status == 200
    assert node.http("GET", "/readyz").status == 200


async def test_metrics_are_for_prometheus(node: Node, client: RelayClient, author: Author) -> None:
    await client.store(author.event(1, "counted"))
    answer = node.http("GET", "/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    assert lines and all(re.match(r"^[a-z_:][a-zA-Z0-9_:]*(\{.*\})? \S+", line) for line in lines)
    assert any(line.startswith("anabranch_") for line in lines)


@pytest.mark.parametrize("path", ["/nope", "/admin", "/admin/nope", "/..%2f..%2fetc/passwd", "/%00", "/ws/x"])
def test_an_unknown_path_is_not_found(node: Node, path: str) -> None:
    assert node.http("GET", path).status in (400, 404, 503)


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics"])
def test_a_head_request_has_no_body(node: Node, path: str) -> None:
    answer = node.http("HEAD", path, headers=NOSTR)
    assert answer.status in (200, 405) and answer.body == b""


def test_several_requests_may_follow_on_one_connection(node: Node) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=5)
    for _ in range(3):
        connection.request("GET", "/", headers=NOSTR)
        answer = connection.getresponse()
        assert answer.status == 200 and b"snapshot_sync" in answer.read()
    connection.close()
