"""The admin API: retention, access keys, connections, links, the whole log, compaction on demand and by plan.

Without a token it is off, but for retention, which can be read by anybody, and for what may be done from this machine
itself: to change retention, to compact, to command links. With a token every change and every listing asks for
`Authorization: Bearer …`, compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from anabranch.core.nostr import is_hex
from anabranch.core.retention import DAY, DAYS_MAX
from anabranch.node import admin_links, now
from anabranch.node.http import Answer, Request, json_answer
from anabranch.store import log_pages
from anabranch.store.compaction import Candidate
from anabranch.store.contract import AccessKey, StoreError
from anabranch.store.runtime import new_access_key

if TYPE_CHECKING:
    from anabranch.node.main import Node

log = logging.getLogger(__name__)
T = TypeVar("T")

_UNAUTHORIZED = json_answer({"error": "unauthorized"}, 401)
_NOT_CONFIGURED = json_answer({"error": "admin not configured"}, 503)
_NOT_ALLOWED = json_answer({"error": "method not allowed"}, 405)
_NOT_FOUND = json_answer({"error": "not found"}, 404)
_NOT_READ = json_answer({"error": "the store could not be read: try again later, and see the log"}, 503)
_ROOM = "is there room on the disk? see the log"
_NOT_STORED = f"nothing was changed, for it could not be stored: {_ROOM}"
_CUT_SHORT = f"compaction was cut short: {_ROOM}; what went is gone, and the next run goes on"
_BAD_BODY = "invalid JSON object body"

PLAN_MAX = 1_000
"""Candidates in one piece of a plan."""


class BadRequest(ValueError):
    pass


class NotStored(Exception):
    """The store could not take a change; the text says what holds and what to do."""


async def _stored(change: Awaitable[T], text: str = _NOT_STORED) -> T:
    try:
        return await change
    except StoreError as error:
        log.error("a change could not be stored", extra={"cause": str(error)})
        raise NotStored(text) from error


class Admin:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._token = node.settings.admin_token

    async def answer(self, request: Request) -> Answer:
        path = request.path.removeprefix("/admin/").rstrip("/")
        try:
            if path == "retention":
                return await self._retention(request)
            links = path == "links" or path.startswith("links/")
            if self._token is None and path != "compact" and not links:
                return _NOT_CONFIGURED
            if not self._trusted(request):
                return _UNAUTHORIZED if self._token is not None else _NOT_CONFIGURED
            if path == "compact":
                return await self._compact(request)
            if path == "compact/plan":
                return await self._compact_by_plan(request)
            if links:
                body = _object(request.body) if request.body else {}
                return await admin_links.answer(self._node, request, path.removeprefix("links"), body)
            if path == "keys" or path.startswith("keys/"):
                return await self._keys(request, unquote(path.removeprefix("keys").removeprefix("/")))
            if path.startswith("events/"):
                return await self._remove(request, path.removeprefix("events/"))
            if path == "connections":
                return self._connections(request)
            if path == "log":
                return await self._log(request)
        except BadRequest as error:
            return json_answer({"error": str(error)}, 400)
        except NotStored as error:
            return json_answer({"error": str(error)}, 507)
        except StoreError as error:
            log.error("the store could not be read", extra={"cause": str(error)})
            return _NOT_READ
        return _NOT_FOUND

    def _trusted(self, request: Request) -> bool:
        """Whoever has the token; where none is set, whoever is on this machine itself and no web page there."""
        if self._token is not None:
            given = request.headers.get("authorization", "")
            return hmac.compare_digest(given.encode("latin-1"), f"Bearer {self._token}".encode())
        forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "origin"))
        return not forwarded and _is_loopback(request.peer) and _is_local(request.headers.get("host", "localhost"))

    # --- retention ---

    async def _retention(self, request: Request) -> Answer:
        if request.method == "GET":
            return json_answer(self._node.retention.describe())
        if request.method != "PATCH":
            return _NOT_ALLOWED
        if not self._trusted(request):
            return _UNAUTHORIZED if self._token is not None else _NOT_CONFIGURED
        body = _object(request.body)
        change: dict[str, Any] = {}
        for name in body:
            if name not in ("payload_retention_days", "compaction_interval_seconds"):
                raise BadRequest(f"unknown field {name[:32]!r}")
        if "payload_retention_days" in body:
            days = body["payload_retention_days"]
            if days is not None and not (_natural(days) and days <= DAYS_MAX):
                raise BadRequest("payload_retention_days must be a non-negative integer or null")
            change["payload_retention_days"] = days
        if "compaction_interval_seconds" in body:
            seconds = body["compaction_interval_seconds"]
            if not _natural(seconds) or not 0 < seconds <= DAYS_MAX * DAY:
                raise BadRequest("compaction_interval_seconds must be a positive integer")
            change["compaction_interval_seconds"] = seconds
        if not change:
            raise BadRequest("nothing to change: give payload_retention_days or compaction_interval_seconds")
        report, whole = await _stored(self._node.retention.change(**change))
        compacted = {
            "compacted_snapshots": report.compacted_snapshots,
            "compacted_revisions": report.compacted_revisions,
        }
        warning = {} if whole else {"warning": f"this is in force, but {_CUT_SHORT}"}
        return json_answer(self._node.retention.describe() | compacted | warning)

    async def _compact(self, request: Request) -> Answer:
        if request.method != "POST":
            return _NOT_ALLOWED
        before = await self._file_bytes()
        report = await _stored(self._node.retention.run(), _CUT_SHORT)
        after = await self._file_bytes()
        return json_answer(msgspec.to_builtins(report) | {"file_bytes_before": before, "file_bytes_after": after})

    async def _compact_by_plan(self, request: Request) -> Answer:
        """Let go what of a plan made elsewhere may go: each candidate is checked again, under this node's policy."""
        if request.method != "POST":
            return _NOT_ALLOWED
        body, log = _object(request.body), self._node.log
        if unknown := [name for name in body if name not in ("stream", "epoch", "operations")]:
            raise BadRequest(f"unknown field {unknown[0][:32]!r}")
        if (body.get("stream"), body.get("epoch")) != (log.stream, log.epoch):
            return json_answer({"error": "the plan is of another log", "stream": log.stream, "epoch": log.epoch}, 409)
        report, judgement = await _stored(self._node.retention.apply(_plan(body.get("operations"))), _CUT_SHORT)
        return json_answer(
            {
                "dropped": report.compacted_snapshots + report.compacted_revisions,
                "bytes": report.compacted_bytes,
                "refused": judgement.refused,
            }
        )

    async def _file_bytes(self) -> int:
        return await self._node.readers.run(lambda reader: reader.file_bytes())

    # --- events ---

    async def _remove(self, request: Request, id: str) -> Answer:
        """Take an event off the relay for good."""
        if request.method != "DELETE":
            return _NOT_ALLOWED
        if not is_hex(id, 64):
            raise BadRequest("an event id is lower-case hex of 64 characters")
        removed = await _stored(self._node.writer.run(lambda writer: writer.remove([id])))
        return json_answer({"removed": True, "id": id}) if removed else _NOT_FOUND

    # --- the log ---

    async def _log(self, request: Request) -> Answer:
        """A page of the whole log, every family, for whoever copies or counts it."""
        if request.method != "GET":
            return _NOT_ALLOWED
        asked: dict[str, int] = {}
        for name, value in parse_qsl(urlsplit(request.target).query, keep_blank_values=True):
            if name not in ("after", "until", "limit"):
                raise BadRequest(f"unknown field {name[:32]!r}")
            if not (value.isascii() and value.isdecimal() and len(value) <= 16):
                raise BadRequest(f"{name} must be a non-negative integer")
            asked[name] = int(value)
        after, until = asked.get("after", 0), asked.get("until")
        limit = min(asked.get("limit", log_pages.LINES_MAX), log_pages.LINES_MAX)
        page = await self._node.readers.run(lambda reader: log_pages.page(reader, after, until, limit), "log")
        return Answer(200, page, "application/jsonl")

    # --- access keys ---

    async def _keys(self, request: Request, name: str) -> Answer:
        if not name:
            if request.method == "GET":
                keys = await self._node.readers.run(lambda reader: reader.access_keys())
                return json_answer({"keys": [_shown(key) for key in keys]})
            if request.method == "POST":
                return await self._create_key(_object(request.body) if request.body else {})
            return _NOT_ALLOWED
        if name == "*" and request.method == "DELETE":
            await _stored(self._node.access.ask_for_none(), f"not all keys could be deleted: {_ROOM}")
            return json_answer({"deleted": True, "key": "*"})
        if request.method not in ("GET", "PATCH", "DELETE"):
            return _NOT_ALLOWED
        key = self._node.access.find(name)
        if key is None:
            return _NOT_FOUND
        if request.method == "DELETE":
            await _stored(self._node.access.delete(key.key))
            return json_answer({"deleted": True, "key": key.key})
        if request.method == "PATCH":
            await _stored(self._node.access.change(key.key, _key_fields(_object(request.body))))
        # As it is stored: what is kept in memory does not count the bytes that are used.
        keys = await self._node.readers.run(lambda reader: reader.access_keys())
        return next((json_answer(_shown(stored)) for stored in keys if stored.key == key.key), _NOT_FOUND)

    async def _create_key(self, body: dict[str, Any]) -> Answer:
        key = AccessKey(new_access_key(), created_at=now.seconds(), **_key_fields(body))
        await _stored(self._node.access.create(key))
        return json_answer(_shown(key), 201)

    # --- connections ---

    def _connections(self, request: Request) -> Answer:
        if request.method != "GET":
            return _NOT_ALLOWED
        rows = [
            {
                "id": connection.id,
                "access_key": connection.session.grant.key if connection.session.grant else None,
                "authed_pubkeys": sorted(connection.session.authors),
                "live_changes_subscription_ids": connection.live_changes,
            }
            for connection in self._node.sessions
            if connection.session is not None
        ]
        return json_answer({"connections": rows})


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequest(_BAD_BODY) from None
    if not isinstance(value, dict):
        raise BadRequest(_BAD_BODY)
    return value


def _plan(value: object) -> list[Candidate]:
    """Positions and ids, checked."""
    if isinstance(value, list) and len(value) > PLAN_MAX:
        raise BadRequest(f"at most {PLAN_MAX} operations at once")
    try:
        plan = msgspec.convert(value, list[Candidate])
    except msgspec.ValidationError:
        plan = None
    if plan is None or not all(_natural(one.position) and is_hex(one.id, 64) for one in plan):
        raise BadRequest("operations must be a list of [position, id]")
    return plan


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _key_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of an access key that may be set, checked."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        match name:
            case "label":
                if not isinstance(value, str) or len(value) > 200:
                    raise BadRequest("label must be a string of at most 200 characters")
            case "pubkey":
                if value is not None and not (isinstance(value, str) and is_hex(value, 64)):
                    raise BadRequest("pubkey must be lower-case hex of 64 characters or null")
            case "revoked":
                if not isinstance(value, bool):
                    raise BadRequest("revoked must be true or false")
            case "expires_at" | "storage_limit_bytes":
                if value is not None and not _natural(value):
                    raise BadRequest(f"{name} must be a non-negative integer or null")
            case _:
                raise BadRequest(f"unknown field {name[:32]!r}")
        fields[name] = value
    return fields


def _shown(key: AccessKey) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(key)
    return shown


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    """Whether a request was addressed to this machine: a web page may give its own name any address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or _is_loopback(name)
