"""Events: taken exactly when they are what NIP-01 says, kept as they came."""

import hashlib
import json

import msgspec
import pytest
from histories import event, signed
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.core import nostr
from anabranch.core.nostr import Invalid, Limits

LIMITS = Limits()
GOOD = signed(1, [["t", "x"]], "hi\nthere", 1_700_000_000)
RAW = nostr.serialise(GOOD)
text = st.text(st.characters(codec="utf-8"), max_size=20)
awkward = st.one_of(
    text, st.text(st.sampled_from('\0\x01\x1f\x7f\x80\b\f\n\r\t"\\/\u2028\ufeff\uffff😀é<&'), max_size=8)
)
scalars = st.one_of(st.none(), text, st.integers(), st.floats(allow_nan=False, allow_infinity=False))
json_values = st.recursive(scalars, st.lists, max_leaves=4)


def slow_id(e) -> str:
    """NIP-01 by the standard library: UTF-8, no white space, no escapes that are not needed."""
    signed_part = [0, e.pubkey, e.created_at, e.kind, e.tags, e.content]
    return hashlib.sha256(json.dumps(signed_part, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def parse(raw: bytes, limits: Limits = LIMITS):
    return nostr.parse(raw, limits)


def with_field(name: str, value: object) -> bytes:
    return json.dumps({**msgspec.to_builtins(GOOD), name: value}).encode()


# --- identity ----------------------------------------------------------------------------------------------------


@given(awkward, st.lists(st.lists(awkward, min_size=1, max_size=3), max_size=3), st.integers(0, 2**53 - 1))
@example("\0\x01\b\t\n\x0b\f\r\x1f\x7f\x80 \"\\/'<>&\u2028\u2029\ufeff\U0010ffff", [[""]], 0)
def test_the_id_is_what_nip01_says_for_every_text(content, tags, created_at):
    made = event(1, tags, content, created_at)
    assert made.id == slow_id(made)
    parsed, kept = parse(nostr.serialise(made))
    assert parsed == made
    assert kept == nostr.serialise(made)


@pytest.mark.parametrize(
    "content, spelled",
    [
        ("\n", rb"\n"), ('"', rb"\""), ("\\", rb"\\"), ("\r", rb"\r"), ("\t", rb"\t"), ("\b", rb"\b"), ("\f", rb"\f"),
        ("/", b"/"), ("\x7f", b"\x7f"), ("é", "é".encode()), ("\u2028", "\u2028".encode()), ("😀", "😀".encode()),
        ("\0", rb"\u0000"), ("\x1b", rb"\u001b"),
    ],
    ids=ascii,
)  # fmt: skip
def test_what_is_hashed_escapes_only_what_it_must(content, spelled):
    assert nostr.preimage("k", 1, 2, [["t"]], content) == b'[0,"k",1,2,[["t"]],"' + spelled + b'"]'


def test_an_event_known_from_elsewhere_has_its_id():
    """Computed by hand from the text of NIP-01, not by this code."""
    spelled = b'[0,"' + b"aa" * 32 + b'",1700000000,1,[["e","x"],["p","y","z"]],"say \\"hi\\"\\n\xe2\x9c\x93"]'
    assert (
        nostr.event_id("aa" * 32, 1_700_000_000, 1, [["e", "x"], ["p", "y", "z"]], 'say "hi"\n✓')
        == hashlib.sha256(spelled).hexdigest()
    )


# --- what is kept ------------------------------------------------------------------------------------------------


@given(awkward, st.permutations(nostr.Event.__struct_fields__), st.booleans(), st.sampled_from([None, 1]))
def test_any_valid_spelling_is_taken_and_kept_as_it_came(content, order, ascii_only, indent):
    """Order, white space and needless escapes are the sender's; only line breaks between tokens become blanks."""
    made = event(1, [["t", content]], content)
    fields = msgspec.to_builtins(made)
    raw = json.dumps({name: fields[name] for name in order}, ensure_ascii=ascii_only, indent=indent).encode()
    parsed, kept = parse(raw)
    assert parsed == made
    assert kept == raw.replace(b"\n", b" ")
    assert b"\n" not in kept
    assert parse(kept) == (made, kept)


def test_white_space_around_an_event_makes_no_second_line():
    parsed, kept = parse(b" \r\n" + RAW.replace(b',"kind"', b'\r\n,\t"kind"') + b"\n")
    assert parsed == GOOD
    assert kept.splitlines() == [kept] and json.loads(kept) == json.loads(RAW)


@given(st.dictionaries(text, json_values, min_size=1, max_size=3), st.booleans())
def test_fields_that_were_not_signed_are_not_kept(extra, first):
    extra = {name: value for name, value in extra.items() if name not in nostr.Event.__struct_fields__}
    fields = msgspec.to_builtins(GOOD)
    raw = json.dumps({**extra, **fields} if first else {**fields, **extra}, separators=(",", ":")).encode()
    assert parse(raw) == (GOOD, RAW)


@pytest.mark.parametrize("name", nostr.Event.__struct_fields__)
def test_a_field_that_stands_twice_is_refused(name):
    value = json.dumps(msgspec.to_builtins(GOOD)[name]).encode()
    for spelled in (name.encode(), b"\\u%04x%s" % (ord(name[0]), name[1:].encode())):
        for raw in (
            b'{"' + spelled + b'":' + value + b"," + RAW[1:],
            RAW[:-1] + b',"' + spelled + b'":' + value + b"}",
        ):
            with pytest.raises(Invalid):
                parse(raw)


def test_a_stranger_that_stands_twice_is_refused_or_not_kept():
    try:
        assert parse(RAW[:-1] + b',"x":1,"x":2}') == (GOOD, RAW)
    except Invalid:
        pass


STRANGERS = {
    "a number of 5000 digits": b"9" * 5_000,
    "a negative number of 5000 digits": b"-" + b"9" * 5_000,
    "bytes that are not UTF-8": b'"\xff\xfe"',
    "a surrogate in bytes": b'"\xed\xa0\x80"',
    "a lone surrogate": b'"\\ud800"',
    "a number beyond every float": b"1e999",
    "NaN": b"NaN",
    "a deep list": b"[" * 900 + b"]" * 900,
    "a very deep list": b"[" * 50_000 + b"]" * 50_000,
    "a very deep object": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "a control character": b'"\x01"',
}


@pytest.mark.parametrize("value", STRANGERS.values(), ids=STRANGERS)
def test_an_awkward_unsigned_field_is_dropped_or_refused_and_nothing_else(value):
    try:
        assert parse(RAW[:-1] + b',"x":' + value + b"}") == (GOOD, RAW)
    except Invalid:
        pass


def test_an_awkward_name_of_an_unsigned_field_is_dropped_or_refused():
    for name in (b"\xff", b"\\ud800", b"\\u0000", b""):
        try:
            assert parse(RAW[:-1] + b',"' + name + b'":1}') == (GOOD, RAW)
        except Invalid:
            pass


# --- what is refused ---------------------------------------------------------------------------------------------

WRONG = {
    "id": [None, 1, True, [], {}, "", GOOD.id.upper(), GOOD.id[:-1], GOOD.id + "0", " " + GOOD.id[1:], "0" * 64],
    "pubkey": [None, 1, [], "", GOOD.pubkey.upper(), GOOD.pubkey[:-2], "g" * 64, "é" * 32, "٣" * 64, "0 " * 32],
    "created_at": [None, True, False, "1700000000", 1.5, 1_700_000_000.0, -1, 2**53, 2**63, 2**64, 2**100, [], {}],
    "kind": [None, True, "1", 1.0, -1, 65_536, 2**64, [1]],
    "tags": [None, "t", 1, {}, [1], ["t"], [[1]], [[None]], [["t", 1]], [["t", ["x"]]], [[]], [["t"], []], [{}]],
    "content": [None, 1, True, [], {}, ["x"]],
    "sig": [None, 1, "", GOOD.sig.upper(), GOOD.sig[:-2], GOOD.sig + "00", "z" * 128],
}


def named(value: object) -> str:
    """The same name in every run: signatures are not."""
    said = ascii(value)
    return said if len(said) < 24 else f"{len(said)} characters"


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in WRONG.items() for value in values], ids=named
)
def test_a_field_of_the_wrong_type_or_shape_is_refused(name, value):
    with pytest.raises(Invalid):
        parse(with_field(name, value))


@pytest.mark.parametrize("name", nostr.Event.__struct_fields__)
def test_a_missing_field_is_refused(name):
    fields = msgspec.to_builtins(GOOD)
    del fields[name]
    with pytest.raises(Invalid):
        parse(json.dumps(fields).encode())


@pytest.mark.parametrize("number", [b"1e3", b"1E3", b"1000.0", b"+1000", b"01000", b"0x3e8", b"1_000", b'"1000"'])
def test_a_number_that_is_not_spelled_as_an_integer_is_refused(number):
    made = signed(created_at=1_000)
    raw = nostr.serialise(made).replace(b'"created_at":1000', b'"created_at":' + number)
    assert number in raw
    with pytest.raises(Invalid):
        parse(raw)


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"null", b"true", b"0", b'""', b"[]", b"{}", b"{", RAW[:-1], RAW + b"x", RAW + RAW, RAW + b"\0",
     b"\xef\xbb\xbf" + RAW, RAW.decode().encode("utf-16"), b"[" + RAW + b"]", b"\xff", b"[" * 100_000],
    ids=lambda raw: ascii(raw)[:20],
)  # fmt: skip
def test_what_is_no_object_in_utf8_is_refused(raw):
    with pytest.raises(Invalid):
        parse(raw)


@pytest.mark.parametrize(
    "content",
    [
        rb"\ud800", rb"\udc00", rb"\udc00\ud800", rb"\ud800x", b"\xed\xa0\x80", b"\xff", b"\xc0\xaf", b"\n", b"\0",
        rb"\x41", rb"\u00",
    ],
    ids=ascii,
)  # fmt: skip
def test_content_that_is_no_text_is_refused(content):
    raw = RAW.replace(rb"hi\nthere", content)
    assert raw != RAW
    with pytest.raises(Invalid):
        parse(raw)


@given(st.binary(max_size=40), st.integers(0, len(RAW)), st.integers(0, 12))
def test_damaged_bytes_are_refused_or_mean_the_same(noise, at, cut):
    """Whatever comes, the answer is an event whose id is true, or `Invalid`."""
    try:
        parsed, kept = parse(RAW[:at] + noise + RAW[at + cut :])
    except Invalid:
        return
    assert slow_id(parsed) == parsed.id
    assert parse(kept) == (parsed, kept)


@given(st.sampled_from(["pubkey", "created_at", "kind", "tags", "content"]), st.data())
def test_an_event_whose_content_was_changed_is_refused(name, data):
    other = {
        "pubkey": signed(secret=2).pubkey,
        "created_at": GOOD.created_at + data.draw(st.integers(1, 9)),
        "kind": data.draw(st.integers(2, 9)),
        "tags": data.draw(st.sampled_from([[], [["t", "y"]], [["t"]], [["t", "x", ""]], [["t", "x"], ["t", "x"]]])),
        "content": data.draw(text.filter(lambda t: t != GOOD.content)),
    }
    with pytest.raises(Invalid, match="id does not match"):
        parse(with_field(name, other[name]))


# --- limits ------------------------------------------------------------------------------------------------------


def test_limits_are_inclusive():
    made = signed(1, [["t", "x"], ["t", "y"]], "é" * 10)
    raw = nostr.serialise(made)
    just = Limits(event_bytes=len(raw), tags=2, content_characters=10)
    assert parse(raw, just) == (made, raw)
    for tighter in ({"event_bytes": len(raw) - 1}, {"tags": 1}, {"content_characters": 9}):
        with pytest.raises(Invalid):
            parse(raw, msgspec.structs.replace(just, **tighter))


def test_bytes_may_come_as_a_view_or_as_raw_json():
    assert parse(memoryview(RAW)) == parse(msgspec.Raw(RAW)) == (GOOD, RAW)


@pytest.mark.parametrize("kind", [0, 65_535])
def test_every_kind_of_the_range_is_taken(kind):
    assert parse(nostr.serialise(event(kind)))[0].kind == kind


@pytest.mark.parametrize(
    "created_at, ahead, behind, taken",
    [(110, 10, None, True), (111, 10, None, False), (90, None, 10, True), (89, None, 10, False), (0, 0, None, True),
     (2**53 - 1, None, None, True)],
)  # fmt: skip
def test_time_is_bounded_on_both_sides_where_configured(created_at, ahead, behind, taken):
    limits = Limits(created_at_ahead=ahead, created_at_behind=behind)
    if taken:
        nostr.timely(event(1, created_at=created_at), limits, now=100)
    else:
        with pytest.raises(Invalid):
            nostr.timely(event(1, created_at=created_at), limits, now=100)


@pytest.mark.parametrize(
    "value, expires_at",
    [("100", 100), ("0", 0), ("00100", 100), ("", None), ("-1", None), ("1.5", None), ("1e3", None), ("٣", None),
     ("²", None), (" 1", None), ("9" * 16, 9_999_999_999_999_999), ("9" * 17, None)],
    ids=ascii,
)  # fmt: skip
def test_an_unreadable_expiration_is_none(value, expires_at):
    assert nostr.expiration(event(1, [["expiration", value]])) == expires_at


def test_an_event_expires_at_its_moment():
    made = event(1, [["expiration", "100"]], created_at=1)
    nostr.timely(made, LIMITS, now=99)
    with pytest.raises(Invalid, match="expired"):
        nostr.timely(made, LIMITS, now=100)


# --- small rules -------------------------------------------------------------------------------------------------


def test_every_kind_is_of_at_most_one_sort():
    for kind in range(65_536):
        sorts = [nostr.is_replaceable(kind), nostr.is_ephemeral(kind), nostr.is_addressable(kind)]
        assert sum(sorts) <= 1
    assert [kind for kind in (0, 1, 2, 3, 4, 5, 9_999, 10_000, 19_999, 20_000) if nostr.is_replaceable(kind)] == [
        0, 3, 10_000, 19_999,
    ]  # fmt: skip


versions = st.tuples(st.integers(0, 3), st.sampled_from(["0a", "0b", "f0"]))


@given(versions, versions)
def test_of_two_different_versions_exactly_one_is_newer(a, b):
    assert nostr.newer(*a, *b) + nostr.newer(*b, *a) == (a != b)


def test_the_later_version_wins_and_of_equals_the_lower_id():
    assert nostr.newer(2, "f", 1, "a") and nostr.newer(1, "a", 1, "f")


def test_tag_values_are_those_of_tags_that_have_one():
    made = event(1, [["t"], ["t", "x", "y"], ["tt", "z"], ["t", ""]])
    assert made.values("t") == ["x", ""]
    assert (made.first("t"), made.first("q")) == ("x", None)


@given(st.text(max_size=4))
def test_hex_is_lower_case_digits_of_just_that_length(candidate):
    assert nostr.is_hex(candidate, 4) == (len(candidate) == 4 and all(c in "0123456789abcdef" for c in candidate))
