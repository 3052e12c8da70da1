"""What two sides need not talk about again."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.replicate.room import LINK_IDS_MIN, Room, Share
from anabranch.replicate.settled import DEFERRED_MAX, FAILURES_MAX, PUSHED_MAX, Settled


def compared(settled: Settled, *lacking: str, meanwhile: tuple[str, ...] = ()) -> list[str]:
    """What is to be given after a comparison in which the peer lacks these; `meanwhile` it answers for others."""
    settled.look()
    for id in meanwhile:
        settled.push(id)
    return settled.lacking(lacking)


def test_what_was_given_and_is_not_there_is_not_given_again():
    settled = Settled()
    settled.give("a")
    settled.push("b")
    assert compared(settled, "a", "b", "c") == ["c"]
    assert compared(settled, "a", "b", "c") == ["c"]


def test_what_was_there_and_is_lost_is_given_again():
    settled = Settled()
    settled.give("a")
    assert compared(settled) == []
    assert compared(settled, "a") == ["a"]


def test_what_was_given_in_vain_is_told_also_by_a_comparison_after_one_that_did_not_see_all():
    settled = Settled()
    settled.give("a")
    settled.give("b")
    settled.look()
    assert settled.lacking(["b"], all_seen=False) == []
    assert compared(settled, "a", "b") == []
    assert settled.unkept == 2


def test_what_was_given_is_sought_no_longer_than_there_is_room_for():
    room = Room(LINK_IDS_MIN)
    settled = Settled(Share(room))
    for number in range(LINK_IDS_MIN):
        settled.give(str(number))
    settled.look()
    settled.lacking([], all_seen=False)
    assert room.taken == 0


def test_what_is_answered_for_while_a_comparison_is_under_way_may_still_look_missing():
    settled = Settled()
    assert compared(settled, "a", meanwhile=("a",)) == ["a"]
    assert compared(settled) == []
    assert compared(settled, "a") == ["a"]


def test_what_was_answered_for_just_before_the_connection_ended_is_given_again():
    settled = Settled()
    settled.give("a")
    settled.look()
    settled.lost()
    assert compared(settled, "a") == ["a"]


def test_what_is_refused_for_good_stays_refused_until_everything_is_compared_anew():
    settled = Settled()
    assert settled.refuse("a", "blocked: no")
    settled.lost()
    assert compared(settled, "a") == []
    settled.clear()
    assert compared(settled, "a") == ["a"]


def test_of_what_goes_out_as_it_comes_in_no_more_is_kept_than_there_is_room_for():
    settled = Settled()
    for number in range(PUSHED_MAX + 5):
        settled.push(str(number))
    assert len(settled._given) == PUSHED_MAX


def test_an_error_that_befalls_one_alone_again_and_again_is_for_good():
    settled = Settled()
    for number in range(FAILURES_MAX - 1):
        settled.push(f"other {number}")
        assert not settled.refuse("poison", "error: no")
    assert settled.deferred == {"poison": "error: no"}
    assert not settled.refuse("poison", "error: no"), "nothing was taken in between: it is the peer that fails"
    settled.push("another")
    assert settled.refuse("poison", "error: no")
    assert not settled.deferred and settled.unkept == 1


def test_what_is_only_too_fast_is_never_refused_for_good():
    settled = Settled()
    for number in range(3 * FAILURES_MAX):
        settled.push(f"other {number}")
        assert not settled.refuse("late", "rate-limited: slow down")
    settled.push("late")
    assert not settled.deferred


def test_what_was_to_be_tried_again_and_is_gone_here_is_forgotten():
    settled = Settled()
    settled.refuse("gone", "error: no")
    settled.refuse("here", "error: no")
    settled.keep_deferred(["here", "other"])
    assert settled.deferred == {"here": "error: no"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["give", "push", "decline", "refuse", "fail", "look", "lacking", "lost", "clear"]),
            st.sampled_from("abcdef"),
        ),
        max_size=40,
    ),
    st.integers(0, 8),
)
def test_the_room_that_is_taken_is_what_is_held(calls, most):
    room = Room(most)
    settled = Settled(Share(room))
    for verb, id in calls:
        match verb:
            case "refuse" | "fail":
                settled.refuse(id, "blocked: no" if verb == "refuse" else "error: no")
            case "lacking":
                settled.lacking([id, "z"])
            case "look" | "lost" | "clear":
                getattr(settled, verb)()
            case _:
                getattr(settled, verb)(id)
        held = (settled.declined, settled._given, settled._sought, settled._vain)
        assert room.taken == sum(map(len, held))


def test_no_link_holds_more_than_a_few_once_all_links_hold_too_much():
    room = Room(most=LINK_IDS_MIN + 10)
    greedy, late = Settled(Share(room)), Settled(Share(room))
    for number in range(2 * LINK_IDS_MIN):
        greedy.decline(f"one {number}")
    for number in range(2 * LINK_IDS_MIN):
        late.decline(f"two {number}")
    assert (len(greedy.declined), len(late.declined)) == (LINK_IDS_MIN + 10, LINK_IDS_MIN)
    greedy.clear()
    late.decline("another")
    assert "another" in late.declined


def test_what_failed_and_is_gone_here_does_not_hide_what_fails_later():
    settled = Settled()
    for number in range(DEFERRED_MAX + 5):
        settled.push("another")
        settled.refuse(f"gone {number}", "error: no")
    settled.keep_deferred([])
    for _ in range(FAILURES_MAX - 1):
        settled.push("another")
        assert not settled.refuse("poison", "error: no")
    settled.push("another")
    assert settled.refuse("poison", "error: no")
