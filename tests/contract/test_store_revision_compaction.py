"""Compaction of revisions: old payloads of what is no head go; heads, edges and every other fact stay."""

import pytest
from histories import MOMENTS, event, groupings, operation, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import (
    MTIME,
    RECIPIENTS,
    REVISIONS,
    WRAP_KEYS,
    revision,
    revision_histories,
    vanishing,
)
from revision_model import RevisionModel, by_name
from stores import Opened, Stores

from anabranch.core.changes import RevisionQuery
from anabranch.core.operation import State
from anabranch.core.retention import DAY, Mode, Policy, ReplayWindow
from anabranch.store import compaction
from anabranch.store.compaction import Compact, Report, Vanish
from anabranch.store.contract import AccessKey, Duplicate, Stored

A, B, C, D = REVISIONS[:4]
P = RECIPIENTS[0]
MINE = RevisionQuery(P)
OPEN = ReplayWindow()
NOW = MTIME // 1000 + 10 * DAY
OLD = Policy(payload_days=0, deleted_documents=None)


def run(opened: Opened, policy: Policy = OLD, window: ReplayWindow = OPEN, now: int = NOW) -> Report:
    report = Report()
    for step in compaction.steps(opened.reader, policy, window, now):
        compaction.carry_out(step, opened.writer, report)
    return report


def heads_of(opened: Opened) -> list[str]:
    return opened.reader.current_revisions(MINE, 10_000, 0).ids.hex(sep=" ", bytes_per_sep=32).split()


def states(opened: Opened, *events) -> list[State]:
    return [opened.reader.state(e.id) for e in events]


@settings(max_examples=30)
@given(data=st.data())
def test_compaction_at_any_moment_does_what_the_rules_say_and_changes_no_head(stores: Stores, data):
    """Appends and compaction in turn: what is no head and older than the days loses its payload, and nothing else."""
    model = RevisionModel()
    with stores.open() as opened:
        for group in data.draw(groupings(data.draw(revision_histories()))):
            assert opened.append(*group) == model.append(map(operation, group))
            if not data.draw(st.booleans()):
                continue
            days, mode = data.draw(st.sampled_from([None, 0, 9, 10, 11])), data.draw(st.sampled_from(list(Mode)))
            policy = Policy(mode, recent_count=10**6, payload_days=days, deleted_documents=None)
            now = data.draw(st.sampled_from([NOW, MOMENTS[4]]))
            model.expire(now)
            before = model.heads()
            gone = model.compact_revisions(policy.cutoff(now) * 1000) if policy.cutoff(now) is not None else []
            report = run(opened, policy, now=now)
            assert report.compacted_revisions == len(gone)
            # a snapshot that is dominated goes too where only heads are kept: that is another suite's promise
            assert opened.heads() == before == model.heads()
        assert {f.id: f.state for f in opened.facts() if f.revision} == {
            r.id: r.state for r in model.records if r.operation.revision is not None
        }
        for recipient in RECIPIENTS:
            query = RevisionQuery(recipient)
            rows = opened.reader.current_revisions(query, 100, 0)
            assert list(rows.timestamps) == [mtime for mtime, _ in model.current_revisions(query, 0)]
            entries = opened.reader.changes(query, 0, None, 1_000, compacted=True).entries
            assert [(e.position, e.id, e.state, e.reason) for e in entries] == model.feed(query, 0, None, True, 0)
        assert opened.reader.oldest_mtime() == model.oldest_mtime()
        assert opened.reader.damage() == []


def test_only_what_is_no_head_and_older_than_the_cutoff_loses_its_payload(opened: Opened):
    cutoff = (NOW - 10 * DAY) * 1000
    young, old, head = revision(A, m=cutoff), revision(B, [A], m=cutoff - 1), revision(C, [B], m=0)
    opened.append(young, old, head)
    report = run(opened, Policy(payload_days=10, deleted_documents=None))
    assert states(opened, young, old, head) == [State.RETAINED, State.COMPACTED, State.RETAINED]
    assert (report.compacted_revisions, report.compacted_snapshots) == (1, 0)
    assert report.compacted_bytes == len(operation(old).raw)
    assert opened.reader.oldest_mtime() == 0
    assert opened.reader.compacted_revisions([by_name([A, B, C], [P])]) == [B]


@pytest.mark.parametrize("policy", [Policy(), Policy(Mode.FULL, payload_days=0)], ids=["no days", "full retention"])
def test_where_all_payloads_stay_those_of_revisions_do_too(opened: Opened, policy: Policy):
    opened.append(revision(A, m=0), revision(B, [A], m=0))
    assert run(opened, policy).compacted_revisions == 0
    assert {f.state for f in opened.facts()} == {State.RETAINED}


def test_edges_outlive_the_payloads_that_told_of_them(opened: Opened):
    """A parent that comes after its compacted child is still no head."""
    middle = revision(B, [A])
    opened.append(middle, revision(C, [B]))
    run(opened)
    assert states(opened, middle) == [State.COMPACTED]
    opened.reopen()
    assert opened.append(revision(A)) == [Stored(3)]
    assert heads_of(opened) == [C]
    assert [f.revision.parents for f in opened.facts() if f.id == middle.id] == [(A,)]


def test_a_compacted_revision_published_again_is_a_duplicate_and_stays_compacted(opened: Opened):
    old = revision(A)
    opened.append(old, revision(B, [A]))
    run(opened)
    again = revision(A, author=WRAP_KEYS[1], content="wrapped anew")
    assert opened.append(old, again) == [Duplicate(State.COMPACTED)] * 2
    assert states(opened, old, again) == [State.COMPACTED, None]


def test_a_compaction_is_no_removal_and_takes_no_position(opened: Opened):
    old = revision(A)
    opened.append(old, revision(B, [A]))
    run(opened)
    assert opened.reader.log().tip == 2
    told = opened.writer.take_removals()
    assert [(t.id, t.position) for t in told] == [(old.id, None)], "kept sets are told, followers are not"
    entries = opened.reader.changes(MINE, 0, None, 9, compacted=True).entries
    assert [(e.position, e.state, e.revision, e.reason) for e in entries] == [
        (1, State.COMPACTED, A, None),
        (2, State.RETAINED, B, None),
    ]


@pytest.mark.parametrize("count, same", [(1_000, True), (1_000, False), (256, True), (257, True), (513, True)])
def test_revisions_are_compacted_in_steps_and_none_is_left_out(opened: Opened, count: int, same: bool):
    """Of one millisecond too; and a dry run adds up what a run does."""
    made = [revision(f"{n:064x}", [f"{n - 1:064x}"] if n else [], m=5 if same else n // 3) for n in range(count + 1)]
    opened.append(*made)
    steps = list(compaction.steps(opened.reader, OLD, OPEN, NOW))
    planned = compaction.foresee(opened.reader, OLD, OPEN, NOW)
    report = run(opened)
    assert report.compacted_revisions == planned.compacted_revisions == count
    assert report.compacted_bytes == planned.compacted_bytes
    assert heads_of(opened) == [made[-1].first("r")]
    compacts = [step for step in steps if isinstance(step, Compact)]
    assert sum(len(set(step.positions)) for step in compacts) == count, "no position is planned twice"
    assert run(opened).compacted_revisions == 0


def test_a_plan_that_has_grown_old_compacts_no_head(opened: Opened):
    opened.append(revision(A), revision(B))
    assert opened.writer.compact([1, 2, 3]) == (0, 0)
    assert heads_of(opened) == [A, B]


def test_a_removed_head_is_never_compacted_on_top(opened: Opened):
    made = revision(A)
    opened.append(made)
    opened.writer.remove([made.id])
    assert run(opened).compacted_revisions == 0
    assert states(opened, made) == [State.REMOVED]


def test_compaction_gives_an_access_key_its_room_back(opened: Opened):
    opened.writer.save_access_key(AccessKey("k"))
    opened.append(revision(A), revision(B, [A]), key="k")
    opened.append(revision(C), key="k")
    run(opened)
    (key,) = opened.reader.access_keys()
    assert key.used_bytes == sum(f.size for f in opened.facts() if f.state is State.RETAINED)
    opened.writer.remove([f.id for f in opened.facts()])
    assert opened.reader.access_keys()[0].used_bytes == 0


def test_what_expires_is_removed_and_told_in_the_log(opened: Opened):
    made = revision(A, expires_at=NOW)
    opened.append(made, snapshot(expires_at=NOW), event(1, [["expiration", str(NOW)]]))
    assert run(opened).expired == 3
    entries = opened.reader.changes(MINE, 0, None, 9).entries
    assert [(e.position, e.id, e.reason) for e in entries] == [(4, made.id, "expired")]
    assert opened.append(made) == [Duplicate(State.REMOVED)]


def test_what_is_left_of_those_who_vanish_goes_with_the_next_run(opened: Opened):
    made = [revision(f"{n:064x}", d="x") for n in range(1, 999)] + [
        event(1, content=str(n), author=P) for n in range(1_800)
    ]
    opened.append(*made[:998])
    opened.append(*made[998:])
    opened.append(vanishing(P, 1_000))
    assert opened.reader.vanishing() is not None
    steps = list(compaction.steps(opened.reader, Policy(), OPEN, NOW))
    assert any(isinstance(step, Vanish) for step in steps)
    run(opened)
    assert opened.reader.vanishing() is None
    assert set(states(opened, *made)) == {State.REMOVED}
    assert heads_of(opened) == []
    assert len(opened.reader.changes(MINE, 0, None, 5_000).entries) == 998
    assert opened.reader.damage() == []


def test_two_who_vanish_at_once_are_both_gone_in_the_end(opened: Opened):
    for who in RECIPIENTS:
        made = [revision(f"{n:064x}", d=f"{n}", p=who) for n in range(2_100)]
        opened.append(*made)
    opened.append(vanishing(RECIPIENTS[0], 1_000), vanishing(RECIPIENTS[1], 1_000))
    run(opened, Policy())
    assert opened.reader.vanishing() is None
    assert [f.kind for f in opened.facts() if f.state is State.RETAINED] == [62, 62]


@pytest.mark.parametrize(
    "window",
    [ReplayWindow(count=3), ReplayWindow(age_seconds=1), ReplayWindow(bytes=700)],
    ids=["count", "age", "bytes"],
)
def test_the_floor_moves_over_removals_as_over_anything(opened: Opened, window: ReplayWindow):
    made = [revision(f"{n:064x}", d=f"{n}") for n in range(4)]
    opened.append(*made, received_at=1_000)
    opened.writer.remove([made[0].id, made[1].id])  # positions 5 and 6
    opened.append(revision(A, d="new"), received_at=NOW * 1000)
    run(opened, Policy(), window)
    log = opened.reader.log()
    assert log.tip == 7 and log.floor in (5, 6, 7)
    page = opened.reader.changes(MINE, log.floor - 1, None, 9)
    assert [e.position for e in page.entries] == list(range(log.floor, 8))
    assert opened.reader.damage() == []
