"""The nine defects of the reference relay, each by its number: what it got wrong, ours must get right."""

import asyncio
import json
from collections.abc import Callable

import pytest
from authors import EPOCH, NOTE, Author, ids, snapshot, versions
from processes import Node
from sockets import ConnectionEnded, RelayClient


async def test_defect_1_forged_ids_and_signatures_are_not_stored(client: RelayClient, author: Author) -> None:
    stranger = Author.random()
    true = snapshot(author, "note", {"x": 1})
    forgeries = {
        "another's signature": {**true, "sig": stranger.key.sign_schnorr(bytes.fromhex(true["id"])).hex()},
        "another's name": {**snapshot(stranger, "note", {"x": 1}), "pubkey": author.pubkey},
        "an invented id": {**true, "id": "ab" * 32},
        "an id of other content": {**true, "content": "changed"},
        "a clock moved on": {**true, "tags": [["d", "note"], ["o", "put"], ["vc", "x", "2"]]},
        "a signature with one bit turned": {**true, "sig": f"{int(true['sig'], 16) ^ 1:0128x}"},
        "no signature": {**true, "sig": "0" * 128},
    }
    for name, forged in forgeries.items():
        ok = await client.publish(forged)
        assert not ok.accepted and ok.message.startswith("invalid:"), (name, ok)
    assert (await client.tail(author)).events == []
    assert (await client.req({"authors": [author.pubkey]})).events == []
    assert (await client.bootstrap(author)).snapshots == []


@pytest.mark.parametrize(
    "message", ['["EVENT", null]', '["EVENT", {"kind":42061}]', '["EVENT"]', '["EVENT", []]', '["EVENT", 7]']
)
async def test_defect_2_an_event_that_is_no_event_is_refused(client: RelayClient, node: Node, message: str) -> None:
    assert (await client.refusal(message)).startswith("invalid:")
    await client.still_answers()
    assert node.alive


async def test_defect_2_one_new_event_on_eight_sockets_at_once_is_stored_once(
    node: Node, connect: Callable, author: Author
) -> None:
    clients = [await connect(node) for _ in range(8)]
    for n in range(20):
        event = snapshot(author, f"d{n}", {"x": 1})
        oks = await asyncio.gather(*(client.publish(event) for client in clients))
        assert all(ok.accepted for ok in oks)
        words = sorted(ok.message for ok in oks)
        assert words == ["duplicate: snapshot already exists"] * 7 + [f"stored: snapshot {event['id']}"]
    assert len((await clients[0].tail(author)).events) == 20


async def burst(writers: list[RelayClient], author: Author, each: int) -> list[str]:
    """Every writer publishes as fast as it can; the ids in no particular order."""
    shares = [
        [snapshot(author, f"w{w}-{n}", {"x": 1}, created_at=EPOCH) for n in range(each)] for w in range(len(writers))
    ]
    await asyncio.gather(*(writer.store(*share) for writer, share in zip(writers, shares, strict=True)))
    return [event["id"] for share in shares for event in share]


async def follow(reader: RelayClient, author: Author, count: int) -> tuple[list[int], list[str]]:
    """Join from the beginning and stay until `count` events have come."""
    feed = await reader.tail(author, since=0, live=True)
    seqs, found = feed.seqs, feed.ids
    while len(seqs) < count:
        seq, event = await reader.next_change(feed.sub)
        seqs.append(seq)
        found.append(event["id"])
    return seqs, found


async def test_defect_3_subscribers_that_join_in_a_burst_lose_nothing(
    node: Node, connect: Callable, author: Author
) -> None:
    writers = [await connect(node) for _ in range(4)]
    readers = [await connect(node) for _ in range(10)]
    writing = asyncio.create_task(burst(writers, author, 200))
    following = []
    for reader in readers:
        following.append(asyncio.create_task(follow(reader, author, 800)))
        await asyncio.sleep(0.02)
    published = await writing
    for seqs, found in await asyncio.gather(*following):
        assert seqs == sorted(set(seqs))
        assert sorted(found) == sorted(published)


async def test_defect_4_live_positions_never_go_backwards(node: Node, connect: Callable, author: Author) -> None:
    writers = [await connect(node) for _ in range(8)]
    reader = await connect(node)
    feed = await reader.tail(author, live=True)
    published = await burst(writers, author, 100)
    live = [await reader.next_change(feed.sub) for _ in published]
    seqs = [seq for seq, _ in live]
    assert seqs == sorted(set(seqs))
    replay = await reader.tail(author)
    assert replay.seqs == seqs and replay.ids == [event["id"] for _, event in live]


async def test_defect_5_a_bootstrap_is_read_at_one_position(node: Node, connect: Callable, author: Author) -> None:
    """While one document is rewritten again and again, every bootstrap shows it exactly once, as of its position."""
    writer, reader = await connect(node), await connect(node)
    history = versions(author, "note", 200)
    await writer.store(history[0])

    async def write() -> None:
        for event in history[1:]:
            await writer.store(event)

    writing = asyncio.create_task(write())
    feeds = []
    while not writing.done():
        feeds.append(await reader.bootstrap(author))
    positions = dict(zip(ids(history), (await reader.tail(author)).seqs, strict=True))
    for feed in feeds:
        (current,) = feed.snapshots
        newest = max(seq for seq in positions.values() if seq <= feed.eose)
        assert positions[current["id"]] == newest


async def test_defect_5_a_limit_never_shows_a_dominated_snapshot(client: RelayClient, author: Author) -> None:
    history = versions(author, "note", 6)
    await client.store(*history)
    for limit in (1, 2, 5):
        assert (await client.bootstrap(author, limit=limit)).snapshots == [history[-1]]


async def test_defect_5_kinds_and_tags_filter_a_bootstrap(client: RelayClient, author: Author) -> None:
    kept = snapshot(author, "kept", {"x": 1}, c="notes", created_at=EPOCH)
    gone = snapshot(author, "gone", {"x": 1}, o="del", created_at=EPOCH + 1)
    await client.store(kept, gone)
    assert (await client.bootstrap(author, **{"#o": ["put"]})).snapshots == [kept]
    assert (await client.bootstrap(author, **{"#c": ["notes"]})).snapshots == [kept]
    assert (await client.bootstrap(author, **{"#c": ["tasks"]})).snapshots == []
    assert (await client.bootstrap(author, kinds=[42062])).snapshots == []
    assert (await client.bootstrap(author, kinds=[NOTE])).snapshots == [kept, gone]


async def test_defect_6_a_client_that_stores_eose_skips_nothing(client: RelayClient, author: Author) -> None:
    events = versions(author, "note", 20)
    await client.store(*events)
    seqs = (await client.tail(author)).seqs
    for cut in (
        {"limit": 3},
        {"until_seq": seqs[2]},
        {"limit": 3, "until_seq": seqs[10]},
        {"limit": 9, "until_seq": seqs[2]},
    ):
        first = await client.tail(author, **cut)
        assert first.eose == seqs[2], cut
        rest = await client.tail(author, since=first.eose)
        assert first.ids + rest.ids == ids(events)


async def test_defect_7_a_checkpoint_below_the_floor_is_told(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(admin=True, env={"RETENTION_REPLAY_COUNT": "5"})
    client = await connect(own)
    events = versions(author, "note", 20)
    await client.store(*events)
    own.compact(None)
    floor = own.min_seq()
    assert floor == 16
    for since in (0, 1, floor - 2):
        feed = await client.tail(author, since=since)
        assert feed.frames == [["CHANGES", feed.sub, "ERR", f"checkpoint too old: min_seq is {floor}"]]
    complete = await client.tail(author, since=floor - 1)
    assert complete.ids == ids(events[15:]) and complete.eose == 20
    assert (await client.changes({"authors": [author.pubkey], "kinds": [NOTE]})).error


@pytest.mark.parametrize(
    "message",
    [
        '["REQ","x",{"ids":["%s"]}]' % ("'" * 64),
        '["REQ","x",{"#d":["\\u0000"]}]',
        '["REQ","x",{"limit":99999999999999999999999}]',
        '["REQ","x",{"since":-99999999999999999999999}]',
        '["REQ","x",{"kinds":[99999999999999999999999]}]',
        '["CHANGES","x",{"authors":["%s"],"since":99999999999999999999999,"mode":"tail"}]' % ("a" * 64),
        '["CHANGES","x",{"authors":["%s"],"kinds":[99999999999999999999999],"mode":"bootstrap"}]' % ("a" * 64),
        '["CHANGES","x",{"authors":["\\u0000\' OR 1=1 --"],"kinds":[42061],"mode":"bootstrap"}]',
        '["COUNT","x",{"#d":["\\u0000\\";DROP TABLE x;--"]}]',
    ],
)
async def test_defect_8_no_database_text_reaches_a_client(client: RelayClient, message: str) -> None:
    words = json.dumps(await client.exchange(message)).lower()
    for leak in ("sqlite", "sql", "overflow", "traceback", "python", "operand", "constraint", "apsw", "psycopg"):
        assert leak not in words, words
    await client.still_answers()


SHAPES = [
    *('""', "0", "null", "true", "{}", "[]", "[[]]", "[null]", "[1]", '[""]', '["event"]', '["NOPE"]', '["OK"]'),
    *('["EVENT",{}]', '["EVENT",{"id":{}}]', '["EVENT",{"tags":null}]', '["EVENT",[[[[]]]]]', '["AUTH"]', '["AUTH",1]'),
    *('["REQ"]', '["REQ",{}]', '["REQ","x",{"ids":{}}]', '["REQ","x",{"#":["a"]}]', '["REQ","",{}]', '["COUNT"]'),
    *('["CLOSE"]', '["CLOSE",1]', '["CLOSE",null]', '["CLOSE",{}]', '["CHANGES",[],[]]', '["CHANGES","x",{}]'),
    *('["TOKEN"]', '["TOKEN",1]', '["AUTH",{"kind":22242}]', '["NEG-OPEN"]', '["NEG-OPEN","x",{},"61"]'),
    *("", " ", "[", '["EVENT",', "NaN", '["REQ","x",{"limit":NaN}]', "\u0000", "\ufeff[]", "[" * 5000, '{"a":' * 5000),
    *('["REQ","\\ud800",{}]', '["REQ","x",{"#t":["\\udc00"]}]', '["CHANGES","\\ud800",{}]', '["\\u0000"]', '["😀"]'),
    *('["REQ","x",{"ids":["' + "\\u0000" * 64 + '"]}]', '["CLOSE","\\ud83d"]', '["EVENT",{"content":"\\ud800"}]'),
]


async def test_defect_9_wrong_shapes_and_odd_unicode_end_nothing(node: Node, connect: Callable) -> None:
    neighbour = await connect(node)
    for shape in SHAPES:
        client = await connect(node)
        await client.send_raw(shape)
        try:
            await client.still_answers()
        except ConnectionEnded as ended:
            raise AssertionError(f"{shape[:60]!r} ended its session: {ended}") from ended
        await client.connection.close()
    await neighbour.still_answers()


@pytest.mark.parametrize("message", ['{"a":1}', '"EVENT"', "17", "null", "not json", '["EVENT",', ""])
async def test_defect_9_what_is_no_json_array_is_told_so(client: RelayClient, message: str) -> None:
    assert await client.exchange(message) == ["NOTICE", "invalid: expected a JSON array message"]


async def test_defect_9_binary_messages_are_told_so(client: RelayClient) -> None:
    for message in (b"", b"\x00\xff", b'["REQ","x",{}]'):
        assert await client.exchange(message) == ["NOTICE", "invalid: binary messages unsupported"]
    await client.still_answers()


async def test_defect_9_fields_of_the_wrong_type_are_not_stored(client: RelayClient, author: Author) -> None:
    good = snapshot(author, "note", {"x": 1})
    for field, value in (("kind", "42061"), ("created_at", 1.5), ("content", None), ("tags", {"d": "note"})):
        odd = author.sign({**{k: good[k] for k in ("pubkey", "created_at", "kind", "tags", "content")}, field: value})
        assert (await client.refusal(json.dumps(["EVENT", odd]))).startswith("invalid:")
    assert (await client.req({"authors": [author.pubkey]})).events == []
