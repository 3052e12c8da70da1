"""The HTTP side of the one port: NIP-11, health, metrics and the way to the admin API."""

from __future__ import annotations

import html
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from anabranch import __version__
from anabranch.node import now
from anabranch.node.info import information
from anabranch.store.contract import StoreError

if TYPE_CHECKING:
    from anabranch.node.main import Node

log = logging.getLogger(__name__)

_JSON = "application/json"


class Request(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    peer: str

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(value), _JSON)


class Http:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._oldest_mtime: int | None = None

    async def answer(self, request: Request) -> Answer:
        path = request.path
        if path.startswith("/admin/"):
            return await self._node.admin.answer(request)
        if request.method == "OPTIONS":
            return Answer(
                204,
                b"",
                headers=(("access-control-allow-methods", "GET, OPTIONS"), ("access-control-allow-headers", "*")),
            )
        if request.method not in ("GET", "HEAD"):
            return json_answer({"error": "method not allowed"}, 405)
        match path:
            case "/" | "/ws":
                if "application/nostr+json" in request.headers.get("accept", "").lower():
                    return await self._information()
                return self._page(request)
            case "/healthz" | "/livez":
                return Answer(200, b"ok")
            case "/readyz":
                return (
                    Answer(200, b"ok")
                    if self._node.ready and self._node.prover.working
                    else Answer(503, b"not ready\n")
                )
            case "/metrics":
                return Answer(200, self._node.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
        return json_answer({"error": "not found"}, 404)

    async def _information(self) -> Answer:
        node = self._node
        try:
            self._oldest_mtime = await node.readers.run(lambda reader: reader.oldest_mtime())
        except StoreError as error:  # however busy the store is, the rest can be told
            log.warning("the oldest revision could not be read", extra={"cause": str(error)})
        document = information(node.settings, node.log, node.retention.policy, self._oldest_mtime, now.seconds())
        return Answer(
            200, msgspec.json.encode(document), "application/nostr+json", (("access-control-allow-headers", "*"),)
        )

    def _page(self, request: Request) -> Answer:
        """What a person sees who opens the relay in a browser."""
        settings = self._node.settings
        address = f"ws://{request.headers.get('host', f'{settings.host}:{settings.port}')}/"
        name, text, url = (html.escape(value) for value in (settings.name, settings.description, address))
        return Answer(
            200,
            f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name}</title>
<style>body{{font:16px/1.6 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem;color:#1c2b33}}
code{{background:#eef3f5;padding:.1em .4em;border-radius:.3em}}a{{color:#0b6e8a}}footer{{color:#6b7c85}}</style>
<h1>{name}</h1><p>{text}</p>
<p>This is a Nostr relay with a snapshot changes feed. Connect a client to <code>{url}</code>.</p>
<ul><li>Information: <code>curl -H 'Accept: application/nostr+json' {url.replace("ws:", "http:", 1)}</code></li>
<li><a href="/healthz">health</a>, <a href="/readyz">readiness</a>, <a href="/metrics">metrics</a></li></ul>
<footer>Anabranch {__version__}</footer>
""".encode(),
            "text/html; charset=utf-8",
        )
