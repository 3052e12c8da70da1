"""The set that is reconciled: items in order, and the fingerprint of any stretch of them in constant time.

An item is a timestamp and an id; items are ordered by timestamp, then by id. A fingerprint hashes the sum of a
stretch's ids (mod 2^256) with their count, so one array of running sums answers for every stretch: what stands at its
end less what stands at its start. Everything works on arrays of positions at once, never on one item at a time.

A set never changes. `Items.changed` gives another one, which shares the large arrays and lays a small delta over
them: the positions of what came, and the places of what went. To whoever asks, both look the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ID_BYTES = 32
FINGERPRINT_BYTES = 16
INFINITY = 2**64 - 1  # a bound's timestamp, never an item's
DELTA_MAX = 4096  # a larger delta is folded into new arrays; beyond this, one of 1/256 of the set
DELTA_SHARE = 256

Times: TypeAlias = npt.NDArray[np.uint64]
Keys: TypeAlias = npt.NDArray[
    np.bytes_
]  # 32 bytes each, compared unsigned and zero-padded, just as ids and prefixes are
Places: TypeAlias = npt.NDArray[np.int64]
Sums: TypeAlias = npt.NDArray[np.uint64]  # four rows of 64-bit limbs, the least significant first; a column is one sum


def varint(number: int) -> bytes:
    """Base-128 digits, the most significant first; all but the last have their high bit set."""
    if number < 0x80:
        return _DIGITS[number]
    if number < 0x4000:
        return bytes((number >> 7 | 0x80, number & 0x7F))
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(number & 0x7F | 0x80)
    return bytes(reversed(digits))


_DIGITS = [bytes((digit,)) for digit in range(0x80)]


def fingerprint(total: bytes, count: int) -> bytes:
    """Of so many ids with this sum: little-endian numbers of 32 bytes, added mod 2^256."""
    hashed = _NOTHING_HASHED.copy()  # made faster than a new one
    hashed.update(total + varint(count))
    return hashed.digest()[:FINGERPRINT_BYTES]


_NOTHING_HASHED = sha256()


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Sorted items as arrays. `sums` has a column more than there are items: the sum of all ids before each place."""

    times: Times
    keys: Keys
    sums: Sums

    @classmethod
    def of(cls, times: Times, keys: Keys) -> _Rows:
        """Of items in strictly ascending order."""
        for array in (times, keys, sums := _running_sums(keys)):
            array.flags.writeable = False
        return cls(times, keys, sums)

    def __len__(self) -> int:
        return len(self.times)

    def lower_bounds(self, times: Times, keys: Keys) -> Places:
        """For each bound, how many items lie below it."""
        low = np.searchsorted(self.times, times, "left")
        tied = np.flatnonzero(keys != b"")
        if tied.size:
            high = np.searchsorted(self.times, times[tied], "right")
            low[tied] = self._bisect(keys[tied], low[tied], high)
        return low

    def _bisect(self, keys: Keys, low: Places, high: Places) -> Places:
        """All bisections by id, in step: each within its own stretch of equal timestamps."""
        pending = np.flatnonzero(low < high)
        while pending.size:
            middle = (low[pending] + high[pending]) >> 1
            below = self.keys[middle] < keys[pending]
            low[pending[below]] = middle[below] + 1
            high[pending[~below]] = middle[~below]
            pending = pending[low[pending] < high[pending]]
        return low

    def find(self, times: Times, keys: Keys) -> Places:
        """The place of each item, or -1."""
        at = self.lower_bounds(times, keys)
        there = np.flatnonzero(at < len(self))
        there = there[(self.times[at[there]] == times[there]) & (self.keys[at[there]] == keys[there])]
        found = np.full(len(at), -1, np.int64)
        found[there] = at[there]
        return found

    def without(self, places: Places) -> tuple[Times, Keys]:
        return np.delete(self.times, places), np.delete(self.keys, places)

    @property
    def memory_bytes(self) -> int:
        return self.times.nbytes + self.keys.nbytes + self.sums.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _Delta:
    """What lies over the base. Places of the removed are in the base, those of the added in the whole."""

    added: _Rows
    added_at: Places
    removed: _Rows
    removed_at: Places
    removed_after: Places  # how many items of the base that stay come before each removed one

    @classmethod
    def over(cls, base: _Rows, added: _Rows, removed_at: Places) -> _Delta:
        before = base.lower_bounds(added.times, added.keys)
        added_at = before - np.searchsorted(removed_at, before, "left") + np.arange(len(added))
        removed = _Rows.of(base.times[removed_at], base.keys[removed_at])
        return cls(added, added_at, removed, removed_at, removed_at - np.arange(len(removed_at)))

    def locate(self, places: Places) -> tuple[Places, Places, Places]:
        """For each place in the whole: its place in the base, how many were removed and how many added before it."""
        added = np.searchsorted(self.added_at, places, "left")
        staying = places - added
        removed = np.searchsorted(self.removed_after, staying, "right")
        return staying + removed, removed, added

    @property
    def memory_bytes(self) -> int:
        arrays = (self.added_at, self.removed_at, self.removed_after)
        return self.added.memory_bytes + self.removed.memory_bytes + sum(array.nbytes for array in arrays)


class Items:
    """An immutable, sorted set of (timestamp, id)."""

    __slots__ = ("_base", "_delta", "_length")

    def __init__(self, base: _Rows, delta: _Delta | None = None) -> None:
        self._base = base
        self._delta = delta
        self._length = len(base) + (len(delta.added) - len(delta.removed) if delta else 0)

    @classmethod
    def build(cls, timestamps: Sequence[int] | npt.NDArray[Any], ids: bytes) -> Items:
        """Of items in any order; duplicates are dropped. Items that come in order are not sorted again."""
        times = _times(timestamps)
        if len(ids) != ID_BYTES * len(times):
            raise ValueError(f"{len(times)} timestamps need {ID_BYTES * len(times)} bytes of ids, not {len(ids)}")
        return cls(_Rows.of(*_ordered(times, _keys(bytes(ids)))))

    def changed(self, added: Sequence[tuple[int, bytes]], removed: Sequence[tuple[int, bytes]]) -> Items:
        """The set with these removed, then these added. What is not there cannot go; what is there is not added."""
        came, went = _columns(added), _columns(removed)
        plus, minus = self._now_added(*came, *went), self._now_removed(*came, *went)
        if not len(plus) and not len(minus):
            return Items(self._base)
        changed = Items(self._base, _Delta.over(self._base, plus, minus))
        large = len(plus) + len(minus) > max(DELTA_MAX, len(self._base) // DELTA_SHARE)
        return changed._folded() if large or not len(self._base) else changed

    def _now_added(self, times: Times, keys: Keys, gone_times: Times, gone_keys: Keys) -> _Rows:
        """All that is in the set and not in the base."""
        new = self._base.find(times, keys) < 0
        times, keys = times[new], keys[new]
        if self._delta:
            gone = self._delta.added.find(gone_times, gone_keys)
            older_times, older_keys = self._delta.added.without(gone[gone >= 0])
            times, keys = np.concatenate([older_times, times]), np.concatenate([older_keys, keys])
        return _Rows.of(*_ordered(times, keys))

    def _now_removed(self, times: Times, keys: Keys, gone_times: Times, gone_keys: Keys) -> Places:
        """The places in the base of all that is no longer in the set."""
        gone = self._base.find(gone_times, gone_keys)
        if self._delta:
            gone = np.concatenate([self._delta.removed_at, gone])
        return np.setdiff1d(gone, np.append(self._base.find(times, keys), -1))

    def _folded(self) -> Items:
        if self._delta is None:
            return self
        times, keys = self._base.without(self._delta.removed_at)
        at = self._delta.added_at - np.arange(len(self._delta.added))
        times = np.insert(times, at, self._delta.added.times)
        return Items(_Rows.of(times, np.insert(keys, at, self._delta.added.keys)))

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: tuple[int, bytes]) -> bool:
        one = _columns([item])
        at = int(self._base.find(*one)[0])
        if self._delta is None:
            return at >= 0
        return (at >= 0 and at not in self._delta.removed_at) or int(self._delta.added.find(*one)[0]) >= 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        times, _ = self.rows(np.arange(len(self)))
        return zip(times.tolist(), self.ids(), strict=True)

    def ids(self) -> list[bytes]:
        """All ids, in order."""
        joined = self.id_list(0, len(self))
        return [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]

    @property
    def memory_bytes(self) -> int:
        """What this set holds on to, with the arrays that it shares with others."""
        return self._base.memory_bytes + (self._delta.memory_bytes if self._delta else 0)

    @property
    def parts(self) -> dict[int, int]:
        """The bytes of each of its parts, by an identity: sets that share a part name the same one."""
        delta = {} if self._delta is None else {id(self._delta): self._delta.memory_bytes}
        return {id(self._base): self._base.memory_bytes, **delta}

    @property
    def fingerprint(self) -> bytes:
        """Of the whole set. Sets with the same items have the same."""
        return self.fingerprint_from(0)

    def fingerprint_from(self, place: int) -> bytes:
        """Of everything from a place on."""
        return self.fingerprints(np.array([place]), np.array([len(self)]))[0]

    def fingerprints(self, low: Places, high: Places) -> list[bytes]:
        """Of each stretch from `low` to before `high`."""
        sums = _difference(self._sums(high), self._sums(low))
        joined = np.ascontiguousarray(sums.T, "<u8").tobytes()
        found = []
        at = 0
        for count in (high - low).tolist():
            found.append(fingerprint(joined[at : at + ID_BYTES], count))
            at += ID_BYTES
        return found

    def lower_bounds(self, times: Times, keys: Keys) -> Places:
        """For each bound, a timestamp and a prefix of an id, how many items lie below it."""
        base = self._base.lower_bounds(times, keys)
        if self._delta is None:
            return base
        added = self._delta.added.lower_bounds(times, keys)
        return base - np.searchsorted(self._delta.removed_at, base, "left") + added

    def rows(self, places: Places) -> tuple[Times, Keys]:
        """The items at these places."""
        if self._delta is None:
            return self._base.times[places], self._base.keys[places]
        base, _, added = self._delta.locate(places)
        from_added = np.flatnonzero(_at(self._delta.added_at, added) == places)
        base = np.minimum(base, len(self._base) - 1)  # of an added item, just any place that exists
        times, keys = self._base.times[base], self._base.keys[base]
        times[from_added] = self._delta.added.times[added[from_added]]
        keys[from_added] = self._delta.added.keys[added[from_added]]
        return times, keys

    def id_list(self, low: int, high: int) -> bytes:
        """The ids of a stretch, joined."""
        if self._delta is None:
            return self._base.keys[low:high].tobytes()
        return self.rows(np.arange(low, high))[1].tobytes()

    def _sums(self, places: Places) -> Sums:
        """The sum of all ids before each place."""
        if self._delta is None:
            return self._base.sums[:, places]
        base, removed, added = self._delta.locate(places)
        staying = _difference(self._base.sums[:, base], self._delta.removed.sums[:, removed])
        negative = _difference(np.zeros_like(staying), self._delta.added.sums[:, added])
        return _difference(staying, negative)


def _times(timestamps: Sequence[int] | npt.NDArray[Any]) -> Times:
    """A copy of them, 64 bits each. Arrays are checked here; numpy itself refuses an int that does not fit."""
    if isinstance(timestamps, (list, tuple, range)):
        try:
            times = np.array(timestamps, np.uint64)
        except (OverflowError, TypeError) as error:
            raise ValueError(f"a timestamp is a whole number from 0 to 2^64-2: {error}") from None
    else:
        given = np.asarray(timestamps)
        if given.size and (given.dtype.kind not in "iu" or (given.dtype.kind == "i" and given.min() < 0)):
            raise ValueError(f"a timestamp is a whole number from 0 to 2^64-2, not one of {given.dtype}")
        times = given.astype(np.uint64)
    if times.size and int(times.max()) == INFINITY:
        raise ValueError("a timestamp is at most 2^64-2: 2^64-1 means infinity")
    return times


def _keys(ids: bytes) -> Keys:
    return np.frombuffer(ids, f"S{ID_BYTES}")


def _columns(items: Sequence[tuple[int, bytes]]) -> tuple[Times, Keys]:
    if any(len(id_) != ID_BYTES for _, id_ in items):
        raise ValueError(f"an id has {ID_BYTES} bytes")
    return _times([time for time, _ in items]), _keys(b"".join(id_ for _, id_ in items))


def _ordered(times: Times, keys: Keys) -> tuple[Times, Keys]:
    """The items in strictly ascending order. By timestamp and eight bytes of the id first: that is mostly enough."""
    if _ascending(times, keys):
        return times, keys
    words = np.ascontiguousarray(keys).view(">u8").reshape(-1, 4)
    order = np.lexsort((words[:, 0], times))
    if _ascending(times[order], keys[order]):
        return times[order], keys[order]
    order = np.lexsort((*words.T[::-1], times))
    times, keys = times[order], keys[order]
    first = np.ones(len(times), np.bool_)
    first[1:] = (times[1:] != times[:-1]) | (keys[1:] != keys[:-1])
    return times[first], keys[first]


def _ascending(times: Times, keys: Keys) -> bool:
    """Strictly."""
    if (times[1:] < times[:-1]).any():
        return False
    tied = np.flatnonzero(times[1:] == times[:-1])
    return bool((keys[tied] < keys[tied + 1]).all())


def _running_sums(keys: Keys) -> Sums:
    """A limb at a time. A sum wraps where it comes out below what was added: there, the next limb gets one more."""
    sums = np.zeros((4, len(keys) + 1), np.uint64)
    limbs = np.ascontiguousarray(keys).view("<u8").reshape(-1, 4)
    carry = np.zeros(len(keys), np.bool_)
    for limb in range(4):
        addend = limbs[:, limb] + carry
        total = np.cumsum(addend, out=sums[limb, 1:])
        carry = (total < addend) | (carry & (addend == 0))  # 2^64-1 and a carry is an addend of zero that carries
    return sums


def _difference(minuend: Sums, subtrahend: Sums) -> Sums:
    """Modulo 2^256, a limb at a time: where a limb comes out below zero, the next one lends it one."""
    difference = np.empty_like(minuend)
    borrow = np.zeros(minuend.shape[1], np.bool_)
    for limb in range(4):
        above, below = minuend[limb], subtrahend[limb]
        difference[limb] = above - below - borrow
        borrow = (above < below) | (borrow & (above == below))
    return difference


def _at(array: Places, places: Places) -> Places:
    """The values at these places; just past the end stands -1."""
    return np.append(array, -1)[places]
