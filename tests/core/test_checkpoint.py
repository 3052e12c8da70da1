"""Checkpoints: forward only, through contiguous completion only, within one log only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.checkpoint import PENDING_MAX, Blocked, Checkpoint, Settlement
from anabranch.core.token import MixedDomains, Position, ProgressToken


def token(position: int, epoch: str = "e") -> ProgressToken:
    return ProgressToken("s", epoch, Position(position))


def applied(position: int, epoch: str = "e", id: str | None = None) -> Settlement:
    return token(position, epoch), id or f"{position:064x}", None


def waits(position: int, id: str | None = None) -> Settlement:
    id = id or f"{position:064x}"
    return token(position), id, Blocked(id, "ancestry", "x", "not there")


pages = st.lists(st.lists(st.booleans(), max_size=4), max_size=6)


@given(pages, st.randoms(use_true_random=False))
def test_the_resume_point_never_passes_what_is_not_applied_and_never_goes_back(pages, random):
    checkpoint, position, waiting, done = Checkpoint.at(token(0)), 0, [], {0}
    for page in pages:
        arrived, through = [], None
        for blocks in page:
            position += random.randint(1, 3)
            arrived.append(waits(position) if blocks else applied(position))
            if blocks:
                waiting.append(position)
            else:
                done.add(position)
        if random.random() < 0.5:  # as far as the last arrival, or further
            position += random.randint(0, 1)
            done |= {position} - set(waiting)
            through = token(position)
        after = checkpoint.settle(arrived, through)
        assert after.contiguous.position >= checkpoint.contiguous.position
        checkpoint = after
        if waiting and random.random() < 0.5:
            resolved = waiting.pop(random.randrange(len(waiting)))
            done.add(resolved)
            checkpoint = checkpoint.settle([applied(resolved)])
        elif waiting:
            checkpoint = checkpoint.settle([waits(random.choice(waiting))])  # it came again, and waits still
        assert checkpoint.received.position == position
        assert [one.token.position for one in checkpoint.pending] == sorted(waiting)
        expected = max(at for at in done if not waiting or at < min(waiting))
        # Up to the first that waits, all is applied; the resume point is the last of them, or where it stood before.
        assert checkpoint.contiguous.position <= expected or not waiting
        assert all(checkpoint.contiguous.position < at for at in waiting)
    if not waiting:
        assert checkpoint.contiguous.position == position


def test_when_nothing_is_pending_any_more_the_resume_point_is_where_we_were():
    checkpoint = Checkpoint.at(token(1)).settle([applied(2), waits(5), applied(6)])
    assert (checkpoint.contiguous, checkpoint.received) == (token(2), token(6))
    assert checkpoint.settle([applied(5)]) == Checkpoint.at(token(6))


def test_how_far_the_source_is_complete_settles_nothing_that_waits_at_the_same_place():
    checkpoint = Checkpoint.at(token(1)).settle([applied(2), waits(5)], token(5))
    assert (checkpoint.contiguous, checkpoint.received, len(checkpoint.pending)) == (token(2), token(5), 1)
    assert checkpoint.settle([], token(9)).contiguous == token(2)
    assert checkpoint.settle([applied(5)], token(9)) == Checkpoint.at(token(9))


def test_another_operation_with_the_same_token_settles_nothing():
    checkpoint = Checkpoint.at(token(1)).settle([waits(5), applied(5, id="ee" * 32)])
    assert (checkpoint.contiguous, len(checkpoint.pending)) == (token(1), 1)


def test_an_operation_that_comes_again_at_another_place_waits_once_and_is_settled_by_either():
    checkpoint = Checkpoint.at(token(1)).settle([waits(5, "ee" * 32), waits(7, "ee" * 32)])
    assert [one.token for one in checkpoint.pending] == [token(5)]
    assert checkpoint.settle([applied(9, id="ee" * 32)]) == Checkpoint.at(token(9))


def test_what_was_passed_and_waits_now_is_not_passed_once_more():
    checkpoint = Checkpoint.at(token(1)).settle([waits(2), applied(3), applied(5)])
    checkpoint = checkpoint.settle([waits(2), waits(3)]).settle([applied(2)])
    assert checkpoint.contiguous.position < 3
    assert checkpoint.settle([applied(3)]) == Checkpoint.at(token(5))


def test_tokens_of_another_log_are_refused():
    with pytest.raises(MixedDomains):
        Checkpoint.at(token(9)).settle([applied(10, epoch="other")])


def test_more_pending_than_a_hundred_is_an_overflow():
    checkpoint = Checkpoint.at(token(0))
    checkpoint = checkpoint.settle([waits(at) for at in range(1, PENDING_MAX + 1)])
    assert not checkpoint.overflows
    assert checkpoint.settle([waits(PENDING_MAX + 1)]).overflows


def test_what_overflows_is_not_kept_and_nothing_after_it_is_passed():
    count = 5 * PENDING_MAX
    checkpoint = Checkpoint.at(token(0)).settle([waits(at) for at in range(1, count)], token(count))
    assert (checkpoint.overflows, len(checkpoint.pending)) == (True, PENDING_MAX)
    assert (checkpoint.contiguous, checkpoint.received) == (token(0), token(PENDING_MAX))
    later = checkpoint.settle([applied(count), *(applied(one.token.position) for one in checkpoint.pending)])
    assert later.contiguous == token(0) and later.overflows


def test_one_that_comes_again_and_waits_still_is_no_overflow():
    all_of_them = [waits(at) for at in range(1, PENDING_MAX + 1)]
    full = Checkpoint.at(token(0)).settle(all_of_them)
    assert full.settle(all_of_them) == full
