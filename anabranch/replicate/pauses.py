"""When a link tries again: after pauses that grow, with jitter, and that flapping does not shorten."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.replicate.spec import Timing

POLLS = 12  # of a peer that cannot be reached, after which it is asked less and less often


class Pauses:
    def __init__(self, timing: Timing, share: Callable[[], float]) -> None:
        self.failures = 0
        self._timing = timing
        self._share = share
        self._live_since: float | None = None

    @property
    def exhausted(self) -> bool:
        """Whether so many tries have failed that the link is to poll."""
        return self.failures > self._timing.reconnects

    def live(self, now: float) -> None:
        if self._live_since is None:
            self._live_since = now

    def after_failure(self, now: float, *, polls: bool, reached: bool) -> float:
        """Seconds until the next try. Only a link that was live for a while begins with the shortest one again."""
        timing, share = self._timing, self._share()
        if self._live_since is not None and now - self._live_since >= timing.steady:
            self.failures = 0
        self._live_since = None
        self.failures += 1
        if not polls:
            return self._doubled(self.failures - 1) * (0.5 + share / 2)
        poll = timing.poll_min + (timing.poll_max - timing.poll_min) * share
        return poll if reached else max(poll, self._doubled(self.failures - 1 - POLLS))

    def _doubled(self, times: int) -> float:
        return min(self._timing.retry_min * 2.0 ** min(max(times, 0), 16), self._timing.retry_max)
