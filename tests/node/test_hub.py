"""The hub alone: who leaves while others are told takes nothing from them, and each gets what it is told in order."""

import pytest
from histories import event, operation

from anabranch.core.changes import LogQuery
from anabranch.core.filter import Filter
from anabranch.core.token import Position
from anabranch.node.hub import Hub, Style, Subscription

ALL, NOTES = LogQuery(), LogQuery(Filter(kinds=frozenset({1})))


@pytest.mark.parametrize("selectors", [(ALL, ALL, ALL), (ALL, NOTES, ALL), (NOTES, ALL, LogQuery(Filter(limit=1)))])
def test_a_reader_that_is_let_go_while_it_is_told_takes_nothing_from_the_others(
    selectors: tuple[LogQuery, ...],
) -> None:
    """As when what is sent was too much for the memory of all: whoever has most of it leaves, in the midst of this."""
    hub = Hub(Position(5), 1 << 23)
    told: list[str] = []

    class Outlet:
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, data: bytes) -> None:
            told.append(self.name)
            if self.name == "first":
                hub.leave(subscriptions[0])

        send_now = send

    names = ("first", "second", "third")
    subscriptions = [
        Subscription(Outlet(name), name, selector, Style.CHANGE)
        for name, selector in zip(names, selectors, strict=True)
    ]
    for subscription in subscriptions:
        hub.join(subscription, Position(5))
    hub.tip = Position(6)
    hub.tell_passed()
    assert sorted(told) == sorted(names)
    assert hub.subscriptions == 2


def test_all_that_one_reader_is_told_of_a_publication_goes_out_at_once_and_then_together() -> None:
    """The first of it without waiting for what others get, the rest in one more write."""
    hub = Hub(Position(0), 1 << 23)
    told: list[str] = []

    class Outlet:
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, data: bytes) -> None:
            told.append(f"{self.name} later")

        def send_now(self, data: bytes) -> None:
            told.append(f"{self.name} now")

    one, other = Outlet("one"), Outlet("other")
    for outlet, name in ((one, "a"), (other, "a"), (one, "b"), (one, "c")):
        hub.join(Subscription(outlet, name, ALL if name == "a" else NOTES, Style.CHANGE), Position(0))
    for number in (1, 2):
        assert hub.publish([(Position(number), operation(event(1)))]) == 4
        assert sorted(told) == ["one later", "one later", "one now", "other now"]
        assert told.index("one now") < told.index("one later")
        told.clear()
