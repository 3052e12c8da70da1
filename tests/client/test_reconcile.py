"""The client over a real websocket: it finds and closes the difference with relays of every sort, it believes none of
them, and it always comes to an end."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from processes import Node
from relay_model import HANG_UP, SAY, Private, RelayModel, items, serving

from anabranch.client import relay_connection
from anabranch.client.reconcile import (
    Bounds,
    Direction,
    Found,
    Lost,
    Method,
    Misbehaved,
    Refused,
    TimedOut,
    TooMuch,
    Unreachable,
    difference,
    fetch,
    publish,
    sync,
)
from anabranch.core import nostr
from anabranch.core.nostr import Event, Invalid, Keys

ME = Keys(b"\5" * 32)
MINE: dict[str, Any] = {"authors": [ME.pubkey]}
NOTES = [ME.sign(1, [], f"note {n}", 1_700_000_000 + n // 2) for n in range(120)]  # two in each second
OURS, THEIRS = NOTES[:80], NOTES[40:]
HAVE, NEED = {note.id for note in NOTES[:40]}, {note.id for note in NOTES[80:]}
SOON = 0.4
BOUNDS = Bounds(page=50, chunk=25)


def raw(events: Sequence[Event]) -> list[bytes]:
    return [nostr.serialise(event) for event in events]


class Shelf:
    """Where an app keeps its events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = {event.id: event for event in events}

    async def load(self, ids: Sequence[str]) -> list[bytes]:
        return raw([self.events[id] for id in ids])

    async def save(self, found: Sequence[Found]) -> None:
        for one in found:
            assert nostr.parse(one.raw, nostr.Limits())[0] == one.event
            self.events[one.event.id] = one.event


# --- refusing negentropy, in every way ----------------------------------------------------------------------------


class NoNegentropy(RelayModel):
    answers: Sequence[Any] = (["CLOSED", "?", "unsupported: no negentropy here"],)

    def on_neg_open(self, name: str, filter: dict[str, Any], message: str) -> list[Any]:
        return [[name if part == "?" else part for part in a] if isinstance(a, list) else a for a in self.answers]


REFUSALS: dict[str, list[Any]] = {
    "an error of another sort": [["NEG-ERR", "?", "error: out of order"]],
    "an error without a reason": [["NEG-ERR", "?"]],
    "a block, whatever the size": [["NEG-ERR", "?", "blocked: not for you"]],
    "a block with a cap of nothing": [["NEG-ERR", "?", "blocked: too big", 0]],
    "a notice": [["NOTICE", "ERROR: bad msg: unknown cmd"]],
    "an empty notice": [["NOTICE", ""]],
    "closing the subscription": [["CLOSED", "?", "unsupported: no negentropy here"]],
    "silence": [],
    "a message that nobody knows": [["WHAT", "?"]],
    "no message at all": [[SAY, "no\x00 JSON"]],
    "binary": [[SAY, b"\xff\xfe"]],
    "hanging up": [HANG_UP],
    "a message that is none of negentropy": [["NEG-MSG", "?", "61ff"]],
    "a message that is not hex": [["NEG-MSG", "?", "what"]],
    "an empty message": [["NEG-MSG", "?", ""]],
    "another version": [["NEG-MSG", "?", "62"]],
}


@pytest.mark.parametrize("way", REFUSALS)
async def test_a_relay_that_refuses_negentropy_is_read_page_by_page(way: str) -> None:
    relay = NoNegentropy(THEIRS)
    relay.answers = REFUSALS[way]
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS), timeout=SOON, bounds=BOUNDS)
    assert (set(result.have), set(result.need)) == (HAVE, NEED)
    assert result.method is Method.PAGES and result.refusal and not result.unsure


async def test_a_notice_shortens_the_wait() -> None:
    relay = NoNegentropy(THEIRS)
    relay.answers = REFUSALS["a notice"]
    started = time.monotonic()
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS), timeout=30.0)
    assert result.refusal == "ERROR: bad msg: unknown cmd" and time.monotonic() - started < 10


async def test_a_relay_that_goes_along_is_not_read_at_all() -> None:
    relay = RelayModel(THEIRS)
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS))
    assert (set(result.have), set(result.need)) == (HAVE, NEED)
    assert result.method is Method.NEGENTROPY and result.rounds <= 3 and result.refusal is None
    assert set(relay.verbs()) == {"NEG-OPEN", "NEG-MSG", "NEG-CLOSE"}


async def test_a_relay_that_is_known_not_to_speak_it_is_not_asked() -> None:
    relay = RelayModel(THEIRS)
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS), negentropy=False)
    assert (set(result.have), set(result.need)) == (HAVE, NEED) and result.method is Method.PAGES
    assert "NEG-OPEN" not in relay.verbs()


async def test_equal_sets_take_one_round() -> None:
    async with serving(RelayModel(NOTES)) as url:
        result = await difference(url, MINE, items(NOTES))
    assert (result.have, result.need, result.rounds) == ([], [], 1)


async def test_a_greeting_is_no_refusal() -> None:
    class Polite(RelayModel):
        def greet(self) -> list[Any]:
            super().greet()
            return [["NOTICE", "welcome"], ["AUTH", "you may if you like"]]

        def on_neg_open(self, *said: Any) -> list[Any]:
            return [["NOTICE", "just a moment"], 0.2, *super().on_neg_open(*said)]

    async with serving(Polite(THEIRS)) as url:
        result = await difference(url, MINE, items(OURS))
    assert result.method is Method.NEGENTROPY and set(result.need) == NEED


# --- too large ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False], ids=["with its cap", "without its cap"])
async def test_a_set_that_is_too_large_is_cut_until_each_part_is_answered(tells: bool) -> None:
    relay = RelayModel(THEIRS, set_max=9)
    relay.tells_set_max = tells
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS))
    assert (set(result.have), set(result.need)) == (HAVE, NEED)
    assert result.method is Method.NEGENTROPY and result.windows > 10
    assert "REQ" not in relay.verbs()


@pytest.mark.parametrize("text", ["rate-limited: too many negentropy items", "RESULTS_TOO_BIG", "blocked: no"])
async def test_relays_have_their_own_words_for_too_large(text: str) -> None:
    class Wordy(RelayModel):
        def on_neg_open(self, name: str, *said: Any) -> list[Any]:
            answers = super().on_neg_open(name, *said)
            return [["NEG-ERR", name, text]] if answers[0][0] == "NEG-ERR" else answers

    async with serving(Wordy(THEIRS, set_max=30)) as url:
        result = await difference(url, MINE, items(OURS))
    assert (set(result.have), set(result.need)) == (HAVE, NEED)
    assert result.method is Method.NEGENTROPY and result.windows > 3


async def test_a_second_that_is_too_large_is_paged() -> None:
    crowd = [ME.sign(1, [], f"crowd {n}", 1_700_000_010) for n in range(20)]
    async with serving(RelayModel([*THEIRS, *crowd], set_max=9)) as url:
        result = await difference(url, MINE, items(OURS), bounds=BOUNDS)
    assert (set(result.have), set(result.need)) == (HAVE, NEED | {event.id for event in crowd})
    assert result.method is Method.BOTH and not result.unsure


async def test_a_message_that_is_too_large_cuts_the_window() -> None:
    async with serving(RelayModel(NOTES)) as url:
        result = await difference(url, MINE, items([]), bounds=Bounds(message_bytes=4_000))
    assert set(result.need) == {note.id for note in NOTES}
    assert result.method is Method.NEGENTROPY and result.windows > 1


# --- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [500, 100, 7, 3])
async def test_pages_find_everything_whatever_the_relay_gives_at_once(cap: int) -> None:
    relay = NoNegentropy(THEIRS, cap=cap)
    async with serving(relay) as url:
        result = await difference(url, MINE, items(OURS), bounds=BOUNDS)
    assert (set(result.have), set(result.need)) == (HAVE, NEED) and not result.unsure


async def test_a_second_that_holds_more_than_a_page_is_named() -> None:
    crowd = [ME.sign(1, [], f"crowd {n}", 1_700_000_010) for n in range(20)]
    relay = NoNegentropy([*THEIRS, *crowd, *OURS], cap=10)
    async with serving(relay) as url:
        result = await difference(url, MINE, items(NOTES), bounds=BOUNDS)
        fetched = fetch(url, MINE)
        found = {one.event.id async for one in fetched}
    assert result.unsure == (1_700_000_010,) == tuple(fetched.unsure)
    assert set(result.need) < {event.id for event in crowd}
    assert {event.id for event in NOTES if event.created_at != 1_700_000_010} <= found


async def test_a_relay_that_ignores_the_limit_is_read_all_the_same() -> None:
    class Generous(NoNegentropy):
        def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
            return super().on_req(name, {**filter, "limit": 1 << 30})

    async with serving(Generous(THEIRS, cap=1 << 30)) as url:
        result = await difference(url, MINE, items(OURS), bounds=Bounds(page=3))
    assert (set(result.have), set(result.need)) == (HAVE, NEED)


# --- it ends ------------------------------------------------------------------------------------------------------


class Mute(RelayModel):
    def answer(self, message: str | bytes) -> list[Any]:
        return []


class Chatty(RelayModel):
    """Says something all the time, and never anything to the point."""

    def answer(self, message: str | bytes) -> list[Any]:
        chat: list[Any] = [["NOTICE", "still here"], ["EVENT", "other", {}], ["OK", "00", True, ""], ["X"], 0.02]
        return chat * 500


class Repeating(NoNegentropy):
    """Gives the same event over and over."""

    def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
        return [part for _ in range(500) for part in (["EVENT", name, self.spelt(NOTES[0])], 0.02)]

    def on_event(self, event: dict[str, Any]) -> list[Any]:
        return [part for _ in range(500) for part in (["OK", NOTES[0].id, True, ""], 0.02)]


@pytest.mark.parametrize("vice", [Mute, Chatty, Repeating])
async def test_a_call_ends_whatever_the_relay_does(vice: type[RelayModel]) -> None:
    started = time.monotonic()
    async with serving(vice(THEIRS)) as url:
        with pytest.raises(TimedOut) as caught:
            await difference(url, MINE, items(OURS), timeout=SOON)
        assert time.monotonic() - started < 5 * SOON + relay_connection.HURRY + relay_connection.CLOSE_SECONDS
        assert url in str(caught.value) and caught.value.retry
        with pytest.raises(TimedOut):
            await publish(url, raw(NOTES[:3]), timeout=SOON)


async def test_a_relay_that_nobody_runs_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await difference("ws://127.0.0.1:9", MINE, items([]), timeout=SOON)
    with pytest.raises(ValueError, match="no address"):
        await difference("http://127.0.0.1:9", MINE, items([]), timeout=SOON)


async def test_a_socket_that_never_shakes_hands_is_unreachable() -> None:
    server = await asyncio.start_server(lambda reader, writer: asyncio.sleep(30), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable):
        await difference(f"ws://127.0.0.1:{port}", MINE, items([]), timeout=SOON)
    server.close()


async def test_a_relay_that_always_hangs_up_is_lost() -> None:
    class Rude(RelayModel):
        def answer(self, message: str | bytes) -> list[Any]:
            return [HANG_UP]

    relay = Rude(THEIRS)
    async with serving(relay) as url:
        with pytest.raises(Lost):
            await difference(url, MINE, items(OURS), timeout=SOON)
    assert relay.connections < 10


async def test_a_lost_connection_in_the_middle_is_taken_up_again() -> None:
    class Shaky(RelayModel):
        """Hangs up after every ninth message."""

        def answer(self, message: str | bytes) -> list[Any]:
            return [*super().answer(message), *([HANG_UP] if len(self.heard) % 9 == 0 else [])]

    relay = Shaky(THEIRS, cap=25)
    shelf = Shelf(OURS)
    async with serving(relay) as url:
        done = await sync(url, MINE, items(OURS), shelf.load, shelf.save, timeout=SOON, bounds=BOUNDS)
    assert relay.connections > 2
    assert set(shelf.events) == set(relay.events) == {note.id for note in NOTES}
    assert done.received == len(NEED) and set(done.published.accepted) == HAVE


async def test_a_relay_may_not_name_more_than_we_allow() -> None:
    async with serving(RelayModel(NOTES)) as url:
        with pytest.raises(TooMuch, match="more than 100"):
            await difference(url, MINE, items([]), bounds=Bounds(need=100))


# --- it believes nobody -------------------------------------------------------------------------------------------


class Liar(NoNegentropy):
    def spelt(self, event: Event) -> Any:
        return self.lie(event) if event.id == NOTES[100].id else super().spelt(event)

    def lie(self, event: Event) -> Any:
        raise NotImplementedError


class Forger(Liar):
    def lie(self, event: Event) -> Any:
        return json.loads(nostr.serialise(msgspec.structs.replace(event, sig="00" * 64)))


class Changer(Liar):
    def lie(self, event: Event) -> Any:
        return {**json.loads(nostr.serialise(event)), "content": "never said"}


class Stuffer(Liar):
    def lie(self, event: Event) -> Any:
        return json.loads(nostr.serialise(Keys(b"\6" * 32).sign(1, [], "buy this", event.created_at)))


class Mangler(Liar):
    def lie(self, event: Event) -> Any:
        return {"id": event.id}


@pytest.mark.parametrize(
    "vice, why",
    [(Forger, "signature"), (Changer, "id does not match"), (Stuffer, "match the filter"), (Mangler, "no valid event")],
)
async def test_a_relay_that_lies_is_named(vice: type[Liar], why: str) -> None:
    shelf = Shelf(OURS)
    async with serving(vice(THEIRS)) as url:
        with pytest.raises(Misbehaved, match=why) as caught:
            await difference(url, MINE, items(OURS))
        assert caught.value.url == url and url in str(caught.value) and not caught.value.retry
        with pytest.raises(Misbehaved, match=why):
            await sync(url, MINE, items(OURS), shelf.load, shelf.save, Direction.DOWN)
        with pytest.raises(Misbehaved):
            [one async for one in fetch(url, {**MINE, "ids": [NOTES[100].id]})]
    assert NOTES[100].id not in shelf.events


async def test_an_event_that_was_not_asked_for_is_a_lie() -> None:
    class Pusher(RelayModel):
        def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
            return [["EVENT", name, self.spelt(NOTES[1])], ["EOSE", name]]

    async with serving(Pusher(NOTES)) as url:
        with pytest.raises(Misbehaved, match="not asked for"):
            [one async for one in fetch(url, {"ids": [NOTES[0].id]})]


async def test_ids_that_the_relay_names_and_does_not_have_are_missing() -> None:
    class Boaster(RelayModel):
        def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
            return super().on_req(name, {**filter, "ids": [id for id in filter["ids"] if id != NOTES[100].id]})

    shelf = Shelf(OURS)
    async with serving(Boaster(THEIRS)) as url:
        done = await sync(url, MINE, items(OURS), shelf.load, shelf.save)
    assert done.missing == [NOTES[100].id] and done.received == len(NEED) - 1


# --- fetch and publish --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [500, 10, 1])
async def test_fetch_by_ids_gives_what_is_there_and_says_what_is_not(cap: int) -> None:
    absent = ME.sign(1, [], "absent", 1)
    async with serving(RelayModel(NOTES, cap=cap)) as url:
        fetched = fetch(url, {"ids": [absent.id, *(note.id for note in OURS)]}, bounds=BOUNDS)
        found = [one async for one in fetched]
    assert {one.event.id for one in found} == {note.id for note in OURS} and len(found) == len(OURS)
    assert list(fetched.missing) == [absent.id]


async def test_fetch_by_filter_gives_all_newest_first() -> None:
    async with serving(RelayModel(NOTES, cap=10)) as url:
        found = [one.event async for one in fetch(url, MINE)]
    assert len(found) == len(NOTES)
    assert [one.created_at for one in found] == sorted((one.created_at for one in NOTES), reverse=True)
    with pytest.raises(Invalid):
        fetch(url, {"search": "x"})


async def test_a_fetch_can_be_gone_through_again() -> None:
    async with serving(RelayModel(NOTES)) as url:
        fetched = fetch(url, MINE)
        assert len([one async for one in fetched]) == len([one async for one in fetched]) == len(NOTES)


async def test_an_event_larger_than_we_take_is_said_to_be() -> None:
    async with serving(RelayModel([ME.sign(1, [], "long " * 1_000, 1)])) as url:
        with pytest.raises(TooMuch, match="more than 4000 bytes"):
            _ = [one async for one in fetch(url, MINE, bounds=Bounds(message_bytes=4_000))]


@pytest.mark.parametrize("reason, retry", [("rate-limited: slow down", True), ("restricted: members only", False)])
async def test_a_refusal_says_whether_to_try_again(reason: str, retry: bool) -> None:
    class Refusing(RelayModel):
        def on_req(self, name: str, filter: dict[str, Any]) -> list[Any]:
            return [["CLOSED", name, reason]]

    async with serving(Refusing(NOTES)) as url:
        with pytest.raises(Refused, match=reason) as caught:
            _ = [one async for one in fetch(url, MINE)]
    assert caught.value.retry is retry


async def test_publish_tells_what_became_of_each() -> None:
    class Choosy(RelayModel):
        def on_event(self, event: dict[str, Any]) -> list[Any]:
            refused = event["content"].endswith("7")
            return [["OK", event["id"], False, "blocked: no sevens"]] if refused else super().on_event(event)

    relay = Choosy(NOTES[:50])
    async with serving(relay) as url:
        done = await publish(url, raw(NOTES))
    assert len(done.accepted) + len(done.refused) == len(NOTES)
    assert set(done.refused) == {note.id for note in NOTES if note.content.endswith("7")}
    assert set(done.refused.values()) == {"blocked: no sevens"} and set(done.accepted) <= set(relay.events)


async def test_publish_goes_on_over_another_connection_when_a_relay_tires() -> None:
    class Tired(RelayModel):
        """Answers only so many messages on one connection, and says nothing."""

        patience = 0

        def greet(self) -> list[Any]:
            self.patience = 50
            return super().greet()

        def answer(self, message: str | bytes) -> list[Any]:
            self.patience -= 1
            return super().answer(message) if self.patience >= 0 else []

    relay = Tired()
    async with serving(relay) as url:
        done = await publish(url, raw(NOTES), timeout=SOON)
    assert set(done.accepted) == {note.id for note in NOTES} and relay.connections == 3


async def test_connections_are_renewed_before_relays_tire_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_connection, "RENEW_AFTER", 40)
    monkeypatch.setattr("anabranch.client.reconcile.PUBLISH_AT_ONCE", 30)
    relay = RelayModel()
    async with serving(relay) as url:
        done = await publish(url, raw(NOTES))
    assert len(done.accepted) == len(NOTES) and relay.connections == 2


# --- sync ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refuses", [False, True], ids=["by negentropy", "by pages"])
@pytest.mark.parametrize("direction", Direction)
async def test_sync_closes_the_difference_in_the_direction_asked_for(direction: Direction, refuses: bool) -> None:
    relay = NoNegentropy(THEIRS, cap=30) if refuses else RelayModel(THEIRS, cap=30)
    shelf = Shelf(OURS)
    async with serving(relay) as url:
        done = await sync(url, MINE, items(OURS), shelf.load, shelf.save, direction, bounds=BOUNDS)
        again = await difference(url, MINE, items(list(shelf.events.values())), bounds=BOUNDS)
    assert done.difference.method is (Method.PAGES if refuses else Method.NEGENTROPY)
    assert set(done.difference.have) == HAVE and set(done.difference.need) == NEED and not done.missing
    assert done.received == (0 if direction is Direction.UP else len(NEED))
    assert set(done.published.accepted) == (set() if direction is Direction.DOWN else HAVE)
    assert set(again.need) == (NEED if direction is Direction.UP else set())
    assert set(again.have) == (HAVE if direction is Direction.DOWN else set())


async def test_pages_are_not_fetched_twice() -> None:
    relay = NoNegentropy(THEIRS)
    shelf = Shelf(OURS)
    async with serving(relay) as url:
        await sync(url, MINE, items(OURS), shelf.load, shelf.save, Direction.DOWN)
    assert not [message for message in relay.heard if message[0] == "REQ" and "ids" in message[2]]


# --- NIP-42 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greets", [True, False], ids=["challenge first", "challenge with the refusal"])
@pytest.mark.parametrize("tools", ["negentropy", "pages"])
async def test_a_private_relay_is_told_who_asks(greets: bool, tools: str) -> None:
    relay = Private(THEIRS, members=[ME.pubkey], greets=greets)
    if tools == "pages":
        relay.set_max = -1
    shelf = Shelf(OURS)
    async with serving(relay) as url:
        done = await sync(url, MINE, items(OURS), shelf.load, shelf.save, keys=ME, bounds=BOUNDS)
        assert [one async for one in fetch(url, MINE, keys=ME)]
        assert (await publish(url, raw(NOTES[:3]), keys=ME)).refused == {}
    assert set(shelf.events) == set(relay.events) == {note.id for note in NOTES}
    assert set(done.published.accepted) == HAVE
    assert relay.verbs().count("AUTH") == 3


async def test_without_keys_or_with_the_wrong_ones_it_says_so() -> None:
    async with serving(Private(THEIRS, members=[ME.pubkey])) as url:
        with pytest.raises(Refused, match="auth-required"):
            await difference(url, MINE, items(OURS))
        with pytest.raises(Refused, match="not a member"):
            await difference(url, MINE, items(OURS), keys=Keys(b"\6" * 32))
        done = await publish(url, raw(NOTES[:2]))
        assert set(done.refused.values()) == {"auth-required: who are you?"}


async def test_a_private_node_is_shown_our_access_key(start_node: Callable[..., Node]) -> None:
    node = start_node(env={"PRIVATE": "true"}, admin=True)
    access_key = node.admin("POST", "keys", {}).json()["key"]
    mine = raw(NOTES[:3])
    assert (await publish(node.url, mine, keys=ME, access_key=access_key)).refused == {}
    assert len([one async for one in fetch(node.url, MINE, keys=ME, access_key=access_key)]) == 3
    with pytest.raises(Refused, match="our access key: token-invalid"):
        await publish(node.url, mine, keys=ME, access_key="sk_wrong")
    with pytest.raises(Refused, match="token-required"):
        await difference(node.url, MINE, items(OURS), keys=ME)


async def test_the_last_challenge_is_the_one_that_counts() -> None:
    class Restless(Private):
        """A new challenge with every refusal; only the last one holds."""

        def _challenged(self, refusal: list[Any]) -> list[Any]:
            self.challenge = f"challenge {len(self.heard)}"
            return [refusal, ["AUTH", self.challenge]]

    relay = Restless(members=[ME.pubkey], greets=False)
    async with serving(relay) as url:
        done = await publish(url, raw(NOTES), keys=ME)
    assert len(done.accepted) == len(NOTES) and relay.verbs().count("AUTH") == 2


async def test_a_private_relay_hears_whose_events_are_asked_for() -> None:
    relay = RelayModel(THEIRS)
    async with serving(relay) as url:
        assert [one async for one in fetch(url, {**MINE, "ids": [NOTES[100].id]})]
    assert relay.heard[0][2] == {**MINE, "ids": [NOTES[100].id], "limit": 1}


async def test_a_challenge_that_never_comes_is_not_waited_for_long() -> None:
    class Vague(Private):
        def _challenged(self, refusal: list[Any]) -> list[Any]:
            return [refusal]

    async with serving(Vague(THEIRS, greets=False)) as url:
        with pytest.raises(Refused, match="auth-required"):
            await difference(url, MINE, items(OURS), keys=ME, timeout=SOON)
