"""Negentropy over current revisions: the set at one position, frozen, and the hand-off from it to the feed."""

import asyncio
from collections.abc import Callable

import pytest
from authors import EPOCH, Author
from processes import Node
from sockets import RelayClient
from wraps import (
    GIFT_WRAP,
    MTIME,
    heads_of,
    items,
    neg_error,
    opening,
    reconcile_heads,
    rev_of,
    rid,
    snapshot_seq,
    wrap,
)

from anabranch.core.negentropy import Reconciler
from anabranch.core.negentropy_items import varint

ONE_RECIPIENT = "NEG-OPEN requires exactly one #p recipient for revision sync"


def mine(author: Author, **rest: object) -> dict:
    return {"kinds": [GIFT_WRAP], "#p": [author.pubkey], **rest}


# --- the exchange --------------------------------------------------------------------------------------------------


async def test_an_opening_of_three_elements_gets_the_strategy_and_the_position_at_once(
    node: Node, client: RelayClient, author: Author
) -> None:
    await client.store(wrap(author, "x", rid("a")))
    await client.send("NEG-OPEN", "n", mine(author))
    assert await client.next_of("n") == [
        "NEG-STATUS", "n", {"strategy": "revision-sync.v1", "snapshot_seq": node.max_seq()},
    ]  # fmt: skip
    await client.send("NEG-MSG", "n", opening())
    verb, sub, message = await client.next_of("n")
    assert (verb, sub, message[:2]) == ("NEG-MSG", "n", "61") and rid("a") in message
    await client.send("NEG-CLOSE", "n")
    assert await client.next_of("n") == ["CLOSED", "n", "negentropy session closed"]


async def test_both_sides_learn_what_they_lack(client: RelayClient, author: Author) -> None:
    made = {rid(n): MTIME + n for n in range(100)}
    await client.store(*(wrap(author, f"{r}", r, m=m) for r, m in made.items()))
    ours = [(m, r) for r, m in list(made.items())[30:]] + [(MTIME + 500, rid("only ours"))]
    found = await reconcile_heads(client, author, ours)
    assert sorted(found.need) == sorted(list(made)[:30])
    assert found.have == [rid("only ours")]
    same = await reconcile_heads(client, author, [(m, r) for r, m in made.items()])
    assert (same.have, same.need, same.rounds) == ([], [], 1)


async def test_the_set_is_the_heads_and_the_conditions_come_after(client: RelayClient, author: Author) -> None:
    a, b, c, d = map(rid, "abcd")
    key = Author.random()
    await client.store(
        wrap(author, "x", a),
        wrap(author, "x", b, [a], by=key),
        wrap(author, "x", c, [a]),
        wrap(author, "y", d, op="del"),
    )
    await client.store(wrap(Author.random(), "x", rid("e")))
    assert await heads_of(client, author) == sorted([b, c, d])
    assert await heads_of(client, author, **{"#d": ["x"]}) == sorted([b, c])
    assert await heads_of(client, author, **{"#r": [a, b]}) == [b], "what is no head does not become one by a filter"
    assert await heads_of(client, author, authors=[key.pubkey]) == [b]
    assert await heads_of(client, author, **{"#d": []}) == []
    await client.store(wrap(author, "x", rid("m"), [b, c]))
    assert await heads_of(client, author) == sorted([rid("m"), d])


async def test_a_condition_that_no_revision_meets_is_an_empty_set_and_no_failure(
    client: RelayClient, author: Author
) -> None:
    await client.store(wrap(author, "x", rid("a")))
    assert await heads_of(client, author, **{"#r": ["nonsense"]}) == []


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (1, 2, 0), (0, 1, 2)])
async def test_a_parent_that_comes_late_makes_no_false_head(client: RelayClient, author: Author, order: tuple) -> None:
    """The reference makes a parent that arrives after its child a head."""
    chain = [wrap(author, "x", rid(n), [rid(n - 1)] if n else []) for n in range(3)]
    for n in order:
        await client.store(chain[n])
    assert await heads_of(client, author) == [rid(2)]


@pytest.mark.parametrize("m", [2**31, 2**32 - 1, 2**32, 2**32 + 5, MTIME, 2**53 - 1])
async def test_times_in_milliseconds_go_through_whole(client: RelayClient, author: Author, m: int) -> None:
    """They exceed 32 bits: the reference's peers that cut them never agree."""
    members = [(m - n, rid((m, n))) for n in range(40)]
    await client.store(*(wrap(author, f"{n}", r, m=at) for n, (at, r) in enumerate(members)))
    assert (await reconcile_heads(client, author, members)).rounds == 1
    found = await reconcile_heads(client, author, [*members[1:], (m - 2**32 if m > 2**32 else 0, rid("cut"))])
    assert (found.need, found.have) == ([members[0][1]], [rid("cut")])


async def test_a_bound_in_the_answer_has_all_its_bits(client: RelayClient, author: Author) -> None:
    """Forty items are told in sixteen fingerprints, each up to a bound; the first bound is the whole time."""
    await client.store(*(wrap(author, f"{n}", rid(n), m=MTIME + 10 * n) for n in range(40)))
    await client.send("NEG-OPEN", "n", mine(author))
    await snapshot_seq(client, "n")
    await client.send("NEG-MSG", "n", "61" + "00" + "00" + "01" + "ab" * 16)
    message = bytes.fromhex((await client.next_of("n"))[2])
    assert message.startswith(b"\x61" + varint(MTIME + 10 * 3 + 1)), "the first of sixteen parts has three items"


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filter",
    [{}, {"kinds": [GIFT_WRAP]}, {"#p": []}, {"#p": ["a" * 64, "b" * 64]}, {"#p": "a" * 64}, {"#p": [1]}, {"#r": []}],
    ids=str,
)
async def test_exactly_one_recipient_is_asked_for(client: RelayClient, filter: dict) -> None:
    await client.send("NEG-OPEN", "n", filter)
    assert await client.next_of("n") == ["NEG-ERR", "n", ONE_RECIPIENT]
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]


@pytest.mark.parametrize(
    "filter",
    [{"kinds": [1]}, {"#t": ["x"]}, {"#d": "x"}, {"authors": ["x"]}, {"limit": 5}, {"ids": []}, {"kinds": "x"}],
    ids=str,
)
async def test_a_filter_that_is_not_well_formed_is_refused(client: RelayClient, author: Author, filter: dict) -> None:
    await client.send("NEG-OPEN", "n", {**mine(author), **filter})
    (text,) = await neg_error(client, "n")
    assert text and text != ONE_RECIPIENT


async def test_a_message_without_a_session_is_told_so(client: RelayClient, author: Author) -> None:
    for sub in ("never", "n"):
        await client.send("NEG-MSG", sub, opening())
        assert await client.next_of(sub) == ["NEG-ERR", sub, f"unknown negentropy session: {sub}"]
    await reconcile_heads(client, author, sub="n")
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]


async def test_closing_is_answered_however_often(client: RelayClient, author: Author) -> None:
    await client.send("NEG-OPEN", "n", mine(author))
    await snapshot_seq(client, "n")
    for _ in range(3):
        await client.send("NEG-CLOSE", "n")
        assert await client.next_of("n") == ["CLOSED", "n", "negentropy session closed"]
    assert await heads_of(client, author, sub="n") == [], "and the name can be used again"


# --- whose a session is --------------------------------------------------------------------------------------------


async def test_two_sockets_use_the_same_name_without_meeting(node: Node, connect: Callable, author: Author) -> None:
    """The reference keys its sessions across sockets."""
    one, two = await connect(node), await connect(node)
    other = Author.random()
    await one.store(wrap(author, "x", rid("mine")), wrap(other, "x", rid("theirs")))
    for client, who in ((one, author), (two, other)):
        await client.send("NEG-OPEN", "n", mine(who))
        await snapshot_seq(client, "n")
    for client, expected in ((one, "mine"), (two, "theirs")):
        await client.send("NEG-MSG", "n", opening())
        frame = await client.next_of("n")
        assert rid(expected) in frame[2] and rid("theirs" if expected == "mine" else "mine") not in frame[2]
    await one.send("NEG-CLOSE", "n")
    assert (await one.next_of("n"))[0] == "CLOSED"
    await two.send("NEG-MSG", "n", opening())
    assert (await two.next_of("n"))[0] == "NEG-MSG", "the other one goes on"


async def test_a_session_is_unknown_on_another_socket_and_ends_with_its_own(
    node: Node, connect: Callable, author: Author
) -> None:
    async with RelayClient.open(node.url) as first:
        await first.send("NEG-OPEN", "n", mine(author))
        await snapshot_seq(first, "n")
        second = await connect(node)
        await second.send("NEG-MSG", "n", opening())
        assert await second.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]
    await second.send("NEG-MSG", "n", opening())
    assert await second.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]


async def test_the_same_name_on_one_socket_replaces_the_session(client: RelayClient, author: Author) -> None:
    other = Author.random()
    await client.store(wrap(author, "x", rid("a")), wrap(other, "x", rid("b")))
    for who in (author, other):
        await client.send("NEG-OPEN", "n", mine(who))
        await snapshot_seq(client, "n")
    await client.send("NEG-MSG", "n", opening())
    message = (await client.next_of("n"))[2]
    assert rid("b") in message and rid("a") not in message


async def test_a_refused_opening_ends_the_session_of_that_name(client: RelayClient, author: Author) -> None:
    await client.send("NEG-OPEN", "n", mine(author))
    await snapshot_seq(client, "n")
    await client.send("NEG-OPEN", "n", {})
    assert (await client.next_of("n"))[2] == ONE_RECIPIENT
    await client.send("NEG-MSG", "n", opening())
    assert (await client.next_of("n"))[2] == "unknown negentropy session: n"


async def test_a_subscription_and_a_session_of_one_name_do_not_meet(client: RelayClient, author: Author) -> None:
    feed = await client.changes(mine(author, live=True), sub="n")
    assert await heads_of(client, author, sub="n") == []
    made = wrap(author, "x", rid("a"))
    await client.store(made)
    assert (await client.next_change("n"))[1] == made and feed.sub == "n"
    await client.send("NEG-OPEN", "n", mine(author))
    await snapshot_seq(client, "n")
    assert await client.close_sub("n") == "closed"
    await client.send("NEG-MSG", "n", opening())
    assert (await client.next_of("n"))[0] == "NEG-MSG"


# --- frozen, and the hand-off --------------------------------------------------------------------------------------


async def test_what_is_published_during_a_session_changes_nothing_in_it(
    node: Node, connect: Callable, author: Author
) -> None:
    client, writer = await connect(node), await connect(node)
    before = {rid(n): MTIME + n for n in range(600)}
    await writer.store(*(wrap(author, f"{r}", r, m=m) for r, m in before.items()))
    await client.send("NEG-OPEN", "n", mine(author))
    seq = await snapshot_seq(client, "n")
    ours, found = Reconciler(items((m, r) for r, m in list(before.items())[::2])), set()
    message = ours.initiate()
    step = 0
    while message is not None:
        await writer.store(
            wrap(author, f"new {step}", rid(f"new {step}"), m=MTIME + step),
            wrap(author, list(before)[step], rid(f"child {step}"), [list(before)[step]]),
        )
        await client.send("NEG-MSG", "n", message.hex())
        learnt = ours.reconcile(bytes.fromhex((await client.next_of("n"))[2]))
        found |= {id.hex() for id in learnt.need}
        message, step = learnt.message, step + 1
    assert step >= 2
    assert found == set(list(before)[1::2])
    feed = await client.changes(mine(author, since=seq))
    assert {rev_of(e) for _, e in feed.events} == {rid(f"{w} {n}") for w in ("new", "child") for n in range(step)}


async def test_from_the_set_to_the_feed_nothing_is_lost_while_eight_publishers_write(
    node: Node, connect: Callable
) -> None:
    """NEG-OPEN at S, fetch what is needed, CHANGES since S: together every head, whenever one joins."""
    author, each = Author.random(), 40

    async def write(client: RelayClient, share: int) -> None:
        last: list[str] = []
        for n in range(each):
            r = rid(f"{share}-{n}")
            await client.store(wrap(author, f"d{share}", r, last, m=MTIME + n))
            last = [r]

    async def join(client: RelayClient) -> tuple[set[str], set[str]]:
        """What a new device has in the end, and what it takes for heads."""
        found = await reconcile_heads(client, author)
        known: dict[str, list[str]] = {}
        fetched = await client.req(mine(author, **{"#r": found.need}), verb="REQ-BATCH")
        assert sorted(map(rev_of, fetched.events)) == sorted(found.need)
        feed = await client.changes(mine(author, since=found.seq, live=True))
        events = [*fetched.events, *(e for _, e in feed.events)]
        while True:
            for event in events:
                known[rev_of(event)] = [tag[1] for tag in event["tags"] if tag[0] == "prev"]
            if all(rid(f"{share}-{each - 1}") in known for share in range(8)):
                break
            events = [(await client.next_change(feed.sub))[1]]
        return set(known), set(known) - {parent for parents in known.values() for parent in parents}

    publishing = asyncio.gather(*[write(await connect(node), share) for share in range(8)])
    joining = []
    while not publishing.done() and len(joining) < 10:
        joining.append(asyncio.create_task(join(await connect(node))))
        await asyncio.sleep(0.05)
    await publishing
    joining.append(asyncio.create_task(join(await connect(node))))
    for known, heads in await asyncio.gather(*joining):
        assert heads == {rid(f"{share}-{each - 1}") for share in range(8)}
        for share in range(8):
            mine_ = sorted(n for n in range(each) if rid(f"{share}-{n}") in known)
            assert mine_ == list(range(mine_[0], each)), "from the head at S on, not one is missing"


async def test_uploading_what_the_relay_lacks_makes_the_sets_equal(client: RelayClient, author: Author) -> None:
    ours = {rid(n): wrap(author, f"{n}", rid(n), m=MTIME + n, created_at=EPOCH) for n in range(50)}
    await client.store(*list(ours.values())[:20])
    members = [(MTIME + n, rid(n)) for n in range(50)]
    found = await reconcile_heads(client, author, members)
    await client.store(*(ours[r] for r in found.have))
    again = await reconcile_heads(client, author, members)
    assert (len(found.have), again.have, again.need, again.rounds) == (30, [], [], 1)
