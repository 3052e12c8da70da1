"""Negentropy as slow and plain as can be: sorted lists, sums added up anew, one range after the other.

Written from the specification and the reference implementations' choices, to hold anabranch.core.negentropy to: every
message must be equal, byte for byte, in both roles. `as_others_do` leaves out our one departure from them, so that a
test can show why it is there.
"""

from __future__ import annotations

import hashlib

Item = tuple[int, bytes]
INFINITY = 2**64 - 1


def digits(number: int) -> bytes:
    out = [number % 128]
    while number >= 128:
        number //= 128
        out.insert(0, 128 + number % 128)
    return bytes(out)


def fingerprint(items: list[Item]) -> bytes:
    total = sum(int.from_bytes(id_, "little") for _, id_ in items) % 2**256
    return hashlib.sha256(total.to_bytes(32, "little") + digits(len(items))).digest()[:16]


class Reader:
    def __init__(self, message: bytes):
        self.left = message
        self.time = 0

    def take(self, count: int) -> bytes:
        assert count <= len(self.left), "the message ends too early"
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def number(self) -> int:
        value = 0
        while True:
            digit = self.take(1)[0]
            value = value * 128 + digit % 128
            if digit < 128:
                return value

    def bound(self) -> Item:
        offset = self.number()
        self.time = min(self.time + offset - 1, INFINITY) if offset else INFINITY
        return self.time, self.take(self.number())


class Writer:
    def __init__(self, out: bytes = b"", time: int = 0):
        self.out = out
        self.time = time

    def bound(self, bound: Item) -> Writer:
        time, prefix = bound
        self.out += digits(0 if time == INFINITY else time - self.time + 1) + digits(len(prefix)) + prefix
        self.time = time
        return self

    def skip(self, bound: Item) -> None:
        self.bound(bound).out += b"\0"

    def fingerprint(self, bound: Item, items: list[Item]) -> None:
        self.bound(bound).out += b"\1" + fingerprint(items)

    def ids(self, bound: Item, items: list[Item]) -> None:
        self.bound(bound).out += b"\2" + digits(len(items)) + b"".join(id_ for _, id_ in items)


class Oracle:
    def __init__(self, items: set[Item], frame_bytes_max: int = 0, as_others_do: bool = False):
        self.items = sorted(items)
        self.frame_bytes_max = frame_bytes_max
        self.as_others_do = as_others_do
        self.initiator = False
        self.have: set[bytes] = set()
        self.need: set[bytes] = set()

    def initiate(self) -> bytes:
        self.initiator = True
        writer = Writer(b"\x61")
        divide(writer, self.items, (INFINITY, b""))
        return writer.out

    def respond(self, message: bytes) -> bytes:
        if message[0] != 0x61:
            return b"\x61"
        return self._answer(message)

    def reconcile(self, message: bytes) -> bytes | None:
        answer = self._answer(message)
        return None if answer == b"\x61" else answer

    def _full(self, size: int) -> bool:
        return self.frame_bytes_max != 0 and size > self.frame_bytes_max - 200

    def _answer(self, message: bytes) -> bytes:
        reader, writer = Reader(message[1:]), Writer(b"\x61")
        start, written_to, skipping = (0, b""), (0, b""), False
        while reader.left:
            bound = reader.bound()
            here = [item for item in self.items if start <= item < bound]
            after = [item for item in self.items if not item < bound]
            answer = Writer(b"", writer.time)
            mode = reader.number()
            differs, theirs = False, b""
            if mode == 1:
                theirs = reader.take(16)
                differs = theirs != fingerprint(here)
            elif mode == 2:
                ids = [reader.take(32) for _ in range(reader.number())]
                if self.initiator:
                    self._compare({id_ for _, id_ in here}, set(ids))
            if skipping and (differs or (mode == 2 and not self.initiator)):
                answer.skip(start)
            if differs:
                divide(answer, here, bound)
                if self._full(len(writer.out) + len(answer.out)):
                    if theirs == fingerprint([]) and not self.as_others_do:
                        after = [item for item in self.items if not item < written_to]
                    writer.fingerprint((INFINITY, b""), after)
                    return writer.out
            elif mode == 2 and not self.initiator:
                fitting: list[Item] = []
                while here and not self._full(len(writer.out) + 32 * len(fitting)):
                    fitting.append(here.pop(0))
                answer.ids(here[0] if here else bound, fitting)
                if self._full(len(writer.out) + len(answer.out)):
                    writer.out += answer.out
                    writer.fingerprint((INFINITY, b""), here + after)
                    return writer.out
            skipping = not answer.out
            if answer.out:
                writer.out, writer.time, written_to = writer.out + answer.out, answer.time, bound
            start = bound
        return writer.out

    def _compare(self, ours: set[bytes], theirs: set[bytes]) -> None:
        self.have |= ours - theirs
        self.need |= theirs - ours


def divide(writer: Writer, items: list[Item], bound: Item) -> None:
    if len(items) < 32:
        writer.ids(bound, items)
        return
    begin = 0
    for number in range(16):
        end = begin + len(items) // 16 + (1 if number < len(items) % 16 else 0)
        writer.fingerprint(between(items[end - 1], items[end]) if end < len(items) else bound, items[begin:end])
        begin = end


def between(before: Item, item: Item) -> Item:
    """The shortest bound that is above one item and not above the next."""
    if before[0] != item[0]:
        return item[0], b""
    length = 1
    while item[1][:length] == before[1][:length]:
        length += 1
    return item[0], item[1][:length]
