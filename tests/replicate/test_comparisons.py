"""What comparisons with a peer say one after the other."""

import pytest
from histories import signed
from link_driving import Drive, LogPeer
from relay_model import items

from anabranch.core.negentropy import Reconciler
from anabranch.core.nostr import Event
from anabranch.replicate import room
from anabranch.replicate.comparisons import COMPARISONS_MAX, WITHHELD_MAX, Comparisons, Finding, Portions, Verdict
from anabranch.replicate.settled import Settled


def ids(*names: str) -> frozenset[str]:
    return frozenset(names)


def found(*lacked: str, given: tuple[str, ...] = (), vanished: tuple[str, ...] = ()) -> Finding:
    return Finding(ids(*lacked, *given), ids(*lacked), vanished=ids(*vanished))


def test_nothing_that_differs_is_equal_and_only_where_all_could_be_seen():
    comparisons = Comparisons()
    assert (comparisons.judge(found()), comparisons.equal) == (Verdict.EQUAL, True)
    assert (comparisons.judge(found(), certain=False), comparisons.equal) == (Verdict.UNCERTAIN, False)


def test_equal_is_said_of_what_was_there_before_the_comparison_began():
    comparisons = Comparisons()
    assert comparisons.equal_as_of is None
    comparisons.judge(found(), began=1.0)
    assert comparisons.equal_as_of == 1.0
    comparisons.judge(found("a"), began=2.0)
    assert comparisons.equal_as_of is None
    comparisons.judge(found(), certain=False, began=3.0)
    assert comparisons.equal_as_of is None


def test_while_something_is_on_its_way_it_is_said_of_what_the_comparison_before_saw():
    comparisons = Comparisons()
    for number in range(COMPARISONS_MAX):
        comparisons.judge(found(str(number)), began=float(number))
    assert comparisons.equal
    assert comparisons.equal_as_of == COMPARISONS_MAX - 2


def test_what_differs_twice_stays_different():
    comparisons = Comparisons()
    assert comparisons.judge(found("a", "b")) is Verdict.UNCLEAR
    assert comparisons.named == {"a", "b"}
    assert comparisons.judge(found("b", given=("c",))) is Verdict.DIFFERENT
    assert comparisons.stays == {"b"}
    assert not comparisons.equal


def test_two_that_are_written_to_all_the_time_are_equal_when_all_that_differed_has_come():
    comparisons = Comparisons()
    verdicts = [comparisons.judge(found(str(number))) for number in range(COMPARISONS_MAX)]
    assert verdicts == [Verdict.UNCLEAR] * (COMPARISONS_MAX - 1) + [Verdict.EQUAL]


def test_what_the_comparison_before_did_not_look_at_may_differ_still():
    comparisons = Comparisons()
    for number in range(COMPARISONS_MAX - 1):
        comparisons.judge(Finding(ids(f"portion {number}"), more=True))
    assert comparisons.judge(found("there all the time, beyond the portions")) is Verdict.UNCLEAR
    assert not comparisons.equal
    assert comparisons.judge(found("new")) is Verdict.EQUAL


def test_a_peer_that_names_something_else_each_time_and_never_has_it_is_not_equal_and_found_out():
    comparisons = Comparisons()
    comparisons.judge(found("0"))
    for number in range(1, COMPARISONS_MAX):
        assert comparisons.judge(found(str(number), vanished=(str(number - 1),))) is Verdict.UNCLEAR
        assert not comparisons.equal
    last = str(COMPARISONS_MAX - 1)
    assert comparisons.judge(found("x", vanished=(last,))) is Verdict.DIFFERENT
    assert comparisons.stays == {last}


def test_what_was_taken_back_once_is_forgotten_after_a_comparison_that_finds_nothing():
    comparisons = Comparisons()
    assert comparisons.judge(found("deleted meanwhile")) is Verdict.UNCLEAR
    assert comparisons.judge(found(vanished=("deleted meanwhile",))) is Verdict.UNCLEAR
    assert comparisons.judge(found()) is Verdict.EQUAL


def test_a_peer_that_does_not_give_what_it_names_is_found_out_though_it_names_something_else():
    comparisons = Comparisons()
    for number in range(WITHHELD_MAX):
        verdict = comparisons.judge(Finding(ids(str(number)), ids(str(number)), missing=ids(str(number))))
    assert verdict is Verdict.DIFFERENT
    assert comparisons.stays == {str(WITHHELD_MAX - 1)}


def test_portions_go_on_as_long_as_most_of_what_is_named_comes():
    portions = Portions()
    for number in range(3 * WITHHELD_MAX):
        lacked = ids(*(f"{number}-{place}" for place in range(10)))
        assert not portions.are_in_vain(Finding(lacked, lacked, missing=ids(f"{number}-0"), more=True))


@pytest.mark.parametrize("missing", [("a", "b"), ()])
def test_portions_that_bring_nothing_or_stay_the_same_end(missing):
    portions, same = Portions(), Finding(ids("a", "b"), ids("a", "b"), missing=ids(*missing), more=True)
    assert any(portions.are_in_vain(same) for _ in range(WITHHELD_MAX + 1))


class Keeping(LogPeer):
    """Says yes to what it is given, and keeps nothing of it."""

    def on_event(self, raw):
        return [["OK", raw["id"], True, ""]]


def test_a_peer_whose_portions_stay_the_same_is_named_though_it_withholds_nothing(monkeypatch):
    monkeypatch.setattr(room, "PORTION", 2)
    monkeypatch.setattr(room, "FURTHER", 1)
    monkeypatch.setattr(Settled, "give", lambda self, id: None)
    theirs, ours = (
        [signed(content=f"{whose} {number}", created_at=1_000 + number) for number in range(900)]
        for whose in ("theirs", "ours")
    )
    drive = Drive(Keeping(theirs, frame=4_096), ours, direction="push").run(0)
    assert "operations that it does not give or keep" in drive.noted[0].why


class Later(LogPeer):
    """Honest until it is `told` to name something else in each comparison that nobody has ever seen."""

    told = False
    opened = 0

    def on_neg_open(self, name, filter, message):
        self.opened += 1
        phantom = Event(f"{self.opened:064x}", "", 1_000, 1, [], "", "")
        self._sessions[name] = Reconciler(items([*self.matching(filter), *([phantom] if self.told else [])]), 0)
        return self.on_neg_msg(name, message)


def test_a_live_link_is_not_caught_up_with_a_peer_that_names_something_new_each_time():
    drive = Drive(Later([signed(content="one", created_at=1_000)])).run(1)
    assert drive.link.caught_up
    drive.peer.told = True
    while drive.link.caught_up:
        drive.run(10)
    seen = []
    for _ in range(100):
        drive.run(1)
        seen.append(drive.link.caught_up)
    assert not any(seen)
    assert ("diverged", "repairing") in drive.states
