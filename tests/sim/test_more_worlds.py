"""More worlds of other seeds, and thousands where there is time: nothing that must hold is breached."""

import pytest

from anabranch.sim import simulate

MORE = range(100, 200)
THOUSANDS = range(200, 5_200)


def breached(first: int, count: int) -> list[tuple[int, list[str]]]:
    return [(one.seed, one.breaches) for one in simulate(range(first, first + count)).failed]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(MORE.start, MORE.stop, 25))
def test_in_more_worlds_nothing_is_breached(first: int):
    assert breached(first, 25) == []


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("first", range(THOUSANDS.start, THOUSANDS.stop, 500))
def test_in_thousands_of_worlds_nothing_is_breached(first: int):
    assert breached(first, 500) == []
