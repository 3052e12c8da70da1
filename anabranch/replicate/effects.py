"""What a link asks of its shell: to dial, to send, to apply, to look something up, to write something down.

Effects are carried out in order. Those that look something up (`Load…`) and `Apply` come back as a call of the link,
which may have more effects. Pages may be under way while others arrive; they are applied in order, and when one cannot
be, none after it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anabranch.core.checkpoint import Blocked, Checkpoint
from anabranch.core.nostr import Event
from anabranch.core.revisions import Ancestor, Name
from anabranch.core.token import Log, Position, ProgressToken
from anabranch.replicate.states import Cue, LinkState


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """An event of the peer's: well-formed, with its own id, in scope. Its signature is yet to be checked.

    Where it stands in a stream there is a token; what was fetched to close a difference has none.
    """

    event: Event
    raw: bytes
    token: ProgressToken | None = None


class Dial(msgspec.Struct, frozen=True):
    """Read the peer's information and open a connection; then call `opened` or `lost`."""


class Send(msgspec.Struct, frozen=True, gc=False):
    message: bytes


class HangUp(msgspec.Struct, frozen=True):
    """Close the connection; what waits to be applied is dropped."""


class Apply(msgspec.Struct, frozen=True):
    """Prove and store a page, and move the checkpoint through what has tokens, in one transaction.

    `through` is a token up to which the stream is complete beyond the last arrival. Then call `applied`, or
    `not_applied` when the store could not.
    """

    number: int
    arrivals: tuple[Arrival, ...]
    through: ProgressToken | None = None


class Applied(msgspec.Struct, frozen=True):
    """What became of a page: how it stands with each that was not stored, and the checkpoint after it."""

    number: int
    stored: int = 0
    declined: tuple[str, ...] = ()
    """Ids that our own rules refuse or have superseded: to ask for them again is of no use."""
    refused: tuple[str, ...] = ()
    """Those of them that our own rules refuse."""
    later: tuple[tuple[str, int], ...] = ()
    """And of those what they may take from a time on."""
    forged: tuple[str, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    checkpoint: Checkpoint | None = None


class SavePull(msgspec.Struct, frozen=True):
    checkpoint: Checkpoint


class SavePush(msgspec.Struct, frozen=True):
    checkpoint: Checkpoint


class LoadItems(msgspec.Struct, frozen=True):
    """What we have of a filter, as a set, and our own log as it was before that was read: call `items`."""

    filter: Mapping[str, Any]


class LoadUnknown(msgspec.Struct, frozen=True):
    """Which of these operations are not here in any state: call `unknown`."""

    ids: tuple[str, ...]


class LoadMissing(msgspec.Struct, frozen=True):
    """Which of these revisions, and of the parents of revisions after a position of ours, are not here in any form:
    call `lacking`."""

    after: Position
    also: tuple[Name, ...]


class Tell(msgspec.Struct, frozen=True):
    """Take down what the peer says of revisions that it has compacted."""

    ancestors: tuple[Ancestor, ...]


class LoadPayloads(msgspec.Struct, frozen=True):
    """The bytes of these operations, as far as they are here: call `payloads`, in dependency order."""

    ids: tuple[str, ...]


class LoadOwed(msgspec.Struct, frozen=True):
    """The next stretch of our own log in the link's scope, without what came from this peer: call `owed`."""

    after: Position
    limit: int


class Owed(msgspec.Struct, frozen=True):
    """The answer to `LoadOwed`: (id, bytes) in dependency order; up to `complete_to` there is nothing else."""

    after: Position  # where it was asked to begin
    entries: tuple[tuple[str, bytes], ...]
    complete_to: Position
    log: Log


class Bury(msgspec.Struct, frozen=True):
    """The peer refuses an operation for good, or has one that nobody here can ever take: a dead letter."""

    id: str
    reason: str
    direction: str = "push"


class Forget(msgspec.Struct, frozen=True):
    """Begin anew: no checkpoints, no dead letters."""


class Remember(msgspec.Struct, frozen=True):
    """Write down what has changed of the link's record, though its state has not."""


class Told(msgspec.Struct, frozen=True):
    """The state is another one, or something is to be remembered of it."""

    before: LinkState
    after: LinkState
    cue: Cue
    why: str = ""


class Noted(msgspec.Struct, frozen=True):
    """Something went wrong that changes no state: for the log and the ledger."""

    code: str
    why: str


Effect = (
    Dial
    | Send
    | HangUp
    | Apply
    | SavePull
    | SavePush
    | LoadItems
    | LoadUnknown
    | LoadMissing
    | Tell
    | LoadPayloads
    | LoadOwed
    | Bury
    | Forget
    | Remember
    | Told
    | Noted
)
