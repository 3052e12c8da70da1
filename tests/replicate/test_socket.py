"""A link's websocket, against a server that is not ours: whole messages, in order, and an end in words."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.server import serve

from anabranch.replicate import socket as sockets
from anabranch.replicate.socket import MESSAGE_BYTES_MAX, UNTAKEN_BYTES_MAX, Address, Ended, NotUpgraded, Socket
from anabranch.wire import frames

PATIENCE = 3  # seconds that a server talks


@asynccontextmanager
async def peer(talk, **options):
    async def talk_until_the_end(connection):
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await talk(connection)

    async with serve(talk_until_the_end, "127.0.0.1", 0, close_timeout=0.1, **options) as server:
        yield Address.of(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/relay?x=1")


@asynccontextmanager
async def saying(answer: bytes, hangs_up: bool = True):
    """Somebody who answers every request with these bytes."""

    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if hangs_up:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield Address.of(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


async def all_of(socket: Socket, count: int) -> list[bytes]:
    came: list[bytes] = []
    while len(came) < count:
        came += await socket.receive()
    return came


async def end_of(socket: Socket) -> str:
    with pytest.raises(Ended) as ended:
        while True:
            await socket.receive()
    return str(ended.value)


async def test_messages_of_every_size_come_back_as_they_were_sent_and_in_order():
    sizes = [0, 1, 125, 126, 65_535, 65_536, 300_000, 2]
    messages = [bytes([48 + at]) * size for at, size in enumerate(sizes)]

    async def echo(connection):
        async for message in connection:
            assert isinstance(message, str)
            await connection.send(message)

    async with peer(echo) as address:
        socket = await Socket.open(address)
        await socket.send(messages)
        assert await all_of(socket, len(messages)) == messages
        socket.abort()


async def test_the_peer_is_asked_for_the_path_and_the_host_of_its_address():
    asked = []

    async def talk(connection):
        asked.append((connection.request.path, connection.request.headers["Host"]))

    async with peer(talk) as address:
        socket = await Socket.open(address)
        assert await end_of(socket) == "the peer closed the connection: 1000"
        assert asked == [("/relay?x=1", address.authority)]


async def test_what_came_before_the_end_is_taken_before_it():
    async def talk(connection):
        await connection.send("first")
        await connection.send(["in ", "three ", "pieces"])
        await connection.close(1008, "go away")

    async with peer(talk) as address:
        socket = await Socket.open(address)
        assert await all_of(socket, 2) == [b"first", b"in three pieces"]
        assert await end_of(socket) == "the peer closed the connection: 1008 go away"
        with pytest.raises(Ended):
            await socket.send([b"too late"])


async def test_nothing_in_a_goodbye_commands_the_terminal_or_begins_a_line():
    async def talk(connection):
        await connection.close(1008, "go\n\x1b]0;owned\x07 away")

    async with peer(talk) as address:
        said = await end_of(await Socket.open(address))
        assert said.startswith("the peer closed the connection: 1008 go")
        assert said.isprintable()


async def test_a_peer_that_nobody_listens_to_is_not_read_on_and_nothing_of_it_is_lost():
    count, message = 64, "x" * 100_000

    async def talk(connection):
        for _ in range(count):
            await connection.send(message)
        await connection.wait_closed()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        await asyncio.sleep(0.3)
        first = await socket.receive()
        assert sum(map(len, first)) <= UNTAKEN_BYTES_MAX + 4 * len(message)
        assert len(first) + len(await all_of(socket, count - len(first))) == count
        socket.abort()


async def test_much_that_comes_with_the_end_is_taken_too():
    count, message = 8, "x" * 100_000

    async def talk(connection):
        for _ in range(count):
            await connection.send(message)

    async with peer(talk) as address:
        socket = await Socket.open(address)
        await asyncio.sleep(0.2)
        assert len(await all_of(socket, count)) == count
        assert await end_of(socket) == "the peer closed the connection: 1000"


async def test_who_sends_to_a_peer_that_does_not_read_waits():
    async def talk(connection):
        connection.transport.pause_reading()
        await asyncio.Event().wait()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                for _ in range(1_000):
                    await socket.send([b"x" * 100_000])
        socket.abort()


async def test_a_message_that_is_too_large_ends_it_and_says_so():
    async def talk(connection):
        await connection.send("x" * (MESSAGE_BYTES_MAX + 1))
        await connection.wait_closed()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        assert await end_of(socket) == "the peer sent a message of more than 4 MiB"


async def test_a_ping_is_answered():
    answered = asyncio.Event()

    async def talk(connection):
        await (await connection.ping())
        answered.set()
        await connection.wait_closed()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        await asyncio.wait_for(answered.wait(), 5)
        socket.abort()


async def test_a_peer_that_is_gone_without_a_word_is_noticed(monkeypatch):
    monkeypatch.setattr(sockets, "PING_SECONDS", 0.05)

    async def talk(connection):
        connection.transport.pause_reading()
        await asyncio.Event().wait()

    async with peer(talk, ping_interval=None) as address:
        socket = await Socket.open(address)
        assert await asyncio.wait_for(end_of(socket), 5) == "no answer to a ping within 0.05 s"


async def test_a_peer_that_answers_pings_is_kept(monkeypatch):
    monkeypatch.setattr(sockets, "PING_SECONDS", 0.05)

    async def talk(connection):
        await asyncio.sleep(0.5)
        await connection.send("still here")

    async with peer(talk, ping_interval=None) as address:
        socket = await Socket.open(address)
        assert await asyncio.wait_for(all_of(socket, 1), 5) == [b"still here"]


@asynccontextmanager
async def talking(talk):
    """A server that says what it likes, frame by frame."""

    async def upgrade(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        agreed = f"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {frames.accept_key(key)}\r\n\r\n"
        writer.write(agreed.encode())
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(PATIENCE):
                await talk(reader, writer)
        writer.transport.abort()

    async with await asyncio.start_server(upgrade, "127.0.0.1", 0, limit=1_024) as server:
        yield Address.of(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


async def test_a_peer_that_pings_and_does_not_read_does_not_fill_the_memory():
    async def talk(reader, writer):
        while True:
            writer.write(frames.control(frames.PING, b"x" * 125) * 500)
            await writer.drain()

    async with talking(talk) as address:
        socket = await Socket.open(address)
        held = 0
        for _ in range(20):
            await asyncio.sleep(0.1)
            held = max(held, socket._transport.get_write_buffer_size())
        socket.abort()
    assert held < 1 << 20


async def test_while_there_is_no_room_only_the_last_ping_waits_for_its_answer():
    full = asyncio.Event()
    heard = []

    async def talk(reader, writer):
        await full.wait()
        for number in range(1_000):
            writer.write(frames.control(frames.PING, b"%d" % number))
            await asyncio.sleep(0)  # one read each, as far as can be
        await asyncio.sleep(0.2)
        theirs = frames.FrameReader(1 << 20)
        while b"999" not in heard:
            heard.extend(said for opcode, said in theirs.feed(await reader.read(1 << 20)) if opcode == frames.PONG)

    async with talking(talk) as address:
        socket = await Socket.open(address)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await socket.send([b"x" * 100_000])
        full.set()
        await asyncio.wait_for(end_of(socket), 10)
    assert heard == [b"999"]


async def test_a_peer_that_only_pings_is_given_up(monkeypatch):
    monkeypatch.setattr(sockets, "PING_SECONDS", 0.1)

    async def talk(reader, writer):
        while True:
            writer.write(frames.control(frames.PING))
            await asyncio.sleep(0.02)

    async with talking(talk) as address:
        socket = await Socket.open(address)
        assert await asyncio.wait_for(end_of(socket), 2) == "no answer to a ping within 0.1 s"


async def test_of_a_long_message_no_more_is_read_than_somebody_counts():
    whole = frames.text(b"x" * 3_000_000)

    async def talk(reader, writer):
        for at in range(0, len(whole), 50_000):
            writer.write(whole[at : at + 50_000])
            await writer.drain()

    async with talking(talk) as address:
        socket = await Socket.open(address)
        await asyncio.sleep(0.5)
        assert socket.unfinished < UNTAKEN_BYTES_MAX + 1_000_000
        came, parts = [], 0
        async with asyncio.timeout(10):
            while not came:
                came, before = await socket.receive(), socket.unfinished
                parts += 1
        assert came == [b"x" * 3_000_000] and parts > 3 and before == 0
        socket.abort()


async def test_a_flood_of_empty_messages_is_not_read_on_where_nobody_listens():
    async def talk(reader, writer):
        while True:
            writer.write(frames.text(b"") * 10_000)
            await writer.drain()

    async with talking(talk) as address:
        socket = await Socket.open(address)
        await asyncio.sleep(1)
        assert len(await socket.receive()) < 300_000  # what one read brings, and not more
        socket.abort()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "answers HTTP 403 where a websocket"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "answers HTTP 200 where a websocket"),
        (b"HTTP/1.1 301 Moved\r\nLocation: wss://b.example/\r\n\r\n", "says that it is at wss://b.example/ now"),
        (b"HTTP/1.1 301 Moved\r\nLocation: ws://b/\x9b31mRED\r\n\r\n", "says that it is at ws://b/ 31mRED now"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: wss://b.example/?key=k\r\n\r\n",
            r"is at wss://b.example/\?\([0-9a-f]{8}\) now",
        ),
        (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "is no websocket"),
        (b"HTTP/1.1 101 X\r\nUpgrade: tea\r\nConnection: Upgrade\r\n\r\n", "is no websocket"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is no HTTP"),
        (b"x" * 100_000, "is no HTTP"),
        (b"", "the connection broke off"),
    ],
)
async def test_what_is_no_websocket_is_told(answer, words):
    async with saying(answer) as address:
        with pytest.raises(NotUpgraded, match=words):
            await asyncio.wait_for(Socket.open(address), 5)


async def test_masked_frames_of_a_server_end_it():
    async def talk(connection):
        connection.transport.write(frames.masked([b"hello"], b"\1\2\3\4"))
        await connection.wait_closed()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        assert await end_of(socket) == "the peer broke the protocol"


async def test_nobody_waits_for_a_connection_that_was_let_go_of():
    async def talk(connection):
        await connection.wait_closed()

    async with peer(talk) as address:
        socket = await Socket.open(address)
        waiting = asyncio.create_task(socket.receive())
        await asyncio.sleep(0)
        socket.abort()
        with pytest.raises(Ended):
            await asyncio.wait_for(waiting, 1)
