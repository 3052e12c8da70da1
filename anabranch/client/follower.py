"""The follower: one relay's side of a replica, as a machine without I/O.

    offline → connecting → [authenticating] → bootstrapping → replaying → live

Calls come in (`opened`, `receive`, `tick`, the answers to `Load…` effects), effects go out, and the shell carries them
out in order; so what is applied is on disk before anything that rests on it is asked for. The checkpoint moves only
with a page, only forward, and only within one log: another stream or epoch, or a checkpoint outside of what the relay
can replay, is told and answered by a new bootstrap. Publishing begins when the replay has ended: by then we know what
the relay has. A relay that says what it may not say is left, and tried again after a pause that doubles and that only a
steady connection shortens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from anabranch.client import messages
from anabranch.client.bootstraps import (
    STAGE_BYTES,
    STAGE_COUNT,
    Bootstrap,
    CannotReconcile,
    Fetch,
    RevisionBootstrap,
    SnapshotBootstrap,
    Wanted,
)
from anabranch.client.effects import (
    Absent,
    Acknowledge,
    Apply,
    Authenticate,
    Dial,
    Discard,
    Effect,
    HangUp,
    LoadWanted,
    NewLog,
    Send,
    Stage,
    Told,
)
from anabranch.client.file import Checkpoint
from anabranch.client.ledger import Owed
from anabranch.client.messages import Frame, ProtocolError, short
from anabranch.client.publishing import Publisher
from anabranch.core.nostr import TIMESTAMP_MAX
from anabranch.core.operation import Family
from anabranch.core.token import GapReason, Log, Position, gap
from anabranch.wire.authentication import Authentication, NotLetIn, Sign, Step

WANTED_COUNT = 256
MESSAGE_BYTES = 131_072  # what a relay is taken to read where it does not say


class State(StrEnum):
    OFFLINE = "offline"
    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    BOOTSTRAPPING = "bootstrapping"
    REPLAYING = "replaying"
    LIVE = "live"
    STOPPED = "stopped"


class Cue(StrEnum):
    TRY = "time to try"
    CHALLENGED = "authentication is asked for"
    RESUME = "the checkpoint can be resumed from"
    GAP = "there is no checkpoint, or it is of no use"
    SNAPSHOT = "all that is current was applied"
    CAUGHT_UP = "the replay has reached the tip"
    LOST = "the connection is lost or not to be trusted"
    STOP = "the replica lets go of the relay"


_ANYWHERE = {Cue.LOST: State.OFFLINE, Cue.STOP: State.STOPPED}
_BEGIN = {Cue.RESUME: State.REPLAYING, Cue.GAP: State.BOOTSTRAPPING}

TRANSITIONS: dict[State, dict[Cue, State]] = {
    State.OFFLINE: {Cue.TRY: State.CONNECTING, **_ANYWHERE},
    State.CONNECTING: {Cue.CHALLENGED: State.AUTHENTICATING, **_BEGIN, **_ANYWHERE},
    State.AUTHENTICATING: {**_BEGIN, **_ANYWHERE},
    State.BOOTSTRAPPING: {Cue.SNAPSHOT: State.REPLAYING, Cue.CHALLENGED: State.AUTHENTICATING, **_ANYWHERE},
    State.REPLAYING: {
        Cue.CAUGHT_UP: State.LIVE,
        Cue.GAP: State.BOOTSTRAPPING,
        Cue.CHALLENGED: State.AUTHENTICATING,
        **_ANYWHERE,
    },
    State.LIVE: {Cue.GAP: State.BOOTSTRAPPING, **_ANYWHERE},
    State.STOPPED: {},
}


class Timing(msgspec.Struct, frozen=True):
    """Seconds."""

    retry_min: float = 1.0
    retry_max: float = 30.0
    steady: float = 60.0  # live for so long, and the next loss begins with the shortest pause again
    patience: float = 30.0  # for the next message while something is awaited
    ping: float = 30.0


class Follower:
    def __init__(
        self,
        family: Family,
        owner: str,
        access_key: str | None,
        checkpoint: Checkpoint | None,
        timing: Timing,
        share: Callable[[], float],
    ) -> None:
        self.state = State.OFFLINE
        self.checkpoint = checkpoint
        self.last_error: str | None = None
        self.last_notice: str | None = None
        self.retry_at: float | None = 0.0
        self._family = family
        self._owner = owner
        self._access_key = access_key
        self._timing = timing
        self._share = share
        self._failures = 0
        self._live_since: float | None = None
        self._names = 0
        self._clear()

    def _clear(self) -> None:
        """What belongs to one connection."""
        self._log = Log("", "", Position(0), Position(0))
        self._batched = False
        self._reconciles = True
        self._message_bytes_max: int | None = None
        self._authentication = Authentication(self._access_key)
        self._bootstrap: Bootstrap | None = None
        self._ancestors: Fetch | None = None
        self._ancestors_until: float | None = None
        self._wanting = self._want_again = False
        self._bootstrapped = False
        self._tail: str | None = None
        self._page: list[bytes] = []
        self._page_bytes = 0
        self._removed: list[tuple[str, str]] = []
        self._reached: int | None = None
        self._patience_until: float | None = None
        self._publisher = Publisher(self._share, doubts=self._family is Family.REVISION)

    # --- what others ask ---

    @property
    def caught_up(self) -> bool:
        """Live, and nothing is under way in either direction."""
        quiet = not self._page and self._reached is None and self._ancestors is None and not self._wanting
        return self.state is State.LIVE and quiet and self._publisher.settled

    @property
    def deadline(self) -> float | None:
        """When `tick` is due, whatever else happens."""
        if self.state is State.OFFLINE:
            return self.retry_at
        publishing = self._publisher.deadline if self.state is State.LIVE else None
        due = (self._patience_until, self._ancestors_until, publishing)
        return min((at for at in due if at is not None), default=None)

    @property
    def last_refusal(self) -> str | None:
        return self._publisher.last_refusal

    # --- the connection ---

    def tick(self, now: float) -> list[Effect]:
        if self.state is State.OFFLINE:
            if self.retry_at is None or now < self.retry_at:
                return []
            self.retry_at = None
            self._patience_until = None  # the shell bounds the time to connect
            return [*self._go(Cue.TRY), Dial()]
        if self._patience_until is not None and now >= self._patience_until:
            return self.lost(f"no answer for {self._timing.patience:g} s while {self.state}", now)
        if self._ancestors_until is not None and now >= self._ancestors_until:
            return self.lost(f"a fetch was left without an answer for {self._timing.patience:g} s", now)
        if self.state is State.LIVE:
            due = self._publisher.tick(now)
            return self.lost("a version was left without an answer", now) if due is None else due
        return []

    def try_now(self) -> None:
        """Do not wait for the next try."""
        if self.state is State.OFFLINE and self.retry_at is not None:
            self.retry_at = 0.0

    def opened(self, information: dict[str, Any], now: float) -> list[Effect]:
        """The connection stands, and this is what the relay says of itself (NIP-11)."""
        feed = _object(information, "changes_feed")
        name = "snapshot_sync" if self._family is Family.SNAPSHOT else "revision_sync"
        family = _object(information, name)
        if family.get("changes_feed") is not True:
            self._failures = 1_000  # it will hardly be another one in a second
            return self.lost(f"this relay does not serve {name.replace('_', ' ')} (its NIP-11 document says so)", now)
        tip = feed.get("max_seq")
        self._log = Log(
            short(str(feed.get("stream_id") or "")),
            short(str(feed.get("epoch") or "")),
            Position(_count(feed.get("min_seq"))),
            Position(tip if isinstance(tip, int) else TIMESTAMP_MAX),
        )
        self._batched = self._family is Family.REVISION and family.get("batch_fetch") is True
        self._reconciles = family.get("current_head_negentropy") is not False
        limitation = _object(information, "limitation")
        self._message_bytes_max = _count(limitation.get("max_message_length")) or None
        self._publisher.message_bytes_max = self._message_bytes_max
        if limitation.get("auth_required") is True:
            return self._authenticate(now)
        return self._begin(now)

    def lost(self, reason: str, now: float) -> list[Effect]:
        """The connection is gone, or is to go: what was not applied is forgotten, and it is tried again later."""
        if self.state in (State.STOPPED, State.OFFLINE):
            return []
        if self._steady(now):
            self._failures = 0
        pause = min(self._timing.retry_min * 2 ** min(self._failures, 16), self._timing.retry_max)
        self._failures += 1
        self._live_since = None
        self.retry_at = now + pause * (0.5 + self._share() / 2)
        self.last_error = short(reason)
        self._clear()
        return [Discard(), HangUp(), *self._go(Cue.LOST, self.last_error)]

    def stop(self) -> list[Effect]:
        if self.state is State.STOPPED:
            return []
        self._clear()
        return [Discard(), HangUp(), *self._go(Cue.STOP)]

    def _go(self, cue: Cue, why: str = "") -> list[Effect]:
        self.state = TRANSITIONS[self.state][cue]
        return [Told(self.state, why)]

    def _await(self, now: float) -> None:
        self._patience_until = now + self._timing.patience

    # --- authentication ---

    def _authenticate(self, now: float) -> list[Effect]:
        self._await(now)
        return [*self._go(Cue.CHALLENGED), *_proving(self._authentication.need())]

    def answering(self, event: str) -> list[Effect]:
        self._authentication.answering(event)
        return []

    def _maybe_authenticate(self, text: str, now: float) -> list[Effect]:
        """A relay that did not say before that it wants authentication may say so now, once."""
        if not text.startswith("auth-required:") or not self._authentication.possible:
            return []
        self._bootstrap = None
        return [Discard(), *self._authenticate(now)]

    def _take_ok(self, frame: Frame, now: float) -> list[Effect]:
        if (steps := self._authentication.answered(str(frame[1]), frame[2] is True, frame.text(3))) is not None:
            if not self._authentication.proven:
                return _proving(steps)
            return self._publisher.wake(anew=True) if self.state is State.LIVE else self._begin(now)
        answered = self._publisher.answered(frame, now)
        # A relay that lets everybody read may still want to know who writes.
        if frame.text(3).startswith("auth-required:") and self._authentication.possible:
            return [*answered, *_proving(self._authentication.need())]
        return answered

    # --- where to begin ---

    def _begin(self, now: float) -> list[Effect]:
        at, log = self.checkpoint, self._log
        if at is None:
            return self._start_bootstrap("nothing is here yet", now)
        if (at.stream, at.epoch) != (log.stream, log.epoch):
            why = (
                "the relay's log is another one than before"
                if at.stream != log.stream
                else "the log was restored or imported into"
            )
            return self._start_anew(why, now)
        missed = gap(log, Position(at.position))
        if missed is None:
            return self._start_tail(Cue.RESUME, now)
        if missed.reason is GapReason.TOKEN_TOO_NEW:
            return self._start_anew(f"the relay's log ends at {log.tip}, before our checkpoint {at.position}", now)
        return self._start_bootstrap(f"the relay keeps its log from {log.floor}; we were at {at.position}", now)

    def _start_anew(self, why: str, now: float) -> list[Effect]:
        self.checkpoint = None
        return [NewLog(why), *self._start_bootstrap(why, now)]

    def _start_bootstrap(self, why: str, now: float) -> list[Effect]:
        self._await(now)
        self._tail, self._live_since, self._bootstrapped = None, None, True
        self._end_ancestors()
        why = short(why)
        name = self._name("boot")
        if self._family is Family.SNAPSHOT:
            self._bootstrap = SnapshotBootstrap(name, self._owner)
        elif self._reconciles:
            frame_bytes_max = max(4_096, (self._message_bytes_max or MESSAGE_BYTES) // 2 - 256)  # sent as hex
            self._bootstrap = RevisionBootstrap(name, self._owner, self._batched, frame_bytes_max)
        else:
            return [*self._go(Cue.GAP, why), *self._replay_all("this relay does not reconcile", now)]
        return [*self._go(Cue.GAP, why), *self._bootstrap.begin()]

    def _replay_all(self, why: str, now: float) -> list[Effect]:
        """In place of a reconciliation: the whole log, where it is still whole."""
        if self._log.floor > 1:
            return self.lost(f"{why}, and the beginning of its log is gone: there is no way to bootstrap", now)
        self._bootstrap = None
        self.checkpoint = Checkpoint(self._log.stream, self._log.epoch, 0)
        return [Discard(), *self._start_tail(Cue.SNAPSHOT, now)]

    def _start_tail(self, cue: Cue, now: float) -> list[Effect]:
        assert self.checkpoint is not None
        self._await(now)
        self._tail = self._name("tail")
        request = messages.tail(self._tail, self._family, self._owner, self.checkpoint.position)
        return [*self._go(cue), Send(request)]

    def _name(self, what: str) -> str:
        """Never the same twice: what is still under way for an old subscription concerns nobody."""
        self._names += 1
        return f"{what}-{self._names}"

    # --- what the relay says ---

    def receive(self, message: bytes | str, now: float) -> list[Effect]:
        if self.state in (State.OFFLINE, State.STOPPED):
            return []
        try:
            return self._take(Frame(message), now)
        except CannotReconcile as error:
            return self._replay_all(str(error), now)
        except (ProtocolError, NotLetIn) as error:
            return self.lost(str(error), now)

    def _take(self, frame: Frame, now: float) -> list[Effect]:
        if self._patience_until is not None:
            self._await(now)
        match frame.verb:
            case "OK":
                return self._take_ok(frame, now)
            case "AUTH":
                return _proving(self._authentication.challenged(frame.text(1)))
            case "TOKEN":
                return _proving(self._authentication.token_answered(frame[2] is True, frame.text(3)))
            case "NOTICE":
                self.last_notice = short(frame.text(1))
                return []
        name = frame[1]
        if self._tail is not None and name == self._tail:
            return self._take_change(frame, now)
        if self._ancestors is not None and name == self._ancestors.name:
            self._ancestors_until = now + self._timing.patience
            return self._take_ancestors(self._ancestors.receive(frame))
        if self._bootstrap is not None and name in (self._bootstrap.name, f"{self._bootstrap.name}-fetch"):
            return self._take_bootstrap(self._bootstrap, frame, now)
        return []

    def _take_bootstrap(self, bootstrap: Bootstrap, frame: Frame, now: float) -> list[Effect]:
        if frame.verb == "CHANGES" and frame[2] == "ERR" and (asked := self._maybe_authenticate(frame.text(3), now)):
            return asked
        if frame.verb == "CHANGES" and frame[2] == "ERR":
            raise ProtocolError(f"the relay refused the bootstrap: {frame.text(3)}")
        return self._after_bootstrap(bootstrap, bootstrap.receive(frame), now)

    def _after_bootstrap(self, bootstrap: Bootstrap, effects: list[Effect], now: float) -> list[Effect]:
        if bootstrap.position is None:
            return effects
        self._bootstrap = None
        apply = self._apply(bootstrap.position, bootstrap.seen, bootstrap.hinted)
        return [*effects, apply, *self._start_tail(Cue.SNAPSHOT, now)]

    def _apply(self, position: int, seen: tuple[str, ...] = (), hinted: tuple[str, ...] = ()) -> Apply:
        log, at = self._log, self.checkpoint
        reached = max(position, at.position if at is not None else 0)
        self.checkpoint = Checkpoint(log.stream, log.epoch, reached)
        removed, self._removed = tuple(self._removed), []
        return Apply(reached, log.stream, log.epoch, seen, hinted, removed)

    def items(self, items: Sequence[tuple[int, str]]) -> list[Effect]:
        return self._bootstrap.items(items) if isinstance(self._bootstrap, RevisionBootstrap) else []

    def unknown(self, revisions: Sequence[str], now: float) -> list[Effect]:
        if not isinstance(self._bootstrap, RevisionBootstrap):
            return []
        return self._after_bootstrap(self._bootstrap, self._bootstrap.unknown(revisions), now)

    # --- the tail ---

    def _take_change(self, frame: Frame, now: float) -> list[Effect]:
        if frame.verb == "CLOSED":
            raise ProtocolError(f"the relay ended the feed: {frame.text(2)}")
        if frame.verb != "CHANGES":
            return []
        match frame[2]:
            case "EVENT":
                raw = frame.raw(4)
                self._reach(frame.position(3))
                self._page.append(raw)
                self._page_bytes += len(raw)
                return self.flush() if len(self._page) >= STAGE_COUNT or self._page_bytes >= STAGE_BYTES else []
            case "EOSE" if self.state is State.REPLAYING:
                self._reach(frame.position(3))
                self._patience_until = None
                self._live_since = now
                self.last_error = None
                return [*self.flush(), *self._go(Cue.CAUGHT_UP), *self._publisher.wake(anew=True), *self._want()]
            case "DELETED":
                self._reach(frame.position(3))
                self._removed.append((short(frame.text(4)), short(frame.text(5))))
                # What it named may be current again there.
                return [*self._flush_page(), *(self._want() if self.state is State.LIVE else [])]
            case "ERR":
                return self._feed_refused(frame.text(3), now)
        raise ProtocolError(f"{str(frame[2])[:20]} in the feed")

    def _reach(self, position: int) -> None:
        self._reached = max(self._reached or 0, position)

    def _feed_refused(self, text: str, now: float) -> list[Effect]:
        before = self._flush_page()  # the checkpoint has moved with it: whatever follows, it is carried out
        old, new = text.startswith("checkpoint too old"), text.startswith("checkpoint too new")
        if (old or new) and self._bootstrapped and not self._steady(now):
            return [*before, *self.lost(f"right after a bootstrap the relay says: {text}", now)]
        if old:
            return [*before, *self._start_bootstrap(text, now)]
        if new:
            return [*before, *self._start_anew(text, now)]
        if self.state is State.REPLAYING and (asked := self._maybe_authenticate(text, now)):
            return [*before, *asked]
        return [*before, *self.lost(f"the relay refused the feed: {text}", now)]

    def _steady(self, now: float) -> bool:
        """Live for long enough to count as a new beginning: before, one bootstrap after the other would be a loop."""
        return self._live_since is not None and now - self._live_since >= self._timing.steady

    def flush(self) -> list[Effect]:
        """The end of what has arrived for now: one page, one transaction; then what it lets us send."""
        fresh, page = bool(self._page), self._flush_page()
        staged = self._bootstrap.stage() if self._bootstrap is not None else []
        publish = self._publisher.flush() if self.state is State.LIVE else []
        claimed = any(event is None for one in publish if isinstance(one, Acknowledge) for _, event in one.taken)
        wanted = self._want() if (fresh or claimed) and self.state is State.LIVE else []
        return [*page, *staged, *publish, *wanted]

    def _flush_page(self) -> list[Effect]:
        if self._reached is None:
            return []
        page, position = self._page, self._reached
        self._page, self._page_bytes, self._reached = [], 0, None
        staged: list[Effect] = [Stage(tuple(page))] if page else []
        return [*staged, self._apply(position)]

    # --- ancestors (revisions): what is named as a parent and not here; and what a relay says to have and did not show

    def _want(self) -> list[Effect]:
        if self._family is not Family.REVISION or self._ancestors is not None:
            return []
        if self._wanting:
            self._want_again = True  # the answer may be older than the question
            return []
        self._wanting = True
        return [LoadWanted(WANTED_COUNT)]

    def wanted(self, revisions: Sequence[Wanted], now: float) -> list[Effect]:
        again, self._wanting, self._want_again = self._want_again, False, False
        if self.state is not State.LIVE:
            return []
        if not revisions:
            return self._want() if again else []
        self._ancestors = Fetch(self._name("ancestors"), self._owner, revisions, self._batched)
        self._ancestors_until = now + self._timing.patience
        return self._ancestors.begin()

    def _end_ancestors(self) -> None:
        self._ancestors = self._ancestors_until = None

    def _take_ancestors(self, effects: list[Effect]) -> list[Effect]:
        assert self._ancestors is not None
        if not self._ancestors.finished and not any(isinstance(effect, Absent) for effect in effects):
            return effects
        if self._ancestors.finished:
            self._end_ancestors()
        # What has come is applied before what has not is given up, and what it names in its turn is looked for.
        return [Apply(None), *effects, *(self._want() if self._ancestors is None else [])]

    # --- publishing ---

    def wake(self, anew: bool = False) -> list[Effect]:
        """Something was written here, or came from another relay; it may be owed, or name what only this relay has.

        `anew`: something was taken off the books.
        """
        return [*self._publisher.wake(anew), *self._want()] if self.state is State.LIVE else []

    def owed(self, versions: Sequence[Owed], limit: int, now: float) -> list[Effect]:
        return self._publisher.owed(versions, limit, now) if self.state is State.LIVE else []


def _object(document: Any, name: str) -> dict[str, Any]:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _proving(steps: list[Step]) -> list[Effect]:
    return [Authenticate(step.challenge) if isinstance(step, Sign) else Send(step.message) for step in steps]
