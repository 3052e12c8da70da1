"""What our own rules refuse is told of; where they only refuse it for now, it is tried again by itself."""

from histories import signed
from link_driving import WALL, Drive, LogPeer

NOTES = [signed(content=f"n{number}", created_at=1_000 + number) for number in range(5)]


def test_what_our_rules_refuse_is_counted_beside_caught_up():
    drive = Drive(LogPeer(NOTES))
    drive.refuses = {NOTES[1].id, NOTES[3].id}
    drive.run(10)
    assert drive.link.caught_up
    assert drive.link.untaken == 2
    drive.run(1_000)
    assert drive.link.untaken == 2 and not drive.noted


def test_what_is_too_early_is_taken_when_its_time_has_come_and_without_a_repair():
    drive = Drive(LogPeer(NOTES))
    early = NOTES[2].id
    drive.refuses_until[early] = WALL + 1_000
    drive.run(900)
    assert drive.link.caught_up
    assert (drive.link.untaken, early in drive.store) == (1, False)
    drive.run(600)
    assert (drive.link.untaken, early in drive.store) == (0, True)
    assert drive.link.caught_up
    assert not drive.noted and drive.states == [("caught_up", "live")]
