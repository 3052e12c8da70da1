"""What a relay says is understood the same whether it is spelled as most do it or not."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.wire import dialogue
from anabranch.wire.dialogue import REASON_MAX, Changed, NegMessage, Ok, Stored, Unknown

values = st.one_of(
    st.text(max_size=4), st.integers(-1, 2**54), st.booleans(), st.none(), st.floats(0, 9), st.just({"id": "é"})
)
messages = st.builds(
    lambda verb, name, what, rest: [verb, *name, *what, *rest],
    st.sampled_from(["OK", "EVENT", "CHANGES", "EOSE", "NOTICE"]),
    st.lists(values, max_size=1),
    st.lists(st.sampled_from(["EVENT", "EOSE", "ERR", "DELETED"]), max_size=1),
    st.lists(values, max_size=3),
)


@given(messages, st.sampled_from([(",", ":"), (" , ", ": ")]))
@example(["OK", "i", True, "x" * 1_000], (",", ":"))
@example(["CHANGES", "s", "EVENT", 2**53, {"id": "é"}], (",", ":"))
def test_the_usual_spelling_changes_nothing(message, separators):
    text = json.dumps(message, separators=separators, ensure_ascii=False)
    assert dialogue.read(text.encode()) == dialogue.read(text)


def test_what_there_is_much_of_is_read_at_once():
    assert dialogue._usual(b'["OK","i",false,"%b"]' % (b"x" * 400)) == Ok("i", False, "x" * REASON_MAX)
    assert dialogue._usual(b'["EVENT","s",{"a" : 1}]') == Stored("s", b'{"a" : 1}')
    assert dialogue._usual(b'["CHANGES","s","EVENT",7,{}]') == Changed("s", 7, b"{}")


@pytest.mark.parametrize("begins", [b'["EVENT","s",', b'["CHANGES","s","EVENT",1,', b'["OK",'])
@pytest.mark.parametrize("deeper", [b"[", b'{"a":'])
def test_what_has_no_bottom_is_no_message(begins, deeper):
    assert isinstance(dialogue.read(begins + deeper * 200_000), Unknown)


@pytest.mark.parametrize(
    "message",
    [
        b'["NOTICE",[' + b"[]," * 100_000 + b"[]]]",
        b'["CHANGES","sub","COMPACTED",{"a":[' + b"[]," * 100_000 + b"[]]}]",
        b'["NOTICE"' + b",0" * 100_000 + b"]",
        b'["OK","x",true,"",' + b'{"":0},' * 50_000 + b"0]",
    ],
)
def test_what_is_only_long_is_not_taken_apart(message, monkeypatch):
    taken_apart = []
    monkeypatch.setattr(dialogue, "_any", lambda part: taken_apart.append(part) or msgspec.json.decode(part))
    assert isinstance(dialogue.read(message), Unknown)
    assert sum(len(bytes(part)) for part in taken_apart) < 100


def test_a_long_text_is_read_where_negentropy_needs_it():
    assert dialogue.read(b'[ "NEG-MSG", "n", "' + b"61" * 200_000 + b'"]') == NegMessage("n", "61" * 200_000)


@pytest.mark.parametrize("element", ["1", '""'])
@pytest.mark.parametrize("verb", ["EVENT", "CHANGES", "NEG-MSG", "OK"])
def test_what_has_more_elements_than_any_message_is_none(verb, element):
    few, many = (json.dumps([verb]).removesuffix("]") + f",{element}" * count + "]" for count in (3, 20_000))
    assert isinstance(dialogue.read(many.encode()), Unknown)
    assert isinstance(dialogue.read(many), Unknown)
    assert dialogue.read(few)
