"""The hub alone: who leaves while others are told takes nothing from them."""

import pytest

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
