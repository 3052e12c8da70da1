"""Access keys in force: kept in memory, changed through the writer, and felt at once by open connections.

What a key is now counts, also for whoever has shown it before: its sessions get the changed grant, or end.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from anabranch.node import now
from anabranch.node.writing import WriterThread
from anabranch.store.contract import KEYS_ASKED_FOR, AccessKey
from anabranch.wire.session import Grant


class Access:
    def __init__(
        self,
        keys: list[AccessKey],
        asked_for: bool,
        writer: WriterThread,
        changed: Callable[[Grant], None],
        lost: Callable[[Collection[str] | None], None],
    ) -> None:
        """`changed` is called with what a key grants from now on, `lost` with keys that hold no longer; None: with
        having no key, once one is asked for."""
        self.keys = {key.key: key for key in keys}
        self._asked_for = asked_for or bool(keys)
        self._writer = writer
        self._changing = asyncio.Lock()
        self._changed = changed
        self._lost = lost
        self._unusable: set[str] = set()  # those that were told to be lost

    def grants(self) -> list[Grant] | None:
        """The grants that hold just now; None when access keys were never made, and so none is asked for.

        Deleting the last key lets nobody in: what was asked for yesterday is asked for today.
        """
        if not self._asked_for:
            return None
        time = now.seconds()
        return [_grant(key) for key in self.keys.values() if key.usable(time)]

    def find(self, name: str) -> AccessKey | None:
        found = None
        for key in self.keys.values():
            if hmac.compare_digest(key.key.encode(), name.encode()):
                found = key
        return found

    async def create(self, key: AccessKey) -> None:
        async with self._changing:
            await self._save(key)

    async def change(self, name: str, fields: dict[str, Any]) -> bool:
        """Set some fields of a key; False when there is none of that name (any more)."""
        async with self._changing:
            key = self.keys.get(name)
            if key is None:
                return False
            changed = msgspec.structs.replace(key, **fields)
            await self._save(changed)
            if changed.pubkey != key.pubkey:
                self._lost({name})
            return True

    async def _save(self, key: AccessKey) -> None:
        await self._writer.run(lambda writer: writer.save_access_key(key))
        if not self._asked_for:
            self._asked_for = True
            self._lost(None)
        self.keys[key.key] = key
        if key.usable(now.seconds()):
            self._unusable.discard(key.key)
            self._changed(_grant(key))
        else:
            self._unusable.add(key.key)
            self._lost({key.key})

    async def delete(self, name: str) -> None:
        async with self._changing:
            await self._writer.run(lambda writer: writer.delete_access_key(name))
            self.keys.pop(name, None)
            self._lost({name})

    async def ask_for_none(self) -> None:
        """Delete every key, and ask for none from now on: whoever can sign is let in."""
        async with self._changing:
            gone: set[str] = set()
            try:
                for name in list(self.keys):
                    await self._writer.run(lambda writer, name=name: writer.delete_access_key(name))  # type: ignore[misc]
                    gone.add(self.keys.pop(name).key)
            finally:
                self._lost(gone)
            await self._writer.run(lambda writer: writer.save_setting(KEYS_ASKED_FOR, b"false"))
            self._asked_for = False

    def sweep(self) -> None:
        """Let go of connections whose key has expired since the last time."""
        time = now.seconds()
        unusable = {name for name, key in self.keys.items() if not key.usable(time)}
        newly, self._unusable = unusable - self._unusable, unusable
        if newly:
            self._lost(newly)


def _grant(key: AccessKey) -> Grant:
    return Grant(key.key, key.pubkey, key.expires_at)
