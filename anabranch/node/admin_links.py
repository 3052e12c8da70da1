"""The admin API of links: add, list, show, explain, pause, resume, repair, reset, remove."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from anabranch.node.http import Answer, Request, json_answer
from anabranch.replicate.links import LinkError, NoSuchLink, check_keys, spec_of
from anabranch.store.contract import StoreError

if TYPE_CHECKING:
    from anabranch.node.main import Node

log = logging.getLogger(__name__)

VERBS = ("pause", "resume", "repair", "reset")
_NOT_ALLOWED = json_answer({"error": "method not allowed"}, 405)
_NOT_FOUND = json_answer({"error": "not found"}, 404)


async def answer(node: Node, request: Request, path: str, body: dict[str, Any]) -> Answer:
    """`path` is what follows /admin/links."""
    name, _, verb = path.strip("/").partition("/")
    name = unquote(name)
    try:
        if not name:
            return await _all(node, request, body)
        node.links.find(name)
        if not verb:
            return await _one(node, request, name)
        if verb == "explain":
            return json_answer(await node.links.explain(name)) if request.method == "GET" else _NOT_ALLOWED
        if verb not in VERBS:
            return _NOT_FOUND
        if request.method != "POST":
            return _NOT_ALLOWED
        return await _command(node, name, verb)
    except NoSuchLink as error:
        return json_answer({"error": str(error)}, 404)
    except LinkError as error:
        return json_answer({"error": str(error)}, 400)
    except StoreError as error:
        log.error("a change of a link could not be stored", extra={"link": name, "cause": str(error)})
        return json_answer({"error": "the change could not be stored; is there room on the disk? see the log"}, 507)


async def _command(node: Node, name: str, verb: str) -> Answer:
    try:
        await node.links.command(name, verb)
    except StoreError as error:
        log.error("a command to a link could not be stored", extra={"link": name, "cause": str(error)})
        wait = "it is written down as soon as there is room on the disk, and a restart before that forgets it"
        return json_answer({"error": f"the link does as it was told, but that is not stored yet: {wait}"}, 507)
    return json_answer(node.links.describe(name))


async def _all(node: Node, request: Request, body: dict[str, Any]) -> Answer:
    if request.method == "GET":
        return json_answer({"links": [node.links.describe(name) for name in sorted(node.links.links)]})
    if request.method != "POST":
        return _NOT_ALLOWED
    link = await node.links.add(check_keys(spec_of(body)))
    return json_answer(node.links.describe(link.spec.name), 201)


async def _one(node: Node, request: Request, name: str) -> Answer:
    if request.method == "GET":
        return json_answer(await node.links.show(name))
    if request.method != "DELETE":
        return _NOT_ALLOWED
    if node.links.find(name).spec.origin == "config":
        raise LinkError(f"the link {name!r} stands in the settings file: take it out there, then send SIGHUP")
    await node.links.remove(name)
    return json_answer({"removed": True, "name": name})
