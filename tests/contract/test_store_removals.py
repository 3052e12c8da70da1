"""Every hard removal stands in the log at a position of its own, and nothing else does."""

import msgspec
import pytest
from histories import AUTHORS, event, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from revision_histories import REVISIONS, revision, revision_histories, vanishing
from stores import NOW, Opened, Stores

from anabranch.core import nostr
from anabranch.core.nostr import Event, Keys
from anabranch.core.operation import Removal
from anabranch.store import integrity, log_pages
from anabranch.store.contract import Line
from anabranch.store.log_pages import entries_between, position_of

FAMILIES = {"plain": event(1), "replaceable": event(10_002), "snapshot": snapshot(), "revision": revision()}


def told(opened: Opened) -> list[tuple[int, int, str]]:
    return [(one.position, one.target, one.reason) for one in opened.reader.removals(0, 1_000, 1_000)]


def by_deletion(opened: Opened, target: Event) -> str:
    opened.append(event(nostr.DELETION, [["e", target.id]], author=target.pubkey))
    return "deleted by its author"


def by_vanishing(opened: Opened, target: Event) -> str:
    opened.append(vanishing(target.pubkey, target.created_at))
    return "vanished"


def by_the_operator(opened: Opened, target: Event) -> str:
    opened.writer.remove([target.id])
    return "removed by the relay's operator"


@pytest.mark.parametrize("remove", [by_deletion, by_vanishing, by_the_operator])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_hard_removal_takes_a_position_whatever_the_family(opened: Opened, family: str, remove):
    target = FAMILIES[family]
    opened.append(target)
    reason = remove(opened, target)
    tip = opened.reader.log().tip
    assert told(opened) == [(tip, 1, reason)]
    (removal,) = [one for one in opened.writer.take_removals() if one.position is not None]
    assert (removal.position, removal.id) == (tip, target.id)
    assert opened.reader.damage() == []
    opened.append(event(1, content="next", author=AUTHORS[2]))
    assert opened.facts()[-1].position == tip + 1


def test_what_expires_takes_a_position_too(opened: Opened):
    opened.append(snapshot(expires_at=NOW), event(1, [["expiration", str(NOW)]]), revision(expires_at=NOW))
    opened.writer.expire(NOW, 100)
    assert told(opened) == [(4, 1, "expired"), (5, 2, "expired"), (6, 3, "expired")]


def test_what_is_replaced_compacted_or_forgotten_takes_none(opened: Opened):
    opened.append(event(10_002, created_at=1), event(10_002, created_at=2))
    opened.append(snapshot("B", {"laptop": 1}), snapshot("B", {"laptop": 2}, deletes=True))
    opened.writer.compact([3])
    opened.writer.raise_floor(5)
    document = next(facts.document for facts in opened.facts() if facts.coordinate == "B")
    assert opened.writer.forget([document]) == 1
    assert (told(opened), opened.reader.log().tip) == ([], 4)


def test_a_document_is_forgotten_with_its_removals_and_not_before_the_floor_is_above_them(opened: Opened):
    one, other = snapshot("B", {"laptop": 1}), snapshot("B", {"laptop": 2}, deletes=True)
    opened.append(one, other)
    opened.writer.remove([one.id])
    (deleted,) = opened.reader.deleted_documents(AUTHORS[0])
    assert deleted.last_position == 3
    opened.writer.raise_floor(3)
    assert opened.writer.forget([deleted.document]) == 0
    opened.writer.raise_floor(4)
    assert opened.writer.forget([deleted.document]) == 1
    assert (told(opened), opened.facts(), opened.reader.damage()) == ([], [], [])


@settings(max_examples=30)
@given(data=st.data())
def test_pages_of_the_log_laid_end_to_end_are_all_of_it(stores: Stores, data):
    """Operations and removals by position, however small the pages are."""
    history = data.draw(revision_histories())
    with stores.open(history) as opened:
        opened.writer.remove([one.id for one in data.draw(st.lists(st.sampled_from(history), max_size=6))])
        tip = opened.reader.log().tip
        removals = {one.position: one for one in opened.reader.removals(0, tip, 1_000)}
        everything = removals | {
            facts.position: facts if facts.raw is None else Line(facts.position, facts.raw) for facts in opened.facts()
        }
        after, until = sorted(data.draw(st.tuples(*[st.integers(0, tip)] * 2)))
        found = list(entries_between(opened.reader, after, until, data.draw(st.integers(1, 4))))
        assert found == [everything[at] for at in sorted(everything) if after < at <= until]
        lines, at = [], 0
        while at < tip:
            head, entries = log_pages.read_page(log_pages.page(opened.reader, at, None, data.draw(st.integers(1, 3))))
            lines += entries
            assert head.complete_to > at
            at = head.complete_to
        assert [line.position for line in lines] == sorted(everything)
        for line in lines:
            entry = everything[line.position]
            assert position_of(entry) == line.position
            if isinstance(entry, Removal):
                said = msgspec.structs.asdict(line.removal)
                assert said == {
                    "id": entry.id,
                    "position_of": entry.target,
                    "reason": entry.reason,
                    "revision": entry.revision,
                }
            else:
                assert line.removal is None and bool(line.event) is isinstance(entry, Line)


def test_the_name_of_a_removed_revision_is_told(opened: Opened):
    opened.append(revision(REVISIONS[1]))
    opened.writer.remove([revision(REVISIONS[1]).id])
    _, entries = log_pages.read_page(log_pages.page(opened.reader, 1, None, 9))
    assert [entry.removal.revision for entry in entries] == [REVISIONS[1]]


def test_verify_knows_who_has_vanished_and_where_the_log_ends(opened: Opened):
    leaving = Keys(b"\x08" * 32)
    opened.append(leaving.sign(1, [], "written", 1), leaving.sign(nostr.VANISH, [["relay", "ALL_RELAYS"]], "", 2))

    def found() -> list[tuple[int | None, str]]:
        return [(one.position, one.what) for one in integrity.verify(opened.reader, workers=0).found]

    assert (opened.reader.log().tip, found()) == (3, [])
    opened.writer._db.execute("UPDATE vanished SET until = 1")
    assert found() == [(2, "this request to vanish is not remembered")]
    opened.writer._db.execute("UPDATE log SET tip = 2")
    assert found()[-1] == (3, "lies beyond the tip, where the next operation will want to be")
    opened.writer._db.execute("UPDATE operations SET head = 2")
    assert (None, "the file itself: 2 operations whose head mark is neither 0 nor 1") in found()
