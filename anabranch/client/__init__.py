"""A local-first replica for apps: documents in a file, in step with any number of relays.

`Replica` is all that an app needs; the errors it raises say what to do next. Underneath, `follower` decides and
`following` carries out (one relay each), `file` and `ledger` keep, `sealing` and `proving` guard what goes out and
comes in.
"""

from anabranch.client.base import Base
from anabranch.client.document import Change, ChangeKind, Document, DocumentVersion, Refusal, RelayStatus
from anabranch.client.errors import (
    BadContent,
    BadRelay,
    Closed,
    FileFailed,
    NoSuchDocument,
    NoSuchRelay,
    NoSuchVersion,
    NotInConflict,
    ReadOnly,
    ReplicaError,
    Unreadable,
    WrongReplica,
)
from anabranch.client.follower import Timing
from anabranch.client.now import World
from anabranch.client.replica import Replica
from anabranch.core.nostr import Keys

__all__ = [
    "BadContent",
    "BadRelay",
    "Base",
    "Change",
    "ChangeKind",
    "Closed",
    "Document",
    "DocumentVersion",
    "FileFailed",
    "Keys",
    "NoSuchDocument",
    "NoSuchRelay",
    "NoSuchVersion",
    "NotInConflict",
    "ReadOnly",
    "Refusal",
    "RelayStatus",
    "Replica",
    "ReplicaError",
    "Timing",
    "Unreadable",
    "World",
    "WrongReplica",
]
