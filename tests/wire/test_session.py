"""A session without a socket: what it takes, what it refuses, and what an access key or its end changes."""

import json
from typing import Any

import pytest
from authors import Author, Event

from anabranch.core.filter import FILTER_ROOM
from anabranch.core.nostr import Limits
from anabranch.core.operation import KindPolicy
from anabranch.wire.opened import Together
from anabranch.wire.session import Cancel, Changes, Effect, Grant, Hangup, Prove, Query, Rules, Send, Session

NOW = 1_700_000_000
CHALLENGE = "c" * 32
URL = "ws://relay.example/"


def session(**rules: Any) -> Session:
    return Session(Rules(Limits(), KindPolicy(), **rules), CHALLENGE)


def say(to: Session, *message: Any, now: int = NOW) -> list[Effect]:
    return to.receive(json.dumps(message).encode(), now)


def told(effects: list[Effect]) -> list[Any]:
    return [json.loads(effect.message) for effect in effects if isinstance(effect, Send)]


def values(count: int, first: int = 0) -> list[str]:
    return [f"{n:064x}" for n in range(first, first + count)]


# --- the filter values of everything that is open ---------------------------------------------------------------------

MANY = "rate-limited: too many filter values"


def test_filter_values_are_counted_over_all_open_subscriptions():
    one = session(open_values=100 + 3 * FILTER_ROOM)
    assert [type(e) for e in say(one, "REQ", "a", {"ids": values(60)})] == [Query]
    assert told(say(one, "REQ", "b", {"ids": values(30)}, {"authors": values(11)})) == [["CLOSED", "b", MANY]]
    assert told(say(one, "REQ-BATCH", "b", {"#t": values(41 + FILTER_ROOM)})) == [["CLOSED", "b", MANY]]
    assert [type(e) for e in say(one, "REQ", "b", {"ids": values(30)}, {"authors": values(10)})] == [Query]
    assert list(one.open) == ["a", "b"]


def test_a_feed_counts_its_values_too():
    one, author = session(open_values=100 + FILTER_ROOM), Author.random().pubkey
    feed = {"mode": "tail", "authors": [author], "kinds": [42061]}
    assert [type(e) for e in say(one, "CHANGES", "a", feed | {"#d": values(60)})] == [Changes]
    assert told(say(one, "CHANGES", "b", feed | {"#d": values(60)})) == [
        ["CHANGES", "b", "ERR", "too many filter values"]
    ]
    assert told(say(one, "REQ", "c", {"ids": values(60)})) == [["CLOSED", "c", MANY]]
    assert list(one.open) == ["a"]


def test_long_values_count_for_the_memory_that_they_hold():
    one, author = session(open_values=100), Author.random().pubkey
    assert [type(e) for e in say(one, "REQ", "a", {"#t": ["x" * 64, "", "y" * 65]})] == [Query]
    assert one.open.room == 100 - 4 - FILTER_ROOM
    assert told(say(one, "REQ", "b", {"#t": ["x" * 260_000]})) == [["CLOSED", "b", MANY]]
    feed = {"mode": "tail", "authors": [author], "kinds": [42061], "#d": ["x" * 260_000]}
    assert told(say(one, "CHANGES", "b", feed)) == [["CHANGES", "b", "ERR", "too many filter values"]]
    assert list(one.open) == ["a"]


def test_an_event_message_with_too_much_in_it_is_told_what_it_should_be():
    for message in (b'["EVENT",{},{}]', b'["EVENT", {}, {}]', b'["EVENT",{"id":"x"},1]', b'["EVENT"]', b'["EVENT",1]'):
        answer = told(session().receive(message, NOW))
        assert answer == [["NOTICE", "invalid: EVENT requires one event object"]], message
    for message in (b'["EVENT",]', b'["EVENT",{},]', b'["EVENT",{}{}]', b'["EVENT",{"a":"\xff"}]'):
        answer = told(session().receive(message, NOW))
        assert answer == [["NOTICE", "invalid: expected a JSON array message"]], message


def test_what_is_closed_replaced_or_ended_counts_no_longer():
    one = session(open_values=100)
    for end in (
        lambda: say(one, "CLOSE", "a"),
        lambda: one.ended("a"),
        lambda: None,  # the next REQ of the same id takes its place
    ):
        assert isinstance(say(one, "REQ", "a", {"ids": values(70)})[-1], Query)
        end()
    effects = say(one, "REQ", "a", {"ids": values(80)})
    assert [type(effect) for effect in effects] == [Cancel, Query]


def test_a_replacement_that_is_refused_has_ended_what_it_was_to_replace():
    one = session(open_values=100, filter_values=200)
    say(one, "REQ", "a", {"ids": values(70)})
    effects = say(one, "REQ", "a", {"ids": values(81)})
    assert isinstance(effects[0], Cancel) and told(effects) == [["CLOSED", "a", MANY]]
    assert list(one.open) == []


def test_a_count_opens_nothing_and_is_not_counted():
    one = session(open_values=100, filter_values=200)
    for _ in range(3):
        say(one, "COUNT", "c", {"ids": values(150)})
    assert list(one.open) == []
    assert isinstance(say(one, "REQ", "a", {"ids": values(80)})[-1], Query)


def test_what_all_sessions_have_open_is_bounded_together_and_given_back():
    together = Together(100)
    one, other = session(open_together=together), session(open_together=together)
    assert isinstance(say(one, "REQ", "a", {"ids": values(60)})[-1], Query)
    full = "the relay has too many filters open; try again later"
    assert told(say(other, "REQ", "b", {"kinds": [1]})) == [["CLOSED", "b", f"rate-limited: {full}"]]
    feed = {"mode": "log"}
    assert isinstance(say(other, "CHANGES", "b", feed)[-1], Changes)
    assert told(say(other, "CHANGES", "c", feed)) == [["CHANGES", "c", "ERR", full]]
    for end in (lambda: say(one, "CLOSE", "a"), lambda: one.ended("a"), one.open.clear):
        end()
        assert together.room == 80
        assert isinstance(say(one, "REQ", "a", {"ids": values(60)})[-1], Query)
        assert together.room == 0


def test_a_filter_without_values_takes_room_too():
    one = session(open_values=3 * FILTER_ROOM)
    assert told(say(one, "REQ", "a", {"since": 1}, {"since": 2}, {"since": 3}, {})) == [["CLOSED", "a", MANY]]
    assert [type(e) for e in say(one, "REQ", "a", {"since": 1}, {"since": 2}, {})] == [Query]


# --- access keys ------------------------------------------------------------------------------------------------------


def auth(author: Author) -> Event:
    return author.auth(CHALLENGE, URL, created_at=NOW)


def prove(to: Session, author: Author) -> list[Any]:
    """AUTH, with a signature that holds; what is told."""
    effects = say(to, "AUTH", auth(author))
    asked = [effect for effect in effects if isinstance(effect, Prove)]
    return told(effects) + [answer for effect in asked for answer in told(to.proven(effect.event, True))]


def keyed(*grants: Grant) -> Session:
    return session(private=True, grants=lambda: list(grants))


def follow(to: Session, author: Author, name: str = "live") -> list[Effect]:
    return say(to, "CHANGES", name, {"authors": [author.pubkey], "live": True})


@pytest.mark.parametrize("skew", [0, 600, -600])
def test_an_answer_is_taken_ten_minutes_either_way(author: Author, skew: int):
    one = session(private=True)
    (effect,) = say(one, "AUTH", author.auth(CHALLENGE, URL, created_at=NOW + skew))
    assert isinstance(effect, Prove)
    assert told(one.proven(effect.event, True)) == [["OK", effect.event.id, True, ""]]


@pytest.mark.parametrize("skew", [601, -601, 605, -605])
def test_an_answer_more_than_ten_minutes_away_is_refused(author: Author, skew: int):
    event = author.auth(CHALLENGE, URL, created_at=NOW + skew)
    text = "invalid: created_at is too far from the relay's time"
    assert told(say(session(private=True), "AUTH", event)) == [["OK", event["id"], False, text]]


def test_two_answers_to_one_challenge_may_be_checked_side_by_side(author: Author):
    one, other = session(private=True), Author.random()
    asked = [effect for who in (author, other) for effect in say(one, "AUTH", auth(who))]
    assert [type(effect) for effect in asked] == [Prove, Prove]
    for effect in reversed(asked):
        assert told(one.proven(effect.event, True)) == [["OK", effect.event.id, True, ""]]
    assert one.authors == {author.pubkey, other.pubkey}


@pytest.mark.parametrize(
    "message",
    [("CLOSE", "live"), ("REQ", "q", {}), ("COUNT", "c", {}), ("EVENT", {}), ("TOKEN", "b"), ("NOPE",)],
    ids=lambda message: message[0],
)
def test_whatever_is_said_after_the_key_has_expired_ends_the_session(author: Author, message: tuple):
    one = keyed(Grant("a", None, NOW + 10), Grant("b", None))
    say(one, "TOKEN", "a")
    prove(one, author)
    assert isinstance(follow(one, author)[-1], Changes)
    assert not any(isinstance(effect, Hangup) for effect in say(one, *message, now=NOW + 9) if message[0] != "TOKEN")
    ended = keyed(Grant("a", None, NOW + 10), Grant("b", None))
    say(ended, "TOKEN", "a")
    prove(ended, author)
    effects = say(ended, *message, now=NOW + 10)
    assert isinstance(effects[-1], Hangup)
    assert told(effects) == [["NOTICE", "restricted: the access key holds no longer"]]


def test_another_key_drops_what_was_proven_under_the_first(author: Author):
    one = keyed(Grant("a", None), Grant("b", None))
    say(one, "TOKEN", "a")
    prove(one, author)
    follow(one, author, "feed")
    say(one, "REQ", "query", {"authors": [author.pubkey]})
    effects = say(one, "TOKEN", "b")
    assert [effect.subscription for effect in effects if isinstance(effect, Cancel)] == ["feed", "query"]
    assert told(effects) == [["TOKEN", "b", True, ""]]
    assert (one.authors, list(one.open)) == (frozenset(), [])
    assert told(follow(one, author))[0][3].startswith("auth-required:")
    assert told(say(one, "EVENT", author.event(1, created_at=NOW)))[0][3].startswith("auth-required:")
    assert prove(one, author)[0][2] is True
    assert isinstance(follow(one, author)[-1], Changes)


def test_the_same_key_again_and_a_wrong_one_drop_nothing(author: Author):
    one = keyed(Grant("a", None))
    say(one, "TOKEN", "a")
    prove(one, author)
    follow(one, author)
    for key, holds in (("a", True), ("nonsense", False)):
        effects = say(one, "TOKEN", key)
        assert told(effects)[0][:3] == ["TOKEN", key, holds] and len(effects) == 1
    assert (one.authors, list(one.open)) == ({author.pubkey}, ["live"])


def test_what_is_still_being_proven_when_another_key_is_shown_is_not_proven_under_it(author: Author):
    """The second key may belong to somebody else: nobody gets in with it who was let in by the first."""
    one = keyed(Grant("a", None), Grant("b", Author.random().pubkey))
    say(one, "TOKEN", "a")
    (asked,) = say(one, "AUTH", auth(author))
    say(one, "TOKEN", "b")
    (answer,) = told(one.proven(asked.event, True))
    assert answer[2] is False
    assert one.authors == frozenset()


def test_what_is_still_being_proven_when_keys_come_to_be_asked_for_does_not_get_in_without(author: Author):
    grants: list[Grant] | None = None
    one = session(private=True, grants=lambda: grants)
    (asked,) = say(one, "AUTH", auth(author))
    grants = [Grant("a", None)]
    (answer,) = told(one.proven(asked.event, True))
    assert answer[2] is False and answer[3].startswith("token-required:")
    assert one.authors == frozenset()


def test_where_every_key_is_gone_nobody_authenticates(author: Author):
    ((_, _, accepted, text),) = prove(keyed(), author)
    assert (accepted, text.split(":")[0]) == (False, "token-required")
