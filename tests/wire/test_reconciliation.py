"""Reconciliation without a socket: whatever the two sides hold and whatever the relay's limits, the difference is true,
or it is said where it may not be."""

import itertools
from collections import deque
from typing import Any

import pytest
from histories import event
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_model import HANG_UP, RelayModel, items

from anabranch.core.negentropy import Items
from anabranch.core.nostr import Event, Invalid
from anabranch.wire import dialogue
from anabranch.wire.dialogue import (
    Accuse,
    Bounds,
    Effect,
    Finish,
    Found,
    Machine,
    Overflow,
    Reconnect,
    Refuse,
    Send,
    Stored,
    Unknown,
)
from anabranch.wire.paging import ByIds, Pages
from anabranch.wire.reconciliation import Method, Reconciliation

NOW = 2_000
KIND = {"kinds": [1]}
POOL = [event(1, content=str(n), created_at=1_000 + n * n % 97) for n in range(240)]  # seconds hold 2 to 8 each
BOUNDS = Bounds(page=50, chunk=20, frame_bytes=4096)
STEPS_MAX = 20_000


def drive(machine: Machine, relay: RelayModel) -> list[Effect]:
    """Run a machine against a relay, with a clock that strikes whenever nothing is left to hear."""
    relay.greet()
    todo: deque[Effect] = deque(machine.start())
    heard: deque[dialogue.Answer] = deque()
    seen: list[Effect] = []
    for _ in range(STEPS_MAX):
        while todo:
            effect = todo.popleft()
            seen.append(effect)
            if isinstance(effect, Send):
                for answer in relay.answer(effect.message):
                    if answer is HANG_UP:
                        heard.clear()
                        todo = deque(machine.lost(oversized=False) or ())
                        break
                    heard.append(dialogue.read(dialogue._encode(answer)))
            elif isinstance(effect, Reconnect):
                relay.greet()
                heard.clear()
                todo.extend(machine.again())
            elif isinstance(effect, (Finish, Refuse, Accuse, Overflow)):
                return seen
        effects = machine.hear(heard.popleft()) if heard else machine.silence()
        todo.extend(effects or ())
    raise AssertionError("it came to no end")


def reconcile(ours: list[Event], relay: RelayModel, filter: dict[str, Any] = KIND, **bounds: Any) -> Reconciliation:
    options = {"page": 50, "frame_bytes": 4096, **bounds}
    machine = Reconciliation(filter, items(ours), now=NOW, bounds=Bounds(**options))
    drive(machine, relay)
    return machine


def ids(events: list[Event]) -> set[str]:
    return {one.id for one in events}


def check(machine: Reconciliation, ours: list[Event], theirs: list[Event]) -> None:
    """The difference is exact outside of the seconds that it is unsure of, and never says what is not so there."""
    result = machine.result
    assert len(result.have) == len(set(result.have)) and len(result.need) == len(set(result.need))
    have, need = ids(ours) - ids(theirs), ids(theirs) - ids(ours)
    unsure = {one.id for one in POOL if one.created_at in result.unsure}
    assert set(result.have) - unsure == have - unsure
    assert set(result.need) - unsure == need - unsure
    assert set(result.need) <= need


def pick(seed: int, share: float) -> list[Event]:
    """A random part of the pool, as large as asked."""
    return [one for one in POOL if int(one.id[:8], 16) * 2654435761 * (seed + 1) % 1000 < share * 1000]


portions = st.builds(pick, st.integers(0, 999), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))


@given(portions, portions)
def test_the_difference_is_what_sets_say_it_is(ours: list[Event], theirs: list[Event]) -> None:
    machine = reconcile(ours, RelayModel(theirs))
    check(machine, ours, theirs)
    assert machine.result.method is Method.NEGENTROPY and machine.result.windows == 1


@given(portions, portions, st.integers(1, 60), st.booleans(), st.integers(1, 60))
@settings(max_examples=60)
def test_it_stays_true_when_the_relay_takes_only_small_sets(
    ours: list[Event], theirs: list[Event], set_max: int, tells: bool, cap: int
) -> None:
    relay = RelayModel(theirs, set_max=set_max, cap=cap)
    relay.tells_set_max = tells
    machine = reconcile(ours, relay)
    check(machine, ours, theirs)
    if cap > 8:
        assert not machine.result.unsure
    if set_max >= 8:  # no second holds more
        assert machine.result.method is Method.NEGENTROPY


@given(portions, portions, st.integers(1, 60))
@settings(max_examples=60)
def test_paging_is_true_or_says_where_it_may_not_be(ours: list[Event], theirs: list[Event], cap: int) -> None:
    relay = Without(theirs, cap=cap)
    machine = reconcile(ours, relay)
    check(machine, ours, theirs)
    assert machine.result.method is Method.PAGES
    if cap > 8:
        assert not machine.result.unsure


@given(portions, portions, st.integers(1_000, 1_050), st.integers(1_000, 1_100))
def test_a_window_of_time_is_kept(ours: list[Event], theirs: list[Event], since: int, until: int) -> None:
    def within(events: list[Event]) -> list[Event]:
        return [one for one in events if since <= one.created_at <= until]

    for relay in (RelayModel(theirs), RelayModel(theirs, set_max=10), Without(theirs, cap=20)):
        machine = reconcile(within(ours), relay, {**KIND, "since": since, "until": until})
        check(machine, within(ours), within(theirs))


class Without(RelayModel):
    """A relay that knows nothing of NIP-77."""

    on_neg_open = None  # type: ignore[assignment]

    def answer(self, message: str | bytes) -> list[Any]:
        return [["NOTICE", "unknown message"]] if b"NEG-OPEN" in bytes(message) else super().answer(message)


# --- cutting ------------------------------------------------------------------------------------------------------


def windows(relay: RelayModel) -> list[tuple[int | None, int | None]]:
    return [(m[2].get("since"), m[2].get("until")) for m in relay.heard if m[0] == "NEG-OPEN"]


def test_windows_are_cut_where_our_own_items_have_their_middle() -> None:
    relay = RelayModel(POOL, set_max=150)
    machine = reconcile(POOL, relay)
    times = sorted(one.created_at for one in POOL)
    middle = times[len(times) // 2]
    assert windows(relay) == [(None, None), (None, middle - 1), (middle, None)]
    assert machine.result.windows == 3 and machine.result.have == machine.result.need == []


def test_without_items_of_our_own_time_is_cut() -> None:
    relay = RelayModel(POOL, set_max=150)
    machine = reconcile([], relay)
    assert windows(relay)[:3] == [(None, None), (None, NOW // 2), (NOW // 2 + 1, None)]
    check(machine, [], POOL)
    assert machine.result.method is Method.NEGENTROPY and machine.result.windows < 30


def test_no_event_falls_between_two_windows() -> None:
    relay = RelayModel(POOL, set_max=10)
    reconcile([], relay)
    opened = windows(relay)
    refused = {window for window in opened if len(relay.matching(span(window))) > 10}
    settled = sorted(((since or 0, until) for since, until in opened if (since, until) not in refused), key=str)
    settled.sort(key=lambda window: window[0])
    assert settled[0][0] == 0 and settled[-1][1] is None
    for (_, until), (since, _) in itertools.pairwise(settled):
        assert until is not None and since == until + 1


def span(window: tuple[int | None, int | None]) -> dict[str, Any]:
    since, until = window
    return {**KIND, **({"since": since} if since else {}), **({"until": until} if until is not None else {})}


def test_a_second_that_is_too_large_is_paged_and_the_rest_is_not() -> None:
    crowd = [event(1, content=f"crowd {n}", created_at=1_050) for n in range(30)]
    at_1_050 = [one for one in POOL if one.created_at == 1_050]
    theirs = [*POOL, *crowd]
    relay = RelayModel(theirs, set_max=20, cap=100)
    machine = reconcile(POOL, relay)
    assert set(machine.result.need) == ids(crowd) and machine.result.have == []
    assert machine.result.method is Method.BOTH and machine.result.refusal == "blocked: too many"
    asked = [m[2] for m in relay.heard if m[0] == "REQ"]
    assert {one["since"] for one in asked if "since" in one} == {1_050}
    assert [one["limit"] for one in asked if "since" not in one] == [len(crowd) + len(at_1_050) + 1]
    assert machine.result.unsure == ()


def test_a_relay_that_blocks_everything_does_not_mean_the_size() -> None:
    relay = RelayModel(POOL, set_max=-1)
    machine = reconcile(POOL[:100], relay)
    check(machine, POOL[:100], POOL)
    assert machine.result.method is Method.PAGES and machine.result.windows < 60


def test_the_number_of_windows_is_bounded() -> None:
    relay = RelayModel(POOL, set_max=2)
    machine = reconcile(POOL[:100], relay, windows=12)
    check(machine, POOL[:100], POOL)
    assert machine.result.method is Method.BOTH and machine.result.windows == 12
    assert "windows" in (machine.result.refusal or "")


def test_a_message_larger_than_we_take_cuts_the_window_too() -> None:
    machine = Reconciliation(KIND, items(POOL), now=NOW, bounds=BOUNDS)
    (opening,) = machine.start()
    assert machine.lost(oversized=True) == [Reconnect()]
    (smaller,) = machine.again()
    assert isinstance(opening, Send) and isinstance(smaller, Send)
    assert b'"until"' not in opening.message and b'"until"' in smaller.message


# --- bounds -------------------------------------------------------------------------------------------------------


class Endless(RelayModel):
    """Says of everything that it differs, for ever."""

    def on_neg_msg(self, name: str, message: str) -> list[Any]:
        return [["NEG-MSG", name, "6100000" + "1" + "ab" * 16]]


def test_an_endless_talk_is_ended_and_the_relay_is_paged() -> None:
    machine = reconcile(POOL[:100], Endless(POOL), rounds=40)
    check(machine, POOL[:100], POOL)
    assert machine.result.rounds == 40 and machine.result.method is Method.PAGES


def test_where_there_is_little_to_compare_an_endless_talk_is_ended_soon() -> None:
    machine = reconcile(POOL[:100], Endless(POOL))
    check(machine, POOL[:100], POOL)
    assert machine.result.rounds <= 200 and machine.result.method is Method.PAGES


@pytest.mark.parametrize("relay", [RelayModel(POOL), Without(POOL)], ids=["negentropy", "pages"])
def test_more_ids_than_allowed_end_it(relay: RelayModel) -> None:
    machine = Reconciliation(KIND, items([]), now=NOW, bounds=Bounds(need=100))
    assert isinstance(drive(machine, relay)[-1], Overflow)


def test_what_a_window_taught_before_it_was_begun_again_counts_once() -> None:
    class Forgetful(RelayModel):
        """Forgets its session after two messages, the first two times."""

        forgets = 2

        def on_neg_msg(self, name: str, message: str) -> list[Any]:
            answers = super().on_neg_msg(name, message)
            if self.verbs()[-1] == "NEG-MSG" and self.forgets:
                self.forgets -= 1
                self._sessions.clear()
                return [["NEG-ERR", name, "closed: you took too long"]]
            return answers

    relay = Forgetful(POOL, frame=4096)
    machine = reconcile(POOL[:120], relay)
    check(machine, POOL[:120], POOL)
    assert relay.forgets == 0 and machine.result.method is Method.NEGENTROPY


def test_a_filter_with_a_limit_is_no_set() -> None:
    with pytest.raises(Invalid):
        Reconciliation({**KIND, "limit": 5}, items([]), now=NOW)
    with pytest.raises(Invalid):
        Reconciliation({"search": "x"}, items([]), now=NOW)


def test_an_empty_window_needs_no_relay() -> None:
    machine = Reconciliation({"since": 5, "until": 4}, Items.build([], b""), now=NOW)
    assert machine.start() == [Finish()] and machine.result.need == []


# --- pages --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 12),
)
def test_pages_find_all_or_say_where_not(
    crowds: list[int], cap: int, ascending: bool, exclusive: bool, begins: int
) -> None:
    """Seconds with so many events each, and a relay that gives at most `cap` of the newest, in any order, and may leave
    out the second `until`. All of it is wanted, or what was made since some second."""

    class Ordered(RelayModel):
        def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
            if exclusive and "until" in filter:
                filter = {**filter, "until": filter["until"] - 1}
            *found, end = super().on_req(name, filter)
            return [*(reversed(found) if ascending else found), end]

    events = [
        event(1, content=f"{second}/{n}", created_at=1_000 + 2 * second)
        for second, crowd in enumerate(crowds)
        for n in range(crowd)
    ]
    since = 1_000 + 2 * begins if begins else 0
    pages = Pages({**KIND, "since": since}, bounds=BOUNDS)
    found = [effect.event for effect in drive(pages, Ordered(events, cap=cap)) if isinstance(effect, Found)]
    wanted = [one for one in events if one.created_at >= since]
    assert len(found) == len(ids(found)) and ids(found) <= ids(wanted)
    missed = [one for one in wanted if one.id not in ids(found)]
    if len(crowds) > 1 or max(crowds) < cap:
        # (One second alone, cut off at a limit that the relay keeps to itself, looks like all there is.)
        assert {one.created_at for one in missed} <= set(pages.unsure)
    for second, crowd in enumerate(crowds):
        if crowd < cap:
            assert 1_000 + 2 * second not in pages.unsure


def test_pages_tell_what_is_settled() -> None:
    pages = Pages({**KIND, "since": 1_000}, bounds=BOUNDS)
    drive(pages, RelayModel(POOL, cap=20))
    settled = pages.settled()
    assert settled[-1].since == 1_000
    for newer, older in itertools.pairwise(settled):
        assert older.until == newer.since - 1
    assert frozenset().union(*(part.ids for part in settled)) == ids(POOL)


def test_a_full_page_in_one_second_is_unsure_even_when_nothing_lies_below() -> None:
    crowd = [event(1, content=str(n), created_at=1_000) for n in range(50)]
    pages = Pages(KIND, bounds=BOUNDS)
    drive(pages, RelayModel(crowd, cap=500))
    assert pages.unsure == [1_000]


# --- by id --------------------------------------------------------------------------------------------------------


@given(portions, portions, st.integers(1, 30))
def test_ids_are_fetched_whatever_the_relay_gives_at_once(asked: list[Event], there: list[Event], cap: int) -> None:
    machine = ByIds([one.id for one in asked], KIND, bounds=BOUNDS)
    found = [effect.event.id for effect in drive(machine, RelayModel(there, cap=cap)) if isinstance(effect, Found)]
    assert len(found) == len(set(found))
    assert set(found) == ids(asked) & ids(there)
    assert sorted(machine.missing) == sorted(ids(asked) - ids(there))


# --- what is heard ------------------------------------------------------------------------------------------------


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_anything_can_be_heard(said: str | bytes) -> None:
    dialogue.read(said)


@pytest.mark.parametrize(
    "said", ["", "[]", "{}", '["EVENT"]', '["EVENT",1,{}]', '["NEG-MSG","a"]', '["X","y"]', "[" * 9_000, b"\xff"]
)
def test_what_is_no_message_is_unknown(said: str | bytes) -> None:
    assert isinstance(dialogue.read(said), Unknown)


def test_an_event_is_kept_as_it_came() -> None:
    assert dialogue.read('["EVENT","s", {"a" : 1}]') == Stored("s", b'{"a" : 1}')
    assert dialogue.read('["NEG-ERR","s","blocked: x",5]') == dialogue.NegError("s", "blocked: x", 5)
    assert dialogue.read('["OK","i",true]') == dialogue.Ok("i", True, "")
    assert dialogue.read('["OK","i","true"]') == dialogue.Ok("i", False, "")


def test_the_pool_is_what_these_tests_think() -> None:
    crowds = [sum(one.created_at == second for one in POOL) for second in {one.created_at for one in POOL}]
    assert max(crowds) <= 8
