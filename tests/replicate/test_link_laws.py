"""The laws of the link machine: its table, its diagram, and what holds whatever happens."""

from hypothesis import given, settings
from hypothesis import strategies as st
from link_driving import Drive, LogPeer
from test_link import notes

from anabranch.replicate.states import TRANSITIONS, Cue, LinkState, diagram


def test_only_equal_digests_lead_to_live_and_every_doubt_to_repair():
    for state, cues in TRANSITIONS.items():
        for cue, target in cues.items():
            assert (target is LinkState.LIVE) == (cue is Cue.CAUGHT_UP), (state, cue)
        if state is not LinkState.PAUSED:
            for doubt in (Cue.GAP, Cue.OVERFLOW, Cue.CLOSURE, Cue.DISORDER, Cue.DIVERGED, Cue.REPAIR):
                assert cues[doubt] is LinkState.REPAIRING
    assert set(TRANSITIONS) == set(LinkState)


def test_the_diagram_shows_every_transition_between_two_states():
    shown = diagram()
    for state, cues in TRANSITIONS.items():
        for cue, target in cues.items():
            lines = [line for line in shown.splitlines() if line.strip().startswith(f"{state} --> {target}:")]
            assert (target is state) == (not lines)
            assert not lines or cue in lines[0]


moves = st.lists(
    st.tuples(
        st.sampled_from(["publish", "write", "cut", "unreachable", "reachable", "full", "repair", "floor", "wait"]),
        st.integers(0, 3),
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(moves, st.sampled_from(["pull", "push", "both"]), st.integers(0, 3))
def test_whatever_happens_the_checkpoint_only_moves_forward_and_both_end_equal(moves, direction, shared):
    drive = Drive(LogPeer(notes(shared, 0, "shared")), notes(shared, 0, "shared"), direction=direction).run(1)
    made, last = 0, drive.link.pull.contiguous
    for move, count in moves:
        made += 10
        match move:
            case "publish":
                drive.say(*drive.peer.add(*notes(count, made, "theirs")))
            case "write":
                drive.write(*notes(count, made, "ours"))
            case "cut":
                drive.cut()
            case "unreachable":
                drive.reachable = False
                drive.cut()
            case "reachable":
                drive.reachable = True
            case "full":
                drive.disk_full = not drive.disk_full
            case "repair":
                drive.tell("repair")
            case "floor":
                drive.peer.floor = min(drive.peer.floor + count, len(drive.peer.log) + 1)
        drive.run(count * 4)
        now = drive.link.pull.contiguous
        if last is not None and now is not None and now.domain == last.domain:
            assert now.position >= last.position
        if now is not None:
            applied = {event.id for event in drive.peer.log[: now.position]}
            assert applied <= set(drive.store)
        last = now or last
    drive.reachable, drive.disk_full = True, False
    drive.run(600)
    assert drive.link.caught_up, drive.link.last_error
    theirs, ours = set(drive.peer.events), set(drive.store)
    assert theirs <= ours if direction == "pull" else ours <= theirs if direction == "push" else ours == theirs
