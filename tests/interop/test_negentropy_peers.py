"""Negentropy is spoken as nostr-tools speaks it: the same bytes, turn by turn, and the same difference.

nostr-tools is an initiator only: it does not answer lists of ids with its own. So it is held to ours as the initiator
of whole sessions, and as the responder wherever a message has no such list. It reads numbers as 32 bits: timestamps
stay below 2^31 here, but for the test that shows what it makes of larger ones.
"""

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import node_peers
import pytest
from hypothesis import given, settings
from negentropy_sets import SPREADS_IN_31_BITS, Item, almost_lost, items_of, limits, sides

from anabranch.core.negentropy import ID_LIST, Reconciler, read

NIP77 = node_peers.PEERS / "node_modules" / "nostr-tools" / "lib" / "esm" / "nip77.js"
FINGERPRINT_OF_NOTHING = sha256(bytes(33)).digest()[:16]
NOW = 1_790_000_000


class NostrTools:
    """One process that holds a session for each side."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def ask(self, do: str, name: str, **more: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, "name": name, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "nostr-tools ended"
        return json.loads(line)

    def open(self, name: str, items: set[Item], limit: int) -> None:
        assert self.ask("open", name, items=[(time, id_.hex()) for time, id_ in items], limit=limit) == {}

    def initiate(self, name: str) -> bytes:
        return bytes.fromhex(self.ask("initiate", name)["message"])

    def reconcile(self, name: str, message: bytes) -> tuple[bytes | None, set[bytes], set[bytes]]:
        told = self.ask("reconcile", name, message=message.hex())
        assert "error" not in told, told
        answer = None if told["message"] is None else bytes.fromhex(told["message"])
        return answer, set(map(bytes.fromhex, told["have"])), set(map(bytes.fromhex, told["need"]))


@pytest.fixture(scope="module")
def nostr_tools(node_js: list[str]) -> Iterator[NostrTools]:
    command = [*node_js, str(node_peers.script("negentropy_peer.mjs")), str(NIP77), "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield NostrTools(process)
        assert process.stdin
        process.stdin.close()


small_sides = sides(SPREADS_IN_31_BITS)


def departs(ours: bytes | None, theirs: bytes | None, asked: bytes) -> bool:
    """Whether this is the one case where we say something else: theirs would lose items (negentropy._Turn.rest)."""
    if ours == theirs:
        return False
    assert ours and theirs and ours[:-16] == theirs[:-16] and FINGERPRINT_OF_NOTHING in asked
    return True


@settings(max_examples=300)
@given(small_sides, limits, limits)
def test_a_session_that_it_initiates_runs_as_ours_does(nostr_tools, two, limit, other_limit):
    ours, responder = Reconciler(items_of(two.initiator), limit), Reconciler(items_of(two.responder), other_limit)
    nostr_tools.open("left", two.initiator, limit)
    message: bytes | None = nostr_tools.initiate("left")
    assert message == ours.initiate()
    have: set[bytes] = set()
    need: set[bytes] = set()
    rounds = 0
    while message is not None:
        answer = responder.respond(message)
        step = ours.reconcile(answer)
        message, more_have, more_need = nostr_tools.reconcile("left", answer)
        assert set(step.have) == more_have - have and set(step.need) == more_need - need
        if departs(step.message, message, answer):
            return
        have |= more_have
        need |= more_need
        rounds += 1
    assert sorted(have) == two.have and sorted(need) == two.need
    assert rounds <= 4 + 2 * 32 * (len(two.initiator) + len(two.responder)) / 4096


@settings(max_examples=200)
@given(small_sides, limits, limits)
def test_it_answers_what_we_initiate_as_our_responder_does(nostr_tools, two, limit, other_limit):
    initiator, responder = Reconciler(items_of(two.initiator), limit), Reconciler(items_of(two.responder), other_limit)
    nostr_tools.open("right", two.responder, other_limit)
    message: bytes | None = initiator.initiate()
    while message is not None:
        answer = responder.respond(message)
        if ID_LIST not in read(message).modes:
            theirs, _, _ = nostr_tools.reconcile("right", message)
            assert not departs(answer, theirs or b"\x61", message)
        message = initiator.reconcile(answer).message


def test_it_fails_on_timestamps_of_more_than_32_bits_and_ours_does_not(nostr_tools):
    """The reason why events, whose timestamps are seconds, reconcile with it, and items in milliseconds do not."""
    members = [(NOW * 1000 + 7 * n, sha256(b"%d" % n).digest()) for n in range(500)]
    left, right = set(members[20:]), set(members[:-30])
    nostr_tools.open("left", left, 0)
    first = nostr_tools.initiate("left")
    ours = Reconciler(items_of(left))
    assert first != ours.initiate(), "nostr-tools spells large numbers right by now: say so in the documentation"
    answer: bytes | None = Reconciler(items_of(left)).initiate()
    have, need = [], []
    responder = Reconciler(items_of(right))
    while answer is not None:
        step = ours.reconcile(responder.respond(answer))
        answer, have, need = step.message, have + step.have, need + step.need
    assert (have, need) == ([id_ for _, id_ in members[-30:]], [id_ for _, id_ in members[:20]])


def test_it_loses_items_where_the_frame_is_full_and_ours_does_not(nostr_tools):
    """What `_Turn.rest` departs from, and why."""
    two = almost_lost(50)
    nostr_tools.open("left", two.initiator, 4096)
    responder, found = Reconciler(items_of(two.responder), 4096), set()
    message: bytes | None = nostr_tools.initiate("left")
    while message is not None:
        message, have, _ = nostr_tools.reconcile("left", responder.respond(message))
        found |= have
    assert len(found) < len(two.have), "nostr-tools loses nothing any more: our departure can go"
    ours, responder = Reconciler(items_of(two.initiator), 4096), Reconciler(items_of(two.responder), 4096)
    found, message = set(), ours.initiate()
    while message is not None:
        step = ours.reconcile(responder.respond(message))
        found, message = found | set(step.have), step.message
    assert sorted(found) == two.have
