"""`anabranch keys`: the secrets that let their holders authenticate on a private node.

On a free store they are written directly; where a node runs, through its admin API, so that it knows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click
import msgspec

from anabranch.cli.admin import Admin, key_path
from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.cli.units import PublicKeys, Size, Span, date
from anabranch.config import Settings
from anabranch.node import now
from anabranch.store.contract import AccessKey, StoreBusy
from anabranch.store.opening import AnyStore, inspect_store, open_store
from anabranch.store.runtime import new_access_key

PREFIX = "sk_"  # of every key: it tells none from another
SHOWN = 9  # characters of a key that a list shows: enough to tell keys apart, too few to use one


class KeyRing(Protocol):
    def all(self) -> list[AccessKey]: ...
    def create(self, key: AccessKey) -> AccessKey: ...
    def revoke(self, key: AccessKey) -> AccessKey: ...
    def delete(self, key: AccessKey) -> None: ...


class StoredKeys:
    def __init__(self, store: AnyStore) -> None:
        self._store = store

    def all(self) -> list[AccessKey]:
        with self._store.reader() as reader:
            return reader.access_keys()

    def create(self, key: AccessKey) -> AccessKey:
        self._store.writer.save_access_key(key)
        return key

    def revoke(self, key: AccessKey) -> AccessKey:
        revoked = msgspec.structs.replace(key, revoked=True)
        self._store.writer.save_access_key(revoked)
        return revoked

    def delete(self, key: AccessKey) -> None:
        self._store.writer.delete_access_key(key.key)


class ServedKeys:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def all(self) -> list[AccessKey]:
        answer = self._admin.request("GET", "/admin/keys")
        return [_access_key(item) for item in (answer["keys"] if isinstance(answer, dict) else answer)]

    def create(self, key: AccessKey) -> AccessKey:
        wanted = ("label", "pubkey", "expires_at", "storage_limit_bytes")
        return _access_key(self._admin.request("POST", "/admin/keys", {name: getattr(key, name) for name in wanted}))

    def revoke(self, key: AccessKey) -> AccessKey:
        return _access_key(self._admin.request("PATCH", key_path(key.key), {"revoked": True}))

    def delete(self, key: AccessKey) -> None:
        self._admin.request("DELETE", key_path(key.key))


def _access_key(answer: Any) -> AccessKey:
    return msgspec.convert(answer, AccessKey)


@contextmanager
def _key_ring(settings: Settings, make_store: bool = False) -> Iterator[KeyRing]:
    folder = Path(settings.data)
    if not make_store:
        inspect_store(folder, settings.store)
    try:
        store = open_store(folder, settings.store, settings.durability)
    except StoreBusy:
        yield ServedKeys(Admin.of_holder(settings))
        return
    try:
        yield StoredKeys(store)
    finally:
        store.close()


def _find(ring: KeyRing, beginning: str) -> AccessKey:
    """The one key that is, or begins with, what was typed."""
    if PREFIX.startswith(beginning):
        raise Failure(f"every key begins so; write more of it than {PREFIX}", Exit.USAGE)
    keys = ring.all()
    found = [key for key in keys if key.key == beginning] or [key for key in keys if key.key.startswith(beginning)]
    if not found:
        raise Failure("no such key; `anabranch keys list` shows them")
    if len(found) > 1:
        raise Failure(f"{len(found)} keys begin so; write more of it")
    return found[0]


@click.group()
def keys() -> None:
    """Make, list, revoke and delete access keys.

    A unique beginning of a key will do where one is asked for.
    """


@keys.command("list")
@click.option("--show", is_flag=True, help="Show the keys whole.")
@options()
def list_keys(shell: Shell, show: bool) -> None:
    """List the access keys; with --json, whole."""
    with _key_ring(shell.settings()) as ring:
        found = ring.all()
    lines = [_line(key, show) for key in found]
    shell.result({"keys": [_shown(key) for key in found]}, "\n".join(lines) if lines else "no access keys")


@keys.command("create")
@click.option("--label", default="", help="Who or what it is for.")
@click.option("--pubkey", type=PublicKeys(), metavar="PUBKEY", help="The only public key that may use it, npub or hex.")
@click.option("--expires-in", type=Span(), metavar="SPAN", help="How long it is good for, as 30d or 12h.")
@click.option("--storage-limit", type=Size(), metavar="SIZE", help="How much it may store, as 100MB.")
@options()
def create_key(
    shell: Shell, label: str, pubkey: frozenset[str] | None, expires_in: int | None, storage_limit: int | None
) -> None:
    """Make an access key and print it."""
    if pubkey is not None and len(pubkey) > 1:
        raise click.BadParameter("one key has one public key", param_hint="--pubkey")
    created_at = now.seconds()
    wanted = AccessKey(
        key=new_access_key(),
        label=label,
        pubkey=None if pubkey is None else next(iter(pubkey)),
        created_at=created_at,
        expires_at=None if expires_in is None else created_at + expires_in,
        storage_limit_bytes=storage_limit,
    )
    with _key_ring(shell.settings(), make_store=True) as ring:
        key = ring.create(wanted)
    shell.result({"key": _shown(key)}, key.key)


@keys.command("revoke")
@click.argument("key")
@options()
def revoke_key(shell: Shell, key: str) -> None:
    """Let a key be of no use any more; it stays in the list."""
    with _key_ring(shell.settings()) as ring:
        revoked = ring.revoke(_find(ring, key))
    shell.result({"key": _shown(revoked)}, f"revoked {_masked(revoked.key)}")


@keys.command("delete")
@click.argument("key")
@options()
def delete_key(shell: Shell, key: str) -> None:
    """Forget a key altogether."""
    with _key_ring(shell.settings()) as ring:
        found = _find(ring, key)
        ring.delete(found)
    shell.result({"deleted": found.key}, f"deleted {_masked(found.key)}")


def _masked(key: str) -> str:
    return key[:SHOWN] + "…"


def _shown(key: AccessKey) -> dict[str, Any]:
    return msgspec.to_builtins(key) | {"usable": key.usable(now.seconds())}


def _line(key: AccessKey, show: bool) -> str:
    used = size(key.used_bytes) + (
        f" of {size(key.storage_limit_bytes)}" if key.storage_limit_bytes is not None else ""
    )
    state = "revoked" if key.revoked else "usable" if key.usable(now.seconds()) else "expired"
    pairs = [
        (key.key if show else _masked(key.key), state),
        ("  label", key.label or "-"),
        ("  pubkey", key.pubkey or "any"),
        ("  expires", date(key.expires_at)),
        ("  used", used),
    ]
    return rows(pairs)
