"""A page on its way to the disk: proof, then our rules, then one transaction with the checkpoint."""

import itertools

import msgspec
import pytest
from histories import KINDS, signed
from revision_histories import revision
from stores import SqliteBackend

from anabranch.core import nostr
from anabranch.core.checkpoint import Checkpoint
from anabranch.core.closure import Dependency
from anabranch.core.nostr import Invalid, TooEarly
from anabranch.core.operation import classify
from anabranch.core.token import Position, ProgressToken
from anabranch.replicate import applying
from anabranch.replicate.applying import Page
from anabranch.replicate.effects import Apply, Arrival
from anabranch.store.contract import LinkRecord, StoreError


class Host:
    """A node in a few lines: a real store, real proofs."""

    def __init__(self, store):
        self.store_ = store
        self.reader = store.open_reader()
        self.provers = True
        self.clock = 0
        store.writer.save_link(LinkRecord("up", "ws://peer/", "both"))

    @property
    def log(self):
        return self.reader.log()

    async def read(self, read):
        return read(self.reader)

    async def prove(self, proofs):
        return nostr.verify_proofs(proofs) if self.provers else None

    def operation(self, event, raw):
        if event.content == "too large":
            raise Invalid("event is larger than 3 bytes")
        if event.content == "early" and self.clock < 100:
            raise TooEarly("created_at is too far in the future", 100)
        return classify(event, raw, KINDS)

    async def store(self, offers, advance):
        return self.store_.writer.append(offers, 0, advance)

    @property
    def record(self):
        return self.reader.links()[0]


@pytest.fixture
def host(tmp_path):
    return Host(SqliteBackend(tmp_path).create())


def token(position):
    return ProgressToken("s", "e", Position(position))


def page(host, *events, first=1, through=None, tokens=True):
    arrivals = tuple(
        Arrival(event, nostr.serialise(event), token(first + place) if tokens else None)
        for place, event in enumerate(events)
    )
    return Page(host, "up", ("up",), 7, Apply(1, arrivals, through))


def need(monkeypatch, needs):
    """Which operation needs which other."""

    def dependencies(event):
        return (Dependency("ancestry", needs[event.id]),) if event.id in needs else ()

    monkeypatch.setattr(applying, "dependencies", dependencies)


async def bring(one, checkpoint=None):
    await one.prove()
    return await one.store(checkpoint or Checkpoint())


async def test_a_page_its_checkpoint_and_what_not_to_send_back_are_stored_together(host):
    one, other = signed(content="one"), signed(content="other")
    result = await bring(page(host, one, other, through=token(9)))
    assert (result.stored, result.declined, result.checkpoint) == (2, (), Checkpoint.at(token(9)))
    assert host.record.pull == Checkpoint.at(token(9))
    assert host.reader.echoes("up", Position(0), Position(9)) == {1, 2}


async def test_a_page_with_a_forged_event_stores_nothing_and_moves_nothing(host):
    true = signed(content="true")
    forged = nostr.Event(
        *[*[getattr(signed(content="lie"), name) for name in nostr.Event.__struct_fields__[:-1]], true.sig]
    )
    result = await bring(page(host, true, forged))
    assert result.forged == (forged.id,)
    assert host.record.pull == Checkpoint()
    assert host.log.tip == 0


async def test_what_our_rules_refuse_is_a_dead_letter_and_the_checkpoint_goes_on(host):
    large = signed(content="too large")
    result = await bring(page(host, large, signed(content="fine")))
    assert (result.stored, result.declined) == (1, (large.id,))
    assert result.checkpoint.contiguous == token(2)
    (dead,) = host.reader.dead_letters("up")
    assert (dead.direction, dead.id, dead.reason, dead.at) == (
        "pull",
        large.id,
        "our rules: event is larger than 3 bytes",
        7,
    )


async def test_what_is_too_early_is_a_dead_letter_until_it_is_taken(host):
    early, large = signed(content="early"), signed(content="too large")
    result = await bring(page(host, early, large))
    assert set(result.refused) == {early.id, large.id}
    assert result.later == ((early.id, 100),)
    assert {dead.id for dead in host.reader.dead_letters("up")} == {early.id, large.id}
    host.clock = 100
    result = await bring(page(host, early, tokens=False))
    assert (result.stored, result.later) == (1, ())
    assert [dead.id for dead in host.reader.dead_letters("up")] == [large.id]


async def test_what_is_known_already_is_neither_remembered_nor_an_echo(host):
    event = signed(content="one")
    await bring(page(host, event))
    result = await bring(page(host, event, first=5), host.record.pull)
    assert (result.stored, result.declined) == (0, ())
    assert host.record.pull.contiguous == token(5)


async def test_a_revision_that_is_here_in_another_wrap_is_remembered_and_in_the_same_one_is_not(host):
    made = revision()
    wrap, twin = (signed(kind=made.kind, tags=made.tags, content="sealed", created_at=at) for at in (1_000, 1_001))
    assert wrap.id != twin.id
    await bring(page(host, wrap))
    result = await bring(page(host, wrap, twin, first=2), host.record.pull)
    assert (result.stored, result.declined) == (0, (twin.id,))


async def test_what_could_not_be_checked_is_never_stored(host):
    host.provers = False
    with pytest.raises(StoreError, match="could not be checked"):
        await bring(page(host, signed(content="one")))
    assert host.log.tip == 0


async def test_what_needs_something_that_is_missing_waits_and_what_came_with_it_does_not(host, monkeypatch):
    parent, child, orphan = (signed(content=said) for said in ("parent", "child", "orphan"))
    needs = {child.id: parent.id, orphan.id: "ab" * 32}
    need(monkeypatch, needs)
    result = await bring(page(host, child, orphan, parent))
    assert result.stored == 2
    (blocked,) = result.blocked
    assert str(blocked) == f"{orphan.id} needs ancestry {'ab' * 32}: it is not here, and did not come with it"
    assert (result.checkpoint.contiguous, result.checkpoint.received) == (token(1), token(3))
    assert host.record.pull == result.checkpoint


async def test_what_needs_something_that_waits_or_is_refused_waits_and_says_so(host, monkeypatch):
    orphan, child, grandchild = (signed(content=said) for said in ("orphan", "child", "grandchild"))
    large, heir = signed(content="too large"), signed(content="heir")
    fleeting, caller = signed(kind=24_133, content="a call"), signed(content="caller")
    needs = {
        orphan.id: "ab" * 32,
        child.id: orphan.id,
        grandchild.id: child.id,
        heir.id: large.id,
        caller.id: fleeting.id,
    }
    need(monkeypatch, needs)
    result = await bring(page(host, grandchild, child, orphan, large, heir, fleeting, caller))
    assert result.stored == 0
    assert {one.operation: (one.missing, one.why) for one in result.blocked} == {
        orphan.id: ("ab" * 32, "it is not here, and did not come with it"),
        child.id: (orphan.id, "it came with it, and waits for another itself"),
        grandchild.id: (child.id, "it came with it, and waits for another itself"),
        heir.id: (large.id, "it came with it, and is refused by our rules: event is larger than 3 bytes"),
        caller.id: (fleeting.id, "it came with it, and is ephemeral: it is never stored"),
    }
    assert result.checkpoint.contiguous is None


async def test_what_is_stored_together_is_stored_after_what_it_needs(host, monkeypatch):
    events = [signed(content=str(number)) for number in range(5)]
    need(monkeypatch, {child.id: parent.id for parent, child in itertools.pairwise(events)})
    result = await bring(page(host, *reversed(events)))
    assert (result.stored, result.blocked, result.checkpoint) == (5, (), Checkpoint.at(token(5)))
    assert [facts.id for facts in host.reader.facts(Position(0), 9)] == [event.id for event in events]


async def test_what_needs_something_that_the_store_refuses_waits_and_says_so(host, monkeypatch):
    parent, child, grandchild, other = (signed(content=said) for said in ("parent", "child", "grandchild", "other"))
    deletion = signed(kind=5, tags=[["e", parent.id]])
    need(monkeypatch, {child.id: parent.id, grandchild.id: child.id})
    result = await bring(page(host, deletion, grandchild, child, parent, other))
    assert result.stored == 2
    assert result.refused == result.declined == (parent.id,)
    (refused,) = host.reader.dead_letters("up")
    assert {one.operation: (one.missing, one.why) for one in result.blocked} == {
        child.id: (parent.id, f"it came with it, and is refused by {refused.reason}"),
        grandchild.id: (child.id, "it came with it, and waits for another itself"),
    }
    assert (result.checkpoint.contiguous, result.checkpoint.received) == (token(1), token(5))
    assert host.record.pull == result.checkpoint


async def test_what_needs_something_that_is_superseded_waits(host, monkeypatch):
    newer, older = (signed(kind=0, content=str(at), created_at=at) for at in (2_000, 1_000))
    child = signed(content="child")
    need(monkeypatch, {child.id: older.id})
    result = await bring(page(host, newer, older, child))
    assert [one.why for one in result.blocked] == ["it came with it, and was not taken"]
    assert result.checkpoint.contiguous == token(2)


async def test_what_needs_something_that_was_here_waits_for_nothing(host, monkeypatch):
    parent, child = signed(content="parent"), signed(content="child")
    await bring(page(host, parent, signed(kind=5, tags=[["e", parent.id]])))
    need(monkeypatch, {child.id: parent.id})
    result = await bring(page(host, parent, child, first=3), host.record.pull)
    assert (result.stored, result.blocked, result.checkpoint.contiguous) == (1, (), token(4))


async def test_what_is_here_already_waits_for_nothing(host, monkeypatch):
    event = signed(content="one")
    await bring(page(host, event))
    monkeypatch.setattr(applying, "dependencies", lambda event: (Dependency("ancestry", "ab" * 32),))
    result = await bring(page(host, event, first=2), host.record.pull)
    assert (result.blocked, result.checkpoint.contiguous) == ((), token(2))


@pytest.mark.parametrize("made", [{"content": "too large"}, {"kind": 24_133, "content": "a call"}])
async def test_what_is_forged_is_found_out_also_where_it_would_not_be_stored(host, made):
    forged = msgspec.structs.replace(signed(**made), sig="0" * 128)
    result = await bring(page(host, signed(content="true"), forged))
    assert result.forged == (forged.id,)
    assert (result.declined, host.reader.dead_letters("up"), host.log.tip) == ((), [], 0)


async def test_what_is_ephemeral_is_not_stored_and_not_asked_for_again(host):
    fleeting, note = signed(kind=24_133, content="a call"), signed(content="a note")
    arriving = page(host, fleeting, note, tokens=False)
    await arriving.prove()
    applied = await arriving.store(Checkpoint())
    assert applied.stored == 1
    assert applied.declined == (fleeting.id,)


async def test_what_is_ephemeral_and_came_with_a_stream_is_gone_and_takes_no_memory(host):
    applied = await bring(page(host, signed(kind=24_133, content="a call"), signed(content="a note")))
    assert (applied.stored, applied.declined) == (1, ())
