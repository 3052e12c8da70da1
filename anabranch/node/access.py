"""Access keys in force: kept in memory, changed through the writer, and felt at once by open connections."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.node import now
from anabranch.node.writing import WriterThread
from anabranch.store.contract import KEYS_ASKED_FOR, AccessKey
from anabranch.wire.session import Grant


class Access:
    def __init__(
        self, keys: list[AccessKey], asked_for: bool, writer: WriterThread, lost: Callable[[str | None], None]
    ) -> None:
        self.keys = {key.key: key for key in keys}
        self._asked_for = asked_for or bool(keys)
        self._writer = writer
        self._changing = asyncio.Lock()
        self._lost = lost  # called with a key that holds no longer; None: with having no key, once one is asked for

    def grants(self) -> list[Grant] | None:
        """The grants that hold just now; None when access keys were never made, and so none is asked for.

        Deleting the last key lets nobody in: what was asked for yesterday is asked for today.
        """
        if not self._asked_for:
            return None
        time = now.seconds()
        return [Grant(key.key, key.pubkey, key.expires_at) for key in self.keys.values() if key.usable(time)]

    def find(self, name: str) -> AccessKey | None:
        found = None
        for key in self.keys.values():
            if hmac.compare_digest(key.key.encode(), name.encode()):
                found = key
        return found

    async def create(self, key: AccessKey) -> None:
        async with self._changing:
            await self._save(key)

    async def change(self, name: str, fields: dict[str, Any]) -> AccessKey | None:
        """Set some fields of a key; None when there is none of that name (any more)."""
        async with self._changing:
            key = self.keys.get(name)
            if key is not None:
                bound_to = key.pubkey
                key = msgspec.structs.replace(key, **fields)
                await self._save(key)
                if key.pubkey != bound_to:
                    self._lost(key.key)
            return key

    async def _save(self, key: AccessKey) -> None:
        await self._writer.run(lambda writer: writer.save_access_key(key))
        if not self._asked_for:
            self._asked_for = True
            self._lost(None)
        self.keys[key.key] = key
        if not key.usable(now.seconds()):
            self._lost(key.key)

    async def delete(self, name: str) -> None:
        async with self._changing:
            await self._writer.run(lambda writer: writer.delete_access_key(name))
            self.keys.pop(name, None)
            self._lost(name)

    async def ask_for_none(self) -> None:
        """Delete every key, and ask for none from now on: whoever can sign is let in."""
        async with self._changing:
            for name in list(self.keys):
                await self._writer.run(lambda writer, name=name: writer.delete_access_key(name))  # type: ignore[misc]
                self._lost(self.keys.pop(name).key)
            await self._writer.run(lambda writer: writer.save_setting(KEYS_ASKED_FOR, b"false"))
            self._asked_for = False

    def sweep(self) -> None:
        """Let go of connections whose key has expired."""
        time = now.seconds()
        for key in self.keys.values():
            if not key.usable(time):
                self._lost(key.key)
