"""Gaps: a consumer is told when something is missing, and only then."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.token import Gap, GapReason, Log, gap


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 25))
def test_there_is_a_gap_exactly_when_a_position_after_the_token_cannot_be_replayed(tip, trimmed, since):
    log = Log("s", "e", floor=min(trimmed, tip) + 1, tip=tip)
    missed = [position for position in range(since + 1, tip + 1) if position < log.floor]
    found = gap(log, since)
    if missed:
        assert found == Gap(since, log.floor, tip, GapReason.TOKEN_TOO_OLD)
    elif since > tip:
        assert found == Gap(since, log.floor, tip, GapReason.TOKEN_TOO_NEW)
    else:
        assert found is None


def test_an_empty_log_has_no_gap_from_the_start():
    assert gap(Log("s", "e", 1, 0), 0) is None


def test_a_token_from_the_start_is_too_old_once_anything_was_trimmed():
    assert gap(Log("s", "e", 2, 5), 0).reason is GapReason.TOKEN_TOO_OLD
    assert gap(Log("s", "e", 2, 5), 1) is None
