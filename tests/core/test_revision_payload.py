"""A revision's id follows from its payload and the owner's key, and from nothing else."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import nip44, revision_payload
from anabranch.core.nostr import Invalid, Keys
from anabranch.core.replica import Version

OWNER, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
KEY = revision_payload.id_key(nip44.conversation_key(OWNER, OWNER.pubkey))
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
contents = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3) | st.text("xy", max_size=2), max_size=3)


def version(payload: revision_payload.Payload, **other: object) -> Version:
    fields = {
        "id": revision_payload.revision_id(payload, KEY),
        "coordinate": payload.d,
        "deletes": payload.op == "del",
        "mtime": 1,
        "parents": payload.parents,
    }
    return Version(**{**fields, **other})  # type: ignore[arg-type]


@given(st.lists(hashes, max_size=3, unique=True), st.booleans(), contents, st.randoms())
def test_the_order_of_parents_and_members_does_not_matter(parents: list[str], deletes: bool, content: dict, random):
    shuffled, members = list(parents), list(content.items())
    random.shuffle(shuffled)
    random.shuffle(members)
    a = revision_payload.build("d", parents, deletes, content)
    b = revision_payload.build("d", shuffled, deletes, dict(members))
    assert revision_payload.revision_id(a, KEY) == revision_payload.revision_id(b, KEY)
    assert revision_payload.read(a.text, version(a), KEY).content == content


def test_everything_in_the_payload_makes_another_id():
    builds = [
        revision_payload.build("d", [], False, {}),
        revision_payload.build("e", [], False, {}),
        revision_payload.build("d", ["0" * 64], False, {}),
        revision_payload.build("d", [], True, {}),
        revision_payload.build("d", [], False, {"a": 1}),
        revision_payload.build("d", [], False, {"attachments": [1]}),
    ]
    ids = {revision_payload.revision_id(payload, key) for payload in builds for key in (KEY, b"\0" * 32)}
    assert len(ids) == 12


def test_the_key_of_the_ids_is_the_owners_alone():
    theirs = revision_payload.id_key(nip44.conversation_key(OTHER, OTHER.pubkey))
    shared = revision_payload.id_key(nip44.conversation_key(OTHER, OWNER.pubkey))
    assert len({KEY, theirs, shared}) == 3


def test_outer_tags_that_say_something_else_are_refused():
    payload = revision_payload.build("d", ["1" * 64], False, {"a": 1, "attachments": ["x"]})
    assert revision_payload.read(payload.text, version(payload), KEY).content == {"a": 1, "attachments": ["x"]}
    for wrong in (
        {"coordinate": "e"},
        {"deletes": True},
        {"parents": ()},
        {"parents": ("2" * 64,)},
        {"id": "3" * 64},
    ):
        with pytest.raises(Invalid):
            revision_payload.read(payload.text, version(payload, **wrong), KEY)
    for text in ("", "[]", '{"d":"d"}', payload.text[:-1] + ',"more":1}', " " + payload.text):
        with pytest.raises(Invalid):
            revision_payload.read(text, version(payload), KEY)
        signed = hmac.digest(KEY, text.encode(), "sha256").hex()
        if text[:1] != " ":
            with pytest.raises(Invalid):
                revision_payload.read(text, version(payload, id=signed), KEY)


def test_numbers_that_only_a_double_holds_survive():
    payload = revision_payload.build("d", [], False, {"a": 1e20, "b": 61537433111275010.0})
    assert revision_payload.read(payload.text, version(payload), KEY).content == {"a": 1e20, "b": 61537433111275010.0}
