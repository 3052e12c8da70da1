"""The admin API of a running node, as the commands use it when a node holds the store."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from anabranch.cli.shell import Exit, Failure
from anabranch.config import Settings
from anabranch.store.held import is_held, read_holder

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Admin:
    """Requests to the node that holds the store."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self._parts = urlsplit(url)
        self._token = token

    @classmethod
    def of_holder(cls, settings: Settings) -> Admin:
        """The node that holds the store of these settings. `Failure` (4) when it cannot be asked."""
        folder = Path(settings.data)
        if not is_held(folder):  # then it is known by another folder: a node that writes to the same database
            raise Failure(
                "the store is in use by a process with another folder; give that folder with --data", Exit.IN_USE
            )
        holder = read_holder(folder)
        if not holder.url:
            raise Failure(f"{folder} is in use by {holder.name}; try again when it is done", Exit.IN_USE)
        return cls(holder.url, settings.admin_token)

    def request(self, method: str, path: str, body: Any = None, timeout: float = 30) -> Any:
        """The decoded answer; `Failure` where the node says no or cannot be reached."""
        secure = self._parts.scheme in ("https", "wss")
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        host = self._parts.hostname or "127.0.0.1"
        connection = connect(_EVERYWHERE.get(host, host), self._parts.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Failure(
                f"the node at {self.url} holds the store and does not answer: {error}", Exit.IN_USE
            ) from error
        finally:
            connection.close()
        try:
            answer = msgspec.json.decode(text) if text else {}
        except msgspec.DecodeError:
            answer = {}
        reason = answer.get("error") if isinstance(answer, dict) else None
        if status == 401 or reason == "admin not configured":
            raise Failure(f"the node at {self.url} holds the store, and {self._why_not(status)}", Exit.IN_USE)
        if status >= 400:
            raise Failure(f"the node at {self.url} answered {status}: {reason or http.client.responses.get(status)}")
        return answer

    def _why_not(self, status: int) -> str:
        if status != 401:
            return "its admin API is off: start it with an admin_token, or stop it first"
        if self._token is None:
            return "it asks for its admin token: set ANABRANCH_ADMIN_TOKEN as the node has it, or stop it first"
        return "it refused the admin token: set ANABRANCH_ADMIN_TOKEN as the node has it, or stop it first"


def key_path(key: str) -> str:
    return f"/admin/keys/{quote(key, safe='')}"
