"""The replica's file: heads in every order of arrival, a checkpoint that only moves forward, a bounded history."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.bootstraps import Wanted
from anabranch.client.document import ChangeKind
from anabranch.client.errors import FileFailed, NoSuchRelay, WrongReplica
from anabranch.client.file import Arrival, Checkpoint, Proven, ReplicaFile
from anabranch.client.ledger import Ledger
from anabranch.core import clock as clocks
from anabranch.core.operation import Family
from anabranch.core.replica import Version

OWNER = "a" * 64
URL = "ws://relay/"


@contextmanager
def fresh(family: Family) -> Iterator[tuple[ReplicaFile, Ledger, int]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as folder:
        file = ReplicaFile.open(Path(folder) / "r.db", OWNER, family, None, lambda: "device")
        ledger = Ledger(file)
        try:
            yield file, ledger, ledger.add(URL, None).relay
        finally:
            file.close()


def proven(version: Version) -> Proven:
    return Proven(version, f"event of {version.id}", b"raw of " + version.id.encode())


def apply(file: ReplicaFile, relay: int, *versions: Version, at: Checkpoint | None = None) -> list:
    url = file.db.execute("SELECT url FROM relays WHERE relay = ?", (relay,)).get
    return file.apply(Arrival(relay, [proven(version) for version in versions], checkpoint=at), url)


def heads(file: ReplicaFile) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in file.all_heads():
        found.setdefault(one.version.coordinate, set()).add(one.version.id)
    return found


# --- the oracle: all versions, compared with each other ---


def superseded(version: Version, versions: list[Version]) -> bool:
    same = [other for other in versions if other.coordinate == version.coordinate]
    if version.clock:
        return any(clocks.dominates(other.clock, version.clock) for other in same)
    return any(version.id in other.parents for other in same)


def oracle(versions: list[Version]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for version in versions:
        if not superseded(version, versions):
            found.setdefault(version.coordinate, set()).add(version.id)
    return found


clock_values = st.dictionaries(st.sampled_from("ab"), st.integers(1, 3), min_size=1)
snapshots = st.lists(
    st.builds(
        lambda d, clock, deletes, n: Version(f"{n}-{d}-{sorted(clock.items())}", d, deletes, n, None, clock),
        st.sampled_from("xy"),
        clock_values,
        st.booleans(),
        st.integers(0, 2),
    ),
    max_size=12,
    unique_by=lambda version: version.id,
)


@st.composite
def revision_graphs(draw: st.DrawFn) -> list[Version]:
    versions: list[Version] = []
    for number in range(draw(st.integers(0, 12))):
        d = draw(st.sampled_from("xy"))
        before = [version.id for version in versions if version.coordinate == d]
        parents = draw(st.sets(st.sampled_from(before), max_size=3)) if before else set()
        versions.append(Version(f"{number:064}", d, draw(st.booleans()), number, None, {}, tuple(sorted(parents))))
    return versions


@given(st.data(), st.sampled_from([Family.SNAPSHOT, Family.REVISION]))
@settings(max_examples=60)
def test_heads_and_conflicts_are_the_same_in_every_order_with_any_duplicates(data: st.DataObject, family: Family):
    versions = data.draw(snapshots if family is Family.SNAPSHOT else revision_graphs())
    order = data.draw(st.permutations(versions))
    again = data.draw(st.lists(st.sampled_from(versions), max_size=5)) if versions else []
    arriving = data.draw(st.permutations([*order, *again]))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))
    with fresh(family) as (file, _, relay):
        begun, ended = set(), set()
        pages = itertools.cycle(sizes)
        rest = list(arriving)
        while rest:
            size = next(pages)
            page, rest = rest[:size], rest[size:]
            for change in apply(file, relay, *page):
                (begun if change.kind is ChangeKind.CONFLICT_BEGUN else set()).add(change.d)
                (ended if change.kind is ChangeKind.CONFLICT_ENDED else set()).add(change.d)
        expected = oracle(versions)
        assert heads(file) == expected
        in_conflict = {d for d, ids in expected.items() if len(ids) > 1}
        assert {one.version.coordinate for one in file.conflicted()} == in_conflict
        assert in_conflict <= begun  # every conflict that is there was told


def test_what_is_known_already_changes_nothing(family: str):
    version = Version("1" * 64, "x", False, 1, None, {"a": 1} if family == "snapshot" else {})
    with fresh(Family[family.upper()]) as (file, _, relay):
        assert [change.kind for change in apply(file, relay, version)] == [ChangeKind.WRITTEN]
        assert apply(file, relay, version) == []
        assert apply(file, relay, version, version) == []


# --- checkpoints ---


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10))
def test_a_checkpoint_only_moves_forward_within_a_log(positions: list[int]):
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        reached = 0
        for position in positions:
            apply(file, relay, at=Checkpoint("s", "e", position))
            reached = max(reached, position)
            assert ledger.relay(relay).checkpoint == Checkpoint("s", "e", reached)


def test_another_log_begins_where_it_says_and_what_the_relay_had_is_unknown_again():
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        apply(file, relay, snap(1), at=Checkpoint("s", "e", 40))
        assert ledger.account(relay).owed == 0
        ledger.forget_log(relay)
        assert ledger.relay(relay).checkpoint is None
        assert ledger.account(relay).owed == 1
        apply(file, relay, at=Checkpoint("s", "f", 3))
        assert ledger.relay(relay).checkpoint == Checkpoint("s", "f", 3)


def test_the_page_and_the_checkpoint_are_one(monkeypatch: pytest.MonkeyPatch):
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        broken = Version("2" * 64, "x", False, 1, None, {"a": 2}, ())
        page = [proven(snap(1)), Proven(broken, None, b"")]  # type: ignore[arg-type]  # SQLite refuses it
        with pytest.raises(FileFailed):
            file.apply(Arrival(relay, page, ["bad"], (), Checkpoint("s", "e", 9)), URL)
        assert heads(file) == {}
        assert ledger.relay(relay).checkpoint is None
        assert ledger.relay(relay).dropped == 0


def test_every_relay_has_a_checkpoint_of_its_own():
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, at=Checkpoint("s", "e", 5))
        apply(file, other, at=Checkpoint("t", "f", 2))
        assert [one.checkpoint for one in ledger.relays()] == [Checkpoint("s", "e", 5), Checkpoint("t", "f", 2)]


# --- a bounded history ---


def snap(counter: int, d: str = "x", deletes: bool = False) -> Version:
    return Version(f"{counter:032}{d:>32}", d, deletes, counter, None, {"a": counter})


def rev(number: int, *parents: int, d: str = "x") -> Version:
    return Version(f"{number:064}", d, False, number, None, {}, tuple(f"{parent:064}" for parent in sorted(parents)))


def test_ten_superseded_versions_stay_beside_the_heads():
    with fresh(Family.SNAPSHOT) as (file, _, relay):
        apply(file, relay, *(snap(counter) for counter in range(1, 31)))
        assert [one.version.mtime for one in file.versions("x")] == list(range(30, 19, -1))
        assert apply(file, relay, snap(3)) == []  # stale, and too old to be kept
        assert len(file.versions("x")) == 11
        assert file.db.execute("SELECT count(*) FROM versions").get == 11
        assert file.db.execute("SELECT count(*) FROM seen").get == 11


def test_a_stale_version_that_is_recent_enough_is_kept_as_history():
    with fresh(Family.SNAPSHOT) as (file, _, relay):
        apply(file, relay, snap(5))
        assert apply(file, relay, snap(4)) == []
        assert [one.version.mtime for one in file.versions("x")] == [5, 4]


def test_a_hundred_deleted_documents_keep_a_history():
    with fresh(Family.SNAPSHOT) as (file, _, relay):
        for number in range(103):
            d = f"d{number}"
            put, gone = snap(number * 2 + 1, d), snap(number * 2 + 2, d, deletes=True)
            apply(file, relay, put)
            apply(file, relay, gone)
        kept = [len(file.versions(f"d{number}")) for number in range(103)]
        assert kept == [1] * 3 + [2] * 100
        assert len(file.all_heads()) == 103  # every tombstone stays: without it the document would come back


def test_bodies_of_revisions_wait_until_no_relay_is_owed_them_and_edges_stay():
    with fresh(Family.REVISION) as (file, ledger, relay):
        chain = [rev(0), *(rev(number, number - 1) for number in range(1, 20))]
        apply(file, relay, *chain)
        assert len(file.versions("x")) == 11
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, rev(20, 19))
        assert len(file.versions("x")) == 12  # the other is owed all that is left
        owed = ledger.owed(other, 0, 100)
        assert [one.version for one in owed] == [f"{number:064}" for number in range(9, 21)]
        ledger.acknowledge(other, [(one.version, one.event) for one in owed])
        assert len(file.versions("x")) == 11
        assert apply(file, relay, rev(3, 2)) == []  # its body was let go; that it is no head is still known
        assert heads(file) == {"x": {f"{20:064}"}}


# --- what is owed and what is wanted ---


def test_a_relay_is_owed_what_it_was_not_seen_to_have():
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, snap(1), snap(2), snap(1, "y"))
        assert ledger.account(relay).owed == 0
        owed = ledger.owed(other, 0, 10)
        assert {one.version for one in owed} == {snap(2).id, snap(1, "y").id}  # heads only: the rest is others' past
        ledger.acknowledge(other, [(owed[0].version, owed[0].event)])
        assert [one.version for one in ledger.owed(other, 0, 10)] == [owed[1].version]
        ledger.refuse(other, owed[1].version, "blocked: no")
        assert ledger.owed(other, 0, 10) == []
        (refusal,) = ledger.account(other).refused
        assert (refusal.version, refusal.reason) == (owed[1].version, "blocked: no")
        assert ledger.retry(other) == 1
        assert len(ledger.owed(other, 0, 10)) == 1


def test_owed_goes_on_after_what_was_handed_over():
    with fresh(Family.SNAPSHOT) as (file, ledger, _):
        other = ledger.add("ws://other/", None).relay
        apply(file, 1, *(snap(1, f"d{number}") for number in range(10)))
        first = ledger.owed(other, 0, 4)
        rest = ledger.owed(other, first[-1].number, 100)
        assert len({one.version for one in [*first, *rest]}) == 10


def test_revisions_are_owed_with_parents_first_although_children_came_first():
    with fresh(Family.REVISION) as (file, ledger, relay):
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, rev(3, 1, 2), rev(2, 0), rev(1, 0), rev(0))
        assert [int(one.version) for one in ledger.owed(other, 0, 10)] == [0, 1, 2, 3]


def numbers(wanted: list[Wanted]) -> list[int]:
    return sorted(int(one.revision) for one in wanted)


def test_missing_ancestors_are_wanted_until_they_come_or_are_known_not_to_be_had():
    with fresh(Family.REVISION) as (file, ledger, relay):
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, rev(5, 3, 4))
        assert numbers(ledger.wanted(relay, 10)) == [3, 4]
        apply(file, relay, rev(4, 2))
        assert numbers(ledger.wanted(relay, 10)) == [2, 3]
        ledger.absent(relay, [(rev(2).id, "compacted"), (rev(3).id, "unknown"), (rev(4, 2).id, "unknown")])
        assert ledger.wanted(relay, 10) == []
        assert numbers(ledger.wanted(other, 10)) == [2, 3]  # another relay may have them
        apply(file, other, rev(3))
        assert numbers(ledger.wanted(other, 10)) == [2]
        assert heads(file) == {"x": {rev(5).id}}


def test_what_a_relay_removed_for_good_stays_here_and_is_not_sent_there_again():
    with fresh(Family.REVISION) as (file, ledger, relay):
        apply(file, relay, rev(1))
        removed = [(f"event of {rev(1).id}", "expired"), ("something else", "expired")]
        changes = file.apply(Arrival(relay, removed=removed, checkpoint=Checkpoint("s", "e", 3)), URL)
        assert [(change.kind, change.d) for change in changes] == [
            (ChangeKind.REMOVED, "x"),
            (ChangeKind.REMOVED, None),
        ]
        assert heads(file) == {"x": {rev(1).id}}
        ledger.forget_log(relay)
        assert ledger.owed(relay, 0, 10) == []
        assert ledger.account(relay).removed == 1
        other = ledger.add("ws://other/", None).relay
        assert len(ledger.owed(other, 0, 10)) == 1


def test_a_removal_and_its_checkpoint_are_one(monkeypatch: pytest.MonkeyPatch):
    with fresh(Family.REVISION) as (file, ledger, relay):
        apply(file, relay, rev(1))
        broken = [(f"event of {rev(1).id}", "expired"), (object(), "SQLite refuses it")]
        with pytest.raises(TypeError):
            file.apply(Arrival(relay, removed=broken, checkpoint=Checkpoint("s", "e", 9)), URL)  # type: ignore[arg-type]
        assert ledger.account(relay).removed == 0
        assert ledger.relay(relay).checkpoint is None


def test_the_parents_of_what_a_relay_removed_are_asked_for_again():
    with fresh(Family.REVISION) as (file, ledger, relay):
        apply(file, relay, rev(5, 3, 4), rev(4))
        ledger.absent(relay, [(rev(3).id, "unknown")])
        assert ledger.wanted(relay, 10) == []
        file.apply(Arrival(relay, removed=[(f"event of {rev(5).id}", "expired")]), URL)
        assert numbers(ledger.wanted(relay, 10)) == [3]  # it may be current again there; 4 is here


def test_what_did_not_come_is_asked_for_once_more_and_by_its_document():
    with fresh(Family.REVISION) as (file, ledger, relay):
        apply(file, relay, rev(5, 4))
        file.apply(Arrival(relay, hinted=[rev(9).id]), URL)
        assert numbers(ledger.wanted(relay, 10)) == [4, 9]
        ledger.absent(relay, [(rev(4).id, "unproven"), (rev(9).id, "unproven")])
        again = [Wanted(rev(4).id, "x", again=True), Wanted(rev(9).id, None, again=True)]
        assert ledger.wanted(relay, 10) == again
        ledger.absent(relay, [(rev(4).id, "unknown"), (rev(9).id, "compacted")])
        assert ledger.wanted(relay, 10) == []


@pytest.mark.parametrize("how", ["duplicate", "reconciled"])
def test_what_a_relay_says_to_have_it_has_to_show(how: str):
    with fresh(Family.REVISION) as (file, ledger, relay):
        other = ledger.add("ws://other/", None)
        apply(file, relay, rev(1), rev(2), rev(3))
        claims = [rev(1).id, rev(2).id, rev(3).id]
        if how == "duplicate":
            ledger.acknowledge(other.relay, [(id, None) for id in claims])
        else:
            file.apply(Arrival(other.relay, seen=claims), other.url)
        assert ledger.owed(other.relay, 0, 10) == []
        assert ledger.wanted(other.relay, 10) == [Wanted(id, "x", again=True) for id in claims]
        apply(file, other.relay, rev(1))  # shown
        refused = ledger.absent(other.relay, [(rev(1).id, "unknown"), (rev(2).id, "unknown"), (rev(3).id, "compacted")])
        assert [one.version for one in refused] == [rev(2).id]
        assert ledger.account(other.relay).refused == tuple(refused)
        assert "something else" in refused[0].reason
        assert ledger.wanted(other.relay, 10) == ledger.owed(other.relay, 0, 10) == []
        assert ledger.retry(other.relay) == 1
        assert [one.version for one in ledger.owed(other.relay, 0, 10)] == [rev(2).id]


def test_a_body_waits_until_a_relay_has_shown_what_it_says_to_have():
    with fresh(Family.REVISION) as (file, ledger, relay):
        chain = [rev(0), *(rev(number, number - 1) for number in range(1, 13))]
        other = ledger.add("ws://other/", None).relay
        apply(file, relay, *chain)
        ledger.acknowledge(other, [(one.id, None) for one in chain])
        assert len(file.versions("x")) == 13
        ledger.acknowledge(other, [(one.id, f"event of {one.id}") for one in chain])
        assert len(file.versions("x")) == 11


def test_a_relay_that_was_removed_elsewhere_is_noted_nothing_of():
    with fresh(Family.REVISION) as (file, ledger, relay):
        apply(file, relay, rev(1))
        ledger.remove(URL)
        again = ledger.add(URL, None).relay
        assert again != relay  # never used twice
        for noting in (
            lambda: file.apply(Arrival(relay, checkpoint=Checkpoint("s", "e", 9)), URL),
            lambda: file.apply(Arrival(again, checkpoint=Checkpoint("s", "e", 9)), "ws://other/"),
            lambda: ledger.acknowledge(relay, [(rev(1).id, "e")]),
            lambda: ledger.refuse(relay, rev(1).id, "no"),
            lambda: ledger.absent(relay, [(rev(2).id, "unknown")]),
            lambda: ledger.forget_log(relay),
            lambda: ledger.owed(relay, 0, 10),
            lambda: ledger.wanted(relay, 10),
        ):
            with pytest.raises(NoSuchRelay):
                noting()
        assert ledger.relay(again).checkpoint is None
        assert ledger.account(again).owed == 1


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path):
    file = ReplicaFile.open(tmp_path / "old.db", OWNER, None, None, lambda: "d")
    file.db.execute(
        "DROP TABLE relays; DROP INDEX named; DROP INDEX claims;"
        "CREATE TABLE relays (relay INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, access_key TEXT, stream TEXT,"
        " epoch TEXT, position INTEGER, dropped INTEGER NOT NULL DEFAULT 0, last_dropped TEXT);"
        "INSERT INTO relays VALUES (7, 'ws://relay/', 'sk_key', 's', 'e', 40, 2, 'why'); PRAGMA user_version = 1"
    )
    file.close()
    file = ReplicaFile.open(tmp_path / "old.db", OWNER, None, None, lambda: "d")
    ledger = Ledger(file)
    (known,) = ledger.relays()
    assert (known.relay, known.url, known.checkpoint) == (7, URL, Checkpoint("s", "e", 40))
    ledger.remove(URL)
    assert ledger.add(URL, None).relay == 8
    file.close()


def test_a_reason_is_kept_short():
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        apply(file, relay, snap(1))
        other = ledger.add("ws://other/", None).relay
        ledger.refuse(other, snap(1).id, "x" * 10_000)
        (refusal,) = ledger.account(other).refused
        assert len(refusal.reason) == 300


def test_a_removed_relay_is_forgotten_and_documents_stay():
    with fresh(Family.SNAPSHOT) as (file, ledger, relay):
        apply(file, relay, snap(1), at=Checkpoint("s", "e", 4))
        ledger.remove(URL)
        assert ledger.relays() == []
        with pytest.raises(NoSuchRelay):
            ledger.remove(URL)
        assert heads(file) == {"x": {snap(1).id}}
        again = ledger.add(URL, "sk_key")
        assert (again.checkpoint, again.access_key) == (None, "sk_key")
        assert ledger.add(URL, None).access_key == "sk_key"
        assert ledger.account(again.relay).owed == 1


# --- the file itself ---


def test_a_file_of_something_else_is_left_alone(tmp_path: Path):
    import apsw

    (tmp_path / "poem.db").write_bytes(b"this is a poem, not a database" * 400)
    with pytest.raises(FileFailed):
        ReplicaFile.open(tmp_path / "poem.db", OWNER, None, None, lambda: "d")
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(WrongReplica, match="no replica"):
        ReplicaFile.open(tmp_path / "other.db", OWNER, None, None, lambda: "d")
    file = ReplicaFile.open(tmp_path / "new.db", OWNER, None, None, lambda: "d")
    file.db.pragma("user_version", 99)
    file.close()
    with pytest.raises(WrongReplica, match="newer"):
        ReplicaFile.open(tmp_path / "new.db", OWNER, None, None, lambda: "d")
