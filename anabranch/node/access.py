"""Access keys in force: kept in memory, changed through the writer, and felt at once by open connections."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from anabranch.node import now
from anabranch.node.writing import WriterThread
from anabranch.store.contract import AccessKey
from anabranch.wire.session import Grant


class Access:
    def __init__(self, keys: list[AccessKey], writer: WriterThread, lost: Callable[[str | None], None]) -> None:
        self.keys = {key.key: key for key in keys}
        self._writer = writer
        self._lost = lost  # called with a key that holds no longer; None: with having no key, once one is asked for

    def grants(self) -> list[Grant] | None:
        """The grants that hold just now; None when there are no access keys at all, and so none is asked for."""
        if not self.keys:
            return None
        time = now.seconds()
        return [Grant(key.key, key.pubkey, key.expires_at) for key in self.keys.values() if key.usable(time)]

    def find(self, name: str) -> AccessKey | None:
        found = None
        for key in self.keys.values():
            if hmac.compare_digest(key.key.encode(), name.encode()):
                found = key
        return found

    async def save(self, key: AccessKey) -> None:
        await self._writer.run(lambda writer: writer.save_access_key(key))
        if not self.keys:
            self._lost(None)
        self.keys[key.key] = key
        if not key.usable(now.seconds()):
            self._lost(key.key)

    async def delete(self, name: str) -> None:
        await self._writer.run(lambda writer: writer.delete_access_key(name))
        self.keys.pop(name, None)
        self._lost(name)

    def sweep(self) -> None:
        """Let go of connections whose key has expired."""
        time = now.seconds()
        for key in self.keys.values():
            if not key.usable(time):
                self._lost(key.key)
