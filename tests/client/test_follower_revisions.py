"""The follower on revisions: reconciling, fetching, ancestors, removals, and relays that will not reconcile."""

import pytest
from driving import AT, INFO, OWNER, dialled, event, follower, info, live, of, raws, say, sent

from anabranch.client import effects as do
from anabranch.client import messages
from anabranch.client.bootstraps import Wanted
from anabranch.client.file import Checkpoint
from anabranch.client.follower import Follower, State
from anabranch.client.ledger import Owed
from anabranch.core.negentropy import Items, Reconciler
from anabranch.core.operation import Family


def revision(number: int) -> str:
    return f"{number:064x}"


def test_revisions_are_reconciled_fetched_and_followed_from_the_hand_off():
    machine = follower(Family.REVISION)
    (opening,) = sent(dialled(machine))
    boot = opening[1]
    assert opening == ["NEG-OPEN", boot, {"#p": [OWNER]}]
    status = {"strategy": "revision-sync.v1", "snapshot_seq": 70}
    assert say(machine, "NEG-STATUS", boot, status) == [do.LoadItems()]
    ours, theirs = [1, 2, 3], [2, 3, 4, 5]
    effects = machine.items([(1_700_000_000_000 + n, revision(n)) for n in ours])
    relay = Reconciler(
        Items.build([1_700_000_000_000 + n for n in theirs], b"".join(bytes.fromhex(revision(n)) for n in theirs))
    )
    while sent(effects)[0][0] == "NEG-MSG":
        answer = relay.respond(bytes.fromhex(sent(effects)[0][2]))
        effects = say(machine, "NEG-MSG", boot, answer.hex())
    assert sent(effects) == [["NEG-CLOSE", boot]]
    (asked,) = of(do.LoadUnknown, effects)
    assert set(asked.revisions) == {revision(4), revision(5)}
    (request,) = sent(machine.unknown([revision(4), revision(5)], 0.0))
    assert request == ["REQ-BATCH", f"{boot}-fetch", {"kinds": [1059], "#p": [OWNER], "#r": [revision(4), revision(5)]}]
    say(machine, "CLOSED", boot, "negentropy session closed")
    assert say(machine, "EVENTS", f"{boot}-fetch", [event(4), event(5)]) == [do.Stage(raws(4, 5))]
    effects = say(machine, "EOSE", f"{boot}-fetch")
    (apply,) = of(do.Apply, effects)
    assert apply.position == 70
    assert set(apply.seen) == {revision(n) for n in theirs}  # what it has in common with us, it has
    tail = sent(effects)[-1]
    assert tail[2] == {"since": 70, "kinds": [1059], "#p": [OWNER], "live": True}


@pytest.mark.parametrize(
    "frames",
    [
        [("NEG-STATUS", {"strategy": "another", "snapshot_seq": 1})],
        [("NEG-STATUS", {"strategy": "revision-sync.v1"})],
        [("NEG-MSG", "61")],
        [("NEG-STATUS", {"strategy": "revision-sync.v1", "snapshot_seq": 1}), ("NEG-MSG", "zz")],
    ],
)
def test_a_reconciliation_that_fails_applies_nothing(frames: list[tuple]):
    machine = follower(Family.REVISION)
    boot = sent(dialled(machine))[0][1]
    effects: list[do.Effect] = []
    for verb, said in frames:
        effects += say(machine, verb, boot, said)
        if do.LoadItems() in effects:
            machine.items([])
    assert machine.state is State.OFFLINE
    assert not of(do.Apply, effects)


@pytest.mark.parametrize("how", ["advertised", "refused", "closed"])
def test_a_relay_that_does_not_reconcile_is_read_from_the_beginning_of_its_log(how: str):
    machine = follower(Family.REVISION)
    family = {"changes_feed": True, "current_head_negentropy": how != "advertised"}
    (request,) = sent(dialled(machine, {**INFO, "revision_sync": family}))
    if how == "refused":
        (request,) = sent(say(machine, "NEG-ERR", request[1], "blocked: too many query results"))
    elif how == "closed":
        (request,) = sent(say(machine, "CLOSED", request[1], "error: not now"))
    assert request[2] == {"since": 0, "kinds": [1059], "#p": [OWNER], "live": True}
    assert machine.state is State.REPLAYING
    say(machine, "CHANGES", request[1], "EOSE", 60)
    assert machine.checkpoint == Checkpoint("s", "e", 60)


def test_a_relay_that_does_not_reconcile_and_has_forgotten_is_told():
    machine = follower(Family.REVISION)
    boot = sent(dialled(machine, info(min_seq=5)))[0][1]
    say(machine, "NEG-ERR", boot, "blocked: too many query results")
    assert machine.state is State.OFFLINE
    assert "no way to bootstrap" in machine.last_error


def test_messages_stay_within_what_the_relay_reads():
    machine = follower(Family.REVISION)
    boot = sent(dialled(machine, {**INFO, "limitation": {"max_message_length": 16_384}}))[0][1]
    say(machine, "NEG-STATUS", boot, {"strategy": "revision-sync.v1", "snapshot_seq": 70})
    effects = machine.items([(1_700_000_000_000 + n, revision(n)) for n in range(4_000)])
    theirs = range(1, 8_000, 2)
    ids = b"".join(bytes.fromhex(revision(n)) for n in theirs)
    relay, rounds = Reconciler(Items.build([1_700_000_000_000 + n for n in theirs], ids)), 0
    while sent(effects)[0][0] == "NEG-MSG":
        assert all(len(effect.message) <= 16_384 for effect in effects)
        rounds += 1
        effects = say(machine, "NEG-MSG", boot, relay.respond(bytes.fromhex(sent(effects)[0][2])).hex())
    assert rounds > 1
    assert machine.unknown([], 0.0)[-1] == do.Send(machine_tail(machine))


def machine_tail(machine: Follower) -> bytes:
    return messages.tail(machine._tail, Family.REVISION, OWNER, 70)


def test_a_version_that_is_larger_than_the_relay_reads_is_refused_here():
    machine = follower(checkpoint=AT)
    tail = sent(dialled(machine, {**INFO, "limitation": {"max_message_length": 1_000}}))[0][1]
    say(machine, "CHANGES", tail, "EOSE", 60)
    large, small = Owed(1, "v1", "e1", b"x" * 2_000), Owed(2, "v2", "e2", b"y" * 500)
    refused, send = machine.owed([large, small], 256, 0.0)
    assert (refused.version, "1000 bytes" in refused.reason) == ("v1", True)
    assert isinstance(send, do.Send)


def test_many_revisions_are_fetched_some_at_a_time_and_by_req_where_there_is_no_batch():
    machine = follower(Family.REVISION)
    boot = sent(dialled(machine, {**INFO, "revision_sync": {"changes_feed": True}}))[0][1]
    say(machine, "NEG-STATUS", boot, {"strategy": "revision-sync.v1", "snapshot_seq": 1})
    machine.items([])
    say(machine, "NEG-MSG", boot, Reconciler(Items.build([], b"")).respond(b"\x61").hex())
    wanted = [revision(number) for number in range(600)]
    effects, asked = machine.unknown(wanted, 0.0), []
    while machine.state is State.BOOTSTRAPPING:
        (request,) = [one for one in sent(effects) if one[0] == "REQ"]
        asked += request[2]["#r"]
        assert len(request[2]["#r"]) <= 256
        effects = say(machine, "EOSE", request[1])
    assert asked == wanted


def test_ancestors_are_looked_for_in_the_background_and_given_up_where_they_are_not():
    machine, tail = live(Family.REVISION)
    say(machine, "CHANGES", tail, "EVENT", 61, event(1))
    assert do.LoadWanted(256) in machine.flush()
    assert not machine.caught_up
    (request,) = sent(machine.wanted([Wanted(revision(n)) for n in (1, 2, 3)], 0.0))
    say(machine, "EVENTS", request[1], [event(1)])
    say(machine, "EVENT-STATUS", request[1], {"rev": revision(2), "status": "payload_compacted"})
    effects = say(machine, "EOSE", request[1])
    assert effects[0] == do.Apply(None)  # first what has come
    (absent,) = of(do.Absent, effects)
    assert dict(absent.revisions) == {revision(1): "unproven", revision(2): "compacted", revision(3): "unproven"}
    assert sent(effects) == [["CLOSE", request[1]]]
    assert do.LoadWanted(256) in effects  # and what those name
    (request,) = sent(machine.wanted([Wanted(revision(n), f"d{n}", again=True) for n in (1, 3)], 0.0))
    assert request[2] == {"kinds": [1059], "#p": [OWNER], "#r": [revision(1), revision(3)], "#d": ["d1", "d3"]}
    (absent,) = of(do.Absent, say(machine, "EOSE", request[1]))
    assert dict(absent.revisions) == {revision(1): "unknown", revision(3): "unknown"}
    machine.wanted([], 0.0)
    assert machine.caught_up


def test_a_hard_removal_is_told_and_moves_the_checkpoint():
    machine, tail = live(Family.REVISION)
    say(machine, "CHANGES", tail, "EVENT", 61, event(1))
    effects = say(machine, "CHANGES", tail, "DELETED", 62, "e" * 64, "expired")
    assert [type(effect) for effect in effects] == [do.Stage, do.Apply, do.LoadWanted]
    assert effects[1] == do.Apply(62, "s", "e", removed=(("e" * 64, "expired"),))  # one transaction
    assert machine.checkpoint.position == 62
