"""Private mode for revisions: everybody writes to, reads and follows what is addressed to them, and nothing else."""

from collections.abc import Callable, Iterator

import pytest
from authors import EPOCH, Author, snapshot
from processes import ADMIN_TOKEN, Node
from sockets import RelayClient
from wraps import GIFT_WRAP, heads_of, neg_error, opening, reconcile_events, rid, wrap

AUTH = "auth-required: authentication required for revision {}"
NO_P = "restricted: revision {} must include a #p filter"
NOT_YOURS = "restricted: can only query revision {} addressed to you"
NOT_YOUR_WRITE = "restricted: can only write revision state addressed to you"


@pytest.fixture(scope="module")
def private_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(
        tmp_path_factory.mktemp("private-revisions"),
        env={"PRIVATE": "true", "ADMIN_TOKEN": ADMIN_TOKEN},
        token=ADMIN_TOKEN,
    )
    own.start()
    yield own
    own.end()


@pytest.fixture
async def stranger(private_node: Node, connect: Callable) -> RelayClient:
    return await connect(private_node)


@pytest.fixture
async def member(private_node: Node, connect: Callable, author: Author) -> RelayClient:
    return await authenticated(private_node, connect, author)


async def authenticated(node: Node, connect: Callable, *who: Author) -> RelayClient:
    client = await connect(node)
    challenge = await client.challenge()
    for one in who:
        assert (await client.authenticate(one, challenge, node.url)).accepted
    return client


def mine(author: Author, **rest: object) -> dict:
    return {"kinds": [GIFT_WRAP], "#p": [author.pubkey], **rest}


async def refused_opening(client: RelayClient, *frame: object) -> str:
    await client.send("NEG-OPEN", "n", *frame)
    (text,) = await neg_error(client, "n")
    return text


# --- who has not said who they are ---------------------------------------------------------------------------------


async def test_without_authentication_no_revision_is_written_or_read(stranger: RelayClient, author: Author) -> None:
    ok = await stranger.publish(wrap(author, "x", rid("a")))
    assert (ok.accepted, ok.message) == (False, AUTH.format("writes"))
    for filter in (mine(author), {"kinds": [GIFT_WRAP]}, {"#r": [rid("a")]}, {"#r": [rid("a")], "#p": [author.pubkey]}):
        assert (await stranger.req(filter)).closed == AUTH.format("queries")
        assert (await stranger.req(filter, verb="REQ-BATCH")).closed == AUTH.format("queries")
        feed = await stranger.changes(filter)
        assert feed.frames == [["CHANGES", feed.sub, "ERR", AUTH.format("changes")]]
    assert await refused_opening(stranger, mine(author)) == AUTH.format("queries")
    assert await refused_opening(stranger, {}) == AUTH.format("queries")
    assert await refused_opening(stranger, mine(author), opening()) == AUTH.format("queries")
    assert (await refused_opening(stranger, {"kinds": [1]}, opening())).startswith("auth-required:")


# --- who has -------------------------------------------------------------------------------------------------------


async def test_a_member_writes_reads_follows_and_reconciles_what_is_addressed_to_them(
    member: RelayClient, author: Author
) -> None:
    feed = await member.changes(mine(author, live=True))
    made = wrap(author, "x", rid("a"))
    assert (await member.publish(made)).message == f"stored: revision {rid('a')}"
    assert (await member.next_change(feed.sub))[1] == made
    assert (await member.req(mine(author))).events == [made]
    assert (await member.req({"#p": [author.pubkey], "#r": [rid("a")]})).events == [made]
    assert (await member.req(mine(author, **{"#r": [rid("a")]}), verb="REQ-BATCH")).events == [made]
    assert await heads_of(member, author) == [rid("a")]
    assert (await reconcile_events(member, mine(author))).need == [made["id"]]
    assert await member.count(mine(author)) == 1
    await member.store(author.event(5, tags=[["e", made["id"]]]))
    assert (await member.next_of(feed.sub))[2::2] == ["DELETED", made["id"]]


async def test_nobody_writes_to_another(member: RelayClient, author: Author) -> None:
    ok = await member.publish(wrap(Author.random(), "x", rid("a"), by=author))
    assert (ok.accepted, ok.message) == (False, NOT_YOUR_WRITE)


async def test_nobody_reads_what_is_addressed_to_another(member: RelayClient, author: Author) -> None:
    other = Author.random()
    both = {**mine(author), "#p": [author.pubkey, other.pubkey]}
    for filter in (mine(other), both, mine(other, authors=[author.pubkey]), {"#r": [rid("a")], "#p": [other.pubkey]}):
        assert (await member.req(filter)).closed == NOT_YOURS.format("state")
        feed = await member.changes(filter)
        assert feed.frames == [["CHANGES", feed.sub, "ERR", NOT_YOURS.format("changes")]]
        assert await refused_opening(member, filter) == NOT_YOURS.format("state")
        assert await refused_opening(member, filter, opening()) == NOT_YOURS.format("state")
        await member.send("COUNT", "c", filter)
        assert (await member.next_of("c"))[::2] == ["CLOSED", NOT_YOURS.format("state")]
    mixed = await member.req(mine(author), mine(other))
    assert mixed.closed == NOT_YOURS.format("state") and mixed.events == []


async def test_a_recipient_is_required(member: RelayClient, author: Author) -> None:
    for filter in ({"kinds": [GIFT_WRAP]}, {"#r": [rid("a")]}, {**mine(author), "#p": []}):
        assert (await member.req(filter)).closed == NO_P.format("queries")
        feed = await member.changes(filter)
        assert feed.frames == [["CHANGES", feed.sub, "ERR", NO_P.format("CHANGES")]]
        assert await refused_opening(member, filter) == NO_P.format("queries")
        assert await refused_opening(member, filter, opening()) == NO_P.format("queries")
    assert await refused_opening(member, {}) == NO_P.format("queries")
    assert await refused_opening(member, {"kinds": [GIFT_WRAP], "#p": "x"}) == NO_P.format("queries")


async def test_a_member_of_two_names_one_of_them_at_a_time(
    private_node: Node, connect: Callable, author: Author
) -> None:
    other = Author.random()
    client = await authenticated(private_node, connect, author, other)
    await client.store(wrap(author, "x", rid("a")), wrap(other, "x", rid("b")))
    both = {"kinds": [GIFT_WRAP], "#p": [author.pubkey, other.pubkey]}
    assert len((await client.req(both)).events) == 2
    assert await heads_of(client, other) == [rid("b")]
    assert (await client.changes(both)).error == "revision CHANGES currently requires exactly one #p recipient"
    assert await refused_opening(client, both) == "NEG-OPEN requires exactly one #p recipient for revision sync"


# --- what must not leak --------------------------------------------------------------------------------------------


async def test_a_query_by_revision_gives_no_other_kind_of_event(
    private_node: Node, connect: Callable, member: RelayClient, author: Author
) -> None:
    """`r` and `p` are tags of other kinds too: what another wrote is not ours because it mentions us."""
    other = Author.random()
    theirs = await authenticated(private_node, connect, other)
    mentions = [["p", author.pubkey], ["r", "https://example.com"], ["r", rid("a")]]
    plain = other.event(1, "about you", mentions)
    note = other.event(42061, "sealed", [["d", "x"], ["o", "put"], ["vc", "a", "1"], *mentions])
    await theirs.store(plain, note)
    for value in ("https://example.com", rid("a")):
        for kinds in ({}, {"kinds": [1]}, {"kinds": [1, 42061, GIFT_WRAP]}):
            filter = {"#r": [value], "#p": [author.pubkey], **kinds}
            assert (await member.req(filter)).events == [], filter
            await member.send("NEG-OPEN", "n", filter, opening())
            frame = await member.next_of("n")
            assert frame[0] == "NEG-ERR" or not {plain["id"], note["id"]} & set(frame[2:]), frame
            assert plain["id"] not in str(frame) and note["id"] not in str(frame)


async def test_ones_own_events_are_found_by_their_r_tags_as_before(member: RelayClient, author: Author) -> None:
    """A relay list (NIP-65) has `r` tags and is no revision."""
    relays = author.event(10002, "", [["r", "wss://relay.example"]])
    await member.store(relays)
    filter = {"authors": [author.pubkey], "kinds": [10002], "#r": ["wss://relay.example"]}
    assert (await member.req(filter)).events == [relays]


async def test_whether_anothers_event_was_ever_there_is_not_told(
    private_node: Node, connect: Callable, member: RelayClient, author: Author
) -> None:
    other = Author.random()
    theirs = await authenticated(private_node, connect, other)
    old, new = [snapshot(other, "note", {"a": n}, created_at=EPOCH) for n in (1, 2)]
    hidden = wrap(other, "x", rid("hidden"), m=5)
    await theirs.store(*(snapshot(other, "note", {"a": n}, created_at=EPOCH + n) for n in (3, 4, 5, 6)))
    await theirs.store(old, new, hidden, wrap(other, "x", rid("child"), [rid("hidden")], m=6))
    private_node.compact(0)
    asked = [old["id"], new["id"], hidden["id"]]
    assert (await theirs.req({"authors": [other.pubkey], "ids": asked})).statuses, "there is something to tell"
    for filter in (
        mine(author, ids=asked),
        mine(author, **{"#r": [rid("hidden")]}),
        {"authors": [author.pubkey], "ids": asked},
    ):
        answer = await member.req(filter)
        assert (answer.events, answer.statuses) == ([], []), filter


async def test_live_feeds_and_queries_carry_only_what_is_addressed_to_one(
    private_node: Node, connect: Callable, member: RelayClient, author: Author
) -> None:
    other = Author.random()
    theirs = await authenticated(private_node, connect, other)
    feed, query = await member.changes(mine(author, live=True)), await member.req(mine(author), live=True)
    gone = wrap(other, "x", rid("a"))
    await theirs.store(gone, other.event(5, tags=[["e", gone["id"]]]))
    own = wrap(author, "x", rid("a"))
    await member.store(own)
    assert (await member.next_change(feed.sub))[1] == own
    assert (await member.next_of(query.sub))[2] == own


async def test_a_session_is_over_when_another_key_is_shown(
    tmp_path_factory: pytest.TempPathFactory, connect: Callable, author: Author
) -> None:
    own = Node(tmp_path_factory.mktemp("keys"), env={"PRIVATE": "true", "ADMIN_TOKEN": ADMIN_TOKEN}, token=ADMIN_TOKEN)
    own.start()
    try:
        keys = [own.admin("POST", "keys", {}).json()["key"] for _ in range(2)]
        client = await connect(own)
        challenge = await client.challenge()
        await client.send("TOKEN", keys[0])
        assert (await client.next("TOKEN"))[2] is True
        assert (await client.authenticate(author, challenge, own.url)).accepted
        await client.store(wrap(author, "x", rid("a")))
        await client.send("NEG-OPEN", "n", mine(author))
        assert (await client.next_of("n"))[0] == "NEG-STATUS"
        await client.send("TOKEN", keys[1])
        assert (await client.next("TOKEN"))[2] is True
        await client.send("NEG-MSG", "n", opening())
        assert await client.next_of("n") == ["NEG-ERR", "n", "unknown negentropy session: n"]
        assert await refused_opening(client, mine(author)) == AUTH.format("queries")
    finally:
        own.end()


async def test_a_public_node_may_leave_revisions_to_their_recipient(
    start_node: Callable[..., Node], connect: Callable
) -> None:
    ana, stranger = Author.random(), Author.random()
    own = start_node(env={"REVISION_WRITES": "recipient"})
    client, other = await connect(own), await connect(own)
    challenge = await client.challenge()
    assert (await client.publish(wrap(ana, "d", rid("a")))).message == AUTH.format("writes")
    assert (await client.authenticate(ana, challenge, own.url)).accepted
    assert (await client.publish(wrap(ana, "d", rid("a")))).accepted
    assert (await client.publish(wrap(stranger, "d", rid("b")))).message == NOT_YOUR_WRITE
    assert (await other.publish(stranger.event(1, "open to all"))).accepted
    assert len((await other.req({"kinds": [GIFT_WRAP], "#p": [ana.pubkey]})).events) == 1


async def test_only_those_on_the_list_may_authenticate(start_node: Callable[..., Node], connect: Callable) -> None:
    ana, stranger = Author.random(), Author.random()
    own = start_node(env={"PRIVATE": "true", "ALLOWED_PUBKEYS": ana.pubkey})
    client = await connect(own)
    challenge = await client.challenge()
    refused = await client.authenticate(stranger, challenge, own.url)
    assert (refused.accepted, refused.message) == (False, "restricted: pubkey not authorized on this relay")
    assert (await client.authenticate(ana, challenge, own.url)).accepted
