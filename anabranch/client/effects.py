"""What the follower asks of its shell: to send, to stage and apply, to look something up, to hang up.

Effects are carried out in order and one after the other. Those that look something up (`Load…`) come back as a call of
the follower, which may have more effects.
"""

from __future__ import annotations

import msgspec


class Dial(msgspec.Struct, frozen=True):
    """Open a connection and read the relay's information; then call `opened` or `lost`."""


class Send(msgspec.Struct, frozen=True, gc=False):
    message: bytes


class Authenticate(msgspec.Struct, frozen=True):
    """Sign an answer to the challenge, send it, and call `answering` with its id."""

    challenge: str


class NewLog(msgspec.Struct, frozen=True):
    """The relay's log is not the one we followed: forget what it had and how far we were."""

    why: str


class Stage(msgspec.Struct, frozen=True):
    """Begin to prove events; they go into the next `Apply`."""

    events: tuple[bytes, ...]


class Apply(msgspec.Struct, frozen=True):
    """All that was staged, in one transaction together with the checkpoint (None: it stays where it is)."""

    position: int | None
    stream: str = ""
    epoch: str = ""
    seen: tuple[str, ...] = ()
    """Versions that the relay says it has."""
    hinted: tuple[str, ...] = ()
    """Versions to ask for if they are still not here."""
    removed: tuple[tuple[str, str], ...] = ()
    """Events that the relay removed for good: (event id, why)."""


class Discard(msgspec.Struct, frozen=True):
    """What was staged is not to be applied."""


class LoadItems(msgspec.Struct, frozen=True):
    """The heads as negentropy items: call `items`."""


class LoadUnknown(msgspec.Struct, frozen=True):
    """Which of these revisions are not here: call `unknown`."""

    revisions: tuple[str, ...]


class LoadWanted(msgspec.Struct, frozen=True):
    """What this relay may have and is to show: call `wanted`."""

    limit: int


class LoadOwed(msgspec.Struct, frozen=True):
    """What the relay lacks: call `owed`. `anew`: from the beginning, not from where the last answer ended."""

    limit: int
    anew: bool = False


class Acknowledge(msgspec.Struct, frozen=True):
    """The relay has these: (version, event id). Without an event it only says so, and has to show it."""

    taken: tuple[tuple[str, str | None], ...]


class Refuse(msgspec.Struct, frozen=True):
    version: str
    reason: str


class Absent(msgspec.Struct, frozen=True):
    """What was asked for and, unless it has come, is not to be had here: (revision, why)."""

    revisions: tuple[tuple[str, str], ...]


class Told(msgspec.Struct, frozen=True):
    """The state is another one."""

    state: str
    why: str = ""


class HangUp(msgspec.Struct, frozen=True):
    """Close the connection."""


Effect = (
    Dial
    | Send
    | Authenticate
    | NewLog
    | Stage
    | Apply
    | Discard
    | LoadItems
    | LoadUnknown
    | LoadWanted
    | LoadOwed
    | Acknowledge
    | Refuse
    | Absent
    | Told
    | HangUp
)
