"""What the tests of the pipeline are fed with: stores, lines good and bad, random histories of both families."""

import random
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

from anabranch.core import clock as clocks
from anabranch.core import nostr, revisions
from anabranch.core.nostr import Event, Keys, Limits, serialise
from anabranch.core.operation import KindPolicy
from anabranch.core.snapshots import NOTE
from anabranch.pipeline.lake import Lake
from anabranch.store.contract import Reader
from anabranch.store.sqlite import SqliteStore
from anabranch.store.transfer import Report, import_lines

AUTHORS = [Keys(bytes([number]) * 32) for number in (1, 2, 3)]
WRAPS = [Keys(bytes([number]) * 32) for number in (11, 12, 13)]
START = 1_700_000_000
DEVICES = ("laptop", "phone", "tablet", "ключ")


def make_store(folder: Path, lines: Iterable[bytes]) -> Report:
    """A node's store with what the lines say, as `anabranch import` makes it."""
    store = SqliteStore.open(folder, "OFF")
    try:
        return import_lines(
            BytesIO(b"".join(line + b"\n" for line in lines)),
            store.writer,
            limits=Limits(),
            kinds=KindPolicy(),
            now_ms=lambda: START * 1000,
            workers=0,
        )
    finally:
        store.close()


def snapshot(author: Keys, d: str, clock: dict[str, int], at: int = START, deletes: bool = False) -> Event:
    tags = [["d", d], ["o", "del" if deletes else "put"], *clocks.tags(clock), ["c", "notes"]]
    return author.sign(NOTE, tags, f"sealed {at}", at, deterministic=True)


def revision(
    wrap: Keys, recipient: Keys, d: str, r: str, parents: Sequence[str] = (), at: int = START, deletes: bool = False
) -> Event:
    tags = [
        ["p", recipient.pubkey],
        ["d", d],
        ["r", r],
        *(["prev", parent] for parent in parents),
        ["op", "del" if deletes else "put"],
        ["m", str(at * 1000)],
        ["v", revisions.SCHEMA],
    ]
    return wrap.sign(revisions.GIFT_WRAP, tags, "wrapped", at, deterministic=True)


def random_history(seed: int, size: int = 120) -> list[bytes]:
    """Lines of both families where everything collides, in any order: equal clocks, late and missing parents,
    revisions that come twice, tombstones, plain and replaceable events, and the same line again."""
    rng = random.Random(seed)
    names = [rng.randbytes(32).hex() for _ in range(12)]
    events: list[Event] = []
    for number in range(size):
        at, deletes = START + number, rng.random() < 0.2
        match rng.randrange(5):
            case 0 | 1:
                clock = {device: rng.randint(1, 3) for device in rng.sample(DEVICES, rng.randint(1, 4))}
                events.append(snapshot(rng.choice(AUTHORS), rng.choice("AB"), clock, at, deletes))
            case 2 | 3:
                name = rng.choice(names)
                parents = rng.sample([other for other in names if other != name], rng.choice((0, 1, 1, 2)))
                events.append(
                    revision(rng.choice(WRAPS), rng.choice(AUTHORS), rng.choice("AB"), name, parents, at, deletes)
                )
            case _:
                kind = rng.choice((1, 7, 10_002, 30_023))
                events.append(rng.choice(AUTHORS).sign(kind, [["d", "x"]], "plain", at, deterministic=True))
    lines = [serialise(event) for event in events]
    return lines + rng.sample(lines, size // 10)


def bad_lines() -> dict[str, bytes]:
    """Lines that are no operations, by what is wrong with them."""
    good = snapshot(AUTHORS[0], "A", {"laptop": 1})
    raw = serialise(good)
    unsigned = serialise(
        nostr.Event(good.id, good.pubkey, good.created_at, good.kind, good.tags, good.content, "0" * 128)
    )
    ephemeral = AUTHORS[0].sign(20_001, [], "", START)
    reserved = AUTHORS[0].sign(42_999, [], "", START)
    no_clock = AUTHORS[0].sign(NOTE, [["d", "A"], ["o", "put"]], "", START)
    half = WRAPS[0].sign(revisions.GIFT_WRAP, [["p", AUTHORS[0].pubkey], ["r", "nonsense"]], "", START)
    return {
        "signature does not hold": unsigned,
        "id does not match": raw.replace(b"sealed", b"SEALED"),
        "not valid JSON": b"nonsense",
        "not valid JSON in UTF-8": b'{"id":"\xff\xfe"}',
        "malformed event": b"[1, 2, 3]",
        "larger than": b"x" * 200_000,
        "ephemeral": serialise(ephemeral),
        "non-snapshot event kind": serialise(reserved),
        "snapshot metadata": serialise(no_clock),
        "revision metadata": serialise(half),
    }


def served_heads(reader: Reader) -> dict[str, set[str]]:
    """What a node itself says: of every document the heads that it serves, revisions by their own id."""
    found: dict[str, set[str]] = {}
    after = 0
    while page := reader.facts(after, 1_000):
        for facts in page:
            if facts.head and facts.family and facts.state == 0:
                name = facts.id if facts.revision is None else facts.revision.revision
                found.setdefault(facts.document.hex(), set()).add(name)
        after = page[-1].position
    return found


def lake_heads(lake: Lake) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in lake.heads().select("document", "id", "revision").collect():
        found.setdefault(row["document"], set()).add(row["revision"] or row["id"])
    return found
