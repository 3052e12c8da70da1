"""Compaction: at any moment, whatever the policy, the heads and every bootstrap stay what they were."""

from collections import Counter

import pytest
from histories import AUTHORS, MOMENTS, event, groupings, histories, operation, snapshot, snapshots
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Model
from revision_histories import revision_histories
from stores import NOW, Opened, Stores

from anabranch.core import retention, token
from anabranch.core.changes import SnapshotQuery
from anabranch.core.filter import Filter
from anabranch.core.nostr import VANISH
from anabranch.core.operation import State
from anabranch.core.retention import DAY, Horizon, Mode, Policy, ReplayWindow
from anabranch.store import compaction, sql_writer
from anabranch.store.compaction import Report
from anabranch.store.contract import AccessKey, Duplicate, Refused, Stored

OPEN = ReplayWindow()
EVERYTHING_OLD = MOMENTS[-1] + 30 * DAY
SPENT = Refused("restricted", "the access key's storage limit is reached")

policies = st.builds(
    Policy,
    mode=st.sampled_from(list(Mode)),
    recent_count=st.integers(1, 5),
    payload_days=st.sampled_from([None, 0, 0, 1]),
    deleted_documents=st.sampled_from([None, 0, 1, 2, 100]),
)
windows = st.builds(
    ReplayWindow,
    count=st.one_of(st.none(), st.integers(1, 30)),
    age_seconds=st.one_of(st.none(), st.integers(1, 10)),
    bytes=st.one_of(st.none(), st.integers(1, 6_000)),
)


def run(opened: Opened, policy: Policy, window: ReplayWindow = OPEN, now: int = EVERYTHING_OLD, horizons=()) -> Report:
    report = Report()
    for step in compaction.steps(opened.reader, policy, window, now, lambda: horizons):
        compaction.carry_out(step, opened.writer, report)
    return report


def fully_deleted(model: Model) -> dict[bytes, list]:
    """Documents whose every head deletes, with those heads."""
    heads: dict[bytes, list] = {}
    for record in model.records:
        if record.operation.clock is not None and model.is_head(record):
            heads.setdefault(record.operation.document, []).append(record)
    return {document: found for document, found in heads.items() if all(r.operation.action for r in found)}


def forget_as_planned(model: Model, policy: Policy) -> set[bytes]:
    """What the cap on deleted documents lets go, the slow way."""
    if policy.deleted_documents is None or policy.mode is Mode.FULL:
        return set()
    gone: set[bytes] = set()
    for author in AUTHORS:
        documents = [
            (max(r.operation.event.created_at for r in found), document)
            for document, found in fully_deleted(model).items()
            if found[0].operation.event.pubkey == author
        ]
        gone |= {document for _, document in sorted(documents, reverse=True)[policy.deleted_documents :]}
    for document in gone:
        model.forget(document)
    return gone


def compact_as_planned(model: Model, policy: Policy, now: int) -> None:
    if policy.cutoff(now) is None:
        return
    documents: dict[bytes, list] = {}
    for record in model.records:
        if record.operation.clock is not None and record.state is State.RETAINED:
            documents.setdefault(record.operation.document, []).append(record)
    for records in documents.values():
        versions = [
            retention.Version(r.position, r.id, r.operation.event.created_at, r.operation.clock) for r in records
        ]
        kept = retention.keep(versions, policy, now)
        for record in records:
            if record.position not in kept:
                record.state = State.COMPACTED


@settings(max_examples=80)
@given(data=st.data())
def test_compaction_at_any_moment_does_what_the_rules_say_and_changes_no_head(stores: Stores, data):
    """Appends and compaction in turn, against the oracle: states, heads, bootstraps, floor and positions."""
    model = Model()
    floor = 1
    with stores.open() as opened:
        for group in data.draw(groupings(data.draw(histories()))):
            assert opened.append(*group, received_at=NOW * 1_000) == model.append(map(operation, group), NOW * 1_000)
            if not data.draw(st.booleans()):
                continue
            policy, window = data.draw(policies), data.draw(windows)
            now = data.draw(st.sampled_from([NOW, EVERYTHING_OLD]))
            before = model.heads()
            expired = model.expire(now)
            heads = model.heads()
            forgotten = forget_as_planned(model, policy)
            compact_as_planned(model, policy, now)
            assert model.heads() <= heads, "the oracle itself is sound"
            if not forgotten:
                assert model.heads() == heads
            report = run(opened, policy, window, now)
            assert report.expired == expired
            assert report.forgotten_documents == len(forgotten)
            if not expired and not forgotten:
                assert opened.heads() == before
            assert opened.heads() == model.heads()
            assert [(f.position, f.state) for f in opened.facts()] == [(r.position, r.state) for r in model.records]
            log = opened.reader.log()
            assert floor <= log.floor <= log.tip + 1
            floor = log.floor
            assert log.tip == model.tip
        for author in AUTHORS:
            found = opened.reader.bootstrap(SnapshotQuery(author), None, 0).positions
            assert opened.ids(found) == model.bootstrap(SnapshotQuery(author), None, 0)
            assert len(opened.reader.payloads(found)) == len(found), "every head can be fetched"
        assert opened.reader.damage() == []
        statistics = opened.reader.statistics()
        states = Counter(record.state for record in model.records)
        assert (statistics.retained, statistics.compacted, statistics.removed) == tuple(states[s] for s in State)
        heads_of = Counter(r.operation.document for r in model.records if r.operation.clock and model.is_head(r))
        assert statistics.documents == len(heads_of)
        assert statistics.conflicts == sum(count > 1 for count in heads_of.values())
        assert statistics.tombstones == len(fully_deleted(model))


@settings(max_examples=150)
@given(data=st.data())
def test_a_dry_run_says_to_the_number_what_a_run_then_does_and_changes_nothing(stores: Stores, data):
    """Whatever is due at once: what is forgotten, has expired or is left of those who vanish is not compacted too."""
    history = data.draw(st.one_of(revision_histories(), st.lists(snapshots, max_size=16)))
    at_once = data.draw(st.sampled_from([0, 2, sql_writer.VANISH_AT_ONCE]))
    with stores.open() as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_writer, "VANISH_AT_ONCE", at_once)
        for group in data.draw(groupings(history)):
            opened.append(*group, received_at=NOW * 1_000)
        policy, window = data.draw(policies), data.draw(windows)
        now = data.draw(st.sampled_from([NOW, EVERYTHING_OLD]))
        patch.setattr(compaction, "OPERATIONS_A_STEP", data.draw(st.sampled_from([1, 3, 256])))
        before = opened.facts(), opened.reader.log()
        told = compaction.foresee(opened.reader, policy, window, now)
        assert (opened.facts(), opened.reader.log()) == before
        assert run(opened, policy, window, now) == told
        again = run(opened, policy, window, now)
        assert (again.compacted_snapshots, again.expired, again.vanished) == (0, 0, 0)


def test_a_dry_run_counts_what_goes_for_two_reasons_once(opened: Opened):
    """Versions of forgotten documents, and one that has expired; and what is left of somebody who vanishes."""
    passing = snapshot("passing", {"a": 1}, expires_at=NOW)
    opened.append(*tombstones(3), passing, snapshot("passing", {"a": 2}))
    gone = [event(1, content=str(n), author=AUTHORS[1]) for n in range(sql_writer.VANISH_AT_ONCE + 5)]
    opened.append(*gone)
    opened.append(event(VANISH, [["relay", "ALL_RELAYS"]], author=AUTHORS[1], created_at=MOMENTS[-1]))
    policy = Policy(Mode.CURRENT_ONLY, payload_days=0, deleted_documents=1)
    told = compaction.foresee(opened.reader, policy, OPEN, EVERYTHING_OLD)
    assert (told.compacted_snapshots, told.forgotten_documents, told.expired, told.vanished) == (1, 2, 1, 5)
    assert run(opened, policy) == told


def test_a_plan_that_has_grown_old_does_no_harm(opened: Opened):
    """Whatever a plan says, a head keeps its payload, and what is gone is not counted again."""
    old, new, other = snapshot(clock={"a": 1}), snapshot(clock={"a": 2}), snapshot(clock={"b": 1})
    opened.append(old, new, other)
    opened.writer.remove([new.id])
    assert opened.writer.compact([1, 2, 3])[0] == 1
    assert [opened.reader.state(e.id) for e in (old, new, other)] == [State.COMPACTED, State.REMOVED, State.RETAINED]


def test_compacting_twice_counts_once_and_plain_events_are_never_compacted(opened: Opened):
    opened.append(snapshot(clock={"a": 1}), snapshot(clock={"a": 2}), event(1), event(10_002))
    size = opened.facts()[0].size
    assert opened.writer.compact([1, 2, 3, 4, 99]) == (1, size)
    assert opened.writer.compact([1, 2, 3, 4, 99]) == (0, 0)
    assert [f.state for f in opened.facts()] == [State.COMPACTED] + [State.RETAINED] * 3


def test_what_was_compacted_is_no_longer_found_but_stays_in_the_log(opened: Opened):
    old, new = snapshot(clock={"a": 1}), snapshot(clock={"a": 2})
    opened.append(old, new)
    run(opened, Policy(Mode.CURRENT_ONLY, payload_days=0))
    query = SnapshotQuery(AUTHORS[0])
    asked = Filter(ids=frozenset({old.id}))
    assert len(opened.reader.select([asked], 9, 0).positions) == opened.reader.count([asked], 0) == 0
    assert len(opened.reader.select([Filter(tags=(("d", frozenset("A")),))], 9, 0).positions) == 1
    assert [e.id for e in opened.reader.changes(query, 0, None, 9).entries] == [new.id]
    entries = opened.reader.changes(query, 0, None, 9, compacted=True).entries
    assert (entries[0].position, entries[0].id, entries[0].state) == (1, old.id, State.COMPACTED)
    assert entries[0].raw is None


def test_documents_are_compacted_in_steps_and_none_is_left_out(opened: Opened):
    documents = 2 * compaction.DOCUMENTS_A_STEP + 3
    opened.append(*(snapshot(f"doc-{n}", {"a": v}) for n in range(documents) for v in (1, 2, 3)))
    policy = Policy(Mode.CURRENT_ONLY, payload_days=0)
    sizes = [
        len(step.positions)
        for step in compaction.steps(opened.reader, policy, OPEN, EVERYTHING_OLD)
        if isinstance(step, compaction.Compact)
    ]
    assert max(sizes) <= 2 * compaction.DOCUMENTS_A_STEP
    assert run(opened, policy).compacted_snapshots == 2 * documents == sum(sizes)


def test_what_a_bootstrap_still_has_to_send_is_kept_for_it(opened: Opened):
    opened.append(snapshot(clock={"a": 1}))
    selection = opened.reader.bootstrap(SnapshotQuery(AUTHORS[0]), None, 0)
    opened.append(snapshot(clock={"a": 2}), snapshot(clock={"a": 3}))
    run(opened, Policy(Mode.CURRENT_ONLY, payload_days=0), horizons=[Horizon(AUTHORS[0], selection.tip)])
    assert len(opened.reader.payloads(selection.positions)) == 1
    run(opened, Policy(Mode.CURRENT_ONLY, payload_days=0))
    assert opened.reader.payloads(selection.positions) == []


def test_a_bootstrap_holds_up_nothing_of_other_authors(opened: Opened):
    """Neither their old versions nor their deleted documents wait for its reader."""
    for author in AUTHORS[:2]:
        opened.append(snapshot(clock={"a": 1}, author=author), snapshot(clock={"a": 2}, author=author))
        opened.append(*tombstones(2, author))
    policy = Policy(Mode.CURRENT_ONLY, payload_days=0, deleted_documents=1)
    under_way = [Horizon(AUTHORS[0], opened.reader.log().floor)]
    report = run(opened, policy, horizons=under_way)
    assert (report.forgotten_documents, report.compacted_snapshots) == (1, 2)
    assert {f.author for f in opened.facts() if f.state is State.COMPACTED} == {AUTHORS[1]}
    assert [len(opened.reader.deleted_documents(author)) for author in AUTHORS[:2]] == [2, 1]
    report = run(opened, policy)
    assert (report.forgotten_documents, report.compacted_snapshots) == (1, 2)


# --- removal and heads -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_removed_nothing_superseded_comes_back(stores: Stores, data):
    history = data.draw(st.lists(snapshots, min_size=1, max_size=12))
    model = Model()
    model.append(map(operation, history))
    with stores.open(history) as opened:
        for _ in range(3):
            ids = st.sampled_from([e.id for e in history] + ["00" * 32])
            going = data.draw(st.lists(ids, max_size=3, unique=True))
            assert opened.writer.remove(going) == model.remove(going)
            assert opened.heads() == model.heads()
        more = data.draw(st.lists(snapshots, max_size=4))
        assert opened.append(*more) == model.append(map(operation, more))
        assert opened.heads() == model.heads()
        assert opened.reader.damage() == []


# --- forgetting altogether -------------------------------------------------------------------------------------------


def tombstones(count: int, author: str = AUTHORS[0]) -> list:
    return [
        e
        for n in range(count)
        for e in (
            snapshot(f"doc-{n}", {"a": 1}, created_at=1_000 + n, author=author),
            snapshot(f"doc-{n}", {"a": 2}, deletes=True, created_at=1_000 + n, author=author),
        )
    ]


def test_deleted_documents_above_the_cap_go_altogether_after_the_floor_has_moved(opened: Opened):
    opened.append(*tombstones(5), event(1))
    report = run(opened, Policy(deleted_documents=3))
    assert report.forgotten_documents == 2
    assert opened.reader.log().floor == report.floor == 5
    assert [f.position for f in opened.facts()] == [5, 6, 7, 8, 9, 10, 11]
    assert opened.reader.state(tombstones(1)[0].id) is None
    assert opened.reader.damage() == []
    assert opened.reader.statistics().tag_rows == 3 * 2 * 2
    assert run(opened, Policy(deleted_documents=3)).forgotten_documents == 0


def test_what_was_deleted_lately_stays_whatever_its_date_and_number(opened: Opened):
    """Else anybody could send everybody to a bootstrap at every compaction, with one tombstone that is dated back."""
    opened.append(*tombstones(5))
    backdated = snapshot("doc-x", {"a": 1}, deletes=True, created_at=1)
    opened.append(backdated, received_at=60_000)
    policy = Policy(deleted_documents=3, deleted_age_seconds=60)
    assert run(opened, policy, now=119).forgotten_documents == 2
    assert opened.reader.log().floor == 5
    assert opened.reader.state(backdated.id) is not None
    assert run(opened, policy, now=121).forgotten_documents == 1
    assert opened.reader.state(backdated.id) is None


def test_nothing_is_forgotten_while_the_floor_stands_below_it(opened: Opened):
    opened.append(*tombstones(1))
    document = opened.facts()[0].document
    assert opened.writer.forget([document]) == 0
    opened.writer.raise_floor(2)
    assert opened.writer.forget([document]) == 0
    opened.writer.raise_floor(3)
    assert opened.writer.forget([document, b"unknown"]) > 0
    assert opened.facts() == []
    assert opened.reader.statistics().tag_rows == 0
    assert opened.reader.statistics().payload_bytes == 0


def test_a_document_that_lives_again_is_not_forgotten_by_an_old_plan(opened: Opened):
    """The plan was made while every head deleted; a new put came, and the floor rose above it for other reasons."""
    opened.append(*tombstones(1))
    planned = list(compaction.steps(opened.reader, Policy(deleted_documents=0), OPEN, 0))
    alive = snapshot("doc-0", {"a": 3})
    opened.append(alive)
    opened.writer.raise_floor(4)
    for step in planned:
        compaction.carry_out(step, opened.writer, Report())
    assert opened.heads() == {alive.id}


def test_the_report_counts_only_documents_that_went(opened: Opened):
    opened.append(*tombstones(1))
    report = Report()
    compaction.carry_out(compaction.Forget([opened.facts()[0].document], 0), opened.writer, report)
    assert len(opened.facts()) == 2, "the floor stands below"
    assert report.forgotten_documents == 0


def test_a_document_in_conflict_with_a_put_is_not_deleted(opened: Opened):
    opened.append(snapshot("A", {"a": 1}, deletes=True), snapshot("A", {"b": 1}), snapshot("B", {"a": 1}, deletes=True))
    assert run(opened, Policy(deleted_documents=0)).forgotten_documents == 1
    assert {f.coordinate for f in opened.facts()} == {"A"}


def test_the_cap_counts_for_each_author_apart(opened: Opened):
    opened.append(*tombstones(2), *tombstones(3, AUTHORS[1]))
    run(opened, Policy(deleted_documents=2))
    assert Counter(f.author for f in opened.facts()) == {AUTHORS[0]: 4, AUTHORS[1]: 4}


def test_positions_are_never_used_again_even_when_the_last_documents_are_gone(opened: Opened):
    opened.append(*tombstones(2))
    run(opened, Policy(deleted_documents=0))
    assert opened.facts() == []
    assert (opened.reader.log().floor, opened.reader.log().tip) == (5, 4)
    opened.reopen()
    assert opened.append(event(1)) == [Stored(5)]
    assert opened.append(tombstones(1)[0]) == [Stored(6)], "what was forgotten altogether is new again"


def test_feeds_and_facts_step_over_what_was_forgotten(opened: Opened):
    opened.append(snapshot("first"), *tombstones(1), snapshot("last"))
    run(opened, Policy(deleted_documents=0))
    page = opened.reader.changes(SnapshotQuery(AUTHORS[0]), 0, None, 9)
    assert ([e.position for e in page.entries], page.complete_to, page.log.floor) == ([1, 4], 4, 4)


# --- the floor -------------------------------------------------------------------------------------------------------


def test_the_floor_only_rises_and_at_most_to_just_above_the_tip(opened: Opened):
    opened.append(*(event(1, content=str(n)) for n in range(5)))
    assert [opened.writer.raise_floor(floor) for floor in (3, 1, 0, 4, 99, 5)] == [3, 3, 3, 4, 6, 6]
    assert opened.reader.log().floor == 6
    assert opened.append(event(1, content="next")) == [Stored(6)]


@settings(max_examples=60)
@given(data=st.data())
def test_the_replay_window_is_the_tightest_of_its_bounds(stores: Stores, data):
    """Count, age and bytes against looking at every position; with holes where documents were forgotten."""
    history = data.draw(st.lists(snapshots, min_size=1, max_size=14, unique_by=lambda e: e.id))
    with stores.open() as opened:
        sizes, received = {}, {}
        for number, e in enumerate(history, start=1):
            moment = NOW * 1_000 + 700 * (number // 2)
            opened.append(e, received_at=moment)
            sizes[number], received[number] = len(operation(e).raw), moment
        if data.draw(st.booleans()):
            run(opened, Policy(deleted_documents=0), now=0)
        opened.writer.raise_floor(data.draw(st.integers(1, 4)))
        window = data.draw(windows)
        now_ms = NOW * 1_000 + data.draw(st.integers(0, 12_000))
        log = opened.reader.log()
        there = {facts.position for facts in opened.facts()}

        def inside(position: int) -> bool:
            return (
                (window.count is None or position > log.tip - window.count)
                and (window.age_seconds is None or received[position] >= now_ms - window.age_seconds * 1_000)
                and (window.bytes is None or sum(size for at, size in sizes.items() if at >= position) <= window.bytes)
            )

        found = opened.reader.window_floor(window, now_ms)
        assert log.floor <= found <= log.tip + 1
        left = [position for position in there if position >= log.floor]
        assert {p for p in left if p >= found} == {p for p in left if inside(p)}


def test_an_open_window_leaves_the_floor_where_it_is(opened: Opened):
    opened.append(event(1), event(1, content="x"))
    assert opened.reader.window_floor(OPEN, 10**15) == 1
    opened.writer.raise_floor(2)
    assert opened.reader.window_floor(ReplayWindow(count=100, age_seconds=10**9, bytes=10**9), 0) == 2


# --- access keys -----------------------------------------------------------------------------------------------------


def used(opened: Opened, key: str = "k") -> int:
    return next(found.used_bytes for found in opened.reader.access_keys() if found.key == key)


def test_an_access_key_is_kept_as_it_was_saved(opened: Opened):
    keys = [AccessKey("k1", "label", AUTHORS[0], 5, 9, True, 1_000), AccessKey("k0", created_at=7)]
    for key in keys:
        opened.writer.save_access_key(key)
    assert opened.reader.access_keys() == keys
    opened.reopen()
    assert opened.reader.access_keys() == keys
    changed = AccessKey("k0", "new", None, 7, None, True, 5)
    opened.writer.save_access_key(changed)
    assert opened.reader.access_keys() == [keys[0], changed]
    assert opened.writer.delete_access_key("k1") is True
    assert opened.writer.delete_access_key("k1") is False
    assert opened.reader.access_keys() == [changed]


def test_a_key_is_usable_until_it_expires_or_is_revoked():
    assert AccessKey("k").usable(10**12)
    assert AccessKey("k", expires_at=5).usable(4) and not AccessKey("k", expires_at=5).usable(5)
    assert not AccessKey("k", revoked=True).usable(0)


@pytest.mark.parametrize("together", [True, False])
def test_a_storage_limit_is_reached_by_what_was_stored_and_by_nothing_else(opened: Opened, together: bool):
    notes = [event(1, content=f"{n:04}") for n in range(4)]
    size = len(operation(notes[0]).raw)
    opened.writer.save_access_key(AccessKey("k", storage_limit_bytes=3 * size - 1))
    offers = [notes[0], notes[0], notes[1], notes[2], notes[0]]
    groups = [offers] if together else [[offer] for offer in offers]
    outcomes = [outcome for group in groups for outcome in opened.append(*group, key="k")]
    again = Duplicate(State.RETAINED)
    assert outcomes == [Stored(1), again, Stored(2), SPENT, again]
    assert used(opened) == 2 * size
    assert opened.append(notes[2]) == [Stored(3)], "without the key there is no limit"
    opened.writer.save_access_key(AccessKey("k", storage_limit_bytes=3 * size))
    assert opened.append(notes[3], key="k") == [Stored(4)], "an exact fit is taken"
    assert used(opened) == 3 * size


def test_used_bytes_return_when_payloads_go(opened: Opened):
    opened.writer.save_access_key(AccessKey("k"))
    versions = [snapshot(clock={"a": n}) for n in range(1, 6)]
    opened.append(*versions, key="k")
    opened.append(event(1, [["expiration", "5"]]), event(10_002, created_at=1), key="k")
    opened.append(event(10_002, created_at=2))
    sizes = {facts.id: facts.size for facts in opened.facts()}
    kept = sum(sizes[e.id] for e in versions) + sizes[event(1, [["expiration", "5"]]).id]
    assert used(opened) == kept, "replaced by another: given back"
    run(opened, Policy(Mode.CURRENT_ONLY, payload_days=0))
    assert used(opened) == sizes[versions[-1].id]
    opened.writer.remove([versions[-1].id])
    assert used(opened) == 0


@settings(max_examples=40)
@given(data=st.data())
def test_used_bytes_are_the_payloads_that_are_retained(stores: Stores, data):
    with stores.open() as opened:
        opened.writer.save_access_key(AccessKey("k"))
        mine: set[str] = set()
        for group in data.draw(groupings(data.draw(histories(12)))):
            key = data.draw(st.sampled_from(["k", None]))
            outcomes = opened.append(*group, key=key)
            stored = {e.id for e, o in zip(group, outcomes, strict=True) if isinstance(o, Stored)}
            mine = mine | stored if key else mine - stored  # what was forgotten may come again, from anybody
            if data.draw(st.booleans()):
                run(opened, data.draw(policies), now=data.draw(st.sampled_from([NOW, EVERYTHING_OLD])))
        retained = sum(f.size for f in opened.facts() if f.id in mine and f.state is State.RETAINED)
        assert used(opened) == retained


def test_a_saved_key_keeps_what_it_has_used(opened: Opened):
    opened.writer.save_access_key(AccessKey("k"))
    opened.append(event(1), key="k")
    before = used(opened)
    opened.writer.save_access_key(AccessKey("k", "renamed", used_bytes=0))
    assert used(opened) == before > 0


# --- settings and space ----------------------------------------------------------------------------------------------


def test_settings_are_kept_and_replaced(opened: Opened):
    assert opened.reader.setting("x") is None
    for value in (b"one", b"", b"\0\xff"):
        opened.writer.save_setting("x", value)
        assert opened.reader.setting("x") == value
    opened.reopen()
    assert opened.reader.setting("x") == b"\0\xff"


def test_returning_space_comes_to_an_end_and_changes_nothing(opened: Opened):
    opened.append(*(snapshot(clock={"a": n}, content="x" * 4_000) for n in range(1, 200)))
    run(opened, Policy(Mode.CURRENT_ONLY, payload_days=0))
    before = opened.facts()
    for _ in range(10_000):
        if not opened.writer.return_space(16):
            break
    else:
        pytest.fail("there is always more to return")
    assert opened.facts() == before
    assert opened.writer.return_space(16) is False


# --- restarts --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(data=st.data())
def test_closing_and_opening_again_keeps_everything(stores: Stores, data):
    model = Model()
    with stores.open() as opened:
        for group in data.draw(groupings(data.draw(histories()))):
            assert opened.append(*group) == model.append(map(operation, group))
            if data.draw(st.booleans()):
                before = opened.facts(), opened.reader.log(), opened.reader.statistics().tag_rows
                opened.reopen()
                assert (opened.facts(), opened.reader.log(), opened.reader.statistics().tag_rows) == before
        assert opened.heads() == model.heads()


@pytest.mark.parametrize("beyond", [0, 1, 70])
def test_no_checkpoint_of_an_old_epoch_fits_a_new_one(opened: Opened, beyond: int):
    """Positions of the new epoch lie beyond all of the old one, so that even who does not read the epoch bootstraps."""
    opened.append(event(1))
    before = opened.reader.log()
    epoch = opened.writer.new_epoch(beyond)
    after = opened.reader.log()
    assert after.stream == before.stream
    assert after.epoch == epoch != before.epoch
    assert all(token.gap(after, since) is not None for since in range(max(before.tip, beyond) + 1))
    assert opened.append(event(1, content="next")) == [Stored(after.tip + 1)]
    assert token.gap(opened.reader.log(), after.tip) is None


def test_every_store_has_a_stream_of_its_own(stores: Stores):
    with stores.open() as one, stores.open() as other:
        assert one.reader.log().stream != other.reader.log().stream
        assert one.reader.log().epoch != other.reader.log().epoch
