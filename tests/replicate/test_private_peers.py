"""Links to peers that want to know who asks: NIP-42 and access keys, on real private nodes and by hand."""

import json

import pytest
from authors import Author
from link_driving import Drive
from nodes import caught_up, explained, ids, link, shown, until
from processes import find_key
from relay_model import Private
from wraps import rid, wrap

from anabranch.core.checkpoint import Checkpoint
from anabranch.core.nip19 import encode
from anabranch.core.nostr import Keys
from anabranch.core.scope import Scope
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate.identity import Identity, KeyFiles, NoIdentity
from anabranch.store.contract import LinkRecord
from anabranch.wire.authentication import ANSWERS_MAX


@pytest.fixture
def private(start_node):
    return start_node(admin=True, env={"PRIVATE": "true"})


@pytest.fixture
def key_file(tmp_path, author):
    file = tmp_path / "link.key"
    file.write_text(encode("nsec", bytes.fromhex(author.secret_hex)) + "\n")
    return file


def own(author):
    return {"scope": {"authors": [author.pubkey]}}


def notes(author, what, count=10):
    return [author.event(content=f"{what} {number}") for number in range(count)]


def make_key(node, **fields):
    return find_key(node.admin("POST", "keys", fields).json())


async def write(connect, node, author, events, access_key=None):
    """Publish, on a private node as the author."""
    client = await connect(node)
    if node.info()["limitation"]["auth_required"]:
        if access_key is not None:
            await client.send("TOKEN", access_key)
            assert (await client.next("TOKEN"))[2] is True
        assert (await client.authenticate(author, await client.challenge(), node.url)).accepted
    await client.store(*events)
    return {event["id"] for event in events}


def waits_with(node, *words, name="up"):
    until(
        lambda: (said := explained(node, name)) and all(word in said for word in words),
        lambda: f"{words} in: {explained(node, name)}",
    )


@pytest.mark.parametrize("direction", ["pull", "push", "both"])
async def test_a_link_with_a_key_follows_and_feeds_a_private_node(
    start_node, connect, author, private, key_file, direction
):
    public = start_node()
    there = await write(connect, private, author, notes(author, "there"))
    here = await write(connect, public, author, notes(author, "here"))
    link(public, private.url, direction=direction, key_file=str(key_file), **own(author))
    assert caught_up(public)["pubkey"] == author.pubkey
    there |= await write(connect, private, author, notes(author, "there, live"))
    here |= await write(connect, public, author, notes(author, "here, live"))
    until(lambda: ids(public) == (here if direction == "push" else here | there), "what came")
    until(lambda: ids(private) == (there if direction == "pull" else here | there), "what went")


async def test_a_link_to_a_private_node_resumes_after_a_cut(start_node, connect, author, private, key_file):
    public = start_node()
    await write(connect, private, author, notes(author, "before"))
    link(public, private.url, key_file=str(key_file), **own(author))
    before = caught_up(public)
    public.kill9()
    await write(connect, private, author, notes(author, "meanwhile"))
    public.start()
    assert caught_up(public)["repairs"] == before["repairs"] == 0
    assert ids(public) == ids(private)


async def test_revisions_are_followed_and_fed_by_their_recipient(start_node, connect, author, private, key_file):
    public = start_node(env={"REVISION_WRITES": "recipient"})
    first = wrap(author, "d", rid(1))
    await write(connect, private, author, [first])
    scope = {"kinds": [1059], "recipients": [author.pubkey]}
    link(public, private.url, direction="both", scope=scope, key_file=str(key_file))
    caught_up(public)
    assert ids(public) == {first["id"]}
    feeder = start_node()
    second, foreign = wrap(author, "d", rid(2), [rid(1)]), wrap(Author.random(), "d", rid(3))
    await write(connect, feeder, author, [second, foreign])
    link(feeder, public.url, direction="push", key_file=str(key_file))  # it says only in a refusal who may write
    until(lambda: ids(private) == {first["id"], second["id"]}, lambda: explained(feeder))
    caught_up(feeder)
    assert [dead["id"] for dead in shown(feeder)["dead_letters"]] == [foreign["id"]]
    assert shown(feeder)["dead_letters"][0]["reason"].startswith("restricted:")


async def test_a_refusal_is_explained_with_what_to_do(start_node, connect, author, private, key_file, tmp_path):
    public = start_node()
    await write(connect, public, author, notes(author, "here"))
    link(public, private.url, **own(author))
    waits_with(public, "auth-required", "give the link a key (--key-file FILE")
    link(public, private.url, "feed", direction="push", **own(author))
    waits_with(public, "auth-required", "give the link a key (--key-file FILE", name="feed")
    link(public, private.url, "all", key_file=str(key_file))
    waits_with(public, "restricted: snapshot queries must include an authors filter", "narrow the scope", name="all")
    stranger = tmp_path / "stranger.key"
    stranger.write_text(Author.random().secret_hex)
    link(public, private.url, "wrong", direction="both", key_file=str(stranger), **own(author))
    waits_with(public, "restricted: can only query your own", "let its operator allow the key", name="wrong")
    assert ids(private) == set()


async def test_an_access_key_that_is_revoked_stops_a_live_link_until_its_file_has_another(
    start_node, connect, author, private, key_file, tmp_path
):
    first, files = make_key(private), {"key_file": str(key_file), "access_key_file": str(tmp_path / "access.key")}
    public = start_node()
    link(public, private.url, "keyless", key_file=str(key_file), scope={"authors": [author.pubkey], "kinds": [1]})
    waits_with(public, "token-required", "--access-key-file FILE", name="keyless")
    (tmp_path / "access.key").write_text(first)
    before = await write(connect, private, author, notes(author, "before"), first)
    link(public, private.url, direction="both", **files, **own(author))
    repairs = caught_up(public)["repairs"]
    assert private.admin("PATCH", f"keys/{first}", {"revoked": True}).status == 200
    waits_with(public, "token-invalid: access key rejected", "put it into the link's access key file")
    here = await write(connect, public, author, notes(author, "while it was out"))
    second = make_key(private)
    there = await write(connect, private, author, notes(author, "while it was out, there"), second)
    (tmp_path / "access.key").write_text(second + "\n")
    public.admin("POST", "links/up/resume")
    caught_up(public)
    until(lambda: ids(public) == ids(private) == before | here | there, "both have all")
    assert shown(public)["repairs"] == repairs


async def test_no_secret_is_told_kept_or_logged(start_node, connect, author, private, key_file, tmp_path):
    access_key = make_key(private)
    (tmp_path / "access.key").write_text(access_key)
    public = start_node(config='log_level = "debug"\n')
    added = public.cli(
        *("link", "add", private.url, "--name", "up", "--author", author.pubkey, "--key-file", str(key_file)),
        *("--access-key-file", str(tmp_path / "access.key"), "--wait", "--json"),
    )
    assert json.loads(added.stdout)["caught_up"], added.stdout
    make_key(private, label="another")
    private.admin("PATCH", f"keys/{access_key}", {"revoked": True})
    waits_with(public, "token-invalid")
    told = [added.stdout, explained(public), json.dumps(shown(public)), public.http("GET", "/metrics").text]
    told += [public.admin("GET", "links").text, public.cli("link", "show", "up").stdout]
    public.stop()
    kept = [public.log.read_bytes(), *(file.read_bytes() for file in public.data.iterdir() if file.is_file())]
    for secret in (author.secret_hex, key_file.read_text().strip(), access_key):
        assert not any(secret in text for text in told)
        assert not any(secret.encode() in kept_bytes for kept_bytes in kept)
        assert not any(bytes.fromhex(author.secret_hex) in kept_bytes for kept_bytes in kept)


def test_a_key_file_without_a_key_is_told_without_its_contents(start_node, tmp_path):
    node = start_node()
    file = tmp_path / "passwords"
    file.write_text("my password")

    def error(**fields):
        answer = node.admin("POST", "links", {"peer": "ws://127.0.0.1:9/", **fields})
        assert answer.status == 400 and "my password" not in answer.text
        return answer.json()["error"]

    assert "has no secret key: put one in" in error(key_file=str(file))
    assert "cannot be read by the node: No such file" in error(key_file=str(tmp_path / "none"))
    assert "cannot be read by the node: Is a directory" in error(key_file=str(tmp_path))
    assert "from the root" in error(key_file="passwords")
    assert "goes with key_file" in error(access_key_file=str(file))
    (tmp_path / "key").write_text("1" * 64)
    assert "has no access key: put one in" in error(key_file=str(tmp_path / "key"), access_key_file=str(file))


def test_an_identity_does_not_show_its_secrets():
    identity = Identity(Keys(b"\1" * 32), "sk_secret")
    assert "sk_secret" not in repr(identity) and "01" * 8 not in repr(identity)
    with pytest.raises(NoIdentity):
        KeyFiles("/dev/null").read()


@pytest.mark.parametrize("greets", [True, False], ids=["challenge first", "challenge with the refusal"])
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_relay_that_asks_only_when_it_refuses_is_told_then(greets, direction):
    keys = Keys(b"\1" * 32)
    events = [keys.sign(1, [], str(number), 1_700_000_000) for number in range(3)]
    relay = Private(events if direction == "pull" else [], members=[keys.pubkey], greets=greets)
    drive = Drive(
        relay,
        [] if direction == "pull" else events,
        direction,
        Scope(authors=frozenset({keys.pubkey})),
        identity=Identity(keys),
    ).run(120)
    assert drive.link.caught_up, drive.link.last_error
    assert drive.store.keys() == relay.events.keys() == {event.id for event in events}


class Restless(Private):
    """Gives a new challenge with every refusal, and takes an answer to the last one alone."""

    def _challenged(self, refusal):
        self.challenge = f"challenge {len(self.heard)}"
        return [refusal, ["AUTH", self.challenge]]


class NeverPleased(Restless):
    def on_auth(self, *_):
        return [["AUTH", f"challenge {len(self.heard)}"]]


@pytest.mark.parametrize("greets", [True, False])
def test_a_relay_that_gives_a_new_challenge_with_every_refusal_lets_us_in(greets):
    keys = Keys(bytes([3]) * 32)
    events = [keys.sign(1, [], str(number), 1_700_000_000 + number) for number in range(20)]
    relay = Restless([], members=[keys.pubkey], greets=greets)
    scope = Scope(authors=frozenset({keys.pubkey}))
    drive = Drive(relay, events, "push", scope, identity=Identity(keys)).run(600)
    assert drive.link.caught_up
    assert len(relay.events) == 20


def test_a_relay_that_has_us_answer_challenges_without_an_end_is_given_up():
    keys = Keys(bytes([3]) * 32)
    relay = NeverPleased([], members=[keys.pubkey], greets=True)
    drive = Drive(relay, [keys.sign(1, [], "note", 1_700_000_000)], "push", identity=Identity(keys)).run(200)
    answers = [message for message in relay.heard if message[0] == "AUTH"]
    assert drive.link.failures
    assert len(answers) <= ANSWERS_MAX * (drive.link.failures + 1)


@pytest.mark.parametrize("count", [9, 12, 100])
def test_a_relay_with_a_new_challenge_for_each_of_many_refusals_lets_us_in_on_one_connection(count):
    keys = Keys(bytes([3]) * 32)
    events = [keys.sign(1, [], str(number), 1_700_000_000 + number) for number in range(count)]
    relay = Restless([], members=[keys.pubkey], greets=False)
    start = Checkpoint.at(ProgressToken("own", "own-epoch", Position(0)))
    record = LinkRecord("up", "ws://peer/", "push", state="live", push=start)
    scope = Scope(authors=frozenset({keys.pubkey}))
    drive = Drive(relay, events, "push", scope, identity=Identity(keys), record=record).run(60)
    assert drive.link.caught_up
    assert len(relay.events) == count
    assert len(drive.dials) == 1
    assert sum(frame[0] == "AUTH" for frame in relay.heard) <= 3
