"""Negentropy: two sides find out what each lacks of the other's set, in a few messages.

A message, of protocol version 1, cuts the whole order of items into adjacent ranges and says of each: nothing more to
say (skip), a fingerprint, or all the ids it has there. The answer to a fingerprint that matches is a skip; to one that
does not, sixteen smaller fingerprints, or the ids where there are few. Ids end it: the initiator, who alone learns the
difference, compares them with its own; the responder answers them with its own.

Messages are equal, byte for byte, to those of the reference implementations (hoytech's specification leaves the
dividing open, they do not), but for one case in which theirs lose items (`_Turn.rest`). Whatever a peer sends costs
work linear in its length and a bisection a range; what is no message is `Malformed`. The answer to four bytes may be
as large as the whole set, unless the frame is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from anabranch.core.negentropy_items import (
    FINGERPRINT_BYTES,
    ID_BYTES,
    INFINITY,
    Items,
    Places,
    Times,
    varint,
)

__all__ = ["FRAME_BYTES_MIN", "Items", "Malformed", "Reconciler", "Step"]

VERSION = 0x61
VERSIONS = range(0x60, 0x70)  # the first byte of a message of any version, also of one to come
SKIP, FINGERPRINT, ID_LIST = 0, 1, 2
BUCKETS = 16
LISTED_MAX = 2 * BUCKETS - 1  # a stretch of at most so many items is spelt out
VARINT_BYTES_MAX = 10
FRAME_BYTES_MIN = 4096
FRAME_RESERVE = 200  # of a frame, left free for the fingerprint of what remains
BLOCK = 512  # ranges that are divided at once, but no more than fill a frame: what does not fit is work in vain
DIVISION_BYTES_MIN = BUCKETS * (3 + FINGERPRINT_BYTES)


class Malformed(ValueError):
    """The peer's message is no message of negentropy, or not of our version. The text may be shown to the peer."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a message taught the initiator, and what to send next: None when all of the difference is known."""

    message: bytes | None
    have: list[bytes]
    need: list[bytes]


class Reconciler:
    """One session, in either role, over a set that does not change."""

    def __init__(self, items: Items, frame_bytes_max: int = 0, *, have: bool = True, need: bool = True) -> None:
        """`have` and `need`: which of the two are to be told, where only one matters."""
        if frame_bytes_max and frame_bytes_max < FRAME_BYTES_MIN:
            raise ValueError(f"a frame limit is 0 (none) or at least {FRAME_BYTES_MIN} bytes, not {frame_bytes_max}")
        self._items = items
        self._frame_full = frame_bytes_max - FRAME_RESERVE if frame_bytes_max else 1 << 62
        self._initiator = False
        self._tells_have, self._tells_need = have, need
        # What was told already: after a full frame, both sides go over some ranges again.
        self._had: set[bytes] = set()
        self._needed: set[bytes] = set()

    def initiate(self) -> bytes:
        """The first message. It makes this side the initiator."""
        if self._initiator:
            raise RuntimeError("this session was initiated already")
        self._initiator = True
        whole = Ranges([INFINITY], [b""], [FINGERPRINT], [b""])
        return _VERSION + next(_Turn.over(self._items, whole).divisions([0]))

    def respond(self, message: bytes) -> bytes:
        """The responder's answer."""
        if self._initiator:
            raise RuntimeError("the initiator does not respond: call reconcile()")
        if not _is_our_version(message):
            return _VERSION
        turn = _Turn.over(self._items, read(message))
        return turn.answer(turn.differing() | turn.listed(), self._frame_full)[0]

    def reconcile(self, message: bytes) -> Step:
        """What the responder's answer teaches the initiator."""
        if not self._initiator:
            raise RuntimeError("only the initiator learns the difference: call initiate() first, or respond()")
        if not _is_our_version(message):
            raise Malformed(f"negentropy version {message[0] - VERSIONS.start} is not supported, only 1")
        turn = _Turn.over(self._items, read(message))
        answer, covered = turn.answer(turn.differing(), self._frame_full)
        have: list[bytes] = []
        need: list[bytes] = []
        for index in sorted(turn.listed()):
            if index < covered:
                ours, theirs = turn.own_ids(index), _split(turn.ranges.payloads[index])
                if self._tells_have:
                    have += _news(ours, set(theirs), self._had)
                if self._tells_need:
                    need += _news(theirs, set(ours), self._needed)
        return Step(answer if len(answer) > 1 else None, have, need)


@dataclass(slots=True)
class Ranges:
    """A message, read: columns of equal length. A range ends before its bound, a timestamp and a prefix of an id;
    it begins where the one before ends. Its payload is a fingerprint, or ids joined.
    """

    times: list[int] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def time_before(self, index: int) -> int:
        return self.times[index - 1] if index else 0

    def spelt(self, index: int, after: int) -> bytes:
        """The bound, after one with the timestamp `after`."""
        return _spelt(self.times[index], self.prefixes[index], after)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One message of the peer, laid over our set: each of its ranges is a stretch from `low` to before `high`."""

    items: Items
    ranges: Ranges
    low: Places
    high: Places

    @classmethod
    def over(cls, items: Items, ranges: Ranges) -> _Turn:
        times, prefixes = np.array(ranges.times, np.uint64), np.array(ranges.prefixes, f"S{ID_BYTES}")
        places = np.concatenate([[0], items.lower_bounds(times, prefixes)])
        return cls(items, ranges, places[:-1], places[1:])

    def differing(self) -> set[int]:
        """The ranges of which we have another fingerprint than the peer."""
        asked = self._of_mode(FINGERPRINT)
        ours = self.items.fingerprints(self.low[asked], self.high[asked])
        return {index for index, own in zip(asked, ours, strict=True) if own != self.ranges.payloads[index]}

    def listed(self) -> set[int]:
        return set(self._of_mode(ID_LIST))

    def _of_mode(self, wanted: int) -> list[int]:
        return [index for index, mode in enumerate(self.ranges.modes) if mode == wanted]

    def own_ids(self, index: int) -> list[bytes]:
        return _split(self.items.id_list(int(self.low[index]), int(self.high[index])))

    def answer(self, open_: set[int], frame_full: int) -> tuple[bytes, int]:
        """The answer to the open ranges, and how many ranges it covers: fewer than all when the frame is full.

        The others become skips: one for all that lie together, and none unless something follows it.
        """
        answer = bytearray(_VERSION)
        covered = 0
        for index, division in self._divided(sorted(open_), min(BLOCK, frame_full // DIVISION_BYTES_MIN + 1)):
            skip = self.ranges.spelt(index - 1, self.ranges.time_before(covered)) + _SKIP if index > covered else b""
            if division is None:
                listed, upper = self._own_list(index, frame_full - len(answer))
                answer += skip + listed
                if len(answer) > frame_full:
                    return bytes(answer + self.rest(upper)), index + 1
            elif len(answer) + len(skip) + len(division) > frame_full:
                peer_has_none = self.ranges.payloads[index] == _FINGERPRINT_OF_NOTHING
                return bytes(answer + self.rest(int(self.low[covered] if peer_has_none else self.high[index]))), index
            else:
                answer += skip + division
            covered = index + 1
        return bytes(answer), len(self.ranges.modes)

    def rest(self, place: int) -> bytes:
        """The frame is full: one fingerprint for all that remains after the bound that was written last.

        The reference implementations count from the end of the range that did not fit, so that their fingerprint
        differs even where the sets do not, and the range is gone over again. But a peer that has nothing at all
        in that range, and after it the same as we have, finds it equal and never learns of our items there. A peer
        that has nothing in a range says so, by the fingerprint of nothing: then we count all that really remains.
        """
        return _spelt(INFINITY, b"", 0) + _FINGERPRINT + self.items.fingerprint_from(place)

    def _own_list(self, index: int, room: int) -> tuple[bytes, int]:
        """Our ids for the peer's, and how far they reach: the first that does not fit is still written."""
        low, high, after = int(self.low[index]), int(self.high[index]), self.ranges.time_before(index)
        upper = min(high, low + room // ID_BYTES + 1)
        if upper == high:
            return self._list(low, high, self.ranges.spelt(index, after)), high
        times, keys = self.items.rows(np.array([upper]))
        return self._list(low, upper, _spelt(int(times[0]), keys.tobytes(), after)), upper

    def _divided(self, open_: list[int], at_once: int) -> Iterator[tuple[int, bytes | None]]:
        """The open ranges in order, each with our division where a fingerprint differs."""
        modes = self.ranges.modes
        for at in range(0, len(open_), at_once):
            block = open_[at : at + at_once]
            divisions = self.divisions([index for index in block if modes[index] == FINGERPRINT])
            for index in block:
                yield index, next(divisions) if modes[index] == FINGERPRINT else None

    def divisions(self, indexes: list[int]) -> Iterator[bytes]:
        """What we say of each of these ranges: our ids where they are few, else fingerprints of sixteen parts."""
        sizes = (self.high[indexes] - self.low[indexes]).tolist()
        parts = self._parts([index for index, size in zip(indexes, sizes, strict=True) if size > LISTED_MAX])
        for index, size in zip(indexes, sizes, strict=True):
            if size > LISTED_MAX:
                yield b"".join(islice(parts, BUCKETS))
            else:
                bound = self.ranges.spelt(index, self.ranges.time_before(index))
                yield self._list(int(self.low[index]), int(self.high[index]), bound)

    def _parts(self, indexes: list[int]) -> Iterator[bytes]:
        """The sixteen parts of each of these ranges, the larger ones first; the last ends where the range does."""
        low, high = self.low[indexes][:, None], self.high[indexes][:, None]
        size, larger = np.divmod(high - low, BUCKETS)
        number = np.arange(BUCKETS + 1)
        edges = low + number * size + np.minimum(number, larger)
        fingerprints = self.items.fingerprints(edges[:, :-1].ravel(), edges[:, 1:].ravel())
        times, prefixes = self._bounds(edges[:, 1:-1].ravel())
        inner = iter(prefixes)
        prefixes = [
            prefix for index in indexes for prefix in (*islice(inner, BUCKETS - 1), self.ranges.prefixes[index])
        ]
        first = np.array([self.ranges.time_before(index) for index in indexes], np.uint64)
        last = np.array([self.ranges.times[index] for index in indexes], np.uint64)
        ends = np.column_stack([first, times.reshape(-1, BUCKETS - 1), last])
        offsets = np.where(ends[:, 1:] == INFINITY, 0, np.diff(ends) + np.uint64(1))
        for offset, prefix, fingerprint in zip(offsets.ravel().tolist(), prefixes, fingerprints, strict=True):
            yield varint(offset) + varint(len(prefix)) + prefix + _FINGERPRINT + fingerprint

    def _bounds(self, places: Places) -> tuple[Times, list[bytes]]:
        """The shortest bounds that part the item at each place from the one before it."""
        times, keys = self.items.rows(places)
        times_before, keys_before = self.items.rows(places - 1)
        unlike = keys.view(np.uint8) != keys_before.view(np.uint8)
        shared = unlike.reshape(-1, ID_BYTES).argmax(axis=1)
        lengths = np.where(times == times_before, shared + 1, 0)
        joined = keys.tobytes()
        starts = range(0, len(joined), ID_BYTES)
        return times, [joined[at : at + length] for at, length in zip(starts, lengths.tolist(), strict=True)]

    def _list(self, low: int, high: int, bound: bytes) -> bytes:
        return bound + _ID_LIST + varint(high - low) + self.items.id_list(low, high)


def read(message: bytes) -> Ranges:
    """The ranges of a message of our version. This runs once a range: numbers of one byte are read in place."""
    ranges = Ranges()
    time, prefix, at, end = 0, b"", 1, len(message)
    try:
        while at < end:
            offset, at = (message[at], at + 1) if message[at] < 0x80 else _read_varint(message, at)
            length, at = (message[at], at + 1) if message[at] < 0x80 else _read_varint(message, at)
            if length > ID_BYTES:
                raise Malformed(f"a bound has {length} bytes of an id; there are {ID_BYTES}")
            last_time, last_prefix = time, prefix
            time, prefix = _later(time, offset), message[at : at + length]
            if time == last_time and prefix < last_prefix and prefix.ljust(ID_BYTES, b"\0") < last_prefix:
                raise Malformed("the bounds do not ascend")
            at += length
            mode, at = (message[at], at + 1) if message[at] < 0x80 else _read_varint(message, at)
            size, at = (FINGERPRINT_BYTES, at) if mode == FINGERPRINT else _read_size(message, at, mode)
            if at + size > end:
                raise Malformed(_ENDS_EARLY)
            ranges.times.append(time)
            ranges.prefixes.append(prefix)
            ranges.modes.append(mode)
            ranges.payloads.append(message[at : at + size])
            at += size
    except IndexError:
        raise Malformed(_ENDS_EARLY) from None
    return ranges


def _read_size(message: bytes, at: int, mode: int) -> tuple[int, int]:
    """Of the payload of a range that has no fingerprint."""
    if mode == SKIP:
        return 0, at
    if mode != ID_LIST:
        raise Malformed(f"a range has mode {mode}; there are 0, 1 and 2")
    count, at = _read_varint(message, at)
    return count * ID_BYTES, at


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(at, at + VARINT_BYTES_MAX):
        digit = message[place]
        number = number << 7 | digit & 0x7F
        if digit < 0x80:
            if number > INFINITY:
                break
            return number, place + 1
    raise Malformed("a number has more than 64 bits")


def _later(time: int, offset: int) -> int:
    """A bound tells one more than what it adds to the timestamp before it; zero is infinity, as is what overflows."""
    return min(time + offset - 1, INFINITY) if offset else INFINITY


def _spelt(time: int, prefix: bytes, after: int) -> bytes:
    return varint(0 if time == INFINITY else time - after + 1) + varint(len(prefix)) + prefix


def _is_our_version(message: bytes) -> bool:
    if not message or message[0] not in VERSIONS:
        raise Malformed("this is no negentropy message: it does not begin with a version")
    return message[0] == VERSION


def _split(ids: bytes) -> list[bytes]:
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]


def _news(ids: list[bytes], known: set[bytes], told: set[bytes]) -> list[bytes]:
    """Those of the ids that are not known, each once in a session."""
    news = [id_ for id_ in dict.fromkeys(ids) if id_ not in known and id_ not in told]
    told.update(news)
    return news


_VERSION = bytes((VERSION,))
_SKIP, _FINGERPRINT, _ID_LIST = (varint(mode) for mode in (SKIP, FINGERPRINT, ID_LIST))
_FINGERPRINT_OF_NOTHING = Items.build([], b"").fingerprint
_ENDS_EARLY = "the message ends within a range"
