"""What two sides need not talk about again."""

from anabranch.replicate.settled import PUSHED_MAX, Settled


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
    settled.give("a", refused=True)
    settled.lost()
    assert compared(settled, "a") == []
    settled.clear()
    assert compared(settled, "a") == ["a"]


def test_of_what_goes_out_as_it_comes_in_no_more_is_kept_than_there_is_room_for():
    settled = Settled()
    for number in range(PUSHED_MAX + 5):
        settled.push(str(number))
    assert len(settled._given) == PUSHED_MAX
