"""Judging a plan: whatever it names, what goes is what compaction itself would drop, and no head is among it."""

from histories import AUTHORS, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import revision_histories
from stores import Opened, Stores
from test_store_compaction import EVERYTHING_OLD, NOW, OPEN, policies

from anabranch.core.operation import State
from anabranch.core.retention import Horizon, Mode, Policy
from anabranch.store import compaction
from anabranch.store.compaction import Candidate, Compact, Refusal, Report


def compactable(opened: Opened, policy: Policy, now: int, horizons: list[Horizon]) -> set[int]:
    """The positions that compaction would let go by itself."""
    steps = compaction.steps(opened.reader, policy, OPEN, now, lambda: horizons)
    return {position for step in steps if isinstance(step, Compact) for position in step.positions}


@settings(max_examples=60)
@given(data=st.data())
def test_of_a_plan_that_names_everything_goes_what_compaction_would_drop(stores: Stores, data):
    with stores.open(data.draw(revision_histories())) as opened:
        policy, now = data.draw(policies), data.draw(st.sampled_from([NOW, EVERYTHING_OLD]))
        horizons = data.draw(st.lists(st.builds(Horizon, st.sampled_from(AUTHORS), st.integers(1, 12)), max_size=2))
        facts = {one.position: one for one in opened.facts()}
        expected, heads = compactable(opened, policy, now, horizons), opened.heads()
        plan = [Candidate(position, one.id) for position, one in facts.items()]
        plan += [Candidate(position, "0" * 64) for position in range(30)]
        judged = compaction.judge(opened.reader, [*plan, *plan], policy, now, horizons)
        going = [position for step in judged.steps for position in step.positions]
        assert len(going) == len(set(going)) and set(going) == expected
        assert judged.refused.get(Refusal.UNKNOWN) == 30
        assert judged.refused.get(Refusal.GONE, 0) == sum(one.state is not State.RETAINED for one in facts.values())
        assert sum(judged.refused.values()) + len(going) == len(plan)
        report = Report()
        for step in judged.steps:
            compaction.carry_out(step, opened.writer, report)
        assert report.compacted_snapshots + report.compacted_revisions == len(going)
        assert report.compacted_bytes == sum(facts[position].size for position in going)
        assert opened.heads() == heads


def test_what_a_bootstrap_under_way_still_has_to_send_stays(opened: Opened):
    history = [snapshot("A", {"laptop": n}) for n in (1, 2, 3)]
    opened.append(*history)
    plan = [Candidate(position, event.id) for position, event in enumerate(history, start=1)]
    current = Policy(Mode.CURRENT_ONLY, payload_days=0)
    judged = compaction.judge(
        opened.reader, plan, current, EVERYTHING_OLD, [Horizon(AUTHORS[0], 2), Horizon(AUTHORS[1], 1)]
    )
    assert [step.positions for step in judged.steps] == [[1]]
    assert judged.refused == {Refusal.BEING_SENT: 1, Refusal.HEAD: 1}
