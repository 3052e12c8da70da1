"""Canonical JSON is that of RFC 8785."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import canonical
from anabranch.core.nostr import Invalid

# RFC 8785, appendix B, and the corners of ECMAScript's Number::toString.
NUMBERS = {
    0.0: "0",
    5e-324: "5e-324",
    -5e-324: "-5e-324",
    1.7976931348623157e308: "1.7976931348623157e+308",
    9007199254740992.0: "9007199254740992",
    295147905179352830000.0: "295147905179352830000",
    9.999999999999997e22: "9.999999999999997e+22",
    1e23: "1e+23",
    1.0000000000000001e23: "1.0000000000000001e+23",
    999999999999999700000.0: "999999999999999700000",
    1e21: "1e+21",
    9.999999999999997e-7: "9.999999999999997e-7",
    0.000001: "0.000001",
    333333333.3333332: "333333333.3333332",
    -0.0000033333333333333333: "-0.0000033333333333333333",
    1424953923781206.2: "1424953923781206.2",
    1.0: "1",
    1e-7: "1e-7",
    123e-20: "1.23e-18",
    4.5: "4.5",
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-canonical.INTEGER_MAX, canonical.INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("number, text", NUMBERS.items())
def test_numbers_are_printed_as_ecmascript_prints_them(number: float, text: str):
    assert canonical.encode(number) == text


def test_members_stand_in_the_order_of_utf16_code_units():
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = list(json.loads(canonical.encode(dict.fromkeys(names, 0))))
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_the_sign_of_zero_is_dropped():
    assert canonical.encode(-0.0) == "0"


def test_an_integer_that_a_double_rounds_is_read_as_that_double():
    assert canonical.encode(canonical.decode("[61537433111275010, 1e20, 9007199254740991]")) == (
        "[61537433111275010,100000000000000000000,9007199254740991]"
    )


def test_what_is_no_json_is_refused():
    for wrong in ("", "{", "NaN", "[Infinity]", "[" * 100_000):
        with pytest.raises(Invalid):
            canonical.decode(wrong)


def test_strings_have_no_escape_that_is_not_needed():
    assert canonical.encode('\u20ac$\x0f\nA\'B"\\\\"/\x7f') == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f"'


@given(values)
def test_it_reads_back_as_the_same_value_and_writes_the_same_text_again(value: object):
    text = canonical.encode(value)
    read = canonical.decode(text)
    assert read == value
    assert canonical.encode(read) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_loses_nothing(number: float):
    assert float(canonical.encode(number)) == number


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9)), st.randoms())
def test_the_order_of_members_does_not_matter(members: dict[str, int], random):
    shuffled = list(members.items())
    random.shuffle(shuffled)
    assert canonical.encode(dict(shuffled)) == canonical.encode(members)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 2**53, -(2**53), "\ud800", {1: 2}, b"bytes", {"a": object()}])
def test_what_json_cannot_carry_exactly_is_refused(wrong: object):
    with pytest.raises(Invalid):
        canonical.encode(wrong)
