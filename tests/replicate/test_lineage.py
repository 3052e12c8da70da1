"""What a peer compacted before it reached the follower: its heads are right all the same, and a liar gains nothing."""

import json

import pytest
from authors import now
from link_driving import Drive, LogPeer
from nodes import caught_up, link
from wraps import check_store, heads_of, rid, wrap

from anabranch.core.nostr import Keys
from anabranch.core.revisions import PARENTS_MAX, Ancestor, Name
from anabranch.core.scope import Scope
from anabranch.core.token import Position
from anabranch.replicate import effects as do
from anabranch.replicate.lineage import ASKED_MAX, NAMES_HEARD, Lineage, Request
from anabranch.wire.dialogue import Compacted

OLD = 30 * 86_400_000


def chain(author, d, *names, after=()):
    """Revisions of a document, each on the one before, old enough to be compacted once they are no heads."""
    made, parents = [], list(after)
    for at, name in enumerate(names):
        made.append(wrap(author, d, rid(name), parents, m=now() * 1000 - OLD + at))
        parents = [rid(name)]
    return made


async def heads(connect, node, author):
    return await heads_of(await connect(node), author)


@pytest.mark.parametrize("how", ["resumed", "repaired"])
async def test_a_parent_whose_child_was_compacted_before_it_came_is_no_head(start_node, connect, author, how):
    source, follower, third = start_node(admin=True), start_node(), start_node()
    client = await connect(source)
    await client.store(*chain(author, "d", "p"), *chain(author, "other", "x"))
    link(follower, source.url)
    caught_up(follower)
    follower.admin("POST", "links/up/pause")
    await client.store(*chain(author, "d", "m1", "m2", "m3", "h", after=[rid("p")]))
    assert source.compact(10)["compacted_revisions"] == 4
    right = sorted([rid("h"), rid("x")])
    assert await heads(connect, source, author) == right
    follower.admin("POST", "links/up/resume")
    if how == "repaired":
        follower.admin("POST", "links/up/repair")
    caught_up(follower)
    assert await heads(connect, follower, author) == right
    follower.admin("POST", "links/up/pause")
    link(third, follower.url)  # and on to the next, who hears it from one who only heard it
    caught_up(third)
    await (await connect(third)).store(*chain(author, "d", "p"))
    assert await heads(connect, third, author) == right
    for node in (follower, third):
        node.stop()
        check_store(node)


async def test_what_compacted_revisions_stood_on_is_told_by_name_to_whom_may_read_them(start_node, connect, author):
    node = start_node(admin=True, env={"PRIVATE": "true"})
    client = await connect(node)
    assert (await client.authenticate(author, await client.challenge(), node.url)).accepted
    await client.store(*chain(author, "d", "p", "m", "h"))
    node.compact(10)

    async def asked(**filter):
        await client.send("CHANGES", "c", {"mode": "compacted", **filter})
        frames = [await client.next_of("c")]
        while frames[-1][2] not in ("EOSE", "ERR"):
            frames.append(await client.next_of("c"))
        return [frame[2:] for frame in frames]

    mine, named = {"#p": [author.pubkey]}, {"#r": [rid("m"), rid("h"), rid("never")]}
    told = {"p": author.pubkey, "d": "d", "r": rid("m"), "prev": [rid("p")]}
    before = {"p": author.pubkey, "d": "d", "r": rid("p"), "prev": []}
    assert await asked(**mine, **named) == [["COMPACTED", told], ["COMPACTED", before], ["EOSE", 3]]
    assert await asked(**mine, **named, **{"#d": ["e"]}) == [["EOSE", 3]]
    assert await asked(**mine) == [["ERR", "what is compacted is asked for by its revisions: #r"]]
    assert (await asked(**{"#p": ["ab" * 32]}, **named))[0][1].startswith("restricted:")


# --- by hand ---


class Telling(LogPeer):
    """Has revisions, and says of others what it likes."""

    says: tuple = ()

    def on_changes(self, name, asked):
        if asked.get("mode") != "compacted":
            return super().on_changes(name, asked)
        self.asked = [*getattr(self, "asked", []), asked]
        told = [["CHANGES", name, "COMPACTED", one] for one in self.says]
        return [*told, ["CHANGES", name, "EOSE", len(self.log)]]


class Lacking(Drive):
    """Lacks some revisions until it is told of them."""

    def __init__(self, peer, names, **rest):
        super().__init__(peer, **rest)
        self.names, self.told = list(names), []
        self.heard = []

    def _perform(self, effect):
        match effect:
            case do.LoadMissing(after, also):
                known = {one.name for one in self.heard}
                lacking = [name for name in dict.fromkeys((*self.names, *also)) if name not in known]
                self._do(self.link.loaded(lambda running: running.lacking(after, lacking), self.now))
            case do.Tell(ancestors):
                self.heard += ancestors
            case _:
                super()._perform(effect)


P, Q = "aa" * 32, "bb" * 32
NOTE = Keys(b"\1" * 32).sign(1, [], "", 1_000)


def said(d, r, *prev, p=P):
    return {"p": p, "d": d, "r": rid(r), "prev": [rid(one) for one in prev]}


def name(d, r, p=P):
    return Name(p, d, rid(r))


def test_it_asks_on_until_nothing_is_missing_and_believes_only_what_it_asked_for_and_what_that_stood_on():
    peer = Telling([NOTE])
    wrong = [said("d", 9, 8), said("e", 1, 7), said("d", 1, 6), said("d", 3, 5, p=Q), {"p": P}, 5]
    peer.says = [said("d", 2, 3), said("d", 1, 2), *wrong, said("d", 4)]  # the first one too early
    drive = Lacking(peer, [name("d", 1)]).run(1)
    assert drive.link.caught_up
    assert [(one.revision, one.parents) for one in drive.heard] == [(rid(1), (rid(2),)), (rid(2), (rid(3),))]
    assert [asked["#r"] for asked in peer.asked] == [[rid(1)], [rid(2)], [rid(3)]]


def test_what_a_peer_tells_on_by_itself_is_not_asked_for_and_circles_end():
    peer = Telling([NOTE])
    peer.says = [said("d", 1, 2, 3), said("d", 2, 4), said("d", 3, 4), said("d", 4, 1)]
    drive = Lacking(peer, [name("d", 1)]).run(1)
    assert drive.link.caught_up
    assert [one.revision for one in drive.heard] == [rid(1), rid(2), rid(3), rid(4)]
    assert [asked["#r"] for asked in peer.asked] == [[rid(1)]]


def test_a_peer_that_goes_on_without_end_is_listened_to_only_so_long():
    peer = Telling([NOTE])
    peer.says = [said("d", at, at + 1) for at in range(3 * NAMES_HEARD)]
    drive = Lacking(peer, [name("d", 0)]).run(1)
    assert drive.link.caught_up
    assert [asked["#r"][0] for asked in peer.asked] == [rid(at) for at in range(0, 3 * NAMES_HEARD + 1, NAMES_HEARD)]


def test_a_peer_that_names_many_at_a_time_is_listened_to_no_longer_than_one_that_names_few():
    request = Request("s", [name("d", 0)])
    for at in range(30):
        request.hear(Compacted("s", Ancestor(P, "d", rid(at), (rid(at + 1), *(rid(f"{at} {n}") for n in range(499))))))
    assert len(request.found) == 2 and len(request.open) < NAMES_HEARD + PARENTS_MAX


def test_a_name_is_asked_for_with_every_comparison():
    peer = Telling([NOTE])
    drive = Lacking(peer, [name("d", 1), name("d", 2, p=Q)]).run(1)
    assert sorted(asked["#p"][0] for asked in peer.asked) == [P, Q]
    peer.says = [said("d", 1, 3)]  # what it did not know then
    drive.run(1_000)
    assert [one.revision for one in drive.heard] == [rid(1)] and drive.link.caught_up
    assert len(peer.asked) > 4


def test_what_was_heard_of_before_a_cut_is_asked_for_after_it():
    lineage = Lineage(Scope())
    lineage.loaded(Position(1), [name("d", 1)])
    assert lineage.request("s") is not None
    lineage.load([name("d", 2)])  # its answer never comes
    assert name("d", 2) in lineage.begin().also


def test_a_peer_that_does_not_speak_of_it_is_followed_all_the_same():
    peer = Telling([NOTE])
    peer.on_changes = lambda name, asked: (
        [["CHANGES", name, "ERR", 'mode must be "bootstrap", "tail" or "log"']]
        if asked.get("mode") == "compacted"
        else LogPeer.on_changes(peer, name, asked)
    )
    assert Lacking(peer, [name("d", 1)]).run(1).link.caught_up


@pytest.mark.parametrize(
    ("scope", "asks"),
    [
        (Scope(), True),
        (Scope(kinds=frozenset({1059}), recipients=frozenset({P})), True),
        (Scope(recipients=frozenset({Q})), False),
        (Scope(documents=frozenset({"e"})), False),
        (Scope(kinds=frozenset({1})), False),
        (Scope(authors=frozenset({P})), False),
    ],
    ids=str,
)
def test_only_what_lies_in_the_scope_is_asked_for(scope, asks):
    peer = Telling([])
    assert Lacking(peer, [name("d", 1)], scope=scope).run(1).link.caught_up
    assert bool(getattr(peer, "asked", [])) is asks


def test_a_peer_that_makes_up_ancestors_without_end_is_asked_only_so_often():
    lineage, asked = Lineage(Scope()), 0
    lineage.loaded(Position(1), [name("d", 0)])
    while (request := lineage.request("s")) is not None:
        asked += 1
        names = json.loads(request.start()[0].message)[2]["#r"]
        made_up = [Name(P, "d", rid(f"{one} {at}")) for one in names for at in range(50)]
        lineage.loaded(Position(1), [*lineage.load(made_up).also])
    assert asked <= ASKED_MAX // 100 + 2
