"""The admin port: who may, what it says when one may not, and retention over HTTP."""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from authors import NOTE, Author, snapshot, versions
from bare_sockets import BareSocket
from inside import running
from processes import ADMIN_TOKEN, Node, Response, find_key, rows
from sockets import RelayClient

from anabranch.node.http import Http, Request
from anabranch.node.logs import TextLines


@pytest.fixture(scope="module")
def admin_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("admin"), env={"ADMIN_TOKEN": ADMIN_TOKEN}, token=ADMIN_TOKEN)
    own.start()
    yield own
    own.end()


def error(answer: Response) -> tuple[int, str]:
    return answer.status, answer.json()["error"]


@pytest.mark.parametrize("path", ["/admin/keys", "/admin/connections", "/admin/keys/sk_x"])
def test_without_a_token_in_the_settings_the_admin_port_is_off(node: Node, path: str) -> None:
    for token in (None, "anything", ""):
        for method in ("GET", "POST", "PATCH", "DELETE"):
            answer = node.http(method, path, {} if method in ("POST", "PATCH") else None, token=token)
            assert error(answer) == (503, "admin not configured"), (method, token)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:7447"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "relay.example"}, 503),  # a web page whose name was given this machine's address
        ({"Host": "[::1"}, 503),
        ({"Origin": "http://127.0.0.1"}, 503),
        ({"X-Forwarded-For": "127.0.0.1"}, 503),
    ],
)
def test_without_a_token_links_are_for_this_machine_itself_and_no_web_page_there(
    node: Node, headers: dict[str, str], status: int
) -> None:
    assert node.http("GET", "/admin/links", headers=headers).status == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/keys"),
        ("POST", "/admin/keys"),
        ("PATCH", "/admin/keys/sk_x"),
        ("DELETE", "/admin/keys/sk_x"),
        ("GET", "/admin/connections"),
        ("PATCH", "/admin/retention"),
    ],
)
def test_the_admin_port_asks_for_the_token(admin_node: Node, method: str, path: str) -> None:
    body = {} if method in ("POST", "PATCH") else None
    assert error(admin_node.http(method, path, body)) == (401, "unauthorized")
    for token in ("", "wrong", ADMIN_TOKEN[:-1], ADMIN_TOKEN + "x", ADMIN_TOKEN.upper(), "\u00e9"):
        answer = admin_node.http(method, path, body, headers={"Authorization": f"Bearer {token}".encode()})
        assert error(answer) == (401, "unauthorized"), token
    for header in (ADMIN_TOKEN, f"Basic {ADMIN_TOKEN}", "Bearer"):
        assert error(admin_node.http(method, path, body, headers={"Authorization": header})) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "keys"),
        ("PUT", "keys"),
        ("POST", "keys/sk_x"),
        ("PUT", "keys/sk_x"),
        ("POST", "connections"),
        ("DELETE", "connections"),
        ("POST", "retention"),
        ("DELETE", "retention"),
    ],
)
def test_a_wrong_method_is_told_so(admin_node: Node, method: str, path: str) -> None:
    answer = admin_node.admin(method, path, {} if method in ("POST", "PUT") else None)
    assert error(answer) == (405, "method not allowed")


def test_the_retention_policy_is_open_to_read(admin_node: Node, node: Node) -> None:
    for one in (admin_node, node):
        answer = one.http("GET", "/admin/retention")
        assert answer.status == 200 and "application/json" in answer.headers["content-type"]
        policy = answer.json()
        assert policy["payload_retention_days"] is None
        assert policy["compaction_interval_seconds"] == 300


def test_a_changed_policy_is_answered_whole_and_kept(start_node: Callable[..., Node]) -> None:
    own = start_node(admin=True)
    answer = own.admin("PATCH", "retention", {"payload_retention_days": 30, "compaction_interval_seconds": 60})
    assert answer.status == 200
    policy = answer.json()
    assert policy["payload_retention_days"] == 30
    assert policy["compaction_interval_seconds"] == 60
    assert policy["compacted_snapshots"] == 0
    assert policy["updated_at"] > 1_600_000_000_000
    read = own.http("GET", "/admin/retention").json()
    assert (read["payload_retention_days"], read["compaction_interval_seconds"]) == (30, 60)
    part = own.admin("PATCH", "retention", {"payload_retention_days": None}).json()
    assert (part["payload_retention_days"], part["compaction_interval_seconds"]) == (None, 60)
    own.restart()
    read = own.http("GET", "/admin/retention").json()
    assert (read["payload_retention_days"], read["compaction_interval_seconds"]) == (None, 60)


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "1", '"x"', "\x00", '{"a":', b"\xff\xfe"])
def test_a_body_that_is_no_object_is_told_so(admin_node: Node, body: str | bytes) -> None:
    assert error(admin_node.admin("PATCH", "retention", body)) == (400, "invalid JSON object body")


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, [], {}, 36_501, 9_007_199_254_740_991, 10**30])
def test_days_that_are_no_days_are_told_so(admin_node: Node, value: Any) -> None:
    answer = admin_node.admin("PATCH", "retention", {"payload_retention_days": value})
    assert error(answer) == (400, "payload_retention_days must be a non-negative integer or null")


@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True, None, [], {}])
def test_an_interval_that_is_no_interval_is_told_so(admin_node: Node, value: Any) -> None:
    answer = admin_node.admin("PATCH", "retention", {"compaction_interval_seconds": value})
    assert error(answer) == (400, "compaction_interval_seconds must be a positive integer")


def test_a_change_of_nothing_is_refused_and_the_settings_rule_on(start_node: Callable[..., Node]) -> None:
    own = start_node(admin=True)
    before = own.http("GET", "/admin/retention").json()
    assert error(own.admin("PATCH", "retention", {}))[0] == 400
    assert own.http("GET", "/admin/retention").json() == before


def test_a_refused_change_changes_nothing(admin_node: Node) -> None:
    before = admin_node.http("GET", "/admin/retention").json()
    admin_node.admin("PATCH", "retention", {"payload_retention_days": 7, "compaction_interval_seconds": 0})
    assert admin_node.http("GET", "/admin/retention").json() == before


async def test_a_changed_policy_applies_at_once(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client: RelayClient = await connect(own)
    await client.store(*versions(author, "note", 10))
    assert own.compact(0)["compacted_snapshots"] == 6
    assert own.compact(0)["compacted_snapshots"] == 0


async def test_days_beyond_all_time_are_refused_and_compaction_goes_on(
    admin_node: Node, connect: Callable, author: Author
) -> None:
    client: RelayClient = await connect(admin_node)
    await client.store(*versions(author, "note", 10))
    for change in ({"payload_retention_days": 9_007_199_254_740_991}, {"compaction_interval_seconds": 2**53 - 1}):
        assert admin_node.admin("PATCH", "retention", change).status == 400
    assert admin_node.compact(36_500)["compacted_snapshots"] == 0
    assert admin_node.compact(0)["compacted_snapshots"] == 6
    assert admin_node.compact(None)["compacted_snapshots"] == 0


@pytest.mark.parametrize("name", ["payload_days", "", "x" * 1000, "updated_at"])
def test_an_unknown_field_is_refused_and_changes_nothing(admin_node: Node, name: str) -> None:
    before = admin_node.http("GET", "/admin/retention").json()
    answer = admin_node.admin("PATCH", "retention", {"payload_retention_days": 7, name: 1})
    assert answer.status == 400 and answer.json()["error"].startswith("unknown field")
    assert admin_node.http("GET", "/admin/retention").json() == before


async def test_an_operator_who_leaves_during_a_change_breaks_no_later_compaction(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    client: RelayClient = await connect(own)
    body = b'{"payload_retention_days":0}'
    head = f"PATCH /admin/retention HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n"
    for number in range(6):
        await client.store(*versions(author, f"d{number}", 60))
        with BareSocket(own.port) as leaving:
            leaving.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.sleep(number * 0.002)
    await client.store(*versions(author, "last", 10))
    await asyncio.to_thread(own.compact, 0)
    assert len((await client.req({"authors": [author.pubkey]})).events) == 7 * 4
    assert own.http("GET", "/admin/retention").json()["payload_retention_days"] == 0
    assert own.admin("POST", "compact").json()["compacted_snapshots"] == 0


@pytest.mark.parametrize("kind", [1, NOTE])
async def test_an_event_that_the_operator_removes_is_gone_for_good(
    admin_node: Node, connect: Callable, author: Author, kind: int
) -> None:
    client: RelayClient = await connect(admin_node)
    event = author.event(1, "unlawful") if kind == 1 else snapshot(author, "unlawful", {"x": 1})
    beside = snapshot(author, "beside", {"x": 1})
    await client.store(event, beside)
    answer = admin_node.admin("DELETE", f"events/{event['id']}")
    assert (answer.status, answer.json()) == (200, {"removed": True, "id": event["id"]})
    follower = await client.req({"authors": [author.pubkey]}, live=True)
    assert follower.events == [beside]
    again = await client.publish(event)
    assert not again.accepted or again.message.startswith("duplicate:")
    assert (await client.req({"ids": [event["id"]]})).frames[-1][0] == "EOSE"
    assert await client.fetch(event["id"]) == [] and client.waiting(follower.sub) == []
    assert await client.count({"authors": [author.pubkey]}) == 1
    assert (await client.tail(author)).ids == (await client.fetch(beside["id"])) == [beside["id"]]
    assert admin_node.admin("DELETE", f"events/{event['id']}").status == 404


def test_what_is_no_event_cannot_be_removed(admin_node: Node) -> None:
    assert error(admin_node.admin("DELETE", f"events/{'0' * 64}")) == (404, "not found")
    for odd in ("x", "0" * 63, "A" * 64, "%00"):
        assert admin_node.admin("DELETE", f"events/{odd}").status == 400
    assert admin_node.admin("GET", f"events/{'0' * 64}").status == 405
    assert error(admin_node.http("DELETE", f"/admin/events/{'0' * 64}")) == (401, "unauthorized")


def test_access_keys_are_made_listed_changed_and_removed(admin_node: Node) -> None:
    made = admin_node.admin("POST", "keys", {"label": "Ann's laptop"})
    assert made.status in (200, 201)
    key = find_key(made.json())
    row = next(row for row in rows(admin_node.admin("GET", "keys").json()) if row.get("key") == key)
    assert row["label"] == "Ann's laptop" and not row["revoked"]
    assert row["storage_limit_bytes"] is None and row["pubkey"] is None
    pubkey = Author.random().pubkey
    change = {"label": "Ann's phone", "pubkey": pubkey, "revoked": True, "storage_limit_bytes": 1000}
    assert admin_node.admin("PATCH", f"keys/{key}", change).status == 200
    row = next(row for row in rows(admin_node.admin("GET", "keys").json()) if row.get("key") == key)
    assert {name: row[name] for name in change} == change
    assert admin_node.admin("DELETE", f"keys/{key}").status in (200, 204)
    assert key not in admin_node.admin("GET", "keys").text
    assert admin_node.admin("DELETE", f"keys/{key}").status == 404
    assert admin_node.admin("PATCH", f"keys/{key}", {"label": "x"}).status == 404


def test_every_access_key_is_another(admin_node: Node) -> None:
    keys = {find_key(admin_node.admin("POST", "keys", {}).json()) for _ in range(20)}
    assert len(keys) == 20


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        {"label": 1},
        {"pubkey": "x"},
        {"pubkey": 1},
        {"storage_limit_bytes": -1},
        {"storage_limit_bytes": "1"},
    ],
    ids=str,
)
def test_a_key_that_makes_no_sense_is_refused(admin_node: Node, body: Any) -> None:
    key = find_key(admin_node.admin("POST", "keys", {"label": "good"}).json())
    answer = admin_node.admin("PATCH", f"keys/{key}", body)
    assert answer.status == 400 and answer.json()["error"]


async def test_connections_are_listed_with_what_they_follow(
    admin_node: Node, connect: Callable, author: Author
) -> None:
    client: RelayClient = await connect(admin_node)
    idle: RelayClient = await connect(admin_node)
    await client.tail(author, sub="follow", live=True)
    await client.tail(author, sub="ended")
    await client.req({"authors": [author.pubkey]}, sub="query", live=True)
    await idle.still_answers()
    listed = rows(admin_node.admin("GET", "connections").json())
    for row in listed:
        assert {"id", "access_key", "authed_pubkeys", "live_changes_subscription_ids"} <= row.keys()
        assert row["access_key"] is None and row["authed_pubkeys"] == []
    assert len({row["id"] for row in listed}) == len(listed) >= 2
    assert sorted(row["live_changes_subscription_ids"] for row in listed)[-1] == ["follow"]
    await client.close_sub("follow")
    listed = rows(admin_node.admin("GET", "connections").json())
    assert all(row["live_changes_subscription_ids"] == [] for row in listed)


async def test_no_secret_is_in_the_log(start_node: Callable[..., Node], connect: Callable, author: Author) -> None:
    """Right ones and wrong ones, in whatever a client or an operator sends, also where everything is written down."""
    own = start_node(admin=True, env={"LOG_LEVEL": "debug", "PRIVATE": "true"})
    key, other = (find_key(own.admin("POST", "keys", {"label": "secret"}).json()) for _ in range(2))
    wrong = f"sk_{'wrong'.ljust(24, '0')}"
    client, malformed = await connect(own), await connect(own)
    for shown, good in ((wrong, False), (key, True)):
        await client.send("TOKEN", shown)
        assert (await client.next("TOKEN"))[2] is good
    assert (await client.authenticate(author, await client.challenge(), own.url)).accepted
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted
    for broken in (
        f'["TOKEN","{key}"',
        f'["TOKEN","{key}",1]',
        f'["TOKEN",["{key}"]]',
        f'["TOKEN"]{key}',
        f"\xff{key}",
    ):
        await malformed.send_raw(broken)
        await malformed.notice()
    await malformed.send_raw(b"\xff" + key.encode())
    for method, path, body in (
        ("GET", f"keys/{key}", None),
        ("PUT", f"keys/{key}", {}),
        ("PATCH", f"keys/{key}", {"label": "x"}),
        ("PATCH", f"keys/{key}", {"label": 1}),
        ("PATCH", f"keys/{wrong}", {"label": "x"}),
        ("GET", f"keys/{key}/x?{wrong}", None),
        ("GET", "connections", None),
        ("DELETE", f"keys/{other}", None),
        ("PATCH", f"keys/{key}", {"revoked": True}),
        ("DELETE", f"keys/{key}", None),
        ("DELETE", f"keys/{key}", None),
    ):
        own.admin(method, path, body)
        own.http(method, f"/admin/{path}", body, token="a-wrong-guess")
    await client.wait_ended()
    assert own.stop() == 0
    log = own.log.read_text()
    assert "stopped" in log
    assert not [secret for secret in (ADMIN_TOKEN, "a-wrong-guess", key, other, wrong) if secret in log]


async def test_a_request_that_fails_puts_no_key_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Http, request: Request) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Http, "answer", broken)
    key = "sk_" + "x" * 24
    async with running(tmp_path) as own:
        reader, writer = await asyncio.open_connection(*own.address.split(":"))
        writer.write(f"PATCH /admin/keys/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
        writer.close()
    log = "\n".join(TextLines().format(record) for record in caplog.records)
    assert "a request failed target=/admin/keys" in log and key not in log
