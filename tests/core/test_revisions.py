"""Revisions: what is one, and which are heads, in whatever order they come."""

import msgspec
import pytest
from histories import event, operation
from hypothesis import given
from hypothesis import strategies as st
from revision_histories import MTIMES, RECIPIENTS, REVISIONS, revision, revisions

from anabranch.core import revisions as rules
from anabranch.core.nostr import Invalid
from anabranch.core.operation import Action, Family, document_key
from anabranch.core.revisions import GIFT_WRAP, PARENTS_MAX, advance, heads, is_revision, validate

P, A, B, C = RECIPIENTS[0], *REVISIONS[:3]
MALFORMED = r"^missing or malformed revision metadata$"
GOOD = {
    "p": ["p", P],
    "d": ["d", "note"],
    "r": ["r", A],
    "prev": ["prev", B],
    "op": ["op", "put"],
    "m": ["m", "1700000000000"],
    "type": ["type", "note"],
    "v": ["v", "2"],
}


def wrapped(*tags: list[str]):
    return event(GIFT_WRAP, tags)


def with_tag(name: str, *tags: list[str]):
    """A good revision whose tag of that name was replaced by these, or by none."""
    return wrapped(*(tag for key, tag in GOOD.items() if key != name), *tags)


# --- what is a revision --------------------------------------------------------------------------------------------


def test_every_field_is_read():
    facts = validate(wrapped(*GOOD.values(), ["prev", C]))
    assert facts == rules.Facts(P, "note", A, (B, C), False, 1_700_000_000_000, "note")
    assert validate(with_tag("op", ["op", "del"])).deletes is True


def test_a_root_names_no_parent_and_a_merge_several():
    assert validate(with_tag("prev")).parents == ()
    assert validate(with_tag("prev", ["prev", C], ["prev", B])).parents == (C, B)
    assert validate(with_tag("prev", ["prev", C], ["prev", B], ["prev", C])).parents == (C, B), "each once, in order"


@pytest.mark.parametrize("name", ["p", "d", "r", "op", "m"])
def test_a_revision_that_lacks_a_tag_is_refused(name):
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag(name))


@pytest.mark.parametrize("name", ["prev", "type", "v"])
def test_parents_type_and_schema_may_be_missing(name):
    assert validate(with_tag(name)).revision == A


@pytest.mark.parametrize("name", ["p", "d", "r", "op", "m", "type", "v"])
def test_a_tag_that_stands_twice_is_refused_even_where_both_say_the_same(name):
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag(name, GOOD[name], GOOD[name]))


@pytest.mark.parametrize("name", list(GOOD))
@pytest.mark.parametrize("rest", [[], [""]], ids=["no value", "empty"])
def test_a_tag_without_a_value_is_refused(name, rest):
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag(name, [name, *rest]))


@pytest.mark.parametrize(
    "tag",
    [
        *(["r", value] for value in (A.upper(), A[:-1], A + "0", "x" * 64, "é" * 64, " " + A[1:], "0x" + A[2:])),
        *(["prev", value] for value in (B.upper(), B[:-2], "x", "х" * 64)),
        ["prev", A],  # its own parent
        *(["op", value] for value in ("PUT", "delete", "patch", "put ", "0")),
        *(["m", value] for value in ("-1", "+1", "1.0", "1e3", " 1", "1 ", "1_000", "0x10", "x", "١٢٣", "²", "1\n")),
        *(["m", value] for value in ("9007199254740992", "99999999999999999", "1" * 400)),
        *(["v", value] for value in ("1", "3", "02", "2.0", "two")),
    ],
    ids=lambda tag: ascii(tag)[:40],
)
def test_a_tag_that_is_malformed_is_refused(tag):
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag(tag[0], tag))


@pytest.mark.parametrize("recipient", [P + "\0" + "0", f"{P}\0000\0note", "a\nb"])
def test_a_recipient_that_cannot_be_shown_is_refused(recipient):
    """It is the namespace, and part of a document's name: no two pairs of recipient and `d` may look alike there."""
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag("p", ["p", recipient]))


@pytest.mark.parametrize("m", ["0", "007", str(2**32 - 1), str(2**32), str(2**53 - 1)])
def test_any_number_of_milliseconds_that_json_can_carry_is_a_time(m):
    assert validate(with_tag("m", ["m", m])).mtime == int(m)


def test_what_stands_after_a_value_and_tags_of_other_names_do_not_matter():
    more = [[*tag, "hint"] for tag in GOOD.values()] + [["alt", "x"], ["expiration", "5"], ["P", "x"], ["e"]]
    assert validate(wrapped(*more)) == validate(wrapped(*GOOD.values()))


def test_a_thousand_parents_are_taken_and_no_more():
    parents = [["prev", f"{n:064x}"] for n in range(PARENTS_MAX + 1)]
    assert len(validate(with_tag("prev", *parents[:-1])).parents) == 1_000
    with pytest.raises(Invalid, match=MALFORMED):
        validate(with_tag("prev", *parents))


@pytest.mark.parametrize("tags", [[], [["p", P]], [["p", P], ["p", "x"]], [["p"]], [["alt", "x"], ["expiration", "9"]]])
def test_a_gift_wrap_with_none_of_the_tags_is_an_ordinary_event(tags):
    made = operation(wrapped(*tags))
    assert not is_revision(made.event)
    assert (made.family, made.document, made.revision) == (Family.PLAIN, None, None)


@pytest.mark.parametrize("name", [name for name in GOOD if name != "p"])
@pytest.mark.parametrize("rest", [True, False], ids=["with a value", "bare"])
def test_one_of_the_tags_is_enough_to_be_held_to_all_of_them(name, rest):
    partly = wrapped(GOOD["p"], GOOD[name] if rest else [name])
    assert is_revision(partly)
    with pytest.raises(Invalid, match=MALFORMED):
        operation(partly)


@pytest.mark.parametrize("kind", [1, 13, 14, 1058, 1060, 30_023, 21_059])
def test_only_a_gift_wrap_is_ever_a_revision(kind):
    made = operation(event(kind, list(GOOD.values())))
    assert made.family is Family.PLAIN and made.revision is None


@given(revisions())
def test_an_operation_says_of_its_document_what_the_revision_says(made):
    found = operation(made)
    facts = validate(made)
    assert (found.family, found.revision, found.coordinate) == (Family.REVISION, facts, facts.coordinate)
    assert found.document == document_key(Family.REVISION, facts.recipient, 0, facts.coordinate)
    assert found.action is (Action.DELETE if facts.deletes else Action.PUT)
    assert facts.mtime in MTIMES


def test_the_outer_event_is_no_identity_of_anything():
    one, other = revision(A, author="aa" * 32, created_at=1), revision(A, author="bb" * 32, created_at=2, content="x")
    assert one.id != other.id
    assert (operation(one).document, operation(one).revision) == (operation(other).document, operation(other).revision)


def test_documents_of_two_recipients_two_names_or_two_families_are_apart():
    keys = {
        operation(revision()).document,
        operation(revision(p=RECIPIENTS[1])).document,
        operation(revision(d="B")).document,
        document_key(Family.SNAPSHOT, P, 0, "A"),
        document_key(Family.PLAIN, P, 0, "A"),
    }
    assert len(keys) == 5


# --- heads ---------------------------------------------------------------------------------------------------------


class R(msgspec.Struct, frozen=True):
    revision: str
    parents: tuple[str, ...] = ()


@st.composite
def graphs(draw):
    """Any graph over a few revisions: chains, forks, merges, cycles, parents that are nowhere."""
    names = "abcdefgh"
    known = draw(st.sets(st.sampled_from(names), max_size=8))
    edges = {
        name: tuple(sorted(draw(st.sets(st.sampled_from([n for n in names if n != name]), max_size=4))))
        for name in known
    }
    return [R(name, edges[name]) for name in sorted(known)]


def slow_heads(of):
    """The oracle: ask of every revision whether any other names it."""
    return [one for one in of if not any(one.revision in other.parents for other in of)]


def folded(of):
    """The heads, one revision at a time, as the store keeps them."""
    current, there, named = [], set(), set()
    for one in of:
        if one.revision in there:
            continue
        current = advance(current, one, one.parents, one.revision in named)
        there.add(one.revision)
        named.update(one.parents)
    return current


@given(graphs())
def test_heads_are_what_asking_every_pair_finds(of):
    assert heads(of) == slow_heads(of)


@given(graphs(), st.data())
def test_the_order_of_arrival_and_duplicates_do_not_matter(of, data):
    again = data.draw(st.lists(st.sampled_from(of), max_size=4)) if of else []
    assert heads(data.draw(st.permutations(of + again))) == slow_heads(of)


@given(graphs(), st.data())
def test_heads_advanced_one_by_one_are_the_heads_of_all_in_any_order(of, data):
    again = data.draw(st.lists(st.sampled_from(of), max_size=4)) if of else []
    arrived = data.draw(st.permutations(of + again))
    assert sorted(folded(arrived), key=lambda one: one.revision) == slow_heads(of)


@given(graphs(), st.data())
def test_heads_of_a_whole_are_those_of_its_parts_that_no_part_names(of, data):
    """Not the heads of the heads: a part remembers all that it names, there or not, beside its heads."""
    a = [one for one in of if data.draw(st.booleans())]
    b = [one for one in of if one not in a or data.draw(st.booleans())]
    named = {parent for one in a + b for parent in one.parents}
    found = {one.revision: one for one in heads(a) + heads(b) if one.revision not in named}
    assert [found[name] for name in sorted(found)] == heads(a + b)


def test_a_parent_that_comes_after_its_child_is_no_head():
    """The reference makes it a false head."""
    child, parent, root = R("c", ("b",)), R("b", ("a",)), R("a")
    assert folded([child, root, parent]) == folded([child, parent, root]) == folded([root, parent, child]) == [child]


def test_the_heads_of_heads_are_not_enough_where_what_stands_between_is_missing():
    assert heads([R("c", ("b",)), R("a")]) == [R("a"), R("c", ("b",))]
    assert heads([R("c", ("b",)), R("b", ("a",)), R("a")]) == [R("c", ("b",))]


def test_a_fork_is_a_conflict_and_a_merge_ends_it():
    root, left, right = R("a"), R("b", ("a",)), R("c", ("a",))
    assert heads([root, left, right]) == [left, right]
    assert heads([root, left, right, R("d", ("b", "c"))]) == [R("d", ("b", "c"))]


def test_in_a_cycle_nothing_is_a_head_and_nothing_goes_on_for_ever():
    assert heads([R("a", ("b",)), R("b", ("a",))]) == []
    assert folded([R("a", ("b",)), R("b", ("a",))]) == []
    assert heads([R("a", ("b",)), R("b", ("a",)), R("c", ("a",))]) == [R("c", ("a",))]


def test_a_revision_that_is_there_already_does_not_stand_twice_among_the_heads():
    assert advance([R("a")], R("a"), (), False) == [R("a")]
