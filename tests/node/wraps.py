"""Revisions in gift wraps, and reconciling them: what a client of revision sync and of NIP-77 does, for tests."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from authors import Author, Event
from processes import Node
from sockets import Frame, RelayClient

from anabranch.core.negentropy import Items, Reconciler
from anabranch.store import integrity
from anabranch.store.sqlite import SqliteStore

GIFT_WRAP = 1059
MTIME = 1_700_000_000_000
"""Milliseconds, which do not fit into 32 bits."""

Item = tuple[int, str]


def rid(name: object) -> str:
    """A revision id for a name that people can read."""
    return hashlib.sha256(str(name).encode()).hexdigest()


def wrap(
    to: Author | str,
    d: str,
    r: str,
    prev: Sequence[str] = (),
    *,
    op: str = "put",
    m: int = MTIME,
    by: Author | None = None,
    content: str = "sealed",
    created_at: int | None = None,
    tags: Iterable[list[str]] = (),
) -> Event:
    """A revision of the document (to, d), wrapped by a key that nobody has seen before."""
    p = to if isinstance(to, str) else to.pubkey
    own = [["p", p], ["d", d], ["r", r], *(["prev", parent] for parent in prev), ["op", op], ["m", str(m)]]
    return (by or Author.random()).event(GIFT_WRAP, content, [*own, ["type", "note"], ["v", "2"], *tags], created_at)


def rev_of(event: Event) -> str:
    return next(tag[1] for tag in event["tags"] if tag[0] == "r")


def items(of: Iterable[Item] = ()) -> Items:
    members = sorted(of)
    return Items.build([time for time, _ in members], b"".join(bytes.fromhex(id) for _, id in members))


def opening(of: Iterable[Item] = ()) -> str:
    """The first message of an initiator with these items."""
    return Reconciler(items(of)).initiate().hex()


@dataclass(slots=True)
class Difference:
    """What a reconciliation has found: ids that only we have, ids that only the relay has."""

    have: list[str] = field(default_factory=list)
    need: list[str] = field(default_factory=list)
    seq: int | None = None
    rounds: int = 0


async def _to_the_end(client: RelayClient, sub: str, ours: Reconciler, found: Difference) -> Difference:
    while True:
        frame = await client.next_of(sub)
        assert frame[0] == "NEG-MSG", frame
        step = ours.reconcile(bytes.fromhex(frame[2]))
        found.have += [id.hex() for id in step.have]
        found.need += [id.hex() for id in step.need]
        found.rounds += 1
        if step.message is None:
            return found
        await client.send("NEG-MSG", sub, step.message.hex())


async def reconcile_heads(
    client: RelayClient, to: Author | str, of: Iterable[Item] = (), sub: str = "heads", **conditions: Any
) -> Difference:
    """Revision sync: NEG-OPEN of three elements, NEG-STATUS, messages, NEG-CLOSE."""
    p = to if isinstance(to, str) else to.pubkey
    await client.send("NEG-OPEN", sub, {"kinds": [GIFT_WRAP], "#p": [p], **conditions})
    seq = await snapshot_seq(client, sub)
    ours = Reconciler(items(of))
    await client.send("NEG-MSG", sub, ours.initiate().hex())
    found = await _to_the_end(client, sub, ours, Difference(seq=seq))
    await client.send("NEG-CLOSE", sub)
    assert await client.next_of(sub) == ["CLOSED", sub, "negentropy session closed"]
    return found


async def snapshot_seq(client: RelayClient, sub: str) -> int:
    frame = await client.next_of(sub)
    assert frame[:2] == ["NEG-STATUS", sub], frame
    assert frame[2:] == [{"strategy": "revision-sync.v1", "snapshot_seq": frame[2]["snapshot_seq"]}]
    return frame[2]["snapshot_seq"]


async def reconcile_events(
    client: RelayClient, filter: Any, of: Iterable[Item] = (), sub: str = "events"
) -> Difference:
    """NIP-77: NEG-OPEN of four elements, messages, NEG-CLOSE without an answer."""
    ours = Reconciler(items(of))
    await client.send("NEG-OPEN", sub, filter, ours.initiate().hex())
    found = await _to_the_end(client, sub, ours, Difference())
    await client.send("NEG-CLOSE", sub)
    return found


async def heads_of(client: RelayClient, to: Author | str, **conditions: Any) -> list[str]:
    return sorted((await reconcile_heads(client, to, **conditions)).need)


async def neg_error(client: RelayClient, sub: str) -> list[Any]:
    """What a NEG-ERR says: its text, and what stands after it."""
    frame: Frame = await client.next_of(sub)
    assert frame[0] == "NEG-ERR", frame
    return frame[2:]


def check_store(node: Node) -> None:
    """What `anabranch verify` does, beside the node or after it, without a process of its own; and the node's log."""
    with SqliteStore.inspect(node.data).reader() as reader:
        findings = integrity.verify(reader, workers=0)
    assert findings.sound, findings.found
    assert "Traceback" not in node.log.read_text(errors="replace"), node.log_tail()
