"""How long an answer of the peer's is waited for: until it gets on with what it was asked for, or time is up. No I/O.

What a peer says besides does not lengthen it: one that talks on its stream and never answers is silent all the same.
Only while what it sent is still on its way to our own disk the answer may stand behind that, and time is given; a few
times, since a stream that never rests would hide a lost answer for ever.
"""

from __future__ import annotations

PUT_OFF_MAX = 10  # times in a row


class Patience:
    def __init__(self) -> None:
        self.until: float | None = None
        """None: no answer is waited for."""
        self.seconds = 0.0
        self._put_off = 0

    def begin(self, now: float, seconds: float) -> None:
        """The peer was asked, or has got on with it."""
        self.until, self.seconds = now + seconds, seconds
        self._put_off = 0

    def end(self) -> None:
        self.until = None

    def is_over(self, now: float) -> bool:
        return self.until is not None and now >= self.until

    def put_off(self, until: float) -> bool:
        """It is we who are slow. False: that has been said too often."""
        self._put_off += 1
        if self._put_off > PUT_OFF_MAX:
            return False
        self.until = until
        return True
