"""Revisions in SQLite: what is rolled back leaves no trace, and `verify` sees what was changed behind its back."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from histories import KINDS, event, groupings, operation
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import REVISIONS, revision, revision_histories, vanishing
from stores import Opened, SqliteBackend, Stores

from anabranch.core import nostr
from anabranch.core.changes import RevisionQuery
from anabranch.core.nostr import Event, Keys, Limits
from anabranch.core.operation import Family, KindPolicy, Operation, State, classify
from anabranch.core.token import Position
from anabranch.store import integrity, transfer
from anabranch.store.contract import Duplicate, Offer, Outcome, Stored, StoreError
from anabranch.store.integrity import Findings
from anabranch.store.sqlite import DATABASE, SqliteStore

A, B, C, D = REVISIONS[:4]
ME, WRAP = Keys(b"\x07" * 32), Keys(b"\x09" * 32)
START = 1_700_000_000


@pytest.fixture
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(SqliteBackend(tmp_path_factory.mktemp("revisions")))


@pytest.fixture
def opened(stores: Stores) -> Iterator[Opened]:
    with stores.open() as one:
        yield one


# --- rolled back ---------------------------------------------------------------------------------------------------


def break_on(opened: Opened, table: str, condition: str = "1") -> Callable[[], None]:
    """Let every insert into a table fail; returns what heals it."""
    other = apsw.Connection(str(opened.store.path))
    other.set_busy_timeout(5_000)
    other.execute(
        f"CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'broken'); END"
    )

    def heal() -> None:
        other.execute("DROP TRIGGER broken")
        other.close()

    return heal


CHANGES = {
    "deletion": lambda opened, made: opened.append(
        event(nostr.DELETION, [["e", e.id] for e in made], author="a1" * 32)
    ),
    "vanishing": lambda opened, made: opened.append(vanishing("a1" * 32, 2_000)),
    "operator": lambda opened, made: opened.writer.remove([e.id for e in made]),
    "expiry": lambda opened, made: opened.writer.expire(1_500, 10),
}


@pytest.mark.parametrize("how", sorted(CHANGES))
def test_a_removal_that_was_rolled_back_is_told_to_nobody_and_takes_no_position(opened: Opened, how: str):
    made = [revision(A, expires_at=1_400), revision(B, d="B", expires_at=1_400)]
    opened.append(*made)
    before = opened.facts()
    heal = break_on(opened, "removals", "NEW.target = 2")
    with pytest.raises(StoreError):
        CHANGES[how](opened, made)
    assert opened.writer.take_removals() == []
    assert opened.facts() == before and opened.reader.log().tip == 2
    assert opened.append(revision(C, d="C")) == [Stored(3)], "the next position is the next position"
    heal()
    CHANGES[how](opened, made)
    told = opened.writer.take_removals()
    first = 4 if how in ("operator", "expiry") else 5
    assert [removal.position for removal in told if removal.id in {e.id for e in made}] == [first, first + 1]
    assert opened.reader.damage() == []


def test_a_request_to_vanish_that_was_rolled_back_keeps_nobody_out(opened: Opened):
    opened.append(revision(A))
    heal = break_on(opened, "removals")
    with pytest.raises(StoreError):
        opened.append(vanishing("a1" * 32, 2_000))
    assert opened.reader.vanishing() is None
    assert opened.append(revision(B)) == [Stored(2)]
    heal()


def test_heads_and_edges_of_a_group_that_was_rolled_back_are_those_of_before(opened: Opened):
    opened.append(revision(A))
    heal = break_on(opened, "parents", f"NEW.parent = x'{C}'")
    with pytest.raises(StoreError):
        opened.append(revision(B, [A]), revision(D, [C]))
    heal()
    query = RevisionQuery("a1" * 32)
    assert opened.reader.current_revisions(query, 9, 0).ids.hex() == A
    assert opened.append(revision(C)) == [Stored(2)]
    assert opened.reader.current_revisions(query, 9, 0).ids.hex() == A + C


# --- verify --------------------------------------------------------------------------------------------------------


@pytest.fixture
def every_signature_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random histories are not signed."""
    monkeypatch.setattr(nostr, "verify_proofs", lambda proofs: b"\1" * (len(proofs) // nostr.PROOF_BYTES))


@settings(max_examples=25)
@given(data=st.data())
def test_a_store_is_sound_whatever_happened_to_it(stores: Stores, every_signature_holds: None, data):
    history = data.draw(revision_histories())
    with stores.open(*data.draw(groupings(history))) as opened:
        if data.draw(st.booleans()):
            opened.writer.expire(1_006, 100)
        opened.writer.compact([row[0] for row in opened.reader.old_revisions(0, 2**53, 1_000)])
        opened.writer.remove([e.id for e in history if data.draw(st.sampled_from([False, False, True]))])
        findings = integrity.verify(opened.reader, workers=0)
        assert findings.sound, findings.found


def wrapped(r: str, parents: tuple[str, ...] = (), d: str = "note", m: int = START * 1000, op: str = "put") -> Event:
    tags = [["p", ME.pubkey], ["d", d], ["r", r], *(["prev", parent] for parent in parents)]
    return WRAP.sign(1059, [*tags, ["op", op], ["m", str(m)], ["type", "note"], ["v", "2"]], "sealed", START)


def fill(store: SqliteStore, *events: Event) -> list[Outcome]:
    return store.writer.append([Offer(classify(e, nostr.serialise(e), KindPolicy())) for e in events], START * 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """1: A compacted, 2: B, 3: C a head, 4: D a head elsewhere, 5: removed, 6: its deletion, 7: the removal."""
    store = SqliteStore.open(tmp_path / "data")
    gone = wrapped("ee" * 32, d="gone")
    fill(store, wrapped(A), wrapped(B, (A,)), wrapped(C, (B,), op="del"), wrapped(D, ("ff" * 32,), d="other"), gone)
    fill(store, ME.sign(5, [["e", gone.id]], "", START))
    store.writer.compact([1])
    store.close()
    return tmp_path / "data"


@pytest.fixture
def change(folder: Path) -> Callable[..., None]:
    def execute(sql: str, *bindings: object) -> None:
        connection = apsw.Connection(str(folder / DATABASE))
        connection.execute(sql, bindings)
        assert connection.changes() > 0, "the test changed nothing"
        connection.close()

    return execute


def verify(folder: Path) -> Findings:
    with SqliteStore.inspect(folder).reader() as reader:
        return integrity.verify(reader, workers=0)


def test_a_store_of_revisions_is_sound(folder: Path):
    findings = verify(folder)
    assert findings.sound, findings.found
    assert (findings.checked, findings.signatures, findings.documents) == (6, 4, 2)


TAMPERED = {
    "a head is not served": "UPDATE revisions SET current = 0 WHERE position = 3",
    "what is no head is served as one": "UPDATE revisions SET current = 1 WHERE position = 2",
    "what is compacted is served as a head": "UPDATE revisions SET current = 1 WHERE position = 1",
    "what was removed is served as a head": "UPDATE revisions SET current = 1 WHERE position = 5",
    "a head mark is missing": "UPDATE operations SET head = 0 WHERE position = 3",
    "a head mark is wrong": "UPDATE operations SET head = 1 WHERE position = 2",
    "another revision": f"UPDATE revisions SET revision = x'{'12' * 32}' WHERE position = 3",
    "another recipient": f"UPDATE revisions SET recipient = '{'12' * 32}' WHERE position = 3",
    "another document": f"UPDATE revisions SET document = x'{'12' * 16}' WHERE position = 3",
    "another mtime": "UPDATE revisions SET mtime = 5 WHERE position = 3",
    "other parents": f"UPDATE revisions SET parents = x'{'12' * 32}' WHERE position = 3",
    "parents that are cut short": "UPDATE revisions SET parents = substr(parents, 1, 31) WHERE position = 3",
    "a payload that is there and said to be gone": "UPDATE revisions SET retained = 0 WHERE position = 3",
    "a payload that is gone and said to be there": "UPDATE revisions SET retained = 1 WHERE position = 1",
    "an edge is forgotten": f"DELETE FROM parents WHERE parent = x'{B}'",
    "an edge to what never came is forgotten": f"DELETE FROM parents WHERE parent = x'{'ff' * 32}'",
    "an edge that nobody drew": f"INSERT INTO parents SELECT document, x'{'34' * 32}', child FROM parents LIMIT 1",
    "a revision is forgotten": "DELETE FROM revisions WHERE position = 4",
    "a removal is forgotten": "DELETE FROM removals",
    "a removal of what is there": "UPDATE removals SET target = 3",
    "a removal told to somebody else": f"UPDATE removals SET recipient = '{'12' * 32}'",
    "a removal where an operation stands": f"INSERT INTO removals VALUES (2, 5, '{ME.pubkey}', 'why')",
}


@pytest.mark.parametrize("what", list(TAMPERED))
def test_what_was_changed_behind_the_stores_back_is_found(folder: Path, change: Callable[..., None], what: str):
    change(TAMPERED[what])
    findings = verify(folder)
    assert not findings.sound
    assert all(finding.advice for finding in findings.found)


LATER = ("links", "link_transitions", "dead_letters", "echoes", "told")


def as_the_release_before(folder: Path) -> None:
    """What a file of schema 1 is: one without the tables of revisions and of links."""
    connection = apsw.Connection(str(folder / DATABASE))
    for table in ("revisions", "parents", "removals", "vanished", *LATER):
        connection.execute(f"DROP TABLE {table}")
    connection.pragma("user_version", 1)
    connection.close()


def test_a_file_of_the_release_before_is_brought_up_with_all_that_is_in_it(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "data")
    note = ME.sign(1, [], "before", START)
    fill(store, note)
    log = store.writer.log()
    store.close()
    as_the_release_before(tmp_path / "data")
    store = SqliteStore.open(tmp_path / "data")
    try:
        assert store.writer.log() == log
        fill(store, wrapped(A), ME.sign(5, [["e", note.id]], "", START))
        assert store.writer.log().tip == 4  # the deletion, and what it removed
    finally:
        store.close()
    assert verify(tmp_path / "data").sound


def as_schema_2(folder: Path) -> None:
    """There, only the removals of revisions stood in the log, and nothing was known of links."""
    connection = apsw.Connection(str(folder / DATABASE))
    for table in LATER:
        connection.execute(f"DROP TABLE {table}")
    connection.execute(
        "CREATE TABLE before (position INTEGER PRIMARY KEY, target INTEGER NOT NULL, recipient TEXT NOT NULL, "
        "reason TEXT NOT NULL); INSERT INTO before SELECT * FROM removals; DROP TABLE removals; "
        "ALTER TABLE before RENAME TO removals; CREATE INDEX removal_feed ON removals (recipient)"
    )
    connection.pragma("user_version", 2)
    connection.close()


def test_removals_of_the_release_before_stay_and_from_then_on_all_are_told(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "data")
    note = ME.sign(1, [], "before", START)
    fill(store, note, one := wrapped(A))
    store.writer.remove([one.id])
    store.close()
    as_schema_2(tmp_path / "data")
    store = SqliteStore.open(tmp_path / "data")
    try:
        store.writer.remove([note.id])
        with store.reader() as reader:
            told = reader.removals(Position(0), Position(9), 9)
            feed = reader.changes(RevisionQuery(ME.pubkey), Position(0), None, 9).entries
    finally:
        store.close()
    assert [(r.position, r.target, r.id, r.recipient) for r in told] == [
        (3, 2, one.id, ME.pubkey),
        (4, 1, note.id, None),
    ]
    assert [(entry.position, entry.id) for entry in feed] == [(3, one.id)]
    assert verify(tmp_path / "data").sound


def test_gift_wraps_of_the_release_before_join_the_family_when_they_are_revisions(tmp_path: Path):
    """There, a gift wrap of whatever tags was an ordinary event. What is a revision is one after the migration."""
    store = SqliteStore.open(tmp_path / "data")
    partly = WRAP.sign(1059, [["p", ME.pubkey], ["d", "x"]], "", START)
    for made in (wrapped(B, (A,)), partly, wrapped(A), wrapped(C, (A,))):
        store.writer.append([Offer(Operation(made, nostr.serialise(made), Family.PLAIN))], START * 1000)
    store.close()
    as_the_release_before(tmp_path / "data")
    store = SqliteStore.open(tmp_path / "data")
    try:
        reader = store.open_reader()
        rows = reader.current_revisions(RevisionQuery(ME.pubkey), 10, START)
        assert {rows.ids[:32].hex(), rows.ids[32:].hex()} == {B, C}
        assert [e.position for e in reader.changes(RevisionQuery(ME.pubkey), Position(0), None, 9).entries] == [1, 3, 4]
        assert reader.statistics().conflicts == 1
        reader.close()
        assert fill(store, wrapped(A)) == [Duplicate(State.RETAINED)]
    finally:
        store.close()
    findings = verify(tmp_path / "data")
    assert findings.sound, findings.found


# --- memory --------------------------------------------------------------------------------------------------------


def test_an_import_keeps_no_account_of_what_it_removes(tmp_path: Path):
    """Nobody asks an import what it has removed, so it must not gather it: memory stays flat."""
    store = SqliteStore.open(tmp_path / "data")
    try:
        profiles = [ME.sign(0, [], str(n), START + n) for n in range(50)]
        lines = io.BytesIO(b"".join(nostr.serialise(e) + b"\n" for e in profiles))
        report = transfer.import_lines(lines, store.writer, limits=Limits(), kinds=KINDS, now_ms=lambda: 1, workers=0)
        assert report.stored == 50
        assert store.writer.take_removals() == []
    finally:
        store.close()


def test_the_lineage_of_a_document_is_read_without_its_payloads(opened: Opened):
    """As the contract has it: a document of many large revisions must fit into memory when it is verified."""
    opened.append(revision(A), revision(B, [A]))
    known = opened.reader.revision_lineage(operation(revision(A)).document)
    assert [facts.revision.revision for facts, _ in known] == [A, B]
    assert [served for _, served in known] == [False, True]
    assert {facts.state for facts, _ in known} == {State.RETAINED}
    assert [facts.raw for facts, _ in known] == [None, None]
