"""What arrives on one connection on its way to the disk: gathered into pages, numbered, and waited for. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.core.checkpoint import Pending
from anabranch.core.token import ProgressToken
from anabranch.replicate.effects import Apply, Arrival, Effect
from anabranch.replicate.repair import Round
from anabranch.replicate.settled import Settled
from anabranch.replicate.stream import Stream, is_lasting


class Intake:
    def __init__(self, numbers: Iterator[int], settled: Settled) -> None:
        """`numbers` are never the same twice, on other connections either."""
        self.stream: Stream | None = None
        self.witness = ""
        """An operation that the peer has shown to have."""
        self._numbers = numbers
        self._settled = settled
        self._under_way: dict[int, int] = {}

    @property
    def gathered(self) -> int:
        return self.stream.count if self.stream is not None else 0

    @property
    def applying(self) -> bool:
        """Whether a page is on its way to the disk."""
        return bool(self._under_way)

    @property
    def count(self) -> int:
        """Operations received and not yet answered for by the store."""
        return self.gathered + sum(self._under_way.values())

    def of_stream(self) -> list[Effect]:
        """All that the stream has brought so far; what can never be taken is known before anything passes it."""
        page = self.stream.page() if self.stream is not None else None
        letters = self._settled.letters()
        return letters if page is None else [*letters, self._apply(*page)]

    def of_round(self, running: Round | None, pending: Sequence[Pending]) -> list[Effect]:
        """All that a round has fetched so far."""
        letters = self._settled.letters()
        if running is None or not running.found:
            return letters
        found, running.found, running.found_bytes = running.found, [], 0
        self.witness = next((one.event.id for one in reversed(found) if is_lasting(one.event.kind)), self.witness)
        if pending:  # what was pending may have come once more, and what it waited for with it
            tokens = {one.blocked.operation: one.token for one in pending}
            found = [Arrival(one.event, one.raw, tokens.get(one.event.id)) for one in found]
        return [*letters, self._apply(tuple(found))]

    def _apply(self, arrivals: tuple[Arrival, ...], through: ProgressToken | None = None) -> Apply:
        number = next(self._numbers)
        self._under_way[number] = len(arrivals)
        return Apply(number, arrivals, through)

    def answered(self, number: int) -> bool:
        """The store has answered for a page. False: it was of a connection that is gone."""
        return self._under_way.pop(number, None) is not None
