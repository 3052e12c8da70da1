"""A relay's information document (NIP-11), read over HTTP at the websocket's own address."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

import msgspec

from anabranch.client.errors import BadRelay
from anabranch.wire import address as wire_address

BYTES_MAX = 1 << 20
_object = msgspec.json.Decoder(dict[str, Any]).decode


def normalised(url: str) -> str:
    """One spelling for one relay; `BadRelay` for what is no address of one."""
    address = wire_address.normalised(url)
    if address is None:
        raise BadRelay(url)
    return address


async def fetch(url: str, seconds_max: float) -> dict[str, Any]:
    """Raises `OSError` where it cannot be had within the time, in words. Nothing of it outlives the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any]] = loop.create_future()
    connection = _connection(url, seconds_max)

    def settle(found: dict[str, Any] | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found or {})

    def work() -> None:
        found = error = None
        try:
            found = _read(connection, url, answer)
        except Exception as failed:
            error = failed
        with contextlib.suppress(RuntimeError):  # the loop is over, and nobody waits
            loop.call_soon_threadsafe(settle, found, error)

    # A daemon: neither a resolver that hangs nor a relay that drips keeps the process from exiting.
    threading.Thread(target=work, name="anabranch-information", daemon=True).start()
    try:
        async with asyncio.timeout(seconds_max):
            return await answer
    except TimeoutError:
        raise OSError(f"the relay's information did not come within {seconds_max:g} s") from None
    finally:
        answer.cancel()
        _break(connection)


def _connection(url: str, seconds_max: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "wss":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=seconds_max, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=seconds_max)


def _break(connection: http.client.HTTPConnection) -> None:
    """Whoever still reads from it reads the end."""
    if (open_socket := connection.sock) is not None:
        with contextlib.suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)


def _read(connection: http.client.HTTPConnection, url: str, answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    parts = urlsplit(url)
    try:
        connection.connect()
        if answer.done():  # given up while it was dialled
            return {}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/nostr+json"})
        response = connection.getresponse()
        body = response.read(BYTES_MAX)
        if response.status != 200:
            raise OSError(f"the relay's information could not be read: HTTP {response.status}")
        return _object(body)
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise OSError("the relay has no readable information document (NIP-11)") from None
    finally:
        connection.close()
