"""Dialling: what a peer says of itself, whole or not at all."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from anabranch.replicate.dialling import Unreachable, _information, dial
from anabranch.replicate.socket import Address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b'{"name":"' + b"x" * 50_000 + b'"}'


@asynccontextmanager
async def saying(answer: bytes):
    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (HEAD % 12 + b'{"name":"x"}', {"name": "x"}),
        (HEAD % 5 + b"hello", {}),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", {}),
        (b"", {}),
        (HEAD % len(LONG) + LONG, {"name": "x" * 50_000}),
        (CHUNKED + b"".join(b"1\r\n%c\r\n" % one for one in LONG) + b"0\r\n\r\n", {}),  # it is much to read
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + HEAD % 12 + b'{"name":"x"}', {}),
    ],
)
async def test_a_whole_answer_is_read_and_one_without_a_document_says_nothing(answer, said):
    async with saying(answer) as url:
        assert await _information(Address.of(url)) == said


@pytest.mark.parametrize("length", range(1, len(HEAD % 12 + b'{"name":"x"}')))
async def test_an_answer_that_is_cut_short_is_no_answer(length):
    async with saying((HEAD % 12 + b'{"name":"x"}')[:length]) as url:
        with pytest.raises(Unreachable):
            await _information(Address.of(url))


async def test_why_there_is_no_connection_is_said_in_words():
    async def talk(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        with pytest.raises(Unreachable) as no_tls:
            await dial(f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert str(no_tls.value).startswith("no connection: nobody speaks TLS at this address")
    with pytest.raises(Unreachable) as no_name:
        await dial("ws://no.such.host.invalid/")
    assert str(no_name.value) == "no connection: the name no.such.host.invalid is not known to this machine"
    with pytest.raises(Unreachable) as nobody:
        await dial("ws://127.0.0.1:9/")
    assert str(nobody.value) == "nothing answers at this address"
