"""Gaps: a consumer is told when something is missing, and only then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.token import Gap, GapReason, Log, MixedDomains, ProgressToken, before, gap, token_gap


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


tokens = st.builds(
    ProgressToken, st.sampled_from(["s", "t"]), st.sampled_from(["e", "f"]), st.integers(0, 2**63), st.text(max_size=4)
)


@given(tokens)
def test_a_token_comes_back_from_the_wire_with_its_position_as_a_decimal_string(token):
    said = token.to_wire()
    assert said["position"] == str(token.position)
    assert ProgressToken.from_wire(said) == token


@pytest.mark.parametrize("position", [7, "-1", "1.0", "", "٣", "9" * 21, None])
def test_a_position_that_is_no_decimal_string_is_refused(position):
    with pytest.raises(ValueError, match="token"):
        ProgressToken.from_wire({"streamId": "s", "epoch": "e", "position": position, "messageCid": ""})


@given(tokens, tokens)
def test_tokens_are_compared_as_numbers_and_only_within_one_stream_and_epoch(one, other):
    if one.domain != other.domain:
        with pytest.raises(MixedDomains):
            before(one, other)
    else:
        assert before(one, other) == (one.position < other.position)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (ProgressToken("t", "e", 3), GapReason.STREAM_MISMATCH),
        (ProgressToken("s", "f", 3), GapReason.EPOCH_MISMATCH),
        (ProgressToken("s", "e", 0), GapReason.TOKEN_TOO_OLD),
        (ProgressToken("s", "e", 6), GapReason.TOKEN_TOO_NEW),
    ],
)
def test_a_token_of_no_use_is_told_with_its_reason(token, reason):
    assert token_gap(Log("s", "e", 2, 5), token) == Gap(token.position, 2, 5, reason)
    assert token_gap(Log("s", "e", 2, 5), ProgressToken("s", "e", 4)) is None
