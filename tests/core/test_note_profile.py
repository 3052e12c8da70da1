"""The note profile: what apps write is read, and what they added is kept."""

import uuid

import pytest

from anabranch.core import canonical, notes
from anabranch.core.nostr import Invalid


def test_a_new_note_has_the_fields_of_the_profile():
    payload = notes.new("# Milk\nand bread", "device", 1_700_000_000_000, ["shopping"])
    assert set(payload) == {
        *("version", "device_id", "markdown", "note_created_at", "edited_at", "tags", "attachments")
    }
    note = notes.read(payload)
    assert (note.title, note.tags, note.edited_at) == ("Milk", ("shopping",), 1_700_000_000_000)
    canonical.encode(payload)


def test_an_edit_keeps_what_it_does_not_name_and_drops_what_is_none():
    payload = {**notes.new("a", "laptop", 1), "pinned_at": 5, "colour": "red"}
    after = notes.edited(payload, "phone", 2, markdown="b", pinned_at=None)
    assert after == {**notes.new("b", "phone", 1), "edited_at": 2, "colour": "red"}


def test_a_tombstone_says_when_and_where():
    assert notes.tombstone("laptop", 3) == {"version": 1, "device_id": "laptop", "deleted_at": 3}


@pytest.mark.parametrize(
    "wrong",
    [{}, {"version": 2, "markdown": "a"}, {**notes.new("a", "d", 1), "markdown": 3}, notes.tombstone("laptop", 3)],
)
def test_what_is_no_note_is_refused_and_told(wrong: dict):
    with pytest.raises(Invalid, match="note: "):
        notes.read(wrong)


def test_a_coordinate_is_an_upper_case_uuid_of_version_4():
    for _ in range(20):
        assert notes.is_coordinate(str(uuid.uuid4()).upper())
    assert not notes.is_coordinate(str(uuid.uuid4()))
    assert not notes.is_coordinate("9C5F1A9E-0F1A-11EE-8C99-0242AC120002")


def test_a_title_is_the_first_line_that_says_something():
    assert notes.read(notes.new("\n\n  ## Hello  \nworld", "d", 1)).title == "Hello"
    assert notes.read(notes.new(" \n#\n", "d", 1)).title == ""
    assert len(notes.read(notes.new("x" * 500, "d", 1)).title) == notes.TITLE_CHARACTERS_MAX
