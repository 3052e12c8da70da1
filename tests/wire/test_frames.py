"""WebSocket frames out of bytes: cut anywhere, bounded in size and in pieces, and never dearer than their length."""

import struct
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.wire.frames import (
    BINARY,
    CLOSE,
    FRAGMENTS_MAX,
    PING,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
    FrameReader,
    ProtocolError,
)

CONTINUATION = 0
MASK = b"\x11\x22\x33\x44"


def frame(payload: bytes, opcode: int = TEXT, *, final: bool = True) -> bytes:
    """A client's frame."""
    first, size = (0x80 if final else 0) | opcode, len(payload)
    if size < 126:
        head = bytes([first, 0x80 | size])
    elif size < 65_536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    repeated = (MASK * (size // 4 + 1))[:size]
    return head + MASK + (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size)


def fragmented(parts: list[bytes], opcode: int = TEXT) -> bytes:
    last = len(parts) - 1
    return b"".join(frame(part, CONTINUATION if n else opcode, final=n == last) for n, part in enumerate(parts))


def read(reader: FrameReader, *pieces: bytes) -> list[tuple[int, bytes]]:
    return [message for piece in pieces for message in reader.feed(piece)]


payloads = st.one_of(st.binary(max_size=300), st.integers(120, 70_000).map(lambda size: b"x" * size))
messages = st.one_of(
    st.tuples(st.sampled_from([TEXT, BINARY]), payloads).map(lambda m: ([m], frame(m[1], m[0]))),
    st.binary(max_size=125).map(lambda data: ([(PING, data)], frame(data, PING))),
    st.lists(st.binary(max_size=300), min_size=2, max_size=5).map(
        lambda parts: ([(TEXT, b"".join(parts))], fragmented(parts))
    ),
)


@given(st.lists(messages, max_size=5), st.data())
def test_the_messages_are_the_same_wherever_the_bytes_are_cut(sent, data):
    stream = b"".join(raw for _, raw in sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)) | {0, len(stream)})
    pieces = [stream[low:high] for low, high in pairwise(cuts)]
    assert read(FrameReader(100_000), *pieces) == [message for expected, _ in sent for message in expected]


def test_as_many_fragments_as_allowed_are_taken_and_one_more_is_refused():
    parts = [b"x"] * FRAGMENTS_MAX
    assert read(FrameReader(100_000), fragmented(parts)) == [(TEXT, b"".join(parts))]
    with pytest.raises(ProtocolError) as refused:
        read(FrameReader(100_000), fragmented([*parts, b"x"]))
    assert refused.value.code == TOO_BIG


def test_fragments_without_end_and_without_content_are_refused():
    reader, more = FrameReader(100_000), frame(b"", CONTINUATION, final=False)
    read(reader, frame(b"", final=False))
    with pytest.raises(ProtocolError) as refused:
        read(reader, more * (FRAGMENTS_MAX + 1))
    assert refused.value.code == TOO_BIG


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_all_the_fragments_of_a_message_share_one_limit(opcode: int):
    exact = [b"x" * 400, b"y" * 400, b"z" * 200]
    assert read(FrameReader(1_000), fragmented(exact, opcode)) == [(opcode, b"".join(exact))]
    for parts in ([*exact, b"!"], [b"x" * 1_000, b"", b"!"], [b"x" * 600, b"y" * 600, b"never sent"]):
        with pytest.raises(ProtocolError) as refused:
            read(FrameReader(1_000), fragmented(parts, opcode))
        assert refused.value.code == TOO_BIG == 1009


def test_each_fragmented_message_has_the_whole_limit_to_itself():
    reader = FrameReader(1_000)
    parts = [b"x" * 500, b"y" * 500]
    for _ in range(3):
        assert read(reader, fragmented(parts)) == [(TEXT, b"".join(parts))]


def test_a_frame_that_announces_too_much_is_refused_before_it_comes():
    with pytest.raises(ProtocolError) as refused:
        read(FrameReader(1_000), frame(b"x" * 1_001)[:14])
    assert refused.value.code == TOO_BIG


def test_a_large_message_byte_by_byte_costs_no_more_than_its_bytes():
    """Were what has come copied with every byte, this would take a minute."""
    payload = b"x" * 400_000
    stream = frame(payload)
    reader, began = FrameReader(len(payload)), time.process_time()
    found = [message for at in range(len(stream)) for message in reader.feed(stream[at : at + 1])]
    assert found == [(TEXT, payload)]
    assert time.process_time() - began < 5


def test_a_large_message_in_a_thousand_fragments_costs_no_more_than_its_bytes():
    parts = [b"x" * 4_000] * FRAGMENTS_MAX
    stream = fragmented(parts)
    reader, began = FrameReader(4_000_000), time.process_time()
    assert read(reader, *(stream[at : at + 1_000] for at in range(0, len(stream), 1_000))) == [(TEXT, b"".join(parts))]
    assert time.process_time() - began < 5


@pytest.mark.parametrize("code", [1_000, 1_001, 1_003, 1_007, 1_011, 1_014, 3_000, 4_999])
def test_a_close_is_taken_with_a_code_that_may_be_sent_and_without_one(code: int):
    said = struct.pack("!H", code)
    for payload in (b"", said, said + "bye é".encode()):
        assert read(FrameReader(1_000), frame(payload, CLOSE)) == [(CLOSE, payload)]


@pytest.mark.parametrize("code", [0, 1, 999, 1_004, 1_005, 1_006, 1_015, 1_016, 2_999, 5_000, 65_535])
def test_a_close_with_a_code_that_may_not_be_sent_is_refused(code: int):
    with pytest.raises(ProtocolError) as refusal:
        read(FrameReader(1_000), frame(struct.pack("!H", code), CLOSE))
    assert refusal.value.code == PROTOCOL_ERROR


def test_a_close_of_one_byte_is_refused():
    with pytest.raises(ProtocolError) as refusal:
        read(FrameReader(1_000), frame(b"\x03", CLOSE))
    assert refusal.value.code == PROTOCOL_ERROR


def test_a_message_in_tiny_pieces_takes_no_more_memory_than_its_bytes():
    reader, payload = FrameReader(1 << 20), b"x" * 300_000
    whole = frame(payload)
    tracemalloc.start()
    try:
        for at in range(0, len(whole) - 1, 3):
            assert list(reader.feed(whole[at : min(at + 3, len(whole) - 1)])) == []
        assert tracemalloc.get_traced_memory()[0] < 2 * len(payload)
    finally:
        tracemalloc.stop()
    assert reader.held == len(whole) - 1
    assert list(reader.feed(whole[-1:])) == [(TEXT, payload)]
    assert reader.held == 0
