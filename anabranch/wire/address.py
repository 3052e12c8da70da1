"""Addresses of relays: one spelling for one relay, and what of it anybody may see."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit


def normalised(url: str) -> str | None:
    """One spelling for one relay; None for what is no address of one."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in ("ws", "wss") or not host or parts.username or parts.fragment:
        return None
    if port == 0 or not host.strip(".") or any(character.isspace() for character in url.strip()):
        return None
    shown = f"[{host}]" if ":" in host else host
    usual = {"ws": 80, "wss": 443}[parts.scheme.lower()]
    authority = shown if port in (None, usual) else f"{shown}:{port}"
    return f"{parts.scheme.lower()}://{authority}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


def discreet(url: str) -> str:
    """The address as anybody may see it: a query may be a password, so only a mark of it is left, to tell two apart."""
    plain, _, query = url.partition("?")
    return f"{plain}?({hashlib.sha256(url.encode()).hexdigest()[:8]})" if query else plain
