"""The same port over HTTP: NIP-11, health, metrics."""

import http.client
import re
import socket
import time
import uuid
from collections.abc import Callable

import pytest
from authors import Author, snapshot
from bare_sockets import BareSocket
from processes import Node, memory
from sockets import RelayClient

NOSTR = {"Accept": "application/nostr+json"}


def test_the_relay_document_has_every_key_a_client_requires(node: Node) -> None:
    info = node.info()
    for key in ("name", "description", "software", "version"):
        assert isinstance(info[key], str) and info[key], key
    assert {1, 9, 11, 40, 42, 45, 62, 77, "CF", "NEG-REV"} <= set(info["supported_nips"])
    numbers = [nip for nip in info["supported_nips"] if isinstance(nip, int)]
    assert numbers == sorted(numbers)
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


# --- byte by byte -----------------------------------------------------------------------------------------------------


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode() + body


def read_answer(bare: BareSocket, method: str = "GET") -> tuple[int, bytes]:
    head = bare.read_head()
    size = int(re.search(r"(?i)content-length: (\d+)", head)[1])
    return int(head.split()[1]), b"" if method == "HEAD" else bare._exactly(size)


def test_requests_sent_all_at_once_are_answered_in_order(node: Node) -> None:
    asked = [("GET", "/healthz", 200), ("HEAD", "/", 200), ("GET", "/nope", 404), ("PUT", "/", 405), ("GET", "/", 200)]
    with BareSocket(node.port) as bare:
        bare.sock.sendall(b"".join(request(method, path) for method, path, _ in asked * 20))
        for method, path, status in asked * 20:
            got, body = read_answer(bare, method)
            assert got == status, (method, path)
            assert (b"<!doctype" in body) == ((method, path) == ("GET", "/"))


def test_a_body_is_no_request_and_what_follows_it_is_one(node: Node) -> None:
    body = request("GET", "/nope")
    with BareSocket(node.port) as bare:
        bare.sock.sendall(request("POST", "/", f"Content-Length: {len(body)}", body=body) + request("GET", "/healthz"))
        assert read_answer(bare)[0] == 405
        assert read_answer(bare) == (200, b"ok")


def test_a_request_may_be_followed_by_the_upgrade(node: Node) -> None:
    with BareSocket(node.port) as bare:
        bare.sock.sendall(request("GET", "/healthz") + bare.upgrade_request())
        assert read_answer(bare) == (200, b"ok")
        assert " 101 " in bare.read_head()


def test_a_peer_that_asks_and_never_reads_is_not_answered_into_memory(node: Node) -> None:
    some = request("GET", "/metrics") * 200
    before, sent, blocked = memory(node.process.pid), 0, None
    with BareSocket(node.port, rcvbuf=16_384) as bare:
        bare.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        bare.sock.setblocking(False)
        while sent < 20_000_000 and (blocked is None or time.monotonic() - blocked < 0.7):
            try:
                sent += bare.sock.send(some[sent % len(some) :])
                blocked = None
            except BlockingIOError:
                blocked = blocked or time.monotonic()
                time.sleep(0.01)
        assert sent < 15_000_000
        assert memory(node.process.pid) - before < 30_000_000
        assert node.http("GET", "/healthz").status == 200
        assert node.http("GET", "/metrics").status == 200


def test_who_waits_for_100_continue_gets_it_and_then_the_answer(node: Node) -> None:
    with BareSocket(node.port) as bare:
        for _ in range(2):
            bare.sock.sendall(request("POST", "/", "Content-Length: 4", "Expect: 100-continue"))
            assert bare.read_head().split()[1] == "100"
            bare.sock.sendall(b"body")
            assert read_answer(bare)[0] == 405


@pytest.mark.parametrize(
    "left_out", [b"Connection: Upgrade\r\n", b"Sec-WebSocket-Version: 13\r\n"], ids=["connection", "version"]
)
def test_an_upgrade_that_leaves_something_out_is_told_what_is_spoken(node: Node, left_out: bytes) -> None:
    with BareSocket(node.port) as bare:
        whole = bare.upgrade_request()
        assert left_out in whole
        bare.sock.sendall(whole.replace(left_out, b""))
        assert read_answer(bare)[0] == 426


def test_a_body_too_large_is_refused_before_it_comes(node: Node) -> None:
    with BareSocket(node.port, timeout=3) as bare:
        bare.sock.sendall(request("POST", "/", "Content-Length: 1048577"))
        assert read_answer(bare)[0] == 413
        assert bare.sock.recv(1) == b""


def test_a_body_in_chunks_is_refused_once_it_is_too_large(node: Node) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with BareSocket(node.port, timeout=3) as bare:
        bare.sock.sendall(request("POST", "/", "Transfer-Encoding: chunked") + chunk * 16 + b"1\r\nx\r\n")
        assert read_answer(bare)[0] == 413


def test_a_request_whose_end_others_may_see_elsewhere_is_refused_and_nothing_behind_it_is_one(node: Node) -> None:
    hidden = b"0\r\n\r\n" + request("GET", "/livez")
    both = request("POST", "/nope", f"Content-Length: {len(hidden)}\r\nTransfer-Encoding: chunked")
    with BareSocket(node.port, timeout=3) as bare:
        bare.sock.sendall(both + hidden)
        status, *_ = read_answer(bare)
        assert status == 400
        assert bare.sock.recv(1) == b""


@pytest.mark.parametrize("in_one_go", [True, False])
def test_a_head_has_so_many_bytes(node: Node, in_one_go: bool) -> None:
    head = request("GET", "/livez", f"X-Long: {'x' * 90_000}")
    with BareSocket(node.port, timeout=3) as bare:
        for part in [head] if in_one_go else [head[:80_000], head[80_000:]]:
            bare.sock.sendall(part)
        assert read_answer(bare)[0] == 431
    fits = request("GET", "/livez", f"X-Long: {'x' * 60_000}")
    with BareSocket(node.port, timeout=3) as bare:
        bare.sock.sendall(fits + fits)
        assert read_answer(bare)[0] == 200
