"""Dialling a peer: its information document (NIP-11), then a websocket, within a time that is set beforehand.

The information comes first: what it says of the log's tip was true before the connection could bring anything.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import urlsplit

import h11
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.frames import CloseCode

CONNECT_SECONDS = 15.0
INFORMATION_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = 4 << 20
MESSAGES_AHEAD = 4  # that the socket reads before they are taken
PING_SECONDS = 20.0
_object = msgspec.json.Decoder(dict[str, Any]).decode


class Unreachable(Exception):
    """There is no connection to be had; the text says why, for people."""


async def dial(url: str) -> tuple[dict[str, Any], ClientConnection]:
    """What the peer says of itself, {} where it says nothing that can be read, and an open connection."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            information = await _information(url)
            connection = await connect(
                url,
                proxy=None,
                compression=None,
                open_timeout=None,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=1.0,
                max_size=MESSAGE_BYTES_MAX,
                max_queue=MESSAGES_AHEAD,
            )
    except TimeoutError:
        raise Unreachable(f"no connection within {CONNECT_SECONDS:g} s") from None
    except ConnectionRefusedError:
        raise Unreachable("nothing answers at this address") from None
    except (OSError, InvalidHandshake, InvalidURI, ConnectionClosed, EOFError) as error:
        raise Unreachable(f"no connection: {error}" if str(error) else "no connection") from None
    return information, connection


async def _information(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "wss" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = h11.Request(
            method="GET",
            target=target,
            headers=[("Host", parts.netloc), ("Accept", "application/nostr+json"), ("Connection", "close")],
        )
        http = h11.Connection(h11.CLIENT)
        writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
        return await _answer(http, reader)
    finally:
        writer.close()


async def _answer(http: h11.Connection, reader: asyncio.StreamReader) -> dict[str, Any]:
    body = bytearray()
    try:
        while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Response) and event.status_code != 200:
                return {}
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > INFORMATION_BYTES_MAX:
                    return {}
        return _object(bytes(body))
    except (h11.RemoteProtocolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConnectionError):
        return {}  # a relay without a document is a relay all the same


def in_words(ended: ConnectionClosed) -> str:
    if ended.sent is not None and ended.sent.code == CloseCode.MESSAGE_TOO_BIG:
        return f"the peer sent a message of more than {MESSAGE_BYTES_MAX >> 20} MiB"
    said = ended.rcvd
    return f"the peer closed the connection: {said.code} {said.reason}".rstrip() if said else "the connection broke off"
