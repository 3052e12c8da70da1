"""Plans of the SQLite store: a small question is answered at once, however much is stored."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from histories import AUTHORS, event, operation, snapshot

from anabranch.core import nostr
from anabranch.core.changes import LogQuery, SnapshotQuery
from anabranch.core.filter import Filter
from anabranch.core.operation import State
from anabranch.core.retention import ReplayWindow
from anabranch.core.snapshots import NOTE
from anabranch.store.contract import Offer
from anabranch.store.sqlite import SqliteStore


def append(store: SqliteStore, *events) -> list:
    return store.writer.append([Offer(operation(e)) for e in events], 0)


def facts(store: SqliteStore) -> list:
    with store.reader() as reader:
        return reader.facts()


def grown(folder: Path, count: int) -> SqliteStore:
    store = SqliteStore.open(folder, "OFF")
    append(store, *(event(1, content=str(n)) for n in range(count)))
    return store


def test_a_filter_with_many_tag_lists_is_planned_at_once(tmp_path: Path):
    """Each list more must not multiply the work of finding a plan, which no clock of ours would interrupt."""
    store = grown(tmp_path, 1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    append(store, event(1, [[letter, "x"] for letter in letters]))
    filter = Filter(tags=tuple((letter, frozenset("xyz")) for letter in letters))
    with store.reader() as reader:
        before = time.thread_time()
        assert len(reader.select([filter], 10, 0).positions) == 1
        assert reader.count([filter], 0) == 1
        assert time.thread_time() - before < 0.2
    store.close()


@pytest.mark.parametrize(
    "more", [{}, {"kinds": frozenset({1})}, {"since": 1}], ids=["alone", "and a kind", "and a time"]
)
def test_what_is_asked_for_by_id_is_found_without_looking_at_anything_else(tmp_path: Path, more: dict):
    store = grown(tmp_path, 6_000)
    wanted = facts(store)[500].id
    asked = [Filter(ids=frozenset({wanted, "00" * 32}), **more)]
    with store.reader() as reader:
        reader.give_up = lambda: True  # asked after 20 000 steps, which a walk through the log takes and more
        assert len(reader.select(asked, 10, 0).positions) == 1
        assert reader.state(wanted) is State.RETAINED
        assert reader.compacted([Filter(ids=frozenset({wanted}))]) == []
        assert reader.count(asked, 0) == 1
    store.close()


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[SqliteStore]:
    """One author's six thousand events and two thousand documents, and hardly anything else."""
    store = grown(tmp_path, 6_000)
    append(store, *(snapshot(f"doc-{n}", {"a": v}) for n in range(2_000) for v in (1, 2)))
    yield store
    store.close()


OF_ONE = LogQuery(Filter(authors=frozenset({AUTHORS[0]})))
READS = {
    "changes at the tip": lambda reader, tip: reader.changes(SnapshotQuery(AUTHORS[0]), tip - 1, None, 10),
    "changes of nobody": lambda reader, tip: reader.changes(SnapshotQuery(AUTHORS[1]), 0, None, 10),
    "the log at the tip": lambda reader, tip: reader.changes(None, tip - 1, None, 10),
    "a page of the log": lambda reader, tip: reader.changes(None, 500, None, 10),
    "the log of an author at the tip": lambda reader, tip: reader.changes(OF_ONE, tip - 1, None, 10),
    "a page of the log of an author": lambda reader, tip: reader.changes(OF_ONE, 500, None, 10),
    "the log of a tag at the tip": lambda reader, tip: reader.changes(LogQuery(by_tag("doc-7")), tip - 1, None, 10),
    "bootstrap of nobody": lambda reader, tip: reader.bootstrap(SnapshotQuery(AUTHORS[1]), None, 0),
    "first of a bootstrap": lambda reader, tip: reader.bootstrap(SnapshotQuery(AUTHORS[0]), 5, 0),
    "newest by author": lambda reader, tip: reader.select([Filter(authors=frozenset(AUTHORS), until=1, limit=5)], 9, 0),
    "one document by tag": lambda reader, tip: reader.select([by_tag("doc-7")], 9, 0),
    "one document by tag, kind and author": lambda reader, tip: reader.select(
        [by_tag("doc-7", kinds=frozenset({NOTE}), authors=frozenset({AUTHORS[0]}))], 9, 0
    ),
    "heads of a document": lambda reader, tip: reader.heads(operation(snapshot("doc-7")).document),
    "versions of a document": lambda reader, tip: reader.versions(operation(snapshot("doc-7")).document),
    "deleted documents": lambda reader, tip: reader.deleted_documents(AUTHORS[0]),
    "crowded authors": lambda reader, tip: reader.crowded_authors(5),
    "candidates": lambda reader, tip: reader.candidates(b"", 10**9, 5),
    "window": lambda reader, tip: reader.window_floor(ReplayWindow(500, 500, 500), 10**9),
    "payloads": lambda reader, tip: reader.payloads([5, tip]),
    "facts": lambda reader, tip: reader.facts(tip - 5, 5),
}


def by_tag(value: str, **more) -> Filter:
    return Filter(tags=(("d", frozenset({value})),), **more)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_small_question_is_answered_without_walking_through_the_store(crowded: SqliteStore, read):
    tip = crowded.log().tip
    with crowded.reader() as reader:
        reader.give_up = lambda: True  # asked after 20 000 steps
        read(reader, tip)


def test_an_append_looks_at_nothing_but_what_it_is_about(crowded: SqliteStore):
    """New, known, dominated, replaced, deleting: none walks through all that the author has."""
    known = facts(crowded)[7]
    offers = [
        event(1, content="new"),
        snapshot("doc-7", {"a": 3}),
        snapshot("doc-8", {"a": 1}, content="late"),
        event(10_002),
        event(10_002, created_at=2_000),
        event(30_023, [["d", "x"]]),
        event(nostr.DELETION, [["e", known.id], ["a", f"30023:{AUTHORS[0]}:x"]], created_at=3_000),
    ]
    append(crowded, offers[0])
    for offer in offers:
        crowded.writer._db.set_progress_handler(lambda: True, 5_000)
        append(crowded, offer)
        crowded.writer._db.set_progress_handler(None)
    with crowded.reader() as reader:
        assert reader.state(known.id) is State.REMOVED
