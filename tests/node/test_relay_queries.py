"""NIP-01 queries: every filter, their unions, limits and order, against an oracle that anyone can read."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from authors import EPOCH, NOTE, Author, Event, ids, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Node
from sockets import Filter, RelayClient

ALICE, BOB = Author.random(), Author.random()
NOBODY = Author.random()


def library() -> list[Event]:
    """Two authors, a few kinds, tags that overlap, and ties in time."""
    events = []
    for n in range(48):
        author = (ALICE, BOB)[n % 2]
        tags = [["t", "abc"[n % 3]], ["p", (BOB, ALICE)[n % 2].pubkey], ["long", "no index"]]
        if n % 4 == 0:
            tags.append(["t", "four"])
        if events:
            tags.append(["e", events[n // 2]["id"]])
        events.append(author.event((1, 7, 1111)[n % 3], f"n{n}", tags, EPOCH + n // 4 * 10))
    return events


LIBRARY = library()


def matches(event: Event, filter: Filter) -> bool:
    for key, wanted in filter.items():
        if key == "limit":
            continue
        if key == "since":
            good = event["created_at"] >= wanted
        elif key == "until":
            good = event["created_at"] <= wanted
        elif key.startswith("#"):
            good = any(tag[0] == key[1:] and len(tag) > 1 and tag[1] in wanted for tag in event["tags"])
        else:
            good = event[{"ids": "id", "authors": "pubkey", "kinds": "kind"}[key]] in wanted
        if not good:
            return False
    return True


def newest_first(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (-event["created_at"], event["id"]))


def expected(events: list[Event], filters: list[Filter]) -> list[str]:
    found: dict[str, Event] = {}
    for filter in filters:
        hits = newest_first([event for event in events if matches(event, filter)])[: filter.get("limit")]
        found.update({event["id"]: event for event in hits})
    return ids(newest_first(list(found.values())))


@pytest.fixture(scope="module")
def library_node(shared_node: Node) -> Iterator[Node]:
    async def fill() -> None:
        async with RelayClient.open(shared_node.url) as client:
            await client.store(*LIBRARY)

    asyncio.run(fill())
    yield shared_node


@pytest.fixture
async def reader(library_node: Node, connect: Callable) -> RelayClient:
    return await connect(library_node)


OURS = {"authors": [ALICE.pubkey, BOB.pubkey]}

FILTERS: dict[str, list[Filter]] = {
    "one id": [{"ids": [LIBRARY[5]["id"]]}],
    "several ids": [{"ids": ids(LIBRARY[3:9])}],
    "an unknown id among known": [{"ids": ["0" * 64, LIBRARY[7]["id"]]}],
    "one author": [{"authors": [ALICE.pubkey]}],
    "both authors": [OURS],
    "an author who wrote nothing": [{"authors": [NOBODY.pubkey]}],
    "a kind": [{**OURS, "kinds": [7]}],
    "kinds": [{**OURS, "kinds": [1, 1111]}],
    "a kind nobody wrote": [{**OURS, "kinds": [4242]}],
    "since": [{**OURS, "since": EPOCH + 50}],
    "until": [{**OURS, "until": EPOCH + 50}],
    "one second": [{**OURS, "since": EPOCH + 50, "until": EPOCH + 50}],
    "an empty span": [{**OURS, "since": EPOCH + 51, "until": EPOCH + 59}],
    "a span upside down": [{**OURS, "since": EPOCH + 60, "until": EPOCH + 50}],
    "a tag": [{**OURS, "#t": ["a"]}],
    "either value of a tag": [{**OURS, "#t": ["a", "four"]}],
    "two tags": [{**OURS, "#t": ["a"], "#p": [ALICE.pubkey]}],
    "e tag": [{"#e": [LIBRARY[3]["id"]]}],
    "p tag": [{"#p": [BOB.pubkey]}],
    "a tag value nobody has": [{**OURS, "#t": ["zebra"]}],
    "limit": [{**OURS, "limit": 7}],
    "limit cuts within a tie": [{**OURS, "limit": 2}],
    "limit with a tag": [{**OURS, "#t": ["b"], "limit": 3}],
    "limit zero": [{**OURS, "limit": 0}],
    "limit beyond all": [{**OURS, "limit": 400}],
    "limit with until": [{**OURS, "until": EPOCH + 70, "limit": 5}],
    "everything at once": [
        {
            "ids": ids(LIBRARY[8:40]),
            "authors": [ALICE.pubkey],
            "kinds": [1, 7],
            "#t": ["a", "b"],
            "#p": [BOB.pubkey],
            "since": EPOCH + 20,
            "until": EPOCH + 90,
            "limit": 4,
        }
    ],
    "two filters apart": [{"ids": [LIBRARY[1]["id"]]}, {**OURS, "kinds": [7], "limit": 2}],
    "two filters that overlap": [{"authors": [ALICE.pubkey]}, {**OURS, "kinds": [1]}],
    "each filter has its own limit": [{**OURS, "limit": 3}, {**OURS, "until": EPOCH + 30, "limit": 3}],
    "one filter of two matches nothing": [{"authors": [NOBODY.pubkey]}, {**OURS, "#t": ["c"]}],
    "the same filter twice": [{**OURS, "kinds": [1]}, {**OURS, "kinds": [1]}],
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
async def test_a_query_finds_what_matches_newest_first(reader: RelayClient, filters: list[Filter]) -> None:
    answer = await reader.req(*filters)
    assert answer.ids == expected(LIBRARY, filters)
    by_id = {event["id"]: event for event in LIBRARY}
    assert all(by_id[event["id"]] == event for event in answer.events)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
async def test_a_count_is_the_number_of_matches(reader: RelayClient, filters: list[Filter]) -> None:
    unlimited = [{key: value for key, value in filter.items() if key != "limit"} for filter in filters]
    assert await reader.count(*unlimited) == len(expected(LIBRARY, unlimited))


def some(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True)


MOMENTS = st.integers(EPOCH - 5, EPOCH + 125)
ANY_FILTER = st.fixed_dictionaries(
    {"authors": some([ALICE.pubkey, BOB.pubkey, NOBODY.pubkey])},
    optional={
        "ids": st.lists(st.sampled_from(ids(LIBRARY)), min_size=1, max_size=30, unique=True),
        "kinds": some([1, 7, 1111, 4242]),
        "since": MOMENTS,
        "until": MOMENTS,
        "#t": some(["a", "b", "c", "four", "zebra"]),
        "#p": some([ALICE.pubkey, BOB.pubkey]),
        "#e": some(ids(LIBRARY)[:12]),
        "limit": st.integers(0, 20),
    },
)


@settings(max_examples=150)
@given(filters=st.lists(ANY_FILTER, min_size=1, max_size=4))
async def test_any_query_agrees_with_the_oracle(library_node: Node, filters: list[Filter]) -> None:
    async with RelayClient.open(library_node.url) as reader:
        answer = await reader.req(*filters)
    assert answer.ids == expected(LIBRARY, filters)


async def test_an_empty_list_in_a_filter_matches_nothing_or_is_refused(reader: RelayClient) -> None:
    for key in ("ids", "authors", "kinds", "#t"):
        answer = await reader.req({**OURS, key: []})
        assert answer.events == [], key


async def test_snapshots_are_served_oldest_first_and_a_limit_keeps_the_newest(
    client: RelayClient, author: Author
) -> None:
    events = [snapshot(author, f"d{n}", {"laptop": 1}, created_at=EPOCH + n // 3) for n in range(12)]
    await client.store(*reversed(events))
    ascending = sorted(events, key=lambda event: (event["created_at"], event["id"]))
    asked = {"authors": [author.pubkey], "kinds": [NOTE]}
    assert (await client.req(asked)).events == ascending
    newest = newest_first(events)[:5]
    assert set((await client.req({**asked, "limit": 5})).ids) == set(ids(newest))
    kept = (await client.req({**asked, "limit": 5})).events
    assert kept == sorted(kept, key=lambda event: (event["created_at"], event["id"]))


async def test_snapshots_are_found_by_their_metadata_tags(client: RelayClient, author: Author) -> None:
    put = snapshot(author, "a", {"laptop": 1}, c="notes", created_at=EPOCH)
    gone = snapshot(author, "b", {"laptop": 1}, o="del", created_at=EPOCH + 1)
    await client.store(put, gone)
    mine = {"authors": [author.pubkey]}
    assert (await client.req({**mine, "#d": ["a"]})).ids == [put["id"]]
    assert (await client.req({**mine, "#o": ["del"]})).ids == [gone["id"]]
    assert (await client.req({**mine, "#c": ["notes"]})).ids == [put["id"]]
    assert (await client.req({**mine, "#d": ["a", "b"]})).ids == [put["id"], gone["id"]]


async def test_req_batch_carries_the_same_answer_in_frames_of_at_most_128(client: RelayClient, author: Author) -> None:
    await client.store(*(author.event(1, f"n{n}", created_at=EPOCH + n) for n in range(300)))
    asked = {"authors": [author.pubkey]}
    batched = await client.req(asked, verb="REQ-BATCH")
    assert [frame[0] for frame in batched.frames[:-1]] == ["EVENTS"] * (len(batched.frames) - 1)
    assert all(1 <= len(frame[2]) <= 128 for frame in batched.frames[:-1])
    assert len(batched.events) == 300
    assert batched.events == (await client.req(asked)).events


async def test_only_single_letter_tags_are_indexed(client: RelayClient, author: Author) -> None:
    event = author.event(1, "", [["T", "capital"], ["t", "small"], ["title", "long"]])
    await client.store(event)
    mine = {"authors": [author.pubkey]}
    assert (await client.req({**mine, "#T": ["capital"]})).ids == [event["id"]]
    assert (await client.req({**mine, "#T": ["small"]})).ids == []
    assert (await client.req({**mine, "#t": ["small"]})).ids == [event["id"]]


async def test_only_the_first_value_of_a_tag_is_matched(client: RelayClient, author: Author) -> None:
    await client.store(author.event(1, "", [["t", "first", "second"], ["p"]]))
    mine = {"authors": [author.pubkey]}
    assert len((await client.req({**mine, "#t": ["first"]})).ids) == 1
    assert (await client.req({**mine, "#t": ["second"]})).ids == []


BAD_SHAPES = ['["REQ"]', '["REQ",1,{}]', '["REQ",null,{}]', '["REQ","x",1]', '["REQ","x",null]', '["REQ","x",[]]']


@pytest.mark.parametrize("message", [*BAD_SHAPES, *(shape.replace("REQ", "REQ-BATCH") for shape in BAD_SHAPES)])
async def test_a_query_of_the_wrong_shape_is_told_so(client: RelayClient, message: str) -> None:
    verb = json.loads(message)[0]
    notice = await client.exchange(message)
    assert notice[0] == "NOTICE"
    assert notice[1] in {
        f"invalid: {name} requires a string subscription id and object filters" for name in {"REQ", verb}
    }
    await client.still_answers()


@pytest.mark.parametrize(
    "filter",
    [
        *({"ids": value} for value in (1, "x", {}, None, [1], [None], [[]])),
        *({"authors": value} for value in (1, "x", {}, [1], [{}])),
        *({"kinds": value} for value in (1, "1", {}, ["1"], [1.5], [None], [True])),
        *({"since": value} for value in ("1", 1.5, [], {}, True)),
        *({"until": value} for value in ("1", 1.5, [], {}, True)),
        *({"limit": value} for value in ("1", 1.5, [], {}, True, -1)),
        *({"#t": value} for value in (1, "x", {}, [1], [None])),
    ],
    ids=lambda filter: json.dumps(filter),
)
@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
async def test_a_filter_of_the_wrong_type_is_refused_and_keeps_no_subscription(
    client: RelayClient, verb: str, filter: Filter
) -> None:
    reason = await client.refusal(json.dumps([verb, "bad", filter]))
    assert reason.startswith(("invalid:", "error:", "unsupported:"))
    await client.still_answers()


async def test_counts_of_one_id_sent_back_to_back_are_all_answered(client: RelayClient, author: Author) -> None:
    await client.store(author.event(1), author.event(7), author.event(7, "another"))
    for kind in (1, 7, 8):
        await client.send("COUNT", "c", {"authors": [author.pubkey], "kinds": [kind]})
    answers = [await client.next_of("c") for _ in range(3)]
    assert sorted(answer[2]["count"] for answer in answers) == [0, 1, 2]
