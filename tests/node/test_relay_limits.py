"""Limits: floods, giants and heaps are refused in clear words, and the neighbours do not notice."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from authors import Author
from bare_sockets import BareSocket
from inside import running
from processes import Node
from sockets import ConnectionEnded, RelayClient

from anabranch.store.sqlite_reader import SqliteReader
from anabranch.wire.messages import TOO_SLOW

ENV = {
    "LIMITS_MESSAGE_BYTES": "20000",
    "LIMITS_EVENT_BYTES": "10000",
    "LIMITS_TAGS": "50",
    "LIMITS_CONTENT_CHARACTERS": "5000",
    "LIMITS_SUBSCRIPTIONS": "10",
    "LIMITS_FILTERS": "5",
    "LIMITS_FILTER_VALUES": "100",
    "LIMITS_QUERY_LIMIT": "40",
    "LIMITS_BAD_MESSAGES": "50",
    "LIMITS_CONNECTIONS": "30",
    "LIMITS_CREATED_AT_AHEAD_SECONDS": "60",
}


@pytest.fixture(scope="module")
def small_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("small"), env=ENV)
    own.start()
    yield own
    own.end()


@pytest.fixture
async def small(small_node: Node, connect: Callable) -> RelayClient:
    return await connect(small_node)


def test_the_limits_are_advertised(small_node: Node) -> None:
    assert small_node.info()["limitation"] == {
        "max_message_length": 20000,
        "max_event_bytes": 10000,
        "max_event_tags": 50,
        "max_content_length": 5000,
        "created_at_upper_limit": 60,
        "max_subscriptions": 10,
        "max_subid_length": 64,
        "max_filters": 5,
        "max_filter_values": 100,
        "max_limit": 40,
        "default_limit": 40,
        "auth_required": False,
        "payment_required": False,
        "restricted_writes": False,
    }


async def test_a_giant_message_is_refused_and_a_neighbour_does_not_notice(
    small_node: Node, small: RelayClient, connect: Callable
) -> None:
    giant = await connect(small_node)
    await giant.send_raw(json.dumps(["EVENT", Author.random().event(1, "x" * 1_000_000)]))
    try:
        assert (await giant.notice()).startswith("invalid:")
    except ConnectionEnded:
        assert giant.connection.close_code == 1009
    await small.still_answers()


async def test_a_giant_message_in_pieces_is_refused_too(small_node: Node, small: RelayClient) -> None:
    def pieces() -> bool:
        with BareSocket(small_node.port) as bare:
            bare.handshake()
            bare.send('["EVENT","', fin=False)
            try:
                for _ in range(100):
                    bare.send("x" * 10_000, 0, fin=False)
                bare.read_until_end()
            except OSError:
                pass
            return True

    assert await asyncio.to_thread(pieces)
    await small.still_answers()


async def test_an_event_at_the_limit_is_taken_and_one_beyond_is_refused(small: RelayClient, author: Author) -> None:
    assert (await small.publish(author.event(1, "x" * 5000))).accepted
    for event in (
        author.event(1, "x" * 5001),
        author.event(1, "", [["t", "y"]] * 51),
        author.event(1, "", [["t", "z" * 11_000]]),
    ):
        ok = await small.publish(event)
        assert not ok.accepted and ok.message.startswith(("invalid:", "blocked:")), ok
    assert await small.count({"authors": [author.pubkey]}) == 1


async def test_an_event_from_the_far_future_is_refused(small: RelayClient, author: Author) -> None:
    far = author.event(1, "tomorrow")
    far = author.sign(
        {key: far[key] for key in ("pubkey", "kind", "tags", "content")} | {"created_at": far["created_at"] + 3600}
    )
    ok = await small.publish(far)
    assert not ok.accepted and ok.message.startswith("invalid:")


async def test_more_subscriptions_than_allowed_are_refused_and_the_others_stay(
    small: RelayClient, author: Author
) -> None:
    answers = [await small.req({"authors": [author.pubkey]}, live=True) for _ in range(10)]
    assert all(answer.eose for answer in answers)
    refused = await small.req({"authors": [author.pubkey]}, live=True)
    assert refused.closed is not None and ":" in refused.closed
    feed = await small.tail(author, live=True)
    assert feed.error is not None
    event = author.event(1, "to ten")
    await small.store(event)
    for answer in answers:
        assert (await small.next_of(answer.sub))[2] == event
    assert await small.close_sub(answers[0].sub) == "closed"
    assert (await small.req({"authors": [author.pubkey]}, live=True)).eose


async def test_a_subscription_that_replaces_another_counts_once(small: RelayClient, author: Author) -> None:
    for _ in range(30):
        assert (await small.req({"authors": [author.pubkey]}, sub="same", live=True)).eose


async def test_a_feed_that_has_ended_does_not_count(small: RelayClient, author: Author) -> None:
    for _ in range(30):
        assert (await small.tail(author)).eose is not None
        assert (await small.bootstrap(author)).eose is not None


async def test_a_subscription_id_is_at_most_64_characters(small: RelayClient, author: Author) -> None:
    assert (await small.req({"authors": [author.pubkey]}, sub="x" * 64)).eose
    assert (await small.req({"authors": [author.pubkey]}, sub="ü😀" * 32)).eose
    for verb in ("REQ", "COUNT", "CHANGES", "REQ-BATCH"):
        filter = {"authors": [author.pubkey]}
        assert await small.refusal(json.dumps([verb, "x" * 65, filter]))
    assert await small.refusal(json.dumps(["REQ", "", {"authors": [author.pubkey]}]))
    await small.still_answers()


async def test_more_filters_or_values_than_allowed_are_refused(small: RelayClient, author: Author) -> None:
    many = [{"authors": [author.pubkey], "kinds": [n]} for n in range(6)]
    assert (await small.req(*many[:5])).eose
    assert (await small.req(*many)).closed
    ids = [f"{n:064x}" for n in range(101)]
    assert (await small.req({"ids": ids[:100]})).eose
    assert (await small.req({"ids": ids})).closed


async def test_a_query_gets_no_more_than_the_limit_and_the_newest(small: RelayClient, author: Author) -> None:
    events = [author.event(1, f"{n}", created_at=1_700_000_000 + n) for n in range(60)]
    await small.store(*events)
    for filter in ({"authors": [author.pubkey]}, {"authors": [author.pubkey], "limit": 5000}):
        assert (await small.req(filter)).ids == [event["id"] for event in reversed(events[20:])]


async def test_a_flood_of_garbage_is_cut_off_and_a_neighbour_does_not_notice(
    small_node: Node, small: RelayClient, connect: Callable
) -> None:
    flooder = await connect(small_node)
    try:
        for _ in range(5000):
            await flooder.send_raw("garbage")
        await flooder.wait_ended()
    except Exception:
        await flooder.wait_ended()
    assert flooder.connection.close_code is not None
    await small.still_answers()


async def test_more_connections_than_allowed_are_refused_until_one_leaves(small_node: Node, connect: Callable) -> None:
    opened: list[RelayClient] = []
    refused = None
    while refused is None and len(opened) <= 30:
        try:
            opened.append(await connect(small_node))
        except Exception as error:
            refused = error
    assert refused is not None and "503" in str(refused), refused
    for client in opened:
        await client.still_answers()
    for client in opened[:5]:
        await client.connection.close()
    for _ in range(50):
        try:
            late = await connect(small_node)
            break
        except Exception:
            await asyncio.sleep(0.02)
    await late.still_answers()


async def test_a_query_that_takes_longer_than_it_may_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, author: Author
) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    monkeypatch.setattr(SqliteReader, "count", lambda self, filters, now: self._value(endless))
    async with running(tmp_path, query_seconds=0.2) as own, RelayClient.open(own.introduction["url"]) as client:
        await client.send("COUNT", "c", {"authors": [author.pubkey]})
        assert await client.next_of("c") == ["CLOSED", "c", TOO_SLOW]
        await client.still_answers()


async def test_a_flood_of_queries_is_answered_or_refused_one_by_one(client: RelayClient, author: Author) -> None:
    for n in range(500):
        await client.send("COUNT", f"c{n}", {"authors": [author.pubkey]})
    for n in range(500):
        assert (await client.next_of(f"c{n}"))[0] in ("COUNT", "CLOSED")
    await client.still_answers()


async def test_a_client_may_open_all_its_subscriptions_at_once(client: RelayClient, node: Node, author: Author) -> None:
    """Apps do that when they reconnect: as many as are advertised, in one go."""
    allowed = node.info()["limitation"]["max_subscriptions"]
    for n in range(allowed):
        await client.send("REQ", f"r{n}", {"authors": [author.pubkey], "kinds": [n]})
    for n in range(allowed):
        assert await client.next_of(f"r{n}") == ["EOSE", f"r{n}"]


async def test_a_flood_of_forgeries_is_refused_one_by_one(node: Node, connect: Callable, author: Author) -> None:
    flooder, neighbour = await connect(node), await connect(node)
    event = author.event(1, "true")
    forged = [{**event, "id": f"{n:064x}"} for n in range(800)]
    for one in forged:
        await flooder.send("EVENT", one)
    await neighbour.still_answers()
    for one in forged:
        _, _, accepted, reason = await flooder.next(("OK", one["id"]))
        assert not accepted and reason.startswith("invalid:")
    assert (await flooder.publish(event)).accepted


async def test_connections_that_say_nothing_hold_nobody_up(node: Node, connect: Callable, author: Author) -> None:
    silent = [BareSocket(node.port) for _ in range(100)]
    client = await connect(node)
    await client.store(author.event(1, "still here"))
    for bare in silent[:50]:
        bare.sock.sendall(b"GET / HTT")
    await client.still_answers()
    for bare in silent:
        bare.sock.close()
    await client.still_answers()


async def test_forged_events_in_a_row_close_a_connection_and_a_good_one_starts_the_count_anew(
    small_node: Node, small: RelayClient, author: Author
) -> None:
    forged = [{**author.event(content=f"{n}"), "sig": "0" * 128} for n in range(51)]
    for event in forged[:40]:
        assert not (await small.publish(event)).accepted
    await small.store(author.event(content="good"))
    for event in forged[:50]:
        assert not (await small.publish(event)).accepted
    await small.publish(forged[50])
    await small.wait_ended()


def test_a_request_that_takes_too_long_to_arrive_is_told_so(start_node: Callable[..., Node]) -> None:
    own = start_node(env={"LIMITS_HANDSHAKE_SECONDS": "1"})
    with BareSocket(own.port) as bare, BareSocket(own.port) as silent:
        bare.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert bare.read_head().startswith("HTTP/1.1 408")
        assert silent.sock.recv(1) == b""
