"""The websocket itself (RFC 6455): pieces, pings, odd frames and broken handshakes, byte by byte."""

import json
import struct

import pytest
from authors import Author
from bare_sockets import BareSocket
from processes import Node
from sockets import ConnectionEnded, RelayClient

NOTHING = '["REQ","x",{"ids":["' + "0" * 64 + '"]}]'


@pytest.fixture
def bare(node: Node) -> BareSocket:
    with BareSocket(node.port) as socket:
        socket.handshake()
        yield socket


def answered(bare: BareSocket) -> None:
    assert bare.read_message() == ["EOSE", "x"]


@pytest.mark.parametrize("path", ["/", "/ws"])
def test_the_websocket_is_at_the_root_and_at_ws(node: Node, path: str) -> None:
    with BareSocket(node.port, path=path) as bare:
        bare.handshake()
        bare.send(NOTHING)
        answered(bare)


def test_a_message_may_come_byte_by_byte(bare: BareSocket) -> None:
    for byte in bare.frame(NOTHING):
        bare.sock.sendall(bytes([byte]))
    answered(bare)


def test_many_messages_may_come_at_once(bare: BareSocket) -> None:
    requests = [NOTHING.replace('"x"', f'"x{n}"') for n in range(40)]
    bare.sock.sendall(b"".join(bare.frame(request) for request in requests))
    assert {tuple(bare.read_message()) for _ in requests} == {("EOSE", f"x{n}") for n in range(40)}


def test_a_message_may_come_with_the_handshake(node: Node) -> None:
    with BareSocket(node.port) as bare:
        bare.sock.sendall(bare.upgrade_request() + bare.frame(NOTHING))
        assert " 101 " in bare.read_head()
        answered(bare)


def test_a_message_may_come_in_fragments_with_pings_between(bare: BareSocket) -> None:
    third = len(NOTHING) // 3
    bare.send(NOTHING[:third], fin=False)
    bare.send(b"are you there?", 9)
    bare.send(NOTHING[third : 2 * third], 0, fin=False)
    bare.send("", 0, fin=False)
    bare.send(NOTHING[2 * third :], 0)
    assert bare.read_frame() == (10, b"are you there?")
    answered(bare)


def test_a_ping_is_answered_with_its_payload_and_a_pong_is_ignored(bare: BareSocket) -> None:
    bare.send(b"unasked", 10)
    for payload in (b"", b"x" * 125):
        bare.send(payload, 9)
        assert bare.read_frame() == (10, payload)


@pytest.mark.parametrize("size", [1, 125, 126, 127, 65535, 65536, 100_000])
def test_a_message_of_any_length_form_arrives(bare: BareSocket, size: int) -> None:
    padding = " " * max(0, size - len(NOTHING))
    bare.send(NOTHING + padding)
    answered(bare)


def test_a_text_split_within_a_character_is_whole_again(bare: BareSocket, node: Node) -> None:
    event = Author.random().event(1, "😀")
    data = json.dumps(["EVENT", event], ensure_ascii=False).encode()
    cut = data.index("😀".encode()) + 2
    bare.send(data[:cut], fin=False)
    bare.send(data[cut:], 0)
    assert bare.read_message()[:3] == ["OK", event["id"], True]


def test_a_close_is_answered_with_a_close(bare: BareSocket) -> None:
    bare.send(struct.pack("!H", 1000) + b"bye", 8)
    opcode, payload = bare.read_frame()
    assert opcode == 8 and payload[:2] in (b"", struct.pack("!H", 1000))
    assert bare.read_until_end() == []


VIOLATIONS = {
    "unmasked": lambda bare: bare.send(NOTHING, masked=False),
    "reserved bit": lambda bare: bare.send(NOTHING, rsv=4),
    "reserved opcode": lambda bare: bare.send("x", 3),
    "reserved control opcode": lambda bare: bare.send("x", 11),
    "fragmented ping": lambda bare: bare.send("x", 9, fin=False),
    "long ping": lambda bare: bare.send("x" * 126, 9),
    "continuation of nothing": lambda bare: bare.send("x", 0),
    "text within a fragmented text": lambda bare: (bare.send("x", fin=False), bare.send("y")),
    "close of one byte": lambda bare: bare.send(b"\x03", 8),
    "close with a reserved code": lambda bare: bare.send(struct.pack("!H", 1005), 8),
    "text that is not UTF-8": lambda bare: bare.send(b'["REQ","\xff\xfe",{}]'),
    "overlong UTF-8": lambda bare: bare.send(b'["\xc0\xaf"]'),
    "a surrogate in UTF-8": lambda bare: bare.send(b'["\xed\xa0\x80"]'),
    "a length without end": lambda bare: bare.sock.sendall(b"\x81\xff" + b"\xff" * 8 + b"mask"),
    "half a frame and gone": lambda bare: (bare.sock.sendall(b"\x81\xfe\x01"), bare.sock.shutdown(1)),
    "noise": lambda bare: bare.sock.sendall(bytes(range(256)) * 8),
}


@pytest.mark.parametrize("violate", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_ends_the_connection_or_is_told_and_nobody_else_notices(
    node: Node, bare: BareSocket, violate: object
) -> None:
    with BareSocket(node.port) as neighbour:
        neighbour.handshake()
        try:
            violate(bare)
            opcode, payload = bare.read_frame()
            assert opcode == 8 or b"invalid" in payload, (opcode, payload)
        except (ConnectionEnded, OSError):
            pass
        neighbour.send(NOTHING)
        answered(neighbour)
    assert node.alive


BAD_REQUESTS = {
    "noise": b"\x00\x01\x02\x03\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "an odd method": b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    "no key": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n",
    "an old version": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 7\r\n\r\n",
    "a giant header": b"GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + b"y" * 200_000 + b"\r\n\r\n",
    "a negative length": b"POST /admin/keys HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "a giant length": b"POST /admin/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    "two lengths": b"POST /admin/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("request_bytes", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_broken_request_gets_no_upgrade_and_nobody_else_notices(
    node: Node, bare: BareSocket, request_bytes: bytes
) -> None:
    with BareSocket(node.port, timeout=5) as broken:
        try:
            broken.sock.sendall(request_bytes)
            status = broken.read_head().splitlines()[0].split()[1]
            assert status in {"501", "503", "505"} or status.startswith(("2", "3", "4")), status
        except (ConnectionEnded, OSError):
            pass
    bare.send(NOTHING)
    answered(bare)


def test_the_accept_header_is_the_one_of_the_rfc(node: Node) -> None:
    with BareSocket(node.port) as bare:
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        bare.sock.sendall(
            f"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: WebSocket\r\nconnection: keep-alive, Upgrade\r\n"
            f"sec-websocket-key: {key}\r\nsec-websocket-version: 13\r\nOrigin: https://app.example\r\n\r\n".encode()
        )
        head = bare.read_head()
    assert " 101 " in head.splitlines()[0]
    assert "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head


async def test_a_client_that_offers_compression_is_served(node: Node, connect: object, author: Author) -> None:
    client: RelayClient = await connect(node, compression="deflate")
    event = author.event(1, "x" * 5000)
    await client.store(event)
    assert (await client.req({"ids": [event["id"]]})).events == [event]


async def test_a_client_that_vanishes_leaves_the_others_alone(node: Node, connect: object, author: Author) -> None:
    client: RelayClient = await connect(node)
    answer = await client.req({"authors": [author.pubkey]}, live=True)
    for n in range(20):
        with BareSocket(node.port) as gone:
            gone.handshake()
            gone.send(json.dumps(["REQ", "live", {"authors": [author.pubkey]}]))
            if n % 2:
                gone.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER 0: close with RST
    events = [author.event(1, f"{n}") for n in range(10)]
    for event in events:
        await client.store(event)
    assert [(await client.next_of(answer.sub))[2] for _ in events] == events
