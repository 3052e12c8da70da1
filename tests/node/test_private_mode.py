"""Private mode (NIP-42): everybody writes and reads their own, after proving who they are."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from authors import NOTE, Author, now, snapshot
from processes import Node
from sockets import RelayClient

AUTH_WRITES = "auth-required: authentication required for snapshot writes"
AUTH_QUERIES = "auth-required: authentication required for snapshot queries"
AUTH_CHANGES = "auth-required: authentication required for snapshot changes"
OWN_WRITES = "restricted: can only write your own snapshot state"
OWN_QUERIES = "restricted: can only query your own snapshot state"
OWN_CHANGES = "restricted: can only query your own snapshot changes"
AUTHORS_QUERIES = "restricted: snapshot queries must include an authors filter"
AUTHORS_CHANGES = "restricted: snapshot CHANGES must include an authors filter"


@pytest.fixture(scope="module")
def private_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("private"), env={"PRIVATE": "true"})
    own.start()
    yield own
    own.end()


@pytest.fixture
async def stranger(private_node: Node, connect: Callable) -> RelayClient:
    """A connection that has not authenticated."""
    return await connect(private_node)


@pytest.fixture
async def member(private_node: Node, connect: Callable, author: Author) -> RelayClient:
    """A connection on which `author` has authenticated."""
    client = await connect(private_node)
    assert (await client.authenticate(author, await client.challenge(), private_node.url)).accepted
    return client


async def test_a_private_node_says_so(private_node: Node) -> None:
    info = private_node.info()
    assert 42 in info["supported_nips"]
    assert info["limitation"]["auth_required"] is True


async def test_every_connection_gets_its_own_challenge(private_node: Node, connect: Callable) -> None:
    challenges = {await (await connect(private_node)).challenge() for _ in range(5)}
    assert len(challenges) == 5 and all(len(challenge) >= 16 for challenge in challenges)


async def test_without_authentication_nothing_is_written_or_read(stranger: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"x": 1})
    ok = await stranger.publish(event)
    assert (ok.accepted, ok.message) == (False, AUTH_WRITES)
    assert not (await stranger.publish(author.event(1, "plain"))).accepted
    for filter in ({"authors": [author.pubkey]}, {"ids": [event["id"]]}, {}):
        assert (await stranger.req(filter)).closed == AUTH_QUERIES
        assert (await stranger.req(filter, verb="REQ-BATCH")).closed == AUTH_QUERIES
    for feed in (await stranger.tail(author), await stranger.bootstrap(author), await stranger.changes({})):
        assert feed.frames == [["CHANGES", feed.sub, "ERR", AUTH_CHANGES]]


async def test_without_authentication_nothing_is_counted(stranger: RelayClient, author: Author) -> None:
    await stranger.send("COUNT", "c", {"authors": [author.pubkey]})
    frame = await stranger.next_of("c")
    assert frame[0] == "CLOSED" and frame[2].startswith("auth-required:")


async def test_an_authenticated_author_writes_and_reads_their_own(member: RelayClient, author: Author) -> None:
    event = snapshot(author, "note", {"x": 1})
    assert (await member.publish(event)).message == f"stored: snapshot {event['id']}"
    assert (await member.req({"authors": [author.pubkey]})).events == [event]
    assert (await member.tail(author)).ids == [event["id"]]
    assert (await member.bootstrap(author)).snapshots == [event]
    assert await member.count({"authors": [author.pubkey]}) == 1


async def test_nobody_writes_for_another(member: RelayClient) -> None:
    ok = await member.publish(snapshot(Author.random(), "note", {"x": 1}))
    assert (ok.accepted, ok.message) == (False, OWN_WRITES)


async def test_nobody_reads_what_another_wrote(member: RelayClient, author: Author) -> None:
    other = Author.random().pubkey
    for authors in ([other], [author.pubkey, other]):
        assert (await member.req({"authors": authors, "kinds": [NOTE]})).closed == OWN_QUERIES
    mixed = await member.req({"authors": [author.pubkey]}, {"authors": [other]})
    assert mixed.closed == OWN_QUERIES and mixed.events == []
    for mode in ("tail", "bootstrap"):
        feed = await member.changes({"mode": mode, "authors": [other], "kinds": [NOTE]})
        assert feed.frames == [["CHANGES", feed.sub, "ERR", OWN_CHANGES]]


async def test_an_authors_filter_is_required(member: RelayClient, author: Author) -> None:
    for filter in ({"kinds": [NOTE]}, {"ids": ["0" * 64]}, {}, {"#d": ["note"]}):
        assert (await member.req(filter)).closed == AUTHORS_QUERIES
    assert (await member.req({"authors": [author.pubkey]}, {"kinds": [NOTE]})).closed == AUTHORS_QUERIES
    for mode in ("tail", "bootstrap"):
        feed = await member.changes({"mode": mode, "kinds": [NOTE]})
        assert feed.frames == [["CHANGES", feed.sub, "ERR", AUTHORS_CHANGES]]


async def test_a_count_tells_nothing_about_another(member: RelayClient) -> None:
    for filter in ({"authors": [Author.random().pubkey]}, {}):
        await member.send("COUNT", "c", filter)
        frame = await member.next_of("c")
        assert frame[0] == "CLOSED" and frame[2].startswith("restricted:")


async def test_several_authors_may_share_a_connection(
    private_node: Node, stranger: RelayClient, author: Author
) -> None:
    other = Author.random()
    challenge = await stranger.challenge()
    for who in (author, other):
        assert (await stranger.authenticate(who, challenge, private_node.url)).accepted
    events = [snapshot(who, "note", {"x": 1}) for who in (author, other)]
    await stranger.store(*events)
    found = await stranger.req({"authors": [author.pubkey, other.pubkey]})
    assert sorted(found.ids) == sorted(event["id"] for event in events)
    assert (await stranger.tail(other)).ids == [events[1]["id"]]


async def test_answers_sent_back_to_back_are_all_heard(
    private_node: Node, stranger: RelayClient, author: Author
) -> None:
    everybody = [author, *(Author.random() for _ in range(4))]
    challenge = await stranger.challenge()
    events = [who.auth(challenge, private_node.url) for who in everybody]
    for event in events:
        await stranger.send("AUTH", event)
    for event in events:
        assert (await stranger.next(("OK", event["id"])))[2:] == [True, ""]
    for who in everybody:
        assert (await stranger.publish(snapshot(who, "note", {"x": 1}))).accepted


async def test_what_follows_an_authentication_at_once_is_taken_as_authenticated(
    private_node: Node, connect: Callable
) -> None:
    for _ in range(10):
        who, other, client = Author.random(), Author.random(), await connect(private_node)
        challenge = await client.challenge()
        event, second = snapshot(who, "note", {"x": 1}), snapshot(other, "note", {"x": 1})
        feed = {"mode": "tail", "authors": [who.pubkey], "kinds": [NOTE]}
        client.send_together(
            ["AUTH", who.auth(challenge, private_node.url)],
            ["EVENT", event],
            ["EVENT", second],
            ["AUTH", other.auth(challenge, private_node.url)],
            ["EVENT", second],
            ["REQ", "q", {"authors": [who.pubkey]}],
            ["CHANGES", "c", feed],
        )
        assert (await client.next(("OK", event["id"])))[2] is True
        assert [(await client.next(("OK", second["id"])))[2] for _ in range(2)] == [False, True], "not in order"
        frame = await client.next_of("q")
        while frame[0] == "EVENT":
            frame = await client.next_of("q")
        assert frame == ["EOSE", "q"]
        frame = await client.next_of("c")
        while frame[2] == "EVENT":
            frame = await client.next_of("c")
        assert frame[:3] == ["CHANGES", "c", "EOSE"]
        assert (await client.publish(snapshot(who, "note", {"x": 2}))).accepted


async def test_a_connection_that_ends_while_it_authenticates_leaves_nothing_behind(
    private_node: Node, connect: Callable, member: RelayClient, author: Author
) -> None:
    for _ in range(20):
        who, client = Author.random(), await connect(private_node)
        challenge = await client.challenge()
        auths = [["AUTH", who.auth(challenge, private_node.url)]] * 5
        client.send_together(*auths, ["EVENT", snapshot(who, "note", {"x": 1})])
        client.connection.transport.abort()
    assert (await member.publish(snapshot(author, "note", {"x": 1}))).accepted
    assert "Traceback" not in private_node.log.read_text()


async def test_authentication_belongs_to_one_connection(
    private_node: Node, member: RelayClient, stranger: RelayClient, author: Author
) -> None:
    assert not (await stranger.publish(snapshot(author, "note", {"x": 1}))).accepted
    replayed = author.auth(await stranger.challenge(), private_node.url)
    await member.send("AUTH", replayed)
    assert (await member.next(("OK", replayed["id"])))[2] is False


async def test_an_answer_that_was_made_for_another_relay_is_refused(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node(env={"PRIVATE": "true", "RELAY_URL": "wss://relay.example:443/inbox"})
    client = await connect(own)
    challenge = await client.challenge()
    for url in ("wss://other.example/", "wss://relay.example:8443/", "relay.example", "x", "wss://relay.example.evil/"):
        ok = await client.authenticate(author, challenge, url)
        assert (ok.accepted, ok.message) == (False, "invalid: the relay tag does not name this relay"), url
    for url in ("wss://relay.example", "wss://Relay.Example:443/"):
        assert (await client.authenticate(author, challenge, url)).accepted, url


async def test_an_answer_that_proves_nothing_is_refused(
    private_node: Node, stranger: RelayClient, author: Author
) -> None:
    challenge, url = await stranger.challenge(), private_node.url
    relay, answer = ["relay", url], ["challenge", challenge]
    good = author.auth(challenge, url)
    wrong = {
        "no challenge": author.auth(challenge, url, tags=[relay]),
        "another challenge": author.auth("something else", url),
        "a part of the challenge": author.auth(challenge[:-1], url),
        "no relay": author.auth(challenge, url, tags=[answer]),
        "too old": author.auth(challenge, url, created_at=now() - 700),
        "too new": author.auth(challenge, url, created_at=now() + 700),
        "another kind": author.event(22243, tags=[relay, answer]),
        "forged content": {**good, "content": "x"},
        "forged signature": {**good, "sig": Author.random().event(1)["sig"]},
        "another's name": {**good, "pubkey": Author.random().pubkey},
    }
    for name, event in wrong.items():
        await stranger.send("AUTH", event)
        _, _, accepted, reason = await stranger.next(("OK", event["id"]))
        assert accepted is False and reason, name
    assert not (await stranger.publish(snapshot(author, "note", {"x": 1}))).accepted
    assert (await stranger.authenticate(author, challenge, url)).accepted
    assert (await stranger.publish(snapshot(author, "note", {"x": 1}))).accepted


@pytest.mark.parametrize("skew", [-590, 590])
async def test_clocks_may_differ_by_ten_minutes(
    private_node: Node, stranger: RelayClient, author: Author, skew: int
) -> None:
    event = author.auth(await stranger.challenge(), private_node.url, created_at=now() + skew)
    await stranger.send("AUTH", event)
    assert (await stranger.next(("OK", event["id"])))[2] is True


async def test_an_auth_event_is_never_stored_nor_published(
    private_node: Node, member: RelayClient, author: Author
) -> None:
    event = author.auth("x", private_node.url)
    ok = await member.publish(event)
    assert not ok.accepted or (await member.req({"authors": [author.pubkey], "kinds": [22242]})).events == []


async def test_live_subscriptions_carry_only_ones_own(
    private_node: Node, connect: Callable, member: RelayClient, author: Author
) -> None:
    answer = await member.req({"authors": [author.pubkey]}, live=True)
    feed = await member.tail(author, live=True)
    other, client = Author.random(), await connect(private_node)
    assert (await client.authenticate(other, await client.challenge(), private_node.url)).accepted
    await client.store(snapshot(other, "note", {"x": 1}))
    mine = snapshot(author, "note", {"x": 1})
    await member.store(mine)
    assert (await member.next_of(answer.sub))[2] == mine
    assert (await member.next_change(feed.sub))[1] == mine


async def test_a_refusal_leaves_the_connection_usable(
    private_node: Node, stranger: RelayClient, author: Author
) -> None:
    for _ in range(10):
        assert (await stranger.tail(author)).error == AUTH_CHANGES
    assert (await stranger.authenticate(author, await stranger.challenge(), private_node.url)).accepted
    assert (await stranger.tail(author)).error is None


async def test_a_public_node_asks_nobody_to_authenticate(node: Node, connect: Callable, author: Author) -> None:
    client = await connect(node)
    assert (await client.publish(snapshot(author, "note", {"x": 1}))).accepted
    assert (await client.req({"kinds": [NOTE], "limit": 1})).eose
    await asyncio.sleep(0)
    await client.still_answers()
