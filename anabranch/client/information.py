"""A relay's information document (NIP-11), read over HTTP at the websocket's own address."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from typing import Any
from urllib.parse import urlsplit

import msgspec

from anabranch.client.errors import BadRelay

BYTES_MAX = 1 << 20
_object = msgspec.json.Decoder(dict[str, Any]).decode


def normalised(url: str) -> str:
    """One spelling for one relay; `BadRelay` for what is no address of one."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadRelay(url) from None
    if parts.scheme.lower() not in ("ws", "wss") or not host or parts.username or parts.fragment:
        raise BadRelay(url)
    shown = f"[{host}]" if ":" in host else host
    usual = {"ws": 80, "wss": 443}[parts.scheme.lower()]
    authority = shown if port in (None, usual) else f"{shown}:{port}"
    return f"{parts.scheme.lower()}://{authority}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


async def fetch(url: str, seconds_max: float) -> dict[str, Any]:
    """Raises `OSError` where it cannot be had, in words."""
    return await asyncio.to_thread(_fetch, url, seconds_max)


def _fetch(url: str, seconds_max: float) -> dict[str, Any]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port, timeout=seconds_max, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=seconds_max)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/nostr+json"})
        answer = connection.getresponse()
        body = answer.read(BYTES_MAX)
        if answer.status != 200:
            raise OSError(f"the relay's information could not be read: HTTP {answer.status}")
        return _object(body)
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise OSError("the relay has no readable information document (NIP-11)") from None
    finally:
        connection.close()
