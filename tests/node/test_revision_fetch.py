"""Fetching revisions by their ids, what is said of compacted payloads, and what NIP-11 says of all that."""

from collections.abc import Callable, Iterator

import pytest
from authors import EPOCH, Author, ids, now, snapshot
from processes import ADMIN_TOKEN, Node
from sockets import RelayClient
from wraps import GIFT_WRAP, MTIME, check_store, heads_of, rid, wrap

DAY = 86_400_000


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose operator may compact."""
    own = Node(tmp_path_factory.mktemp("kept"), env={"ADMIN_TOKEN": ADMIN_TOKEN}, token=ADMIN_TOKEN)
    own.start()
    yield own
    own.end()


def by_rev(author: Author, *revisions: str) -> dict:
    return {"kinds": [GIFT_WRAP], "#p": [author.pubkey], "#r": list(revisions)}


async def test_revisions_are_fetched_by_their_ids_in_ascending_order(client: RelayClient, author: Author) -> None:
    made = [wrap(author, "x", rid(n), created_at=EPOCH - n) for n in range(5)]
    await client.store(*made, wrap(Author.random(), "x", rid(1)))
    answer = await client.req(by_rev(author, *map(rid, range(4))))
    assert answer.ids == ids(made[3::-1]) and answer.eose
    assert (await client.req({"#r": [rid(2)], "#p": [author.pubkey]})).ids == [made[2]["id"]]
    assert (await client.req({**by_rev(author), "#r": [rid(2), rid(3)], "limit": 1})).ids == [made[2]["id"]], (
        "the newest"
    )


async def test_an_unknown_revision_gets_the_end_and_nothing_else(client: RelayClient, author: Author) -> None:
    for wanted in ([rid("never")], ["nonsense"], []):
        answer = await client.req(by_rev(author, *wanted))
        assert answer.frames == [["EOSE", answer.sub]]


async def test_a_batch_comes_in_frames_of_at_most_128(client: RelayClient, author: Author) -> None:
    made = [wrap(author, f"{n}", rid(n), created_at=EPOCH + n) for n in range(300)]
    await client.store(*made)
    answer = await client.req(by_rev(author, *map(rid, range(300))), verb="REQ-BATCH")
    assert [frame[0] for frame in answer.frames] == ["EVENTS"] * 3 + ["EOSE"]
    assert [len(frame[2]) for frame in answer.frames[:-1]] == [128, 128, 44]
    assert answer.ids == ids(made)


async def test_what_is_compacted_is_told_sorted_after_the_events_and_before_the_end(
    kept: Node, connect: Callable, author: Author
) -> None:
    client = await connect(kept)
    old = (now() * 1000) - 30 * DAY
    chain = [wrap(author, "x", rid(n), [rid(n - 1)] if n else [], m=old + n) for n in range(4)]
    young = [wrap(author, "y", rid("y0")), wrap(author, "y", rid("y1"), [rid("y0")])]
    young[0] = wrap(author, "y", rid("y0"), m=now() * 1000)
    note = [snapshot(author, "note", {"a": n}, created_at=EPOCH) for n in (1, 2)]
    await client.store(*chain, *young, *note)
    assert await heads_of(client, author) == sorted([rid(3), rid("y1")])
    report = kept.compact(10)
    assert report["compacted_revisions"] == 3
    gone = sorted(map(rid, range(3)))
    for verb in ("REQ", "REQ-BATCH"):
        answer = await client.req(by_rev(author, *map(rid, [0, 1, 2, 3, "y0", "never"])), verb=verb)
        assert sorted(answer.ids) == sorted(ids([chain[3], young[0]]))
        assert answer.statuses == [{"rev": rev, "status": "payload_compacted"} for rev in gone]
        assert [frame[0] for frame in answer.frames[-4:]] == ["EVENT-STATUS"] * 3 + ["EOSE"]
    one = await client.req(by_rev(author, rid(1)))
    assert one.frames == [
        ["EVENT-STATUS", one.sub, {"rev": rid(1), "status": "payload_compacted"}],
        ["EOSE", one.sub],
    ]
    by_id = await client.req({"ids": [chain[0]["id"], chain[3]["id"]]})
    assert by_id.statuses == [{"id": chain[0]["id"], "status": "payload_compacted"}]
    assert await heads_of(client, author) == sorted([rid(3), rid("y1")]), "heads stay"


async def test_a_compacted_revision_is_told_to_whom_the_filter_is_for(
    kept: Node, connect: Callable, author: Author
) -> None:
    client, other = await connect(kept), Author.random()
    for to in (author, other):
        await client.store(
            wrap(to, "x", rid(f"{to.pubkey}a"), m=5), wrap(to, "x", rid(f"{to.pubkey}b"), [rid(f"{to.pubkey}a")])
        )
    kept.compact(0)
    theirs = rid(f"{other.pubkey}a")
    assert (await client.req(by_rev(author, theirs))).statuses == []
    assert (await client.req({**by_rev(other, theirs), "kinds": [1]})).statuses == []
    assert (await client.req({**by_rev(other, theirs), "#d": ["another document"]})).statuses == []
    assert (await client.req({**by_rev(other, theirs), "authors": [author.pubkey]})).statuses == []
    assert (await client.req(by_rev(other, theirs), by_rev(author, theirs))).statuses == [
        {"rev": theirs, "status": "payload_compacted"}
    ]


async def test_the_feed_leaves_out_what_is_compacted_unless_it_is_asked_for(
    kept: Node, connect: Callable, author: Author
) -> None:
    client = await connect(kept)
    tip = kept.max_seq()
    made = [wrap(author, "x", rid("a"), m=5), wrap(author, "x", rid("b"), [rid("a")], m=6)]
    await client.store(*made)
    kept.compact(0)
    mine = {"kinds": [GIFT_WRAP], "#p": [author.pubkey], "since": tip}
    assert (await client.changes(mine)).events == [(tip + 2, made[1])]
    feed = await client.changes({**mine, "include_compacted": True})
    status = {"rev": rid("a"), "status": "payload_compacted", "id": made[0]["id"], "seq": tip + 1}
    assert feed.frames[0] == ["EVENT-STATUS", feed.sub, status]
    assert feed.events == [(tip + 2, made[1])]


async def test_the_edges_of_what_is_compacted_still_count(kept: Node, connect: Callable, author: Author) -> None:
    """A parent that comes after the payload of its child has gone is still no head."""
    client = await connect(kept)
    await client.store(wrap(author, "x", rid("b"), [rid("a")], m=5), wrap(author, "x", rid("c"), [rid("b")], m=6))
    kept.compact(0)
    await client.store(wrap(author, "x", rid("a"), m=4))
    assert await heads_of(client, author) == [rid("c")]
    ok = await client.publish(wrap(author, "x", rid("b"), [rid("a")], m=5))
    assert (ok.accepted, ok.message) == (True, "duplicate: revision already exists")
    assert (await client.req(by_rev(author, rid("b")))).events == []
    check_store(kept)


async def test_the_relay_document_says_what_clients_of_revision_sync_look_for(
    start_node: Callable, connect: Callable, author: Author
) -> None:
    own = start_node(admin=True)
    info = own.info()
    assert {"CF", "NEG-REV", 62, 77} <= set(info["supported_nips"])
    assert info["changes_feed"]["min_seq"] == 0
    assert info["revision_sync"] == {
        "strategy": "revision-sync.v1",
        "current_head_negentropy": True,
        "changes_feed": True,
        "recipient_scoped": True,
        "batch_fetch": True,
        "retention": {"min_payload_mtime": None},
    }

    def oldest() -> int | None:
        return own.info()["revision_sync"]["retention"]["min_payload_mtime"]

    client = await connect(own)
    made = [wrap(author, "x", rid(n), [rid(n - 1)] if n else [], m=MTIME + n) for n in range(3)]
    await client.store(*reversed(made))
    assert oldest() == MTIME
    own.compact(0)
    assert oldest() == MTIME + 2, "the head is all that is left"
    assert own.info()["changes_feed"]["min_seq"] == 1
    await client.store(author.event(5, tags=[["e", made[2]["id"]]]))
    assert oldest() is None
