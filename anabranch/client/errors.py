"""What can go wrong for an app that uses a replica. Every error says what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.client.document import Document


class ReplicaError(Exception):
    """Something that was asked of a replica cannot be done; nothing was changed."""


class ReadOnly(ReplicaError):
    """The document is in conflict: it takes no edit until `resolve()` has settled it."""

    def __init__(self, conflict: Document) -> None:
        super().__init__(
            f"document {conflict.d} has {len(conflict.versions)} versions that were written apart; "
            "call resolve() with one of them or with a merged content, then edit on"
        )
        self.conflict = conflict


class NotInConflict(ReplicaError):
    """There is nothing to resolve."""

    def __init__(self, d: str) -> None:
        super().__init__(f"document {d} is not in conflict; use put() or delete()")


class NoSuchDocument(ReplicaError):
    def __init__(self, d: str) -> None:
        super().__init__(f"no document {d!r} here; documents() lists them, and a sync may bring it")


class NoSuchVersion(ReplicaError):
    def __init__(self, d: str, version: str) -> None:
        super().__init__(f"document {d} has no version {version!r} here; history() lists what is kept")


class Unreadable(ReplicaError):
    """A version is proven to be the owner's, and its payload still cannot be read."""

    def __init__(self, version: str, why: str) -> None:
        super().__init__(f"version {version} cannot be read ({why}); restore() another one, or update the app")
        self.why = why


class BadContent(ReplicaError):
    """The content cannot be written: not JSON, too large, or too many devices have written the document."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the content cannot be written: {why}")


class WrongReplica(ReplicaError):
    """The file is no replica of this owner and family. Open it with what it was made with, or choose another file."""


class NoSuchRelay(ReplicaError):
    def __init__(self, url: str) -> None:
        super().__init__(f"{url} is not among the relays of this replica; add it first")


class BadRelay(ReplicaError):
    def __init__(self, url: str) -> None:
        super().__init__(f"{url!r} is no relay address; it begins with ws:// or wss:// and names a host")


class Closed(ReplicaError):
    def __init__(self) -> None:
        super().__init__("this replica is closed; open it again with Replica.open()")


class FileFailed(ReplicaError):
    """SQLite could not do it: the disk is full, the file is damaged or held. Nothing was changed; try again."""
