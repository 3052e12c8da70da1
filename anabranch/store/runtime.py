"""What is settled at run time and lives in the store: the retention an operator has set, and access keys.

The settings file says how a node starts; what was changed since through the admin API is kept in the store and rules
over it. `policy_in_force` is the one place where the two meet, for the node and for the command line alike.
"""

from __future__ import annotations

import secrets
import string

import msgspec

from anabranch.core.retention import Policy
from anabranch.store.contract import StoreError

RETENTION = "retention"
"""The name under which a `RuntimeRetention` stands among the store's settings."""

_KEY_ALPHABET = string.ascii_lowercase + string.digits
_KEY_PREFIX = "sk_"
_KEY_LENGTH = 24


class RuntimeRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention as it was last set through the admin API. None days: no payload goes."""

    payload_retention_days: int | None
    compaction_interval_seconds: int
    updated_at: int  # milliseconds

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def runtime_retention(stored: bytes | None) -> RuntimeRetention | None:
    """What the store's settings say, or None where nothing was set. Unreadable words forget nothing: `StoreError`."""
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored, type=RuntimeRetention)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the retention kept in the store cannot be read ({error}); set it again: PATCH /admin/retention"
        ) from None


def policy_in_force(policy: Policy, interval_seconds: int, stored: bytes | None) -> tuple[Policy, int]:
    """The policy to compact by and the seconds between runs: what was set at run time over what the settings say."""
    set_since = runtime_retention(stored)
    if set_since is None:
        return policy, interval_seconds
    return (
        msgspec.structs.replace(policy, payload_days=set_since.payload_retention_days),
        set_since.compaction_interval_seconds,
    )


def new_access_key() -> str:
    """A fresh secret: `sk_` and 24 letters and digits, about 124 bits."""
    return _KEY_PREFIX + "".join(secrets.choice(_KEY_ALPHABET) for _ in range(_KEY_LENGTH))
