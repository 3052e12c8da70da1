"""The client's rules: whose version it is, what the next one stands on, and in which order versions go out."""

import pytest
from authors import Author, snapshot
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import clock as clocks
from anabranch.core import nostr, replica
from anabranch.core.nostr import Invalid, Keys, serialise
from anabranch.core.operation import Family
from anabranch.core.replica import Version

OWNER = Keys(b"\x05" * 32)
clock_values = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1)


def event(kind: int, tags: list[list[str]], keys: Keys = OWNER) -> nostr.Event:
    return keys.sign(kind, tags, "sealed", 1_700_000_000)


def test_a_snapshot_is_its_authors_and_a_revision_its_recipients():
    of_mine = event(42061, [["d", "x"], ["o", "del"], ["vc", "a", "1"], ["c", "lists"]])
    found = replica.read(of_mine, Family.SNAPSHOT, OWNER.pubkey)
    assert found == Version(of_mine.id, "x", True, 1_700_000_000_000, "lists", {"a": 1})
    tags = [["p", OWNER.pubkey], ["d", "x"], ["r", "1" * 64], ["prev", "3" * 64], ["prev", "2" * 64], ["op", "put"]]
    of_mine = event(1059, [*tags, ["m", "1700000000123"], ["v", "2"]], Keys(b"\x06" * 32))
    found = replica.read(of_mine, Family.REVISION, OWNER.pubkey)
    assert found == Version("1" * 64, "x", False, 1_700_000_000_123, None, {}, ("2" * 64, "3" * 64))


@pytest.mark.parametrize(
    "family, kind, tags",
    [
        (Family.SNAPSHOT, 1, [["d", "x"], ["o", "put"], ["vc", "a", "1"]]),
        (Family.SNAPSHOT, 42061, [["d", "x"], ["o", "put"]]),
        (Family.SNAPSHOT, 42061, [["o", "put"], ["vc", "a", "1"]]),
        (Family.REVISION, 1059, [["p", OWNER.pubkey]]),
        (Family.REVISION, 1059, [["p", OWNER.pubkey], ["d", "x"], ["r", "1" * 64], ["op", "put"]]),
        (Family.REVISION, 1, [["p", OWNER.pubkey], ["d", "x"], ["r", "1" * 64], ["op", "put"], ["m", "1"]]),
        (Family.REVISION, 1059, [["p", "0" * 64], ["d", "x"], ["r", "1" * 64], ["op", "put"], ["m", "1"]]),
    ],
)
def test_what_is_not_the_owners_or_not_of_the_family_is_refused(family: Family, kind: int, tags: list[list[str]]):
    with pytest.raises(Invalid):
        replica.read(event(kind, tags), family, OWNER.pubkey)


def test_a_snapshot_by_somebody_else_is_refused():
    with pytest.raises(Invalid, match="another author"):
        raw = serialise(nostr.Event(**snapshot(Author.random(), "x", {"a": 1})))
        replica.read(nostr.parse(raw, nostr.Limits())[0], Family.SNAPSHOT, OWNER.pubkey)


@given(st.lists(clock_values, max_size=4), st.sampled_from("abcde"))
def test_the_next_clock_dominates_every_head(heads: list[dict[str, int]], device: str):
    versions = [Version(str(number), "x", False, 1, None, clock) for number, clock in enumerate(heads)]
    after = replica.next_clock(versions, device)
    assert all(clocks.dominates(after, clock) for clock in heads)
    assert clocks.parse(clocks.tags(after)) == after


def test_more_devices_than_a_clock_can_hold_are_told():
    wide = Version("1", "x", False, 1, None, {str(number): 1 for number in range(clocks.ENTRIES_MAX)})
    assert replica.next_clock([wide], "0")["0"] == 2
    with pytest.raises(Invalid, match="more than 32 devices"):
        replica.next_clock([wide], "another")


@given(st.data())
def test_parents_go_before_their_children_and_nothing_is_left_out(data: st.DataObject):
    count = data.draw(st.integers(0, 12))
    graph = [
        Version(
            f"{n:064}", "x", False, data.draw(st.integers(0, 3)), parents=tuple(sorted(f"{p:064}" for p in parents))
        )
        for n in range(count)
        for parents in [data.draw(st.sets(st.integers(0, max(0, n - 1)), max_size=3)) if n else set()]
    ]
    ordered = replica.parents_first(data.draw(st.permutations(graph)))
    assert sorted(version.id for version in ordered) == [version.id for version in graph]
    sent: set[str] = set()
    for version in ordered:
        assert not (set(version.parents) & {one.id for one in graph}) - sent
        sent.add(version.id)


def test_a_circle_of_parents_is_a_lie_and_ends():
    a, b = Version("a", "x", False, 1, parents=("b",)), Version("b", "x", False, 2, parents=("a",))
    assert {version.id for version in replica.parents_first([a, b])} == {"a", "b"}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=5))
def test_what_is_shown_of_a_conflict_is_the_same_everywhere_and_no_tombstone(heads: list[tuple[bool, int]]):
    versions = [Version(str(n), "x", deletes, mtime) for n, (deletes, mtime) in enumerate(heads)]
    shown = replica.shown(versions)
    assert shown == replica.shown(versions[::-1])
    assert shown.deletes == all(deletes for deletes, _ in heads)
