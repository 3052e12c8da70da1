"""Negentropy: messages as the oracle's, the difference always, and nothing but Malformed for what is no message."""

import array
import math
import random
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from negentropy_oracle import Oracle, fingerprint
from negentropy_sets import Item, Sides, almost_lost, item_makers, items_of, limits, sides, sizes

from anabranch.core import negentropy, negentropy_items
from anabranch.core.negentropy import Items, Malformed, Reconciler

FINGERPRINT_OF_NOTHING = sha256(bytes(33)).digest()[:16]
EXTREME = [bytes(32), b"\xff" * 32, b"\1" + bytes(31), bytes(31) + b"\1", bytes(7) + b"\x80" + bytes(24)]


def laid_over(members: set[Item], seed: int) -> Items:
    """The same set, as changes over another one."""
    source = random.Random(seed)
    ordered = sorted(members)
    base = [item for item in ordered if source.random() < 0.7] + [(5, source.randbytes(32)) for _ in range(9)]
    changed = items_of(base)
    base_set = set(base)
    for part in range(3):
        added = [item for item in ordered if item not in base_set][part::3]
        changed = changed.changed(added, [item for item in base if item not in members][part::3])
    return changed


def sync(one: Reconciler, other: Reconciler) -> tuple[list[bytes], list[bytes], int]:
    have, need, rounds = [], [], 0
    message: bytes | None = one.initiate()
    while message is not None:
        step = one.reconcile(other.respond(message))
        have, need, message, rounds = have + step.have, need + step.need, step.message, rounds + 1
        assert rounds < 1000
    return have, need, rounds


# The difference, and the messages


@given(sides(), limits, limits)
def test_every_message_is_the_oracles_in_both_roles(two, limit, other_limit):
    ours, theirs = Reconciler(items_of(two.initiator), limit), Reconciler(items_of(two.responder), other_limit)
    oracle, other_oracle = Oracle(two.initiator, limit), Oracle(two.responder, other_limit)
    have, need = [], []
    message = ours.initiate()
    assert message == oracle.initiate()
    while message is not None:
        answer = theirs.respond(message)
        assert answer == other_oracle.respond(message)
        step = ours.reconcile(answer)
        message = step.message
        assert message == oracle.reconcile(answer)
        assert not limit or len(message or b"") <= limit
        assert not other_limit or len(answer) <= other_limit
        have += step.have
        need += step.need
        assert set(have) == oracle.have and set(need) == oracle.need
    assert sorted(have) == two.have and sorted(need) == two.need


@given(sides(), st.integers(0, 9), limits)
def test_a_changed_set_speaks_as_one_built_afresh(two, seed, limit):
    fresh, changed = items_of(two.initiator), laid_over(two.initiator, seed)
    assert list(changed) == list(fresh) == sorted(two.initiator)
    assert changed.fingerprint == fresh.fingerprint and len(changed) == len(fresh) and changed.ids() == fresh.ids()
    peer = Reconciler(items_of(two.responder), limit)
    one, other = Reconciler(fresh, limit), Reconciler(changed, limit)
    message = one.initiate()
    assert message == other.initiate()
    while message is not None:
        answer = peer.respond(message)
        step = one.reconcile(answer)
        assert step == other.reconcile(answer)
        message = step.message
    first = Reconciler(items_of(two.responder)).initiate()
    assert Reconciler(changed, limit).respond(first) == Reconciler(fresh, limit).respond(first)


@given(sides())
def test_without_a_limit_the_rounds_grow_with_the_logarithm(two):
    _, _, rounds = sync(Reconciler(items_of(two.initiator)), Reconciler(items_of(two.responder)))
    larger = max(len(two.initiator), len(two.responder), 2)
    assert rounds <= 1 + math.ceil(math.log(larger, 256))


@given(sides())
def test_with_a_limit_the_rounds_grow_with_the_bytes(two):
    """Each side fills its frames: what the two of them would say without a limit bounds how many there are."""
    _, _, rounds = sync(Reconciler(items_of(two.initiator), 4096), Reconciler(items_of(two.responder), 4096))
    assert rounds <= 4 + 2 * 32 * (len(two.initiator) + len(two.responder)) / 4096


def test_equal_sets_need_one_answer_of_one_byte():
    items = items_of([(n, sha256(b"%d" % n).digest()) for n in range(1000)])
    assert Reconciler(items).respond(Reconciler(items).initiate()) == b"\x61"
    assert sync(Reconciler(items), Reconciler(items)) == ([], [], 1)


def test_a_set_is_learnt_whole_from_nothing_and_the_other_way_round():
    items = items_of([(7, sha256(b"%d" % n).digest()) for n in range(1000)])
    empty = items_of([])
    assert sync(Reconciler(empty), Reconciler(items))[:2] == ([], items.ids())
    assert sync(Reconciler(items), Reconciler(empty))[:2] == (items.ids(), [])
    assert sync(Reconciler(empty, 4096), Reconciler(items, 4096))[:2] == ([], items.ids())


@pytest.mark.parametrize("long_gaps", [31, 36, 42, 50])
def test_nothing_is_lost_where_the_reference_implementations_lose_it(long_gaps):
    two = almost_lost(long_gaps)
    one, other = (Oracle(members, 4096, as_others_do=True) for members in (two.initiator, two.responder))
    message = one.initiate()
    while message is not None:
        message = one.reconcile(other.respond(message))
    assert len(one.have) < len(two.have), "this case does not show the defect any more"
    have, need, _ = sync(Reconciler(items_of(two.initiator), 4096), Reconciler(items_of(two.responder), 4096))
    assert sorted(have) == two.have and need == []
    mirrored = Reconciler(items_of(two.responder), 4096), Reconciler(items_of(two.initiator), 4096)
    assert sorted(sync(*mirrored)[1]) == two.have


def test_what_follows_a_full_frame_waits_for_a_later_message():
    """Both sides go over the rest again: the list after it is not compared yet, nor is anything told twice."""
    members = {(n, sha256(b"%d" % n).digest()) for n in range(30 * 33)}
    ranges = (negentropy_items.varint(34) + b"\x00\x01" + bytes(16)) * 30
    message = b"\x61" + b"\x01\x00\x02\x01" + EXTREME[1] + ranges + b"\x00\x00\x02\x01" + EXTREME[2]
    initiator, oracle = Reconciler(items_of(members), 4096), Oracle(members, 4096)
    initiator.initiate()
    oracle.initiate()
    step = initiator.reconcile(message)
    assert step.message == oracle.reconcile(message) and len(step.message) > 3500
    assert (step.have, step.need) == ([], [EXTREME[1]]) and oracle.need == {EXTREME[1]}


@pytest.mark.parametrize("start", [2**31, 2**32 + 5, 2**53 + 5, 2**64 - 2 - 700 * 3])
def test_timestamps_have_64_bits(start):
    members = [(start + 3 * n, sha256(b"%d" % n).digest()) for n in range(700)]
    one, other = items_of(members[:-30]), items_of(members[40:])
    assert sync(Reconciler(one), Reconciler(other))[:2] == (
        [id_ for _, id_ in members[:40]],
        [id_ for _, id_ in members[-30:]],
    )
    assert Reconciler(one).initiate() == Oracle(set(members[:-30])).initiate()


# The wire


def test_the_first_message_of_an_empty_set():
    assert Reconciler(items_of([])).initiate() == bytes.fromhex("6100000200")


def test_few_items_are_spelt_out():
    id_ = bytes(range(32))
    assert Reconciler(items_of([(300, id_)])).initiate() == bytes.fromhex("6100000201") + id_


def test_thirty_two_items_become_sixteen_fingerprints_with_the_shortest_bounds():
    members = [(1000, bytes((n // 2, n)) + bytes(30)) for n in range(30)] + [(1200, EXTREME[1]), (1300, EXTREME[1])]
    message = Reconciler(items_of(members)).initiate()
    at = 1
    for pair in range(15):
        # The first offset is 1000 + 1; after it the timestamp stays the same, until the last pair begins at 1200.
        offset = b"\x87\x69" if pair == 0 else b"\x01" if pair < 14 else b"\x81\x49"
        prefix = b"\x01" + bytes((pair + 1,)) if pair < 14 else b"\x00"
        expected = offset + prefix + b"\x01" + fingerprint(members[2 * pair : 2 * pair + 2])
        assert message[at : at + len(expected)] == expected
        at += len(expected)
    assert message[at:] == b"\x00\x00\x01" + fingerprint(members[30:])


def test_adjacent_ranges_that_need_no_answer_become_one_skip():
    members = [(n, sha256(b"%d" % n).digest()) for n in range(64)]
    message = Reconciler(items_of(members)).initiate()
    answer = Reconciler(items_of(members[:-1])).respond(message)
    last = b"".join(id_ for _, id_ in members[60:63])
    assert answer == bytes.fromhex("613d000000000203") + last
    assert Reconciler(items_of(members[1:])).respond(message)[:6] == bytes.fromhex("6105000203") + members[1][1][:1]


def test_an_unknown_version_is_answered_with_ours():
    assert Reconciler(items_of([])).respond(b"\x62\xff\xff") == b"\x61"
    initiator = Reconciler(items_of([]))
    initiator.initiate()
    with pytest.raises(Malformed, match="version 2 is not supported"):
        initiator.reconcile(b"\x62")


@given(st.lists(st.sampled_from(EXTREME) | st.binary(min_size=32, max_size=32), max_size=70), st.data())
def test_the_fingerprint_of_any_stretch_is_that_of_its_items(ids, data):
    members = list(enumerate(ids))
    items = items_of(members)
    edge = st.integers(0, len(ids))
    low, high = sorted([data.draw(edge), data.draw(edge)])
    assert items.fingerprints(np.array([low]), np.array([high])) == [fingerprint(members[low:high])]
    assert items.fingerprint == fingerprint(members)


def test_the_fingerprint_of_nothing():
    assert items_of([]).fingerprint == FINGERPRINT_OF_NOTHING


# What is no message

RANGE = bytes.fromhex("0500")  # a bound at timestamp 4
MALFORMED = {
    "nothing": (b"", "does not begin with a version"),
    "another first byte": (b"\x21\x00", "does not begin with a version"),
    "a bound and no more": (b"\x61" + RANGE, "ends within a range"),
    "an unfinished number": (b"\x61\x85", "ends within a range"),
    "a number of 65 bits": (b"\x61\x82" + b"\x80" * 8 + b"\x00\x00\x00", "more than 64 bits"),
    "an endless number": (b"\x61" + b"\x80" * 50_000, "more than 64 bits"),
    "a prefix of 33 bytes": (b"\x61\x05\x21" + bytes(33) + b"\x00", "33 bytes of an id"),
    "a prefix of 2^63 bytes": (b"\x61\x05" + b"\x81" + b"\x80" * 8 + b"\x00\x00", "bytes of an id"),
    "a prefix cut off": (b"\x61\x05\x20" + bytes(7), "ends within a range"),
    "mode 3": (b"\x61" + RANGE + b"\x03", "mode 3"),
    "half a fingerprint": (b"\x61" + RANGE + b"\x01" + bytes(8), "ends within a range"),
    "a list cut off": (b"\x61" + RANGE + b"\x02\x02" + bytes(63), "ends within a range"),
    "2^63 ids": (b"\x61" + RANGE + b"\x02\x81" + b"\x80" * 8 + b"\x00", "ends within a range"),
    "a byte too many": (b"\x61" + RANGE + b"\x00\x01", "ends within a range"),
    "a prefix that descends": (b"\x61\x05\x01\x09\x00" + b"\x01\x01\x08\x00", "do not ascend"),
    "a prefix that ends": (b"\x61\x05\x01\x09\x00" + b"\x01\x00\x00", "do not ascend"),
    "infinity that descends": (b"\x61\x00\x01\x09\x00" + b"\x00\x00\x00", "do not ascend"),
}


@pytest.mark.parametrize("message, reason", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_message_is_malformed_and_says_why(message, reason):
    items = items_of([(4, bytes(32))])
    initiator = Reconciler(items)
    initiator.initiate()
    for receive in (Reconciler(items).respond, initiator.reconcile):
        with pytest.raises(Malformed, match=reason):
            receive(message)


@pytest.mark.parametrize(
    "message",
    [
        b"\x61",
        b"\x61\x00\x00\x00" + b"\x00\x00\x01" + FINGERPRINT_OF_NOTHING,  # nothing after infinity: full frames end so
        b"\x61\x05\x01\x09\x00" + b"\x01\x01\x09\x00",  # the same bound twice
        b"\x61\x05\x02\x09\x00\x00" + b"\x01\x01\x09\x00",  # the same, as missing bytes are zero
        b"\x61" + (b"\x81" + b"\x80" * 8 + b"\x01\x00\x00") * 3,  # 2^63, and what adds up beyond infinity is infinity
        b"\x61\x80\x80\x05\x00\x00",  # more digits than it takes
    ],
)
def test_what_others_understand_is_understood(message):
    assert Reconciler(items_of([])).respond(message) == b"\x61"


@given(sides(), st.binary(max_size=200), st.booleans())
@example(Sides(set(), set(), set()), b"\x61", False)
def test_random_bytes_are_answered_or_malformed(two, noise, ours):
    receive_both(two, (b"\x61" if ours else b"") + noise)


@given(sides(), st.integers(0, 5), st.data())
def test_a_damaged_message_is_answered_or_malformed(two, turn, data):
    message = a_message(two, turn)
    for _ in range(data.draw(st.integers(1, 3))):
        at, until = sorted(data.draw(st.tuples(*[st.integers(0, len(message))] * 2)))
        damage = data.draw(st.sampled_from(["cut", "drop", "repeat", "flip", "noise"]))
        if damage == "cut":
            message = message[:until]
        elif damage == "drop":
            message = message[:at] + message[until:]
        elif damage == "repeat":
            message = message[:until] + message[at:]
        elif damage == "flip" and at < len(message):
            message = message[:at] + bytes((message[at] ^ data.draw(st.integers(1, 255)),)) + message[at + 1 :]
        else:
            message = message[:at] + data.draw(st.binary(max_size=12)) + message[at:]
    receive_both(two, message)


def a_message(two: Sides, turn: int) -> bytes:
    """The message number `turn` of a session, or its last."""
    one, other = Reconciler(items_of(two.initiator), 4096), Reconciler(items_of(two.responder), 4096)
    said = [one.initiate()]
    while len(said) <= turn:
        message = other.respond(said[-1]) if len(said) % 2 else one.reconcile(said[-1]).message
        if message is None:
            break
        said.append(message)
    return said[-1]


def receive_both(two: Sides, message: bytes) -> None:
    initiator = Reconciler(items_of(two.initiator), 4096)
    initiator.initiate()
    responder = Reconciler(items_of(two.responder), 4096)
    try:
        answer = responder.respond(message)
        assert len(answer) <= 4096
        assert message[0] != 0x61 or answer == Oracle(two.responder, 4096).respond(message)
    except Malformed:
        pass
    try:
        step = initiator.reconcile(message)
        assert len(step.message or b"") <= 4096
        oracle = Oracle(two.initiator, 4096)
        oracle.initiator = True
        assert step.message == oracle.reconcile(message)
        assert set(step.have) == oracle.have and set(step.need) == oracle.need
    except Malformed:
        pass


# Work and memory


def many_ranges(count: int, step: int, payload: bytes) -> bytes:
    return b"\x61" + (negentropy_items.varint(step + 1) + b"\x00" + payload) * count


@pytest.mark.parametrize("payload", [b"\x00", b"\x01" + bytes(16), b"\x02\x00"], ids=["skip", "fingerprint", "list"])
@pytest.mark.parametrize("step", [0, 1, 40], ids=["empty ranges", "one item each", "forty each"])
def test_a_message_of_100000_ranges_costs_no_more_than_it_says(payload, step):
    """Anything worse than linear would not end in time. Ranges do not overlap: no item is answered for twice."""
    count, members = 100_000, 50_000
    items = Items.build(range(members), random.Random(1).randbytes(32 * members))
    message = many_ranges(count, step, payload)
    answer = Reconciler(items).respond(message)
    assert len(answer) <= len(message) + 4 * count + 32 * members
    assert len(Reconciler(items, 4096).respond(message)) <= 4096
    initiator = Reconciler(items)
    initiator.initiate()
    step_taken = initiator.reconcile(message)
    assert len(step_taken.message or b"") <= len(message) + 4 * count + 32 * members
    assert len(step_taken.have) <= members and step_taken.need == []


def test_bounds_by_id_among_equal_timestamps_are_bisected():
    members = sorted((5, sha256(b"%d" % n).digest()) for n in range(20_000))
    bounds = b"".join(b"\x01\x20" + id_ + b"\x00" for _, id_ in members[1:])
    message = b"\x61" + b"\x06\x20" + members[0][1] + b"\x00" + bounds + b"\x00\x00\x01" + bytes(16)
    answer = Reconciler(items_of(members)).respond(message)
    assert answer == b"\x61\x06\x20" + members[-1][1] + b"\x00" + b"\x00\x00\x02\x01" + members[-1][1]


def test_the_same_id_is_reported_once_however_often_it_is_told():
    initiator = Reconciler(items_of([(5, EXTREME[0])]), 4096)
    initiator.initiate()
    told = b"\x61\x00\x00\x02\x03" + EXTREME[1] * 3
    assert (initiator.reconcile(told).have, initiator.reconcile(told).need) == ([EXTREME[0]], [])
    other = Reconciler(items_of([]))
    other.initiate()
    assert other.reconcile(told).need == [EXTREME[1]]


# The set


@given(item_makers(), sizes, st.randoms(use_true_random=False))
def test_a_set_is_sorted_whatever_the_order_and_has_no_duplicates(make, size, source):
    members = sorted(make(size))
    shuffled = members + source.sample(members, len(members) // 2)
    source.shuffle(shuffled)
    items = items_of(shuffled)
    assert list(items) == members and len(items) == len(members)
    assert items.ids() == [id_ for _, id_ in members]
    assert all(member in items for member in members[:20])
    assert (members[0][0] ^ 1, members[0][1]) not in items if members else True
    assert items.memory_bytes >= 72 * len(items)


@pytest.mark.parametrize(
    "timestamps",
    [
        range(3),
        (0, 1, 2),
        array.array("q", [0, 1, 2]),
        array.array("Q", [0, 1, 2]),
        np.arange(3, dtype=np.uint64),
        np.arange(3, dtype=np.int32),
        np.arange(6)[::2] // 2,
    ],
    ids=lambda value: type(value).__name__,
)
def test_timestamps_come_as_any_sequence_or_array(timestamps):
    ids = b"".join(EXTREME[:3])
    assert list(Items.build(timestamps, ids)) == [(0, EXTREME[0]), (1, EXTREME[1]), (2, EXTREME[2])]


@pytest.mark.parametrize(
    "timestamps, ids",
    [([1], b""), ([], bytes(32)), ([-1], bytes(32)), ([2**64 - 1], bytes(32)), ([2**64], bytes(32)),
     (np.array([-1]), bytes(32)), (np.array([0.5]), bytes(32)), (["x"], bytes(32)), ([1], bytes(31))],
)  # fmt: skip
def test_what_is_no_item_is_refused(timestamps, ids):
    with pytest.raises(ValueError):
        Items.build(timestamps, ids)


def test_a_set_does_not_see_what_becomes_of_the_arrays_it_was_built_from():
    times = np.array([1, 2], np.uint64)
    items = Items.build(times, EXTREME[0] + EXTREME[1])
    times[0] = 9
    assert list(items) == [(1, EXTREME[0]), (2, EXTREME[1])]


changes = st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 3), st.sampled_from(EXTREME)), max_size=12)


@given(st.sets(st.tuples(st.integers(0, 3), st.sampled_from(EXTREME))), st.lists(changes, max_size=5))
def test_changes_remove_then_add_whatever_was_there(members, series):
    items, expected = items_of(members), set(members)
    for change in series:
        removed = [(time, id_) for sign, time, id_ in change if sign == "-"]
        added = [(time, id_) for sign, time, id_ in change if sign == "+"]
        before = list(items)
        after = items.changed(added, removed)
        assert list(items) == before
        items, expected = after, (expected - set(removed)) | set(added)
        assert list(items) == sorted(expected) and items.fingerprint == fingerprint(sorted(expected))
        assert all((item in items) == (item in expected) for item in added + removed)


def test_a_small_change_shares_the_large_arrays_and_a_large_one_is_folded():
    source = random.Random(3)
    items = Items.build(range(20_000), source.randbytes(32 * 20_000))
    new = [(n, source.randbytes(32)) for n in range(5000)]
    small, large = items.changed(new[:100], []), items.changed(new, [])
    assert small._base is items._base and small.memory_bytes < items.memory_bytes + 100 * 200
    assert large._delta is None and large.memory_bytes == 72 * 25_000 + 32
    assert list(large) == list(items.changed(new[:4000], []).changed(new[4000:], []))
    back = large.changed([], new)
    assert list(back) == list(items) and back.fingerprint == items.fingerprint
    assert items.changed(new[:9], []).changed([], new[:9])._delta is None


# Misuse


def test_a_frame_limit_below_4096_is_refused():
    for limit in (1, 4095, -1):
        with pytest.raises(ValueError, match="at least 4096"):
            Reconciler(items_of([]), limit)


def test_roles_do_not_change_within_a_session():
    session = Reconciler(items_of([]))
    with pytest.raises(RuntimeError):
        session.reconcile(b"\x61")
    session.initiate()
    with pytest.raises(RuntimeError):
        session.initiate()
    with pytest.raises(RuntimeError):
        session.respond(b"\x61")


def test_the_constants_are_those_of_the_specification():
    assert (negentropy.VERSION, negentropy.BUCKETS, negentropy.LISTED_MAX) == (0x61, 16, 31)
