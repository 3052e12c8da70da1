"""Append: one outcome an offer, as if the operations had come one by one, in whatever groups they come."""

import pytest
from histories import AUTHORS, event, groupings, histories, operation, snapshot, snapshots
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Model
from stores import NOW, Opened, Stores

from anabranch.core import nostr
from anabranch.core.changes import SnapshotQuery
from anabranch.core.filter import Filter
from anabranch.core.operation import Action, Family, State
from anabranch.store.contract import Duplicate, Refused, Stored, Superseded

BLOCKED = Refused("blocked", "deleted by its author")


def deletion(*tags: list[str], author: str = AUTHORS[0], created_at: int = 1_000) -> nostr.Event:
    return event(nostr.DELETION, tags, created_at=created_at, author=author)


def together_and_apart(stores: Stores, *events: nostr.Event) -> list:
    """The outcomes of the same offers in one group and one by one, which must be the same."""
    with stores.open() as group, stores.open() as singles:
        together = group.append(*events)
        apart = [singles.append(e)[0] for e in events]
        assert together == apart
        assert group.heads() == singles.heads()
        assert [(f.position, f.id, f.state) for f in group.facts()] == [
            (f.position, f.id, f.state) for f in singles.facts()
        ]
        return together


# --- positions and facts -------------------------------------------------------------------------------------------


def test_an_empty_store_has_an_empty_log(opened: Opened):
    log = opened.store.log()
    assert (log.floor, log.tip) == (1, 0)
    assert log.stream and log.epoch and log == opened.reader.log()
    assert opened.facts() == []
    assert opened.append() == []
    assert opened.reader.log() == log


def test_positions_ascend_by_one_through_groups_and_skip_what_is_not_stored(opened: Opened):
    one, two, three = (event(1, content=c) for c in "123")
    assert opened.append(one, two) == [Stored(1), Stored(2)]
    assert opened.append(two, three, one) == [Duplicate(State.RETAINED), Stored(3), Duplicate(State.RETAINED)]
    assert opened.reader.log().tip == 3


def test_a_duplicate_within_a_group_and_across_groups_is_told_and_changes_nothing(opened: Opened):
    note = snapshot()
    assert opened.append(note, note) == [Stored(1), Duplicate(State.RETAINED)]
    before = opened.facts()
    assert opened.append(note) == [Duplicate(State.RETAINED)]
    assert opened.facts() == before


def test_the_facts_are_those_of_the_operation(opened: Opened):
    note = snapshot("\0x", {"a": 2**53 - 1, "ü": 1}, deletes=True, collection="c", created_at=7, content="\0")
    opened.append(event(30_023, [["d", "é"]]), note, event(1), received_at=123)
    addressable, stored, plain = opened.facts()
    made = operation(note)
    assert (stored.position, stored.id, stored.author, stored.kind) == (2, note.id, note.pubkey, note.kind)
    assert (stored.created_at, stored.family, stored.state, stored.head) == (7, Family.SNAPSHOT, State.RETAINED, True)
    assert (stored.action, stored.document, stored.coordinate) == (Action.DELETE, made.document, "\0x")
    assert (stored.collection, stored.clock) == ("c", {"a": 2**53 - 1, "ü": 1})
    assert (stored.raw, stored.size, stored.received_at) == (made.raw, len(made.raw), 123)
    assert (addressable.family, addressable.head, addressable.coordinate) == (Family.PLAIN, True, "é")
    assert addressable.clock is None
    assert (plain.document, plain.head, plain.coordinate) == (None, False, None)


def test_facts_are_read_in_pages_of_any_size(opened: Opened):
    opened.append(*(event(1, content=str(n)) for n in range(7)))
    whole = opened.facts()
    for size in (1, 2, 3, 7, 8):
        pages, after = [], 0
        while page := opened.reader.facts(after, size):
            assert len(page) <= size
            pages += page
            after = page[-1].position
        assert pages == whole


def test_a_large_group_is_one_group(opened: Opened):
    """More operations, documents and tags than any one statement takes."""
    many = [snapshot(f"doc-{n % 300}", {"a": 1 + n // 300}, content=str(n)) for n in range(700)]
    many += [event(1, [["t", str(k)] for k in range(5)], str(n)) for n in range(300)]
    assert opened.append(*many) == [Stored(position) for position in range(1, 1_001)]
    model = Model()
    model.append(map(operation, many))
    assert opened.heads() == model.heads()
    assert opened.append(*many) == [Duplicate(State.RETAINED)] * 1_000


# --- heads -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_heads_do_not_depend_on_the_order_or_the_grouping_of_arrival(stores: Stores, data):
    history = data.draw(st.lists(snapshots, max_size=16))
    model = Model()
    model.append(map(operation, history))
    shuffled = data.draw(st.permutations(history))
    with stores.open(*data.draw(groupings(shuffled))) as opened:
        assert opened.heads() == model.heads()
        for document in {operation(e).document for e in history}:
            found = [facts.id for facts in opened.reader.heads(document)]
            assert found == sorted(r.id for r in model.records if r.operation.document == document and model.is_head(r))


def test_two_snapshots_with_equal_clocks_are_both_heads(stores: Stores):
    one, two = snapshot(content="one"), snapshot(content="two")
    assert together_and_apart(stores, one, two) == [Stored(1), Stored(2)]
    with stores.open([one, two]) as opened:
        assert opened.heads() == {one.id, two.id}


def test_a_dominated_snapshot_that_comes_late_is_stored_and_no_head(stores: Stores):
    old, new = snapshot(clock={"a": 1}), snapshot(clock={"a": 2})
    together_and_apart(stores, new, old)
    with stores.open([new], [old]) as opened:
        assert opened.heads() == {new.id}
        assert opened.reader.state(old.id) is State.RETAINED


def test_a_resolution_takes_the_place_of_every_branch_in_one_group_and_across_groups(stores: Stores):
    branches = [snapshot(clock={f"device-{n}": 1}) for n in range(5)]
    resolution = snapshot(clock={f"device-{n}": 1 for n in range(5)} | {"me": 1})
    together_and_apart(stores, *branches, resolution)
    with stores.open(branches[:3], [*branches[3:], resolution]) as opened:
        assert opened.heads() == {resolution.id}


def test_a_document_has_at_most_a_thousand_heads_and_can_still_be_merged(opened: Opened):
    full = Refused("restricted", "the document has 1000 concurrent versions already; merge them first")
    crowd = [snapshot(clock={f"d{n}": 1}) for n in range(1_001)]
    outcomes = opened.append(*crowd)
    assert outcomes == [*(Stored(n) for n in range(1, 1_001)), full]
    assert opened.append(crowd[-1]) == [full], "and in a group of its own"
    assert len(opened.heads()) == 1_000
    assert opened.append(snapshot("B"), snapshot(author=AUTHORS[1])) == [Stored(1_001), Stored(1_002)]
    late = snapshot(clock={"d1": 1}, created_at=7)  # as concurrent as any: it stands beside its equal
    assert opened.append(late, crowd[3]) == [full, Duplicate(State.RETAINED)]
    successor = snapshot(clock={"d0": 2})
    assert opened.append(successor) == [Stored(1_003)]
    assert len(opened.heads()) == 1_002 and crowd[0].id not in opened.heads()
    merged = snapshot(clock={f"d{n}": 1 for n in range(1, 31)})
    assert opened.append(merged, crowd[-1]) == [Stored(1_004), Stored(1_005)]
    assert len(opened.heads()) == 1_002 - 30 + 2
    dominated = snapshot(clock={"d0": 1}, created_at=7)
    assert opened.append(dominated) == [Stored(1_006)], "history is no head"
    assert opened.reader.damage() == []


def test_authors_do_not_touch_each_others_documents(opened: Opened):
    mine, theirs = snapshot(clock={"a": 1}), snapshot(clock={"a": 2}, author=AUTHORS[1])
    opened.append(mine, theirs)
    assert opened.heads() == {mine.id, theirs.id}


# --- replaceable and addressable -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 3, 10_002, 30_023])
def test_the_newest_version_stays_alone(stores: Stores, kind: int):
    old, new = event(kind, content="old", created_at=1), event(kind, content="new", created_at=2)
    assert together_and_apart(stores, old, new) == [Stored(1), Stored(2)]
    assert together_and_apart(stores, new, old) == [Stored(1), Superseded()]
    with stores.open([old], [new]) as opened:
        assert opened.heads() == {new.id}
        assert opened.reader.state(old.id) is State.REMOVED
        assert opened.fact(old).raw is None
        assert opened.append(old) == [Duplicate(State.REMOVED)]


def test_of_versions_of_one_second_the_lowest_id_stays_whatever_the_order(stores: Stores):
    versions = sorted((event(10_002, content=str(n)) for n in range(4)), key=lambda e: e.id)
    assert together_and_apart(stores, *versions) == [Stored(1), *[Superseded()] * 3]
    assert together_and_apart(stores, *reversed(versions)) == [Stored(n) for n in range(1, 5)]
    with stores.open(versions[2:], versions[:2]) as opened:
        assert opened.heads() == {versions[0].id}


def test_addressable_documents_are_apart_by_their_d(opened: Opened):
    versions = [event(30_023, [["d", d]], created_at=n) for n, d in enumerate(("x", "y", "", "X"))]
    assert opened.append(*versions) == [Stored(n) for n in range(1, 5)]
    assert opened.heads() == {e.id for e in versions}


def test_a_version_replaced_in_its_own_group_leaves_nothing_behind(opened: Opened):
    old = event(30_023, [["d", "x"], ["t", "old"]], created_at=1)
    new = event(30_023, [["d", "x"], ["t", "new"]], created_at=2)
    opened.append(event(1), old, new, event(1, content="after"))
    assert opened.reader.damage() == []
    assert [f.state for f in opened.facts()] == [State.RETAINED, State.REMOVED, State.RETAINED, State.RETAINED]


def test_what_was_replaced_or_deleted_in_a_group_is_known_as_removed_in_that_group(stores: Stores):
    old, new = event(10_002, content="old", created_at=1), event(10_002, content="new", created_at=2)
    by_address = deletion(["a", f"10002:{AUTHORS[0]}:"], created_at=5)
    assert together_and_apart(stores, old, new, old)[-1] == Duplicate(State.REMOVED)
    assert together_and_apart(stores, old, by_address, old)[-1] == BLOCKED
    by_id = deletion(["e", new.id])
    assert together_and_apart(stores, new, by_id, new)[-1] == BLOCKED


# --- deletion (NIP-09) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [event(1), event(10_002), snapshot()], ids=["plain", "replaceable", "snapshot"])
def test_an_author_deletes_by_id_before_and_after(stores: Stores, target: nostr.Event):
    request = deletion(["e", target.id])
    assert together_and_apart(stores, target, request, target) == [Stored(1), Stored(2), BLOCKED]
    assert together_and_apart(stores, request, target) == [Stored(1), BLOCKED]
    with stores.open([target], [request]) as opened:
        assert opened.reader.state(target.id) is State.REMOVED
        assert opened.fact(target).raw is None
        assert opened.reader.state(request.id) is State.RETAINED
        opened.reopen()
        assert opened.append(target) == [BLOCKED]


def test_somebody_else_deletes_nothing(stores: Stores):
    target = event(30_023, [["d", "x"]])
    request = deletion(["e", target.id], ["a", f"30023:{AUTHORS[0]}:x"], author=AUTHORS[1], created_at=9_999)
    assert together_and_apart(stores, target, request, target) == [Stored(1), Stored(2), Duplicate(State.RETAINED)]
    assert together_and_apart(stores, request, target) == [Stored(1), Stored(2)]


def test_a_deletion_by_address_reaches_up_to_its_own_moment(stores: Stores):
    versions = [event(30_023, [["d", "x"]], str(n), created_at=n) for n in (4, 5, 6)]
    request = deletion(["a", f"30023:{AUTHORS[0]}:x"], created_at=5)
    for version, outcome in zip(versions, [BLOCKED, BLOCKED, Stored(2)], strict=True):
        assert together_and_apart(stores, request, version)[1] == outcome
    for version, state in zip(versions, [State.REMOVED, State.REMOVED, State.RETAINED], strict=True):
        with stores.open([version], [request]) as opened:
            assert opened.reader.state(version.id) is state


def test_a_later_deletion_never_narrows_an_earlier_one(stores: Stores):
    address = ["a", f"30023:{AUTHORS[0]}:x"]
    wide, narrow = deletion(address, created_at=9), deletion(address, created_at=3)
    assert together_and_apart(stores, wide, narrow, event(30_023, [["d", "x"]], created_at=7))[-1] == BLOCKED


def test_a_deletion_of_a_deletion_does_nothing(stores: Stores):
    target = event(1)
    request = deletion(["e", target.id])
    again = deletion(["e", request.id], created_at=2_000)
    assert together_and_apart(stores, target, request, again, target)[-1] == BLOCKED
    with stores.open([request, again]) as opened:
        assert opened.reader.state(request.id) is State.RETAINED
        assert opened.append(request) == [Duplicate(State.RETAINED)]


def test_what_a_deleted_head_had_superseded_does_not_come_back(stores: Stores):
    old, new = snapshot(clock={"a": 1}), snapshot(clock={"a": 2})
    request = deletion(["e", new.id])
    for groups in ([[old, new, request]], [[old], [new], [request]], [[new, request], [old]]):
        with stores.open(*groups) as opened:
            assert opened.heads() == set()
    with stores.open([request], [new, old]) as opened:
        assert opened.heads() == {old.id}, "what was never taken has superseded nothing"
    next_one = snapshot(clock={"a": 1, "b": 1})
    together_and_apart(stores, old, new, request, next_one)


def test_an_unreadable_deletion_is_stored_and_deletes_nothing(stores: Stores):
    target = event(30_023, [["d", "x"]])
    tags = [["e"], ["e", "xyz"], ["e", target.id.upper()], ["a"], ["a", "30023"], ["a", f"-1:{AUTHORS[0]}:x"],
            ["a", f"٣:{AUTHORS[0]}:x"], ["a", f"99999999:{AUTHORS[0]}:x"], ["a", f":{AUTHORS[0]}:x"]]  # fmt: skip
    assert together_and_apart(stores, target, deletion(*tags), target)[-1] == Duplicate(State.RETAINED)


# --- everything at once ----------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(data=st.data())
def test_groups_are_decided_as_if_operations_had_come_one_by_one(stores: Stores, data):
    """The oracle takes them one at a time; the store in random groups. Outcomes, states and heads are the same."""
    model = Model()
    with stores.open() as opened:
        for group in data.draw(groupings(data.draw(histories()))):
            assert opened.append(*group) == model.append(map(operation, group))
        assert [(f.position, f.id, f.state) for f in opened.facts()] == [
            (r.position, r.id, r.state) for r in model.records
        ]
        assert opened.heads() == model.heads()
        assert all((f.raw is not None) == (f.state is State.RETAINED) for f in opened.facts())
        assert opened.reader.damage() == []
        assert opened.reader.log().tip == model.tip
        statistics = opened.reader.statistics()
        assert statistics.operations == len(model.records)
        assert statistics.retained == sum(r.state is State.RETAINED for r in model.records)
        assert statistics.payload_bytes == sum(len(r.operation.raw) for r in model.records if r.state is State.RETAINED)


# --- expiry (NIP-40) -------------------------------------------------------------------------------------------------


def test_what_has_expired_is_not_served_even_before_it_is_removed(opened: Opened):
    note = snapshot(expires_at=NOW)
    opened.append(note, event(1, [["expiration", str(NOW)], ["t", "x"]]))
    query, filters = SnapshotQuery(AUTHORS[0]), [Filter(), Filter(tags=(("t", frozenset({"x"})),))]
    for now, served in ((NOW - 1, 1), (NOW, 0)):
        assert len(opened.reader.bootstrap(query, None, now).positions) == served
        assert len(opened.reader.changes(query, 0, None, 10, False, now).entries) == served
        assert opened.reader.count(filters, now) == len(opened.reader.select(filters, 10, now).positions) == 2 * served


def test_expire_removes_what_is_due_a_few_at_a_time(opened: Opened):
    due = [event(1, [["expiration", str(n)]], str(n)) for n in range(1, 6)]
    later = event(1, [["expiration", "100"]])
    opened.append(*due, later, event(1))
    assert [opened.reader.expired(now)[0] for now in (0, 4, 5, 100)] == [0, 4, 5, 6]
    assert opened.writer.expire(5, 3) == 3
    assert opened.reader.expired(5)[0] == 2
    assert opened.writer.expire(5, 3) == 2
    assert opened.writer.expire(5, 3) == 0
    assert [opened.reader.state(e.id) for e in due] == [State.REMOVED] * 5
    assert opened.reader.state(later.id) is State.RETAINED
    assert opened.append(due[0]) == [Duplicate(State.REMOVED)]
    assert opened.reader.damage() == []
