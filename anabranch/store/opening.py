"""The store that the settings name: SQLite in the node's folder, or PostgreSQL where an address is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.store.contract import StoreError
from anabranch.store.held import HeldStore
from anabranch.store.sqlite import SqliteStore

AnyStore = HeldStore[Any, Any]


def open_store(folder: Path, address: str = "", durability: str = "full") -> AnyStore:
    """Open for writing. `StoreBusy` when a node has it."""
    if not address:
        return SqliteStore.open(folder, durability.upper())
    from anabranch.store.postgres import PostgresStore

    return PostgresStore.open(address, folder, durable=durability == "full")


def inspect_store(folder: Path, address: str = "") -> AnyStore:
    """Open for reading only, also beside a running node."""
    if not address:
        if folder.is_file():
            raise StoreError(f"{folder} is a file; --data takes the folder of a store")
        return SqliteStore.inspect(folder)
    from anabranch.store.postgres import PostgresStore

    return PostgresStore.inspect(address, folder)
