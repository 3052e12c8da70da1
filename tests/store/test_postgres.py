"""What is PostgreSQL's own beside the contract: who holds a log, where it stands, and a server that goes away."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from histories import AUTHORS, event, operation, snapshot
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import PostgresServer
from revision_histories import revision
from test_plans import OF_ONE, READS

from anabranch.core.changes import RevisionQuery
from anabranch.core.filter import Filter
from anabranch.store import postgres as engine
from anabranch.store import postgres_schema, schema
from anabranch.store.contract import Offer, StoreBusy, Stored, StoreError, TooSlow
from anabranch.store.postgres import PostgresStore
from anabranch.store.postgres_connection import Address, loaded_text, stored_text, translated
from anabranch.store.postgres_schema import VERSION
from anabranch.store.sql_feed import feed_page

MORE_READS = {
    "newest of nobody by author": lambda reader, tip: reader.select([Filter(authors=frozenset({AUTHORS[1]}))], 9, 0),
    "newest of nobody by author and kind": lambda reader, tip: reader.select(
        [Filter(authors=frozenset({AUTHORS[1]}), kinds=frozenset({1}))], 9, 0
    ),
    "newest of a kind that nobody has": lambda reader, tip: reader.select([Filter(kinds=frozenset({7}))], 9, 0),
    "newest": lambda reader, tip: reader.select([Filter(until=999)], 9, 0),
    "count of a kind that nobody has": lambda reader, tip: reader.count([Filter(kinds=frozenset({7}))], 0),
    "state": lambda reader, tip: reader.state("ab" * 32),
    "revisions to nobody": lambda reader, tip: reader.changes(RevisionQuery(AUTHORS[1]), 0, None, 10),
}


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_url()


@pytest.fixture
def open_store(url: str, tmp_path: Path) -> Iterator[Callable[..., PostgresStore]]:
    """Opens the store of this test, as often as it likes; `folder` is another one's."""
    opened: list[PostgresStore] = []

    def open(folder: str = "data", at: str = url, **options: bool) -> PostgresStore:
        opened.append(PostgresStore.open(at, tmp_path / folder, **options))
        return opened[-1]

    yield open
    for store in opened:
        store.close()


def append(store: PostgresStore, *events) -> list:
    return store.writer.append([Offer(operation(one)) for one in events], 0)


# --- who holds it ----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_turned_away_whatever_its_folder_and_told_who_has_it(open_store, monkeypatch):
    monkeypatch.setattr(engine, "LOCK_WITHIN", 0.2)
    store = open_store()
    store.announce("http://127.0.0.1:7447")
    for folder in ("data", "elsewhere"):
        with pytest.raises(StoreBusy, match=r"in use by the node at http://127\.0\.0\.1:7447 \(process \d+\)"):
            open_store(folder)
    store.close()
    assert append(open_store("elsewhere"), event(1)) == [Stored(1)]


def test_inspecting_reads_beside_the_writer_and_cannot_write(open_store, url: str):
    with pytest.raises(StoreError, match="no store in"):
        PostgresStore.inspect(url)
    store = open_store()
    append(store, event(1))
    beside = PostgresStore.inspect(url)
    assert beside.log() == store.log()
    with pytest.raises(StoreError, match="opened for reading"):
        _ = beside.writer
    with beside.reader() as reader, pytest.raises(StoreError, match="read-only"):
        reader._rows("DELETE FROM operations")


def test_what_is_acknowledged_is_on_the_servers_disk_unless_said_otherwise(open_store):
    store = open_store()
    assert store.writer._value("SHOW synchronous_commit") == "on"
    store.close()
    assert open_store(durable=False).writer._value("SHOW synchronous_commit") == "off"


# --- where it stands -------------------------------------------------------------------------------------------------


def test_opening_again_goes_on_in_the_same_epoch_from_another_folder_too(open_store):
    logs = []
    for folder in ("data", "data", "elsewhere"):
        store = open_store(folder)
        append(store, event(1, content=f"{len(logs)}"))
        assert not store.renewed
        logs.append(store.log())
        store.close()
    assert len({log.epoch for log in logs}) == 1 and [log.tip for log in logs] == [1, 2, 3]


def test_a_copy_in_another_database_opens_a_new_epoch(open_store, postgres: PostgresServer, url: str):
    store = open_store()
    append(store, event(1))
    before = store.log()
    store.close()
    there = url.rpartition("%3D")[2]
    dump = postgres.tool("pg_dump", "--schema", there, "postgres").stdout
    (postgres.folder / "dump.sql").write_bytes(dump)
    postgres.tool("createdb", "copied")
    postgres.tool("psql", "-q", "-d", "copied", "-f", str(postgres.folder / "dump.sql"))
    copied = postgres.url(there, "copied")
    try:
        again = open_store("elsewhere", copied)
        log = again.log()
        assert again.renewed and log.stream == before.stream and log.epoch != before.epoch
        assert log.floor > log.tip > before.tip
        again.close()
        assert not open_store("elsewhere", copied).renewed
    finally:
        postgres.run("DROP DATABASE copied WITH (FORCE)")


def test_a_log_that_pg_restore_has_put_back_opens_a_new_epoch_without_the_folder_too(
    open_store, postgres: PostgresServer, url: str
):
    store = open_store()
    append(store, event(1))
    dump = postgres.tool("pg_dump", "--format=custom", "--schema", url.rpartition("%3D")[2], "postgres").stdout
    (postgres.folder / "log.dump").write_bytes(dump)
    append(store, event(1, content="after the backup"))
    epoch = store.log().epoch
    store.close()
    postgres.tool("pg_restore", "--clean", "--if-exists", "--dbname=postgres", str(postgres.folder / "log.dump"))
    again = open_store("elsewhere")
    assert again.renewed and again.log().epoch != epoch and again.log().floor == 3
    assert append(again, event(1, content="after the restore")) == [Stored(3)]


def test_a_log_that_was_put_back_opens_a_new_epoch_beyond_all_that_was_given(
    open_store, postgres: PostgresServer, url: str
):
    store = open_store()
    append(store, event(1))
    postgres.run("CREATE TABLE old_log AS SELECT * FROM log", url)
    append(store, *(event(1, content=f"{n}") for n in range(5)))
    epoch = store.log().epoch
    store.close()
    postgres.run("DELETE FROM operations WHERE position > 1; DELETE FROM payloads WHERE position > 1", url)
    postgres.run("DELETE FROM fresh_ids WHERE position > 1; DELETE FROM tags WHERE position > 1", url)
    postgres.run("UPDATE log SET tip = old_log.tip, bytes = old_log.bytes FROM old_log", url)
    postgres.run("DROP TABLE old_log", url)
    again = open_store()
    assert again.renewed and again.log().epoch != epoch and again.log().tip == 7
    assert append(again, event(1, content="new")) == [Stored(8)]


def test_the_tables_are_those_of_sqlite_column_by_column():
    found = re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n    \)", "".join(postgres_schema.MIGRATIONS), re.DOTALL)
    ours = {name: re.findall(r'^        "?([a-z_]+)"? ', body, re.MULTILINE) for name, body in found}
    file = apsw.Connection(":memory:")
    schema.migrate(file, stream="s", epoch="e")
    sqlites = {
        name: [row[1] for row in file.execute(f"PRAGMA table_info({name})")]
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    }
    file.close()
    assert sqlites and ours == {**sqlites, "home": ["place"]}


def test_a_database_of_a_newer_release_is_refused_and_not_held(open_store, postgres: PostgresServer, url: str):
    open_store().close()
    postgres.run("UPDATE anabranch_schema SET version = 99", url)
    for _ in range(2):
        with pytest.raises(StoreError, match="has schema 99") as refusal:
            open_store()
        assert not isinstance(refusal.value, StoreBusy)
    with pytest.raises(StoreError, match="use the newer release"):
        PostgresStore.inspect(url)
    postgres.run(f"UPDATE anabranch_schema SET version = {VERSION}", url)
    open_store()


# --- a server that goes away -----------------------------------------------------------------------------------------


def cut_off(store: PostgresStore, postgres: PostgresServer) -> None:
    (backend,) = store.writer._all("SELECT pg_backend_pid()")[0]
    postgres.run(f"SELECT pg_terminate_backend({backend}, 5000)")


def test_a_writer_that_was_cut_off_comes_back_with_its_lock(open_store, postgres: PostgresServer, monkeypatch):
    monkeypatch.setattr(engine, "LOCK_WITHIN", 0.2)
    store = open_store()
    append(store, event(1))
    cut_off(store, postgres)
    with pytest.raises(StoreError):
        append(store, event(1, content="lost"))
    assert append(store, event(1, content="found")) == [Stored(2)]
    with pytest.raises(StoreBusy):
        open_store("elsewhere")


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_nobody_has_heard_of_is_found_out(open_store, monkeypatch, committed: bool):
    store = open_store()
    append(store, event(1))
    db = store.writer._postgres
    execute = db.execute

    def lose(sql: str, bindings=()):
        if sql != "COMMIT":
            return execute(sql, bindings)
        if committed:
            execute(sql)
        db.close()
        raise StoreError("the server has gone away")

    with monkeypatch.context() as broken:
        broken.setattr(db, "execute", lose)
        deleting = event(5, [["e", event(1).id]])
        if committed:
            assert append(store, deleting) == [Stored(2)]
            assert len(store.writer.take_removals()) == 1
        else:
            with pytest.raises(StoreError):
                append(store, deleting)
            assert store.writer.take_removals() == []
    assert append(store, event(1, content="next")) == [Stored(4 if committed else 2)]  # a removal has a position


def test_a_log_that_went_on_without_its_writer_is_written_to_no_more(open_store, postgres: PostgresServer, url: str):
    store = open_store()
    append(store, event(1))
    cut_off(store, postgres)
    other = open_store("elsewhere")
    append(other, event(1, content="of another"))
    other.close()
    with pytest.raises(StoreError):
        append(store, event(1, content="late"))
    with pytest.raises(StoreError, match="gone on without this process; start it again"):
        append(store, event(1, content="late"))
    assert append(open_store("elsewhere"), event(1, content="new")) == [Stored(3)]


def test_a_reader_goes_on_after_its_connection_was_cut(open_store, postgres: PostgresServer):
    store = open_store()
    append(store, event(1))
    with store.reader() as reader:
        (backend,) = reader._rows("SELECT pg_backend_pid()")[0]
        postgres.run(f"SELECT pg_terminate_backend({backend}, 5000)")
        assert reader.changes(None, 0, None, 10).complete_to == 1


def test_a_query_that_takes_too_long_is_given_up_and_the_reader_stays_usable(open_store):
    store = open_store()
    append(store, event(1))
    with store.reader() as reader:
        reader.give_up = lambda: True
        with pytest.raises(TooSlow):
            reader._rows("SELECT pg_sleep(60)")
        reader.give_up = None
        assert reader.log().tip == 1


def test_many_quick_statements_are_given_up_too(open_store):
    with open_store().reader() as reader:
        reader.give_up = lambda: True
        with pytest.raises(TooSlow):
            for _ in range(1_000):
                reader.log()


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStore]:
    """One author's six thousand events and two thousand documents, and hardly anything else."""
    store = PostgresStore.open(postgres.empty_url(), tmp_path_factory.mktemp("crowded"), durable=False)
    append(store, *(event(1, content=f"{n}") for n in range(6_000)))
    append(store, *(snapshot(f"doc-{n}", {"a": v}) for n in range(2_000) for v in (1, 2)))
    store.writer._db.execute("ANALYZE")  # as autovacuum does within a minute
    yield store
    store.close()


def rows_touched(plan: dict) -> int:
    scanned = plan["Node Type"].endswith("Scan") and plan["Node Type"] != "Subquery Scan"
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"] if scanned else 0
    return own + sum(rows_touched(inner) for inner in plan.get("Plans", ()))


@pytest.mark.parametrize("name", [*READS, *MORE_READS])
def test_a_small_question_is_answered_without_walking_through_the_store(
    crowded: PostgresStore, monkeypatch: pytest.MonkeyPatch, name: str
):
    tip, touched = crowded.log().tip, []
    with crowded.reader() as reader:
        db = reader._postgres
        execute = db.execute

        def explained(sql: str, bindings=()):
            if sql.startswith("SELECT"):
                ((plans,),) = execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", bindings).fetchall()
                touched.append(rows_touched(plans[0]["Plan"]))
            return execute(sql, bindings)

        monkeypatch.setattr(db, "execute", explained)
        monkeypatch.setattr(db, "one_by_one", lambda sql, bindings: iter(explained(sql, bindings)))
        (READS | MORE_READS)[name](reader, tip)
    assert touched and max(touched) <= 2_100, touched


def test_a_log_that_the_server_knows_nothing_of_yet_is_read_in_its_order_too(open_store):
    store = open_store(durable=False)
    append(store, *(event(1, content=f"{n}") for n in range(1_000)))
    sql, bindings = feed_page(OF_ONE, False)
    with store.reader() as reader:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
        ((plans,),) = reader._postgres.execute(explained, [500, 1_000, 10, *bindings]).fetchall()
    assert rows_touched(plans[0]["Plan"]) <= 50


# --- what is said, and what is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:hunter2@127.0.0.1:1/none",
        "postgresql://user:hunter2@no.such.host.invalid/none",
        "postgresql://user:hunter2%zz@127.0.0.1/none",
        "postgresql://user:hunter2@127.0.0.1:port/none",
        "postgresql://user:hunter2@/none?host=/no/such/folder",
    ],
)
def test_no_error_tells_the_password(address: str, tmp_path: Path):
    for act in (lambda: PostgresStore.inspect(address), lambda: PostgresStore.open(address, tmp_path / "data")):
        with pytest.raises(StoreError) as refusal:
            act()
        assert "hunter2" not in str(refusal.value) and refusal.value.__cause__ is None


def test_a_place_is_shown_without_its_password():
    for address, place in {
        "postgresql://ann:secret@db.example:5433/notes": "postgresql://ann@db.example:5433/notes",
        "postgres://db.example/notes?password=secret&sslmode=require": "postgresql://db.example/notes?sslmode=require",
        "postgresql://ann:secret@/notes?host=/run/postgresql": "postgresql://ann@/notes?host=/run/postgresql",
    }.items():
        assert Address(address).place == place
        assert Address(place).place == place


# --- text and statements ---------------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("a\0\ufdd0" + "01")))
def test_any_text_comes_back_as_it_was_and_without_a_nul_meanwhile(text: str):
    assert "\0" not in stored_text(text) and loaded_text(stored_text(text)) == text


@given(st.lists(st.text(st.sampled_from("\0\ufdd0" + "01")), min_size=2, max_size=2, unique=True))
def test_texts_that_differ_are_stored_as_texts_that_differ(texts: list[str]):
    assert stored_text(texts[0]) != stored_text(texts[1])


def test_coordinates_with_any_character_and_recipients_of_any_length_are_kept(open_store):
    store = open_store()
    recipient = "é" * 20_000
    append(store, snapshot("a\0b\ufdd0", {"x": 1}), revision(d="c\0", p=recipient))
    with store.reader() as reader:
        one, two = reader.facts()
        assert one.coordinate == "a\0b\ufdd0" and two.coordinate == "c\0" and two.revision.recipient == recipient
        assert len(reader.changes(RevisionQuery(recipient), 0, None, 10).entries) == 1
        assert not reader.changes(RevisionQuery(recipient[:64]), 0, None, 10).entries
        assert reader.damage() == []


def test_tables_that_were_empty_when_the_server_looked_at_them_do_not_lead(open_store, postgres: PostgresServer):
    append(open_store(), *(revision(f"{n:064x}", d=f"{n}") for n in range(2_100)))
    store = open_store("another", postgres.new_url())
    store.writer._db.execute("ANALYZE")
    store.writer._db.execute("SET statement_timeout = '8s'")
    for who in AUTHORS[:2]:
        stored = append(store, *(revision(f"{n:064x}", d=f"{n}", p=who) for n in range(2_100)))
        assert all(isinstance(one, Stored) for one in stored)


def test_a_join_is_made_in_the_order_in_which_it_is_written():
    assert translated("SELECT a.x FROM a CROSS JOIN b c ON c.y = f(a.x) WHERE c.z = ?") == (
        "SELECT a.x FROM a CROSS JOIN LATERAL (SELECT * FROM b c WHERE c.y = f(a.x) OFFSET 0) c WHERE c.z = $1"
    )
    sources = Path(engine.__file__).parent.glob("sql*.py")
    written = [line for source in sources for line in source.read_text().splitlines() if "CROSS JOIN" in line]
    assert written and all(re.search(r"CROSS JOIN [\w{}]+ \w( ON |[ \"]*$)", line) for line in written), written


def test_variables_are_numbered_as_sqlite_numbers_them():
    assert translated("a = ? AND b = ?2 AND c = ?1 AND d = ?") == "a = $1 AND b = $2 AND c = $1 AND d = $3"
    assert translated("x IN () AND y = ?3 AND z = ?") == "x IN (NULL) AND y = $3 AND z = $4"
