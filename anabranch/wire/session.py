"""One client's session: what it says, what it may, and what it gets told. No I/O.

`receive` takes a message and returns effects for the shell to carry out; what takes time (a signature, a commit, a
query) comes back later: an AUTH through `proven`, the end of a subscription through `ended`. The simulator and the
tests drive the same object.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from anabranch.core import changes, nostr
from anabranch.core import filter as filters
from anabranch.core.changes import ChangesRequest, LogQuery, RevisionQuery
from anabranch.core.filter import Filter
from anabranch.core.nostr import Event, Invalid, Limits
from anabranch.core.operation import KindPolicy, Operation, Unsupported, classify
from anabranch.core.revisions import GIFT_WRAP
from anabranch.wire import messages
from anabranch.wire.opened import NoRoom, Opened, Together

AUTH_TOLERANCE = 600  # seconds, either way
AUTHORS_MAX = 100  # pubkeys of one connection
ONE_RECIPIENT = "NEG-OPEN requires exactly one #p recipient for revision sync"
KEY_LOST = "restricted: the access key holds no longer"
KEY_WANTED = "token-required: the relay asks for an access key from now on"

# --- effects -------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    message: bytes


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Prove and store an operation, then send its OK."""

    operation: Operation
    access_key: str | None = None


class Prove(msgspec.Struct, frozen=True):
    """Check the signature of an AUTH event, then call `proven`."""

    event: Event


class Query(msgspec.Struct, frozen=True):
    """Open a REQ: stored events, EOSE, then live ones."""

    subscription: str
    filters: tuple[Filter, ...]
    batched: bool = False


class Count(msgspec.Struct, frozen=True):
    subscription: str
    filters: tuple[Filter, ...]


class Changes(msgspec.Struct, frozen=True):
    subscription: str
    request: ChangesRequest


class Reconcile(msgspec.Struct, frozen=True):
    """Open a reconciliation: of the events a filter matches (NIP-77), or of a recipient's current revisions."""

    subscription: str
    query: Filter | RevisionQuery
    message: bytes | None = None


class ReconcileOn(msgspec.Struct, frozen=True):
    """The next message of a reconciliation."""

    subscription: str
    message: bytes


class ReconcileEnd(msgspec.Struct, frozen=True):
    subscription: str


class Cancel(msgspec.Struct, frozen=True):
    """End a subscription, if there is one of that name."""

    subscription: str


class Hangup(msgspec.Struct, frozen=True):
    reason: str


Effect = Send | Publish | Prove | Query | Count | Changes | Reconcile | ReconcileOn | ReconcileEnd | Cancel | Hangup

# --- the rules a session runs under ----------------------------------------------------------------------------------


class Grant(msgspec.Struct, frozen=True):
    """What an access key lets its holder do."""

    key: str
    pubkey: str | None
    expires_at: int | None = None


class Rules(msgspec.Struct, frozen=True):
    limits: Limits
    kinds: KindPolicy
    private: bool = False
    relay_url: str | None = None
    own_revisions_only: bool = False  # on a public node too: revisions are written by their recipient alone
    allowed: frozenset[str] | None = None  # who may authenticate; None: anybody
    subscriptions: int = 100
    subscription_id_characters: int = 64
    filters: int = 20
    filter_values: int = 2_000
    open_values: int = 40_000
    open_together: Together = msgspec.field(default_factory=lambda: Together(sys.maxsize))  # of all sessions
    reconciliations: int = 16
    bad_messages: int = 1_000
    grants: Callable[[], list[Grant] | None] = lambda: None
    """The access keys that hold just now; None when there are none at all, and then none is asked for."""

    @property
    def authenticates(self) -> bool:
        return self.private or self.own_revisions_only


def find_grant(grants: list[Grant], key: str) -> Grant | None:
    """The grant of a key. Every key is compared, each in constant time, so that the time tells nothing."""
    found = None
    for grant in grants:
        if hmac.compare_digest(grant.key.encode(), key.encode()):
            found = grant
    return found


_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode
_EVENT = b'["EVENT",'


class Session:
    """A connection's side of the protocol."""

    __slots__ = ("_bad", "_challenge", "_rules", "authors", "grant", "open", "reconciling")

    def __init__(self, rules: Rules, challenge: str) -> None:
        self._rules = rules
        self._challenge = challenge
        self._bad = 0
        self.authors: frozenset[str] = frozenset()  # proven by AUTH
        self.grant: Grant | None = None  # shown by TOKEN, and kept as the key is now
        self.open = Opened(rules.subscriptions, rules.open_values, rules.open_together)  # replaying or live
        self.reconciling: dict[str, bool] = {}  # reconciliations under way, and whether of revisions

    def greeting(self) -> list[Effect]:
        return [Send(messages.auth(self._challenge))] if self._rules.authenticates else []

    def receive(self, message: bytes, now: int) -> list[Effect]:
        """What a text message asks for. Whatever is wrong with it gets an answer and changes nothing."""
        if self.grant is not None and self.grant.expires_at is not None and now >= self.grant.expires_at:
            return [Send(messages.notice(KEY_LOST)), Hangup("access key rejected")]
        if message.startswith(_EVENT) and message.endswith(b"]"):
            return self._event(message[len(_EVENT) : -1], now)
        try:
            parts = _array(message)
            verb = _any(parts[0]) if parts else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._refuse("invalid: expected a JSON array message")
        if verb == "EVENT":
            return self._event(bytes(parts[1]), now) if len(parts) == 2 else self._refuse(_EVENT_SHAPE)
        handler = _HANDLERS.get(verb) if isinstance(verb, str) else None
        if handler is None:
            return self._refuse("invalid: unknown message type")
        try:
            values = [_any(part) for part in parts[1:]]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._refuse("invalid: expected a JSON array message")
        return handler(self, values, now)

    def binary(self) -> list[Effect]:
        return self._refuse("invalid: binary messages unsupported")

    def _refuse(self, text: str) -> list[Effect]:
        """A NOTICE; a peer that sends nothing but nonsense is cut off in the end."""
        return self._answer_bad(messages.notice(text))

    def _answer_bad(self, message: bytes, *before: Effect) -> list[Effect]:
        self._bad += 1
        if self._bad > self._rules.bad_messages:
            return [*before, Send(message), Hangup("too many refused messages")]
        return [*before, Send(message)]

    # --- EVENT ---

    def _event(self, raw: bytes, now: int) -> list[Effect]:
        rules = self._rules
        try:
            event, kept = nostr.parse(raw, rules.limits)
        except Invalid as error:
            return self._malformed(raw, f"invalid: {error}")
        try:
            nostr.timely(event, rules.limits, now)
            if event.kind == nostr.AUTH:
                raise Invalid("an AUTH event goes into an AUTH message")
            operation = classify(event, kept, rules.kinds)
        except Invalid as error:
            return self._answer_bad(messages.ok(event.id, False, f"invalid: {error}"))
        except Unsupported as error:
            return self._answer_bad(messages.ok(event.id, False, f"unsupported: {error}"))
        if rules.authenticates and (text := self._may_write(operation)):
            return self._answer_bad(messages.ok(event.id, False, text))
        return [Publish(operation, self.grant.key if self.grant else None)]

    def settled(self, forged: bool) -> list[Effect]:
        """What becomes of a publication is known; whether its signature was wrong. Only then does it count as good."""
        if not forged:
            self._bad = 0
            return []
        self._bad += 1
        return [Hangup("too many refused messages")] if self._bad > self._rules.bad_messages else []

    def _malformed(self, raw: bytes, text: str) -> list[Effect]:
        """An OK where there is an id to answer to, a NOTICE where there is none."""
        try:
            value = _any(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._refuse(_EVENT_SHAPE if _several(raw) else "invalid: expected a JSON array message")
        id = value.get("id") if isinstance(value, dict) else None
        if not isinstance(id, str) or len(id) > 64:
            return self._refuse(text if isinstance(value, dict) else _EVENT_SHAPE)
        return self._answer_bad(messages.ok(id, False, text))

    def _may_write(self, operation: Operation) -> str | None:
        if operation.revision is not None:
            if not self.authors:
                return "auth-required: authentication required for revision writes"
            if operation.revision.recipient not in self.authors:
                return "restricted: can only write revision state addressed to you"
            return None
        if not self._rules.private:
            return None
        if not self.authors:
            return "auth-required: authentication required for snapshot writes"
        if operation.event.pubkey not in self.authors:
            return "restricted: can only write your own snapshot state"
        return None

    # --- REQ, REQ-BATCH, COUNT, CLOSE ---

    def _req(self, values: list[Any], now: int, batched: bool = False) -> list[Effect]:
        verb = "REQ-BATCH" if batched else "REQ"
        return self._query(verb, values, lambda name, wanted: Query(name, wanted, batched), opens=True)

    def _req_batch(self, values: list[Any], now: int) -> list[Effect]:
        return self._req(values, now, batched=True)

    def _count(self, values: list[Any], now: int) -> list[Effect]:
        return self._query("COUNT", values, Count, opens=False)

    def _query(
        self, verb: str, values: list[Any], make: Callable[[str, tuple[Filter, ...]], Effect], opens: bool
    ) -> list[Effect]:
        if len(values) < 2 or not isinstance(values[0], str) or not all(isinstance(v, dict) for v in values[1:]):
            return self._refuse(f"invalid: {verb} requires a string subscription id and object filters")
        name = values[0]
        if not self._nameable(name):
            return self._refuse(self._name_text())
        before: list[Effect] = self._replace(name) if opens else []
        try:
            if len(values) - 1 > self._rules.filters:
                raise Invalid(f"more than {self._rules.filters} filters")
            wanted = tuple(self._filter(value) for value in values[1:])
        except Invalid as error:
            return self._answer_bad(messages.closed(name, f"invalid: {error}"), *before)
        if self._rules.private and (text := self._may_query(wanted)):
            return self._answer_bad(messages.closed(name, text), *before)
        if opens:
            try:
                self.open.add(name, sum(filter.size for filter in wanted))
            except NoRoom as error:
                return self._answer_bad(messages.closed(name, f"rate-limited: {error}"), *before)
        self._bad = 0
        return [*before, make(name, wanted)]

    def _filter(self, raw: Any) -> Filter:
        """On a private node a filter by `#r` alone is one for revisions: other kinds have such tags too."""
        filter = filters.parse(raw, self._rules.filter_values)
        if self._rules.private and filter.kinds is None and filter.authors is None and "r" in dict(filter.tags):
            return msgspec.structs.replace(filter, kinds=frozenset({GIFT_WRAP}))
        return filter

    def _may_query(self, wanted: tuple[Filter, ...]) -> str | None:
        for filter in wanted:
            if text := self._may_read(filter):
                return text
        return None

    def _may_read(self, filter: Filter) -> str | None:
        """On a private node one reads what one wrote, and the revisions that are addressed to one."""
        tags = dict(filter.tags)
        if filter.kinds == frozenset({GIFT_WRAP}):
            return self._may_read_revisions(tags.get("p"), "queries", "state")
        if not self.authors:
            return "auth-required: authentication required for snapshot queries"
        if filter.authors is None:
            return "restricted: snapshot queries must include an authors filter"
        if not filter.authors <= self.authors:
            return "restricted: can only query your own snapshot state"
        return None

    def _may_read_revisions(self, recipients: Collection[str] | None, what: str, whose: str) -> str | None:
        if not self.authors:
            return f"auth-required: authentication required for revision {what.lower()}"
        if not recipients:
            return f"restricted: revision {what} must include a #p filter"
        if not self.authors.issuperset(recipients):
            return f"restricted: can only query revision {whose} addressed to you"
        return None

    def _close(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 1 or not isinstance(values[0], str):
            return self._refuse("invalid: CLOSE requires a string subscription id")
        if not self._nameable(values[0]):
            return self._refuse(self._name_text())
        return [*self._replace(values[0]), Send(messages.closed(values[0], "closed"))]

    def _replace(self, name: str) -> list[Effect]:
        """A new subscription of the same id takes the place of the old one, whatever becomes of the new one."""
        return [Cancel(name)] if self.open.drop(name) else []

    def _nameable(self, name: str) -> bool:
        return 1 <= len(name) <= self._rules.subscription_id_characters

    def _name_text(self) -> str:
        return f"invalid: a subscription id has 1 to {self._rules.subscription_id_characters} characters"

    # --- CHANGES ---

    def _changes(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 2 or not isinstance(values[0], str) or not isinstance(values[1], dict):
            return self._refuse("invalid: CHANGES requires a string subscription id and an object filter")
        name, raw = values
        if not self._nameable(name):
            return self._refuse(self._name_text())
        before = self._replace(name)
        try:
            if self._rules.private:
                self._may_follow(raw)
            request = changes.parse(raw, self._rules.filter_values)
            self.open.add(name, changes.size(request.query))
        except (Invalid, NoRoom) as error:
            return self._answer_bad(messages.changes_error(name, str(error)), *before)
        self._bad = 0
        return [*before, Changes(name, request)]

    def _may_follow(self, raw: dict[str, Any]) -> None:
        if raw.get("mode") == "log":
            request = changes.parse(raw, self._rules.filter_values)
            if isinstance(request.query, LogQuery) and (text := self._may_read(request.query.filter)):
                raise Invalid(text)
            return
        if changes.for_revisions(raw):
            if text := self._may_read_revisions(_strings(raw.get("#p")), "CHANGES", "changes"):
                raise Invalid(text)
            return
        if not self.authors:
            raise Invalid("auth-required: authentication required for snapshot changes")
        authors = raw.get("authors")
        if not isinstance(authors, list) or not authors:
            raise Invalid("restricted: snapshot CHANGES must include an authors filter")
        if any(not isinstance(author, str) or author not in self.authors for author in authors):
            raise Invalid("restricted: can only query your own snapshot changes")

    # --- NEG-OPEN, NEG-MSG, NEG-CLOSE ---

    def _neg_open(self, values: list[Any], now: int) -> list[Effect]:
        """Three elements open a reconciliation of current revisions, four one of events (NIP-77)."""
        if len(values) not in (2, 3) or not isinstance(values[0], str):
            return self._refuse("invalid: NEG-OPEN requires a string subscription id, a filter and a message")
        name, raw = values[:2]
        if not self._nameable(name):
            return self._refuse(self._name_text())
        if isinstance(raw, list) and len(raw) == 1:  # as one client sends it
            raw = raw[0]
        before = self._end_reconciliation(name)
        try:
            opened = self._reconciliation(name, raw, *values[2:])
        except Invalid as error:
            return self._answer_bad(messages.neg_error(name, str(error)), *before)
        if len(self.reconciling) >= self._rules.reconciliations:
            return self._answer_bad(messages.neg_error(name, messages.NO_ROOM), *before)
        self.reconciling[name] = opened.message is None
        self._bad = 0
        return [*before, opened]

    def _reconciliation(self, name: str, raw: Any, *initial: Any) -> Reconcile:
        if not isinstance(raw, dict):
            raise Invalid("invalid: NEG-OPEN requires an object filter")
        if not initial:
            if self._rules.private and (text := self._may_read_revisions(_strings(raw.get("#p")), "queries", "state")):
                raise Invalid(text)
            return Reconcile(name, changes.revision_query(raw, self._rules.filter_values, ONE_RECIPIENT))
        try:
            filter = self._filter(raw)
        except Invalid as error:
            raise Invalid(f"invalid: {error}") from None
        if self._rules.private and (text := self._may_query((filter,))):
            raise Invalid(text)
        if (message := _unhex(initial[0])) is None:
            raise Invalid("invalid: the message must be hex")
        return Reconcile(name, filter, message)

    def _neg_msg(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 2 or not all(isinstance(value, str) for value in values):
            return self._refuse("invalid: NEG-MSG requires a string subscription id and a message")
        name = values[0]
        if not self._nameable(name):
            return self._refuse(self._name_text())
        if name not in self.reconciling:
            return self._answer_bad(messages.neg_error(name, f"unknown negentropy session: {name}"))
        if (message := _unhex(values[1])) is None:
            ended = self._end_reconciliation(name)
            return self._answer_bad(messages.neg_error(name, "invalid: the message must be hex"), *ended)
        return [ReconcileOn(name, message)]

    def _neg_close(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 1 or not isinstance(values[0], str):
            return self._refuse("invalid: NEG-CLOSE requires a string subscription id")
        if not self._nameable(values[0]):
            return self._refuse(self._name_text())
        of_events = self.reconciling.get(values[0]) is False
        ended = self._end_reconciliation(values[0])
        # NIP-77 has no answer to a NEG-CLOSE; revision sync has one, however often it is sent.
        return ended if of_events else [*ended, Send(messages.closed(values[0], messages.NEG_CLOSED))]

    def _end_reconciliation(self, name: str) -> list[Effect]:
        return [] if self.reconciling.pop(name, None) is None else [ReconcileEnd(name)]

    # --- TOKEN and AUTH ---

    def _token(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 1 or not isinstance(values[0], str):
            return self._refuse("invalid: TOKEN requires a string access key")
        grant = find_grant(self._rules.grants() or [], values[0])
        if grant is None:
            return self._answer_bad(messages.token(values[0], False, "token-invalid: access key rejected"))
        ended: list[Effect] = []
        if self.grant is not None and self.grant.key != grant.key:  # what was proven under another key is over
            self.authors = frozenset()
            ended = [effect for name in self.open for effect in self._replace(name)]
            ended += [effect for name in list(self.reconciling) for effect in self._end_reconciliation(name)]
        self.grant = grant
        return [*ended, Send(messages.token(values[0], True))]

    def _auth(self, values: list[Any], now: int) -> list[Effect]:
        if len(values) != 1 or not isinstance(values[0], dict):
            return self._refuse("invalid: AUTH requires an event")
        raw = messages.encode(values[0])
        try:
            event, _ = nostr.parse(raw, self._rules.limits)
        except Invalid as error:
            return self._malformed(raw, f"invalid: {error}")
        if text := self._may_authenticate(event, now):
            return self._answer_bad(messages.ok(event.id, False, text))
        return [Prove(event)]

    def _may_authenticate(self, event: Event, now: int) -> str | None:
        rules = self._rules
        if not rules.authenticates:
            return "invalid: this relay asks for no authentication"
        if rules.grants() is not None and self.grant is None:
            return "token-required: present a valid access token before authenticating"
        if event.kind != nostr.AUTH:
            return f"invalid: an AUTH event is of kind {nostr.AUTH}"
        if abs(event.created_at - now) > AUTH_TOLERANCE:
            return "invalid: created_at is too far from the relay's time"
        if not hmac.compare_digest((event.first("challenge") or "").encode(), self._challenge.encode()):
            return "invalid: challenge does not match"
        relay = event.first("relay")
        if not relay or (rules.relay_url is not None and nostr.authority(relay) != nostr.authority(rules.relay_url)):
            return "invalid: the relay tag does not name this relay"
        if rules.allowed is not None and event.pubkey not in rules.allowed:
            return "restricted: pubkey not authorized on this relay"
        if len(self.authors) >= AUTHORS_MAX:
            return f"restricted: at most {AUTHORS_MAX} pubkeys on one connection"
        if self.grant is not None and self.grant.pubkey not in (None, event.pubkey):
            return "restricted: the access key belongs to another pubkey"
        return None

    def proven(self, event: Event, held: bool | None) -> list[Effect]:
        """The signature of an AUTH event held, or not; None: it could not be checked, which is no yes."""
        if held is None:
            return [Send(messages.ok(event.id, False, messages.UNPROVEN))]
        if not held:
            return self._answer_bad(messages.ok(event.id, False, messages.FORGED))
        if text := self._may_authenticate(event, event.created_at):  # a key may have come or gone meanwhile
            return self._answer_bad(messages.ok(event.id, False, text))
        self._bad = 0
        self.authors |= {event.pubkey}
        return [Send(messages.ok(event.id, True))]

    # --- what the shell tells ---

    def ended(self, subscription: str) -> None:
        """A subscription has come to its end by itself."""
        self.open.drop(subscription)

    def reconciled(self, subscription: str) -> None:
        """A reconciliation was ended by the relay."""
        self.reconciling.pop(subscription, None)


_EVENT_SHAPE = "invalid: EVENT requires one event object"

_HANDLERS: dict[str, Callable[[Session, list[Any], int], list[Effect]]] = {
    "REQ": Session._req,
    "REQ-BATCH": Session._req_batch,
    "COUNT": Session._count,
    "CLOSE": Session._close,
    "CHANGES": Session._changes,
    "NEG-OPEN": Session._neg_open,
    "NEG-MSG": Session._neg_msg,
    "NEG-CLOSE": Session._neg_close,
    "AUTH": Session._auth,
    "TOKEN": Session._token,
}


def _strings(value: Any) -> list[str] | None:
    """The value, if it is a list of strings; what it should be is said elsewhere."""
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


def _several(raw: bytes) -> bool:
    """Whether this, which is no JSON value, is several of them: a message that is an array, and too long."""
    try:
        return len(_array(b"[%b]" % raw)) > 1
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _unhex(value: Any) -> bytes | None:
    try:
        return bytes.fromhex(value) if isinstance(value, str) and value.isascii() else None
    except ValueError:
        return None
