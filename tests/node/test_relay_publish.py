"""Publishing: what is taken, what is refused, and the words for it."""

import json

import pytest
from authors import EPOCH, NOTE, Author, event_id, snapshot
from bare_sockets import BareSocket
from processes import Node
from sockets import RelayClient

MALFORMED = "invalid: missing or malformed snapshot metadata"


async def test_a_stored_snapshot_is_acknowledged_with_its_id(client: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"laptop": 1})
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (True, f"stored: snapshot {event['id']}")
    assert (await client.req({"ids": [event["id"]]})).events == [event]


async def test_a_snapshot_published_again_is_a_duplicate_and_a_success(client: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"laptop": 1})
    await client.store(event)
    seq = (await client.tail(author)).seqs
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (True, "duplicate: snapshot already exists")
    assert (await client.tail(author)).seqs == seq


async def test_a_plain_event_published_again_is_a_duplicate_and_a_success(client: RelayClient, author: Author) -> None:
    event = author.event(1, "hello")
    assert (await client.publish(event)).accepted
    ok = await client.publish(event)
    assert ok.accepted and ok.message.startswith("duplicate:")
    assert (await client.req({"authors": [author.pubkey]})).events == [event]


D, PUT, VC = ["d", "note"], ["o", "put"], ["vc", "laptop", "1"]

MALFORMED_TAGS = {
    "no tags": [],
    "no d": [PUT, VC],
    "d empty": [["d", ""], PUT, VC],
    "d without value": [["d"], PUT, VC],
    "no o": [D, VC],
    "o without value": [D, ["o"], VC],
    "o empty": [D, ["o", ""], VC],
    "o unknown": [D, ["o", "patch"], VC],
    "o in capitals": [D, ["o", "PUT"], VC],
    "o with a space": [D, ["o", "put "], VC],
    "no vc": [D, PUT],
    "vc alone": [D, PUT, ["vc"]],
    "vc without counter": [D, PUT, ["vc", "laptop"]],
    "vc with four elements": [D, PUT, ["vc", "laptop", "1", ""]],
    "device empty": [D, PUT, ["vc", "", "1"]],
    "device blank": [D, PUT, ["vc", "  ", "1"]],
    "device a tab": [D, PUT, ["vc", "\t", "1"]],
    "devices descending": [D, PUT, ["vc", "b", "1"], ["vc", "a", "1"]],
    "devices descending by case": [D, PUT, ["vc", "a", "1"], ["vc", "B", "1"]],
    "device twice": [D, PUT, ["vc", "a", "1"], ["vc", "a", "1"]],
    "device twice with other counters": [D, PUT, ["vc", "a", "1"], ["vc", "a", "2"]],
    "one bad vc among good": [D, PUT, ["vc", "a", "1"], ["vc", "b", "x"], ["vc", "c", "1"]],
    "33 devices": [D, PUT, *(["vc", f"device-{n:02}", "1"] for n in range(33))],
    **{
        f"counter {counter!r}": [D, PUT, ["vc", "laptop", counter]]
        for counter in (
            *("", "0", "00", "01", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "1_000", "x", "NaN"),
            *("9007199254740992", "18446744073709551616", "9" * 400, "１", "٣", "²"),
        )
    },
}


@pytest.mark.parametrize("tags", MALFORMED_TAGS.values(), ids=MALFORMED_TAGS.keys())
async def test_malformed_snapshot_metadata_is_refused(client: RelayClient, author: Author, tags: list) -> None:
    event = author.event(NOTE, "sealed", tags)
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (False, MALFORMED)
    assert (await client.req({"authors": [author.pubkey]})).events == []
    assert (await client.tail(author)).events == []


GOOD_TAGS = {
    "a name": [D, PUT, VC, ["c", "notes"]],
    "a tombstone": [D, ["o", "del"], VC],
    "32 devices": [D, PUT, *(["vc", f"device-{n:02}", "1"] for n in range(32))],
    "the largest counter": [D, PUT, ["vc", "laptop", "9007199254740991"]],
    "devices that differ by case": [D, PUT, ["vc", "A", "1"], ["vc", "a", "1"]],
    "capitals before small letters": [D, PUT, ["vc", "B", "1"], ["vc", "a", "1"]],
    "another order of the tags": [["c", "notes"], VC, ["x", "y", "z"], PUT, D],
    "vc tags apart": [["vc", "a", "1"], D, ["vc", "b", "7"], PUT, ["vc", "c", "3"]],
    "an odd d": [["d", "Ünï/\u0000:😀 "], PUT, VC],
}


@pytest.mark.parametrize("tags", GOOD_TAGS.values(), ids=GOOD_TAGS.keys())
async def test_good_snapshot_metadata_is_stored_as_it_was_signed(
    client: RelayClient, author: Author, tags: list
) -> None:
    event = author.event(NOTE, "sealed", tags)
    ok = await client.publish(event)
    assert (ok.accepted, ok.message) == (True, f"stored: snapshot {event['id']}")
    feed = await client.tail(author)
    assert [stored for _, stored in feed.events] == [event]


@pytest.mark.parametrize("kind", [40000, 42060, 42062, 49999])
async def test_the_rest_of_the_sync_range_is_reserved(client: RelayClient, author: Author, kind: int) -> None:
    whole = snapshot(author, "note", {"laptop": 1}, kind=kind)
    bare = author.event(kind, "sealed")
    for event in (whole, bare):
        ok = await client.publish(event)
        assert not ok.accepted and ok.message.startswith(("unsupported:", "invalid:", "blocked:")), ok
    assert await client.fetch(whole["id"], bare["id"]) == []


@pytest.mark.parametrize("kind", [39999, 50000])
async def test_the_kinds_around_the_sync_range_are_plain(client: RelayClient, author: Author, kind: int) -> None:
    event = author.event(kind, "plain", [["d", "x"]])
    assert (await client.publish(event)).accepted
    assert await client.fetch(event["id"]) == [event["id"]]


ODD_TEXTS = {
    "NUL": "a\u0000b",
    "controls": "".join(map(chr, range(0x20))) + "\u007f\u0080\u009f",
    "escapes": '"\\/\b\f\n\r\t',
    "separators": "\u2028\u2029\ufeff\u200b\u202e",
    "astral": "😀👩‍👩‍👧‍👦𝔘\U0010ffff",
    "combining": "e\u0301 é Å Å",
    "noncharacters": "\ufffe\uffff\ufdd0",
    "replacement": "\ufffd",
    "markup": "<script>alert('x')</script>&amp;'; DROP TABLE events;--%s{}",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
async def test_odd_unicode_comes_back_as_it_was_sent(client: RelayClient, author: Author, text: str) -> None:
    plain = author.event(1, text, [["t", text]])
    sync = snapshot(author, f"d{text}", {f"device{text}": 1}, content=text, c=text)
    await client.store(plain, sync)
    assert (await client.req({"authors": [author.pubkey], "#t": [text]})).events == [plain]
    assert (await client.tail(author, **{"#d": [f"d{text}"], "#c": [text]})).ids == [sync["id"]]
    assert (await client.req({"ids": [sync["id"]]})).events == [sync]


async def test_the_signed_text_is_served_as_it_came(node: Node, client: RelayClient, author: Author) -> None:
    event = author.event(1, "é/😀")
    raw = (
        f'{{"sig":"{event["sig"]}","tags":[],"kind":1,"content":"\\u00e9\\/\\ud83d\\ude00", '
        f'"created_at":{event["created_at"]},"pubkey":"{event["pubkey"]}","id":"{event["id"]}"}}'
    )
    assert json.loads(raw) == event
    assert (await client.exchange(f'["EVENT",{raw}]'))[:3] == ["OK", event["id"], True]
    with BareSocket(node.port) as bare:
        bare.handshake()
        bare.send(json.dumps(["REQ", "raw", {"ids": [event["id"]]}]))
        frames = [bare.read_frame() for _ in range(2)]
    texts = [payload.decode() for opcode, payload in frames if opcode == 1]
    assert any(raw in text for text in texts), texts


async def test_a_field_that_nip01_does_not_know_does_no_harm(client: RelayClient, author: Author) -> None:
    event = author.event(1, "with a rider")
    frame = await client.exchange(json.dumps(["EVENT", {**event, "rider": "x", "seen": [1]}]))
    assert frame[0] in ("OK", "NOTICE")
    for served in (await client.req({"ids": [event["id"]]})).events:
        assert {key: served[key] for key in event} == event


FIELDS = ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")

WRONG_TYPES: list[tuple[str, object]] = [
    *(("kind", value) for value in ("1", 1.5, None, True, -1, 65536, 2**31, 2**64, [1], {})),
    *(("created_at", value) for value in ("1", 1.5, None, True, 2**64, 2**63, [], {})),
    *(
        ("tags", value)
        for value in (None, {}, "x", 1, ["x"], [None], [[1]], [["a", None]], [["a", 1]], [[["a"]]], [{}])
    ),
    *(("content", value) for value in (None, 1, True, {}, [])),
    *(("pubkey", value) for value in (None, 1, "", "zz" * 32, "ab" * 31, "ab" * 33, "00" * 32, "ff" * 32)),
    *(("sig", value) for value in (None, 1, "", "zz" * 64, "ab" * 63, "ab" * 65, "00" * 64, "ff" * 64)),
    *(("id", value) for value in (None, 1, "", "zz" * 32, "ab" * 31, "ab" * 33, "00" * 32, {})),
]


@pytest.mark.parametrize("kind", [1, NOTE])
@pytest.mark.parametrize(("field", "value"), WRONG_TYPES, ids=[f"{f}={str(v)[:20]}" for f, v in WRONG_TYPES])
async def test_a_field_of_the_wrong_type_is_refused_and_not_stored(
    client: RelayClient, author: Author, kind: int, field: str, value: object
) -> None:
    good = snapshot(author, "note", {"laptop": 1}, kind=kind)
    bad = {**good, field: value}
    if field not in ("id", "sig", "pubkey"):
        bad = author.sign({key: value for key, value in bad.items() if key not in ("id", "sig")})
    assert (await client.refusal(json.dumps(["EVENT", bad]))).startswith("invalid:")
    assert (await client.req({"authors": [author.pubkey]})).events == []


@pytest.mark.parametrize("field", FIELDS)
async def test_a_missing_field_is_refused(client: RelayClient, author: Author, field: str) -> None:
    event = snapshot(author, "note", {"laptop": 1})
    del event[field]
    assert (await client.refusal(json.dumps(["EVENT", event]))).startswith("invalid:")
    assert (await client.req({"authors": [author.pubkey]})).events == []


@pytest.mark.parametrize("field", ["id", "pubkey", "sig"])
async def test_hexadecimal_in_capitals_is_refused(client: RelayClient, author: Author, field: str) -> None:
    event = author.event(1, "loud")
    event[field] = event[field].upper()
    if field == "pubkey":
        event = author.sign({key: value for key, value in event.items() if key not in ("id", "sig")})
    assert (await client.refusal(json.dumps(["EVENT", event]))).startswith("invalid:")


@pytest.mark.parametrize(
    ("number", "text"), [(1000, "1e3"), (1000, "1000.0"), (1000, "1E+3"), (1000, "10000e-1"), (0, "-0.0")]
)
@pytest.mark.parametrize("field", ["kind", "created_at"])
async def test_a_number_that_is_not_written_as_an_integer_is_refused(
    client: RelayClient, author: Author, field: str, number: int, text: str
) -> None:
    event = author.sign(
        {"pubkey": author.pubkey, "created_at": EPOCH, "kind": 1, "tags": [], "content": "", field: number}
    )
    raw = json.dumps(["EVENT", event]).replace(f'"{field}": {number}', f'"{field}": {text}')
    assert text in raw
    assert (await client.refusal(raw)).startswith("invalid:")
    assert (await client.req({"authors": [author.pubkey]})).events == []


@pytest.mark.parametrize("where", ["content", "tag", "d", "device"])
@pytest.mark.parametrize("text", ["\\ud800", "\\udfff", "\\udc00\\ud800", "a\\ud83dz"])
async def test_a_lone_surrogate_is_refused(client: RelayClient, author: Author, where: str, text: str) -> None:
    mark = "MARK"
    event = author.event(
        NOTE if where in ("d", "device") else 1,
        mark if where == "content" else "",
        [["d", mark if where == "d" else "x"], ["o", "put"], ["vc", mark if where == "device" else "x", "1"]]
        + ([["t", mark]] if where == "tag" else []),
    )
    assert (await client.refusal(json.dumps(["EVENT", event]).replace(mark, text))).startswith("invalid:")
    await client.still_answers()


async def test_an_id_that_is_not_the_hash_is_refused(client: RelayClient, author: Author) -> None:
    event = author.event(1, "one")
    other = {**event, "content": "two"}
    ok = await client.publish(other)
    assert not ok.accepted and ok.message.startswith("invalid:")
    assert event_id(other) != event["id"]
    assert await client.fetch(event["id"], event_id(other)) == []


async def test_a_refused_forgery_does_not_bar_the_true_event(client: RelayClient, author: Author) -> None:
    event = author.event(1, "true")
    forged = {**event, "sig": author.event(1, "other")["sig"]}
    assert not (await client.publish(forged)).accepted
    assert (await client.publish(event)).accepted
    assert (await client.req({"ids": [event["id"]]})).events == [event]
