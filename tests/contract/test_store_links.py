"""The ledger of links: a page and its checkpoint are one, and what is written comes back."""

import msgspec
import pytest
from histories import filters, histories, operation, signed, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Opened, Stores

from anabranch.core import changes
from anabranch.core.changes import LogQuery
from anabranch.core.checkpoint import Blocked, Checkpoint
from anabranch.core.token import Position, ProgressToken
from anabranch.store import sql_books
from anabranch.store.contract import DeadLetter, Lacking, LinkChange, LinkRecord, Offer, Refused, Stored, Transition

LINK = LinkRecord("up", "ws://peer/", "both", created_at=5)


def token(position: int) -> ProgressToken:
    return ProgressToken("s", "e", Position(position), f"{position:064x}")


def test_a_link_comes_back_as_it_was_saved_and_its_checkpoints_stay_when_it_is_saved_again(opened: Opened):
    opened.writer.save_link(LINK)
    pull = Checkpoint.at(token(7)).settle([(token(9), "ab" * 32, Blocked("ab" * 32, "ancestry", "x", "not there"))])
    opened.writer.note_link(LinkChange("up", pull=pull, push=Checkpoint.at(token(3))))
    opened.writer.save_link(LinkRecord("up", "ws://peer/", "both", state="live", created_at=5))
    opened.reopen()
    (found,) = opened.reader.links()
    assert (found.state, found.pull, found.push) == ("live", pull, Checkpoint.at(token(3)))


def test_a_page_and_its_checkpoint_are_on_disk_together_or_not_at_all(opened: Opened):
    opened.writer.save_link(LINK)
    offers = [Offer(operation(snapshot(content=str(number)))) for number in range(3)]

    def fail(outcomes):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        opened.writer.append(offers, 0, fail)
    assert (opened.facts(), opened.reader.links()[0].pull) == ([], Checkpoint())

    def advance(outcomes):
        assert all(isinstance(outcome, Stored) for outcome in outcomes)
        return LinkChange("up", pull=Checkpoint.at(token(len(outcomes))))

    opened.writer.append(offers, 0, advance)
    assert (len(opened.facts()), opened.reader.links()[0].pull) == (3, Checkpoint.at(token(3)))


def test_an_echo_is_remembered_until_the_link_has_passed_it(opened: Opened):
    opened.writer.save_link(LINK)
    opened.writer.note_link(LinkChange("up", echoes=(Position(2), Position(5)), echo_for=("up", "nobody")))
    assert opened.reader.echoes("up", Position(0), Position(9)) == {2, 5}
    assert opened.reader.echoes("up", Position(2), Position(9)) == {5}
    opened.writer.note_link(LinkChange("up", push=Checkpoint.at(token(4))))
    assert opened.reader.echoes("up", Position(0), Position(9)) == {5}
    assert opened.reader.echoes("nobody", Position(0), Position(9)) == set()


def test_the_last_twenty_transitions_are_kept_and_dead_letters_until_they_are_tried_again(opened: Opened):
    opened.writer.save_link(LINK)
    for number in range(25):
        opened.writer.note_link(LinkChange("up", transition=Transition(number, "live", "repairing", "gap")))
    assert [one.at for one in opened.reader.transitions("up")] == list(range(5, 25))
    dead = DeadLetter("push", "ab" * 32, "blocked: no", 1)
    opened.writer.note_link(LinkChange("up", dead=(dead,)))
    assert opened.reader.dead_letters("up") == [dead]
    assert opened.writer.retry_dead_letters("up") == 1
    assert opened.reader.dead_letter_count("up") == 0


def test_what_leads_back_to_where_it_was_again_and_again_is_one_transition(opened: Opened):
    def turn(at: int, before: str, after: str, cue: str) -> None:
        opened.writer.note_link(LinkChange("up", transition=Transition(at, before, after, cue)))

    opened.writer.save_link(LINK)
    opened.writer.save_link(msgspec.structs.replace(LINK, name="other"))
    turn(1, "live", "repairing", "closure")
    for at in range(2, 40):
        turn(at, "repairing", "repairing", "closure")
        opened.writer.note_link(LinkChange("other", transition=Transition(at, "live", "repairing", "gap")))
    turn(40, "repairing", "repairing", "disorder")
    turn(41, "repairing", "repairing", "closure")
    found = [(one.at, one.before, one.cue) for one in opened.reader.transitions("up")]
    assert found == [
        (1, "live", "closure"),
        (39, "repairing", "closure"),
        (40, "repairing", "disorder"),
        (41, "repairing", "closure"),
    ]


def test_what_needs_something_of_its_group_is_stored_only_if_that_is(opened: Opened):
    gone, child, grandchild, parent, heir = (signed(content=said) for said in ("gone", "a", "b", "parent", "heir"))
    deletion = signed(kind=5, tags=[["e", gone.id]])
    outcomes = opened.writer.append(
        [
            Offer(operation(deletion)),
            Offer(operation(gone)),
            Offer(operation(child), needs=(gone.id,)),
            Offer(operation(grandchild), needs=(child.id,)),
            Offer(operation(parent)),
            Offer(operation(heir), needs=(parent.id,)),
        ],
        0,
    )
    assert [type(outcome) for outcome in outcomes] == [Stored, Refused, Lacking, Lacking, Stored, Stored]
    assert [one.need for one in outcomes if isinstance(one, Lacking)] == [gone.id, child.id]
    assert opened.reader.known([child.id, grandchild.id, parent.id, heir.id]) == {parent.id, heir.id}


def test_where_there_is_no_room_for_more_dead_letters_those_there_are_learn_what_is_new(opened: Opened, monkeypatch):
    monkeypatch.setattr(sql_books, "DEAD_LETTERS_MAX", 3)
    opened.writer.save_link(LINK)
    first = tuple(DeadLetter("push", f"{number:064x}", "blocked: no", 1) for number in range(2))
    opened.writer.note_link(LinkChange("up", dead=first))
    later = tuple(DeadLetter("push", f"{number:064x}", "blocked: still", 2) for number in (9, 8, 1, 0))
    opened.writer.note_link(LinkChange("up", dead=later))
    assert opened.reader.dead_letter_count("up") == 3
    assert {one.id: one.reason for one in opened.reader.dead_letters("up")} == {
        f"{number:064x}": "blocked: still" for number in (0, 1, 9)
    }


def test_a_removed_link_leaves_nothing_and_takes_nothing(opened: Opened):
    opened.writer.save_link(LINK)
    opened.writer.note_link(LinkChange("up", dead=(DeadLetter("push", "ab" * 32, "no", 1),)))
    assert opened.writer.delete_link("up")
    assert not opened.writer.delete_link("up")
    opened.writer.note_link(LinkChange("up", pull=Checkpoint.at(token(1)), echoes=(Position(1),), echo_for=("up",)))
    assert opened.reader.links() == []
    assert opened.reader.dead_letters("up") == []
    assert opened.reader.echoes("up", Position(0), Position(9)) == set()


def test_what_is_known_is_known_in_every_state(opened: Opened):
    here, gone = snapshot("A"), snapshot("B")
    opened.append(here, gone)
    opened.writer.remove([gone.id])
    assert opened.reader.known([here.id, gone.id, "00" * 32]) == {here.id, gone.id}


def test_a_log_feed_passes_over_the_positions_of_removals(opened: Opened):
    gone, here = snapshot("A"), snapshot("B")
    opened.append(gone, here)
    opened.writer.remove([gone.id])
    page = opened.reader.changes(LogQuery(), Position(0), None, 10)
    assert ([entry.id for entry in page.entries], page.complete_to, page.log.tip) == ([here.id], 3, 3)
    later = opened.reader.changes(LogQuery(), page.complete_to, None, 10)
    assert (later.entries, later.complete_to) == ([], 3)


@settings(max_examples=40)
@given(data=st.data())
def test_a_log_feed_carries_exactly_what_its_filter_matches(stores: Stores, data: st.DataObject):
    events = data.draw(histories())
    filter = data.draw(filters(events))
    query = LogQuery(type(filter)(filter.ids, filter.authors, filter.kinds, tags=filter.tags))
    with stores.open(events) as opened:
        whole = opened.reader.changes(None, Position(0), None, 1_000)
        page = opened.reader.changes(query, Position(0), None, 1_000)
        by_id = {event.id: operation(event) for event in events}
        wanted = [entry.id for entry in whole.entries if changes.matches(query, by_id[entry.id])]
        assert [entry.id for entry in page.entries] == wanted
        assert page.complete_to == whole.log.tip
