"""NIP-77 as a server: any filter's events by negentropy, over a frozen set, within bounds, freed with the socket."""

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest
from authors import EPOCH, Author, snapshot
from processes import Node
from sockets import RelayClient
from wraps import MTIME, heads_of, items, neg_error, opening, reconcile_events, rid, snapshot_seq, wrap

from anabranch.core.negentropy import Reconciler
from anabranch.wire import messages

TOO_MANY = "blocked: too many query results"
NO_ROOM = "rate-limited: no room for one more reconciliation; try again later"


def sessions(node: Node) -> int:
    """Negentropy sessions under way, as the metrics have it."""
    found = re.search(r"^anabranch_reconciliations (\S+)$", node.http("GET", "/metrics").text, re.M)
    assert found
    return int(float(found.group(1)))


async def eventually(condition: Callable[[], bool], seconds: float = 5) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    assert condition()


def notes(author: Author, count: int, start: int = EPOCH) -> list[dict]:
    return [author.event(1, str(n), created_at=start + n) for n in range(count)]


def pairs(events: list[dict]) -> list[tuple[int, str]]:
    return [(event["created_at"], event["id"]) for event in events]


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with narrow bounds: 30 items, 4 sessions a connection, a second of silence."""
    limits = "[limits]\nreconcile_items = 30\nreconciliations = 4\nreconcile_seconds = 1\n"
    own = Node(tmp_path_factory.mktemp("bounded"), config=limits)
    own.start()
    yield own
    own.end()


# --- the exchange --------------------------------------------------------------------------------------------------


async def test_both_sides_learn_what_they_lack(client: RelayClient, author: Author) -> None:
    theirs, ours = notes(author, 120), notes(author, 3, EPOCH + 1_000)
    await client.store(*theirs)
    found = await reconcile_events(client, {"authors": [author.pubkey]}, pairs(theirs[20:] + ours))
    assert sorted(found.need) == sorted(event["id"] for event in theirs[:20])
    assert sorted(found.have) == sorted(event["id"] for event in ours)


async def test_the_first_answer_is_a_message_and_no_status(client: RelayClient, author: Author) -> None:
    await client.send("NEG-OPEN", "n", {"authors": [author.pubkey]}, opening())
    assert await client.next_of("n") == ["NEG-MSG", "n", "61" + "00" + "00" + "02" + "00"], "we have nothing there"


async def test_every_condition_of_the_filter_counts(client: RelayClient, author: Author) -> None:
    made = [
        author.event(1, "a", [["t", "x"]], EPOCH),
        author.event(7, "b", [["t", "x"]], EPOCH + 1),
        author.event(1, "c", created_at=EPOCH + 2),
        snapshot(author, "note", {"a": 1}, created_at=EPOCH + 3),
    ]
    await client.store(*made)
    for conditions in (
        {},
        {"kinds": [1]},
        {"kinds": [1, 7], "#t": ["x"]},
        {"since": EPOCH + 1, "until": EPOCH + 2},
        {"limit": 2},
        {"limit": 0},
        {"ids": [made[0]["id"], made[3]["id"]]},
        {"kinds": []},
    ):
        filter = {"authors": [author.pubkey], **conditions}
        expected = (await client.req(filter)).ids
        for _ in range(2):
            assert sorted((await reconcile_events(client, filter)).need) == sorted(expected), conditions


async def test_a_filter_in_an_array_of_one_is_taken_as_one_client_sends_it(client: RelayClient, author: Author) -> None:
    (made,) = notes(author, 1)
    await client.store(made)
    assert (await reconcile_events(client, [{"authors": [author.pubkey]}])).need == [made["id"]]
    await client.store(wrap(author, "x", rid("a")))
    await client.send("NEG-OPEN", "n", [{"kinds": [1059], "#p": [author.pubkey]}])
    await snapshot_seq(client, "n")
    for wrong in ([], [{}, {}], [[{}]], ["x"]):
        await client.send("NEG-OPEN", "w", wrong, opening())
        assert (await neg_error(client, "w"))[0].startswith("invalid:")


async def test_events_and_revisions_are_told_apart_by_the_number_of_elements(
    client: RelayClient, author: Author
) -> None:
    old, head = wrap(author, "x", rid("a")), wrap(author, "x", rid("b"), [rid("a")])
    await client.store(old, head)
    filter = {"kinds": [1059], "#p": [author.pubkey]}
    assert sorted((await reconcile_events(client, filter)).need) == sorted([old["id"], head["id"]])
    assert await heads_of(client, author) == [rid("b")]


async def test_closing_has_no_answer_of_its_own(client: RelayClient, author: Author) -> None:
    await client.send("NEG-OPEN", "n", {"authors": [author.pubkey]}, opening())
    await client.next_of("n")
    await client.send("NEG-CLOSE", "n")
    await client.still_answers()
    assert client.waiting("n") == []
    await client.send("NEG-CLOSE", "n")
    assert await client.next_of("n") == ["CLOSED", "n", "negentropy session closed"], "of nothing there is to close"


async def test_the_set_is_frozen_when_the_session_opens(node: Node, connect: Callable, author: Author) -> None:
    client, writer = await connect(node), await connect(node)
    before = notes(author, 600)
    await writer.store(*before)
    ours, found, rounds = Reconciler(items(pairs(before[::2]))), set(), 0
    await client.send("NEG-OPEN", "n", {"authors": [author.pubkey]}, ours.initiate().hex())
    while True:
        step = ours.reconcile(bytes.fromhex((await client.next_of("n"))[2]))
        found |= {id.hex() for id in step.need}
        rounds += 1
        if step.message is None:
            break
        await writer.store(author.event(1, f"during {rounds}", created_at=EPOCH + rounds))
        await writer.store(author.event(5, tags=[["e", before[rounds]["id"]]], created_at=EPOCH))
        await client.send("NEG-MSG", "n", step.message.hex())
    assert rounds >= 2 and found == {event["id"] for event in before[1::2]}
    after = await reconcile_events(client, {"authors": [author.pubkey], "kinds": [1]})
    assert sorted(after.need) == sorted((await client.req({"authors": [author.pubkey], "kinds": [1]})).ids)


async def test_another_version_is_answered_with_ours(client: RelayClient, author: Author) -> None:
    await client.send("NEG-OPEN", "n", {"authors": [author.pubkey]}, "62" + "00")
    assert await client.next_of("n") == ["NEG-MSG", "n", "61"]
    await client.send("NEG-MSG", "n", opening())
    assert (await client.next_of("n"))[0] == "NEG-MSG", "and the session goes on"


# --- what is no message --------------------------------------------------------------------------------------------

WRONG = [
    "",
    "6",
    "6x",
    "61 00",
    "0x61",
    "70",
    "ff",
    "00",
    "6101",
    "61000003",
    "6100000105",
    "61000002ff",
    "61" + "ff" * 12,
]


@pytest.mark.parametrize("message", WRONG)
async def test_a_first_message_that_is_none_ends_the_session(client: RelayClient, author: Author, message: str) -> None:
    await client.send("NEG-OPEN", "n", {"authors": [author.pubkey]}, message)
    (text,) = await neg_error(client, "n")
    assert text.startswith("invalid:")
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]


@pytest.mark.parametrize("message", WRONG)
async def test_a_later_message_that_is_none_ends_the_session(client: RelayClient, author: Author, message: str) -> None:
    await client.send("NEG-OPEN", "n", {"kinds": [1059], "#p": [author.pubkey]})
    await snapshot_seq(client, "n")
    await client.send("NEG-MSG", "n", message)
    (text,) = await neg_error(client, "n")
    assert text.startswith("invalid:")
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]


@pytest.mark.parametrize(
    "frame",
    [
        ["NEG-OPEN"],
        ["NEG-OPEN", "n"],
        ["NEG-OPEN", 1, {}, "61"],
        ["NEG-OPEN", "n", {}, "61", "x"],
        ["NEG-OPEN", "", {}, "61"],
        ["NEG-OPEN", "x" * 65, {}, "61"],
        ["NEG-MSG"],
        ["NEG-MSG", "n"],
        ["NEG-MSG", "n", 1],
        ["NEG-MSG", "n", "61", "61"],
        ["NEG-CLOSE"],
        ["NEG-CLOSE", 1],
        ["NEG-CLOSE", "n", "n"],
    ],
    ids=lambda frame: str(frame)[:40],
)
async def test_a_frame_of_the_wrong_shape_gets_a_notice(client: RelayClient, frame: list) -> None:
    await client.send(*frame)
    assert (await client.notice()).startswith("invalid:")


@pytest.mark.parametrize("filter", [None, "x", 1, {"kinds": ["x"]}, {"since": -1}, {"nonsense": 1}, {"ids": ["x"]}])
@pytest.mark.parametrize("message", ["61000002" + "00", 5, None])
async def test_a_filter_or_message_of_the_wrong_type_is_refused(
    client: RelayClient, filter: object, message: object
) -> None:
    await client.send("NEG-OPEN", "n", filter, message)
    assert (await neg_error(client, "n"))[0].startswith("invalid:")


# --- bounds --------------------------------------------------------------------------------------------------------


async def test_a_set_larger_than_the_cap_is_refused_with_the_cap(
    bounded: Node, connect: Callable, author: Author
) -> None:
    client = await connect(bounded)
    made = notes(author, 30)
    await client.store(*made)
    filter = {"authors": [author.pubkey]}
    assert len((await reconcile_events(client, filter)).need) == 30
    await client.store(author.event(1, "one too many", created_at=EPOCH + 99))
    for _ in range(2):
        await client.send("NEG-OPEN", "n", filter, opening())
        assert await client.next_of("n") == ["NEG-ERR", "n", TOO_MANY, 30]
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]
    narrower = {**filter, "until": EPOCH + 29}
    assert len((await reconcile_events(client, narrower)).need) == 30, "a window of it is served"
    assert len((await reconcile_events(client, {**filter, "limit": 30})).need) == 30
    await client.store(author.event(5, tags=[["e", made[0]["id"]]], created_at=EPOCH))
    assert len((await reconcile_events(client, {**filter, "kinds": [1]})).need) == 30, "and when there are fewer"


async def test_a_set_of_heads_larger_than_the_cap_is_refused_with_the_cap(
    bounded: Node, connect: Callable, author: Author
) -> None:
    client = await connect(bounded)
    await client.store(*(wrap(author, f"{n}", rid(n)) for n in range(31)))
    await client.send("NEG-OPEN", "n", {"#p": [author.pubkey]})
    assert await client.next_of("n") == ["NEG-ERR", "n", TOO_MANY, 30]
    assert len(await heads_of(client, author, **{"#d": [str(n) for n in range(30)]})) == 30


async def test_who_is_silent_for_too_long_is_told_and_let_go(bounded: Node, connect: Callable, author: Author) -> None:
    client = await connect(bounded)
    await client.send("NEG-OPEN", "n", {"#p": [author.pubkey]})
    await client.send("NEG-OPEN", "e", {"authors": [author.pubkey]}, opening())
    await snapshot_seq(client, "n")
    assert (await client.next_of("e"))[0] == "NEG-MSG"
    await asyncio.sleep(0.6)
    await client.send("NEG-MSG", "e", opening())
    assert (await client.next_of("e"))[0] == "NEG-MSG"
    assert await client.next_of("n", 5) == ["NEG-ERR", "n", "closed: you took too long to respond"]
    assert client.waiting("e") == [], "who has spoken meanwhile has another second"
    assert await client.next_of("e", 5) == ["NEG-ERR", "e", "closed: you took too long to respond"]
    await client.send("NEG-MSG", "n", opening())
    assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]
    await client.still_answers()
    await eventually(lambda: sessions(bounded) == 0)


async def test_a_connection_has_so_many_sessions_and_no_more(bounded: Node, connect: Callable, author: Author) -> None:
    client, other = await connect(bounded), await connect(bounded)
    filter = {"authors": [author.pubkey]}
    for n in range(4):
        await client.send("NEG-OPEN", f"n{n}", filter, opening())
        assert (await client.next_of(f"n{n}"))[0] == "NEG-MSG"
    await client.send("NEG-OPEN", "n4", filter, opening())
    assert await neg_error(client, "n4") == [messages.NO_ROOM]
    await other.send("NEG-OPEN", "n4", filter, opening())
    assert (await other.next_of("n4"))[0] == "NEG-MSG", "each connection has its own"
    await client.send("NEG-OPEN", "n0", filter, opening())
    assert (await client.next_of("n0"))[0] == "NEG-MSG", "one in the place of another is not one more"
    await client.send("NEG-CLOSE", "n1")
    await client.send("NEG-OPEN", "n4", filter, opening())
    assert (await client.next_of("n4"))[0] == "NEG-MSG"


async def test_sessions_are_freed_when_they_end_and_when_their_socket_does(node: Node, author: Author) -> None:
    before = sessions(node)
    async with RelayClient.open(node.url) as client:
        for n in range(10):
            await client.send("NEG-OPEN", f"n{n}", {"authors": [author.pubkey]}, opening())
            await client.next_of(f"n{n}")
        assert sessions(node) == before + 10
        await client.send("NEG-CLOSE", "n0")
        await client.send("NEG-MSG", "n1", "ff")
        await client.send("NEG-OPEN", "n2", "wrong", "")
        await eventually(lambda: sessions(node) == before + 7)
    await eventually(lambda: sessions(node) == before)


async def test_who_does_not_wait_for_answers_is_not_waited_for(node: Node, connect: Callable, author: Author) -> None:
    client, neighbour = await connect(node), await connect(node)
    await client.store(*(wrap(author, f"{n}", rid(n)) for n in range(100)))
    await client.send("NEG-OPEN", "n", {"#p": [author.pubkey]})
    client.send_together(*(["NEG-MSG", "n", opening()] for _ in range(500)))
    frames = [await client.next_of("n") for _ in range(2)]
    while frames[-1][0] != "NEG-ERR":
        frames.append(await client.next_of("n"))
    assert frames[-1][2] in ("closed: messages came faster than they were answered", "unknown negentropy session: n")
    assert "closed: messages came faster than they were answered" in [frame[2] for frame in frames]
    await neighbour.still_answers()
    assert len(await heads_of(client, author, sub="again")) == 100


async def test_a_large_answer_comes_in_frames_that_a_peer_accepts(start_node: Callable, connect: Callable) -> None:
    author = Author.random()
    own = start_node(config="[limits]\nmessage_bytes = 16384\nevent_bytes = 16384\n")
    client = await connect(own, max_size=16_384)
    made = notes(author, 1_500)
    await client.store(*made)
    found = await reconcile_events(client, {"authors": [author.pubkey]}, [(EPOCH, "00" * 32)])
    assert sorted(found.need) == sorted(event["id"] for event in made) and found.rounds > 2
    assert found.have == ["00" * 32] and MTIME
