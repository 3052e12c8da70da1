"""Checkpoints: forward only, through contiguous completion only, within one log only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.checkpoint import PENDING_MAX, Blocked, Checkpoint
from anabranch.core.token import MixedDomains, Position, ProgressToken

BLOCKED = Blocked("ab" * 32, "ancestry", "x", "not there")


def token(position: int, epoch: str = "e") -> ProgressToken:
    return ProgressToken("s", epoch, Position(position))


pages = st.lists(st.lists(st.booleans(), max_size=4), max_size=6)


@given(pages, st.randoms(use_true_random=False))
def test_the_resume_point_never_passes_what_is_not_applied_and_never_goes_back(pages, random):
    checkpoint, position, waiting, applied = Checkpoint.at(token(0)), 0, [], {0}
    for page in pages:
        tokens, blocked = [], []
        for blocks in page:
            position += random.randint(1, 3)
            tokens.append(token(position))
            blocked.append(BLOCKED if blocks else None)
            if blocks:
                waiting.append(position)
            else:
                applied.add(position)
        after = checkpoint.settle(tokens, blocked)
        assert after.contiguous.position >= checkpoint.contiguous.position
        checkpoint = after
        if waiting and random.random() < 0.5:
            resolved = waiting.pop(random.randrange(len(waiting)))
            applied.add(resolved)
            checkpoint = checkpoint.settle([token(resolved)], [None])
        elif waiting:
            checkpoint = checkpoint.settle([token(random.choice(waiting))], [BLOCKED])  # it came again, and waits still
        assert checkpoint.received.position == position
        assert [one.token.position for one in checkpoint.pending] == sorted(waiting)
        expected = max(at for at in applied | {0} if not waiting or at < min(waiting))
        # Up to the first that waits, all is applied; the resume point is the last of them, or where it stood before.
        assert checkpoint.contiguous.position <= expected or not waiting
        assert all(checkpoint.contiguous.position < at for at in waiting)
    if not waiting:
        assert checkpoint.contiguous.position == position


def test_when_nothing_is_pending_any_more_the_resume_point_is_where_we_were():
    checkpoint = Checkpoint.at(token(1)).settle([token(2), token(5), token(6)], [None, BLOCKED, None])
    assert (checkpoint.contiguous, checkpoint.received) == (token(2), token(6))
    assert checkpoint.settle([token(5)], [None]) == Checkpoint.at(token(6))


def test_tokens_of_another_log_are_refused():
    with pytest.raises(MixedDomains):
        Checkpoint.at(token(9)).settle([token(10, epoch="other")], [None])


def test_more_pending_than_a_hundred_is_an_overflow():
    checkpoint = Checkpoint.at(token(0))
    checkpoint = checkpoint.settle([token(at) for at in range(1, PENDING_MAX + 1)], [BLOCKED] * PENDING_MAX)
    assert not checkpoint.overflows
    assert checkpoint.settle([token(PENDING_MAX + 1)], [BLOCKED]).overflows


def test_what_overflows_is_not_kept_and_nothing_after_it_is_passed():
    count = 5 * PENDING_MAX
    checkpoint = Checkpoint.at(token(0)).settle([token(at) for at in range(1, count)], [BLOCKED] * (count - 1))
    assert (checkpoint.overflows, len(checkpoint.pending)) == (True, PENDING_MAX)
    assert (checkpoint.contiguous, checkpoint.received) == (token(0), token(PENDING_MAX))
    later = checkpoint.settle([token(count), *(one.token for one in checkpoint.pending)], [None] * (PENDING_MAX + 1))
    assert later.contiguous == token(0) and later.overflows


def test_one_that_comes_again_and_waits_still_is_no_overflow():
    tokens = [token(at) for at in range(1, PENDING_MAX + 1)]
    full = Checkpoint.at(token(0)).settle(tokens, [BLOCKED] * PENDING_MAX)
    assert full.settle(tokens, [BLOCKED] * PENDING_MAX) == full
