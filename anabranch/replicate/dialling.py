"""Dialling a peer: its information document (NIP-11), then a websocket, within a time that is set beforehand.

The information comes first: what it says of the log's tip was true before the connection could bring anything.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any

import h11
import msgspec

from anabranch.replicate.socket import Address, NotUpgraded, Socket
from anabranch.wire.dialogue import printable

CONNECT_SECONDS = 15.0
INFORMATION_BYTES_MAX = 256 << 10  # as they come: a document in tiny pieces is much to read
_object = msgspec.json.Decoder(dict[str, Any]).decode


class Unreachable(Exception):
    """There is no connection to be had; the text says why, for people."""


async def dial(url: str) -> tuple[dict[str, Any], Socket]:
    """What the peer says of itself, {} where it says nothing that can be read, and an open connection."""
    address = Address.of(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await _information(address), await Socket.open(address)
    except TimeoutError:
        raise Unreachable(f"no connection within {CONNECT_SECONDS:g} s") from None
    except ConnectionRefusedError:
        raise Unreachable("nothing answers at this address") from None
    except (OSError, NotUpgraded, EOFError) as error:
        raise Unreachable(_in_words(error, address)) from None


def _in_words(error: Exception, address: Address) -> str:
    match error:
        case socket.gaierror():
            return f"no connection: the name {printable(address.host)} is not known to this machine"
        case ssl.SSLCertVerificationError():
            return f"no connection: its certificate does not hold: {error.verify_message}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
            return "no connection: nobody speaks TLS at this address; does it begin with ws:// rather than wss://?"
        case ssl.SSLError():
            return f"no connection: TLS: {(error.reason or 'failed').replace('_', ' ').lower()}"
        case OSError(errno=int(), strerror=str()):
            return f"no connection: {os.strerror(error.errno) if error.errno else error.strerror}"
    return f"no connection: {error}" if str(error) else "no connection"


async def _information(address: Address) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
    try:
        request = h11.Request(
            method="GET",
            target=address.target,
            headers=[("Host", address.authority), ("Accept", "application/nostr+json"), ("Connection", "close")],
        )
        http = h11.Connection(h11.CLIENT)
        writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
        return await _answer(http, reader)
    finally:
        writer.close()


async def _answer(http: h11.Connection, reader: asyncio.StreamReader) -> dict[str, Any]:
    """The document; {} where the peer answers with something else, or hangs up without a word as some relays do.

    An answer that is cut short is no answer: what a peer is must not hang on where a connection broke.
    """
    body, heard = bytearray(), 0
    while not isinstance(event := _next(http, heard), h11.EndOfMessage):
        if event is None:
            return {}
        if event is h11.NEED_DATA:
            data = await reader.read(65_536)
            heard += len(data)
            if heard > INFORMATION_BYTES_MAX:
                return {}
            http.receive_data(data)
        elif isinstance(event, h11.Response) and event.status_code != 200:
            return {}
        elif isinstance(event, h11.Data):
            body += event.data
    try:
        return _object(bytes(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _next(http: h11.Connection, heard: int) -> Any:
    """The next event of an answer; None where it is none at all."""
    try:
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        if heard and http.their_state is h11.ERROR and "closed" in str(error):
            raise Unreachable("the connection broke off while the peer told about itself") from None
        return None
    return None if isinstance(event, h11.ConnectionClosed) else event
