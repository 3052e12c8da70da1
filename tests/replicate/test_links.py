"""Which links a node has: two commands at once, and a settings file that is read again."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from anabranch.config import LinkSettings, Settings
from anabranch.core.checkpoint import Blocked, Checkpoint
from anabranch.core.negentropy import Items
from anabranch.core.scope import EVERYTHING
from anabranch.core.token import Log, Position, ProgressToken
from anabranch.node import admin_links
from anabranch.node.linking import Reloading, link_specs
from anabranch.replicate import effects as do
from anabranch.replicate import following
from anabranch.replicate.explaining import lag_seconds
from anabranch.replicate.link import Link
from anabranch.replicate.links import LinkError, Links, spec_of
from anabranch.replicate.measuring import Measures
from anabranch.replicate.refusals import refused_count
from anabranch.replicate.spec import Direction, LinkSpec, Timing
from anabranch.replicate.states import TRANSITIONS, Cue, LinkState
from anabranch.store.contract import DEAD_LETTERS_MAX, StoreError

LONG_PAUSES = Timing(retry_min=100.0)


class SlowHost:
    """A node whose disk takes a while, and whose ledger is what was written."""

    log = Log("own", "epoch", Position(1), Position(0))

    async def read(self, read):
        return []

    async def write(self, job):
        await asyncio.sleep(0.01)


@pytest.fixture
async def links():
    links = Links(SlowHost(), clock=lambda: 0.0, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    yield links
    await links.stop()


def spec(name: str, peer: str = "ws://127.0.0.1:9/", origin: str = "command", **rest) -> LinkSpec:
    return LinkSpec(name, peer, EVERYTHING, Direction.PULL, origin, **rest)


async def test_of_many_that_are_added_at_once_under_one_name_there_is_one(links, monkeypatch):
    began = []
    monkeypatch.setattr(links, "_begin", lambda spec, record: began.append(spec) or Links._begin(links, spec, record))
    asked = [links.add(spec("up", f"ws://127.0.0.1:{port}/")) for port in range(9, 19)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, LinkError) for answer in answers) == 9
    assert len(began) == 1
    await links.remove("up")
    assert links.links == {}


async def test_a_node_that_stops_takes_no_link_up_again(links):
    await links.configure([spec("up", origin="config")])
    links.links["up"].call(lambda link, now: link.pause(now))
    written = []
    await links.stop()
    links.host.write = lambda job: written.append(job)
    for asked in (links.configure([spec("up", origin="config")]), links.add(spec("other"))):
        with pytest.raises(LinkError, match="the node is stopping"):
            await asked
    assert (links.links, written) == ({}, [])


async def test_a_query_in_an_address_is_shown_to_nobody_and_two_of_them_are_told_apart(links, caplog):
    caplog.set_level("INFO", "anabranch.replicate")
    for name, password in (("a", "hunter2"), ("b", "hunter3")):
        await links.add(spec(name, peer=f"ws://127.0.0.1:9/?key={password}"))
    registry = CollectorRegistry()
    Measures(registry).watch(links)
    await asyncio.sleep(0.1)
    measured = generate_latest(registry).decode()
    remotes = re.findall(r'sync_link_state\{[^}]*remote="([^"]*)"', measured)
    told = [record.remoteEndpoint for record in caplog.records if hasattr(record, "remoteEndpoint")]
    assert len(set(remotes)) == 2
    assert set(told) == set(remotes), "nothing was told of a link that cannot be dialled"
    assert not [shown for shown in remotes if "hunter" in shown or not shown.startswith("ws://127.0.0.1:9/?(")]


class QuickHost(SlowHost):
    async def write(self, job):
        pass


@pytest.mark.parametrize("turns", range(4))
async def test_a_link_that_is_just_hanging_up_ends_when_it_is_stopped(turns):
    links = Links(QuickHost(), clock=asyncio.get_running_loop().time, wall=lambda: 1_800_000_000, share=lambda: 0.5)

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        peer = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        one = await links.add(spec("a", peer=peer))
        await asyncio.sleep(0.05)
        await links.command("a", "pause")
        for _ in range(turns):
            await asyncio.sleep(0)
        removing = asyncio.create_task(links.remove("a"))
        await asyncio.wait([removing], timeout=2)  # a timeout would cancel it, and who waits for it with it
        assert removing.done()
        assert one._task.done()


def test_a_link_is_not_named_after_the_query_of_its_address():
    assert spec_of({"peer": "wss://r.example/inbox?key=hunter2"}).name == "r.example-inbox"


async def test_one_that_was_added_by_command_gives_way_to_one_of_the_file_that_does_the_same(links):
    await links.add(spec("mine"))
    await links.add(spec("other", "ws://127.0.0.1:10/"))
    assert await links.configure([spec("up", origin="config")]) == {"added": ["up"], "removed": ["mine"], "kept": []}
    assert set(links.links) == {"up", "other"}


def test_two_of_the_file_that_do_the_same_are_refused_before_anything_is_touched():
    settings = Settings(links=tuple(LinkSettings(name=name, peer="wss://relay.example") for name in ("one", "two")))
    with pytest.raises(LinkError, match="'one' and 'two' have the same peer, scope and direction"):
        link_specs(settings)


async def test_settings_that_could_not_be_read_for_whatever_reason_can_be_read_the_next_time(links):
    answers = [
        RuntimeError("nobody thought of it"),
        Settings(links=(LinkSettings(name="up", peer="ws://127.0.0.1:9"),)),
    ]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reloading = Reloading(SimpleNamespace(links=links), read)
    reloading.begin()
    reloading.begin()
    await reloading._task
    assert set(links.links) == {"up"}


class FullHost:
    """A node whose disk has no room for a while."""

    log = Log("own", "epoch", Position(1), Position(0))

    def __init__(self):
        self.full = False
        self.saved = {}
        self.transitions = []

    async def read(self, read):
        return read(self)

    async def write(self, job):
        if self.full:
            raise StoreError("no room")
        return job(self)

    def links(self):
        return list(self.saved.values())

    def save_link(self, record):
        self.saved[record.name] = record

    def delete_link(self, name):
        del self.saved[name]

    def note_link(self, change):
        self.transitions.append(change.transition)


async def test_a_pause_that_found_no_room_on_the_disk_is_written_when_there_is_some(monkeypatch):
    monkeypatch.setattr(following, "WRITE_AGAIN_SECONDS", 0.02)
    host = FullHost()
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    await links.add(spec("up"))
    await asyncio.sleep(0.05)
    host.full = True
    with pytest.raises(StoreError):
        await links.command("up", "pause")
    await asyncio.sleep(0.1)
    assert host.saved["up"].state != "paused"
    host.full = False
    await asyncio.sleep(0.1)
    assert host.saved["up"].state == "paused"
    assert [one.after for one in host.transitions if one is not None].count("paused") == 1
    await links.stop()


class SlowHost(FullHost):
    def __init__(self):
        super().__init__()
        self.forgotten = []

    async def write(self, job):
        await asyncio.sleep(0.02)
        return job(self)

    def forget_link(self, name):
        self.forgotten.append(name)


async def test_no_link_outlives_the_stop_that_comes_while_it_is_added(links):
    adding = [asyncio.create_task(links.add(spec(f"up{port}", f"ws://127.0.0.1:{port}/"))) for port in (9, 10)]
    await asyncio.sleep(0.001)
    await links.stop()
    first, second = await asyncio.gather(*adding, return_exceptions=True)
    assert isinstance(first, following.Following)  # was there, and was stopped
    assert isinstance(second, LinkError)
    assert not links.links
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("link ")]


async def test_a_reload_under_way_makes_no_link_anew_once_the_node_stops(links, monkeypatch):
    configured = [spec(name, f"ws://127.0.0.1:{9 + at}/", origin="config") for at, name in enumerate("abc")]
    await links.configure(configured[:2])
    began = []
    monkeypatch.setattr(links, "_begin", lambda spec, record: began.append(spec.name))
    reload = asyncio.create_task(links.configure(configured))
    await asyncio.sleep(0.001)
    await links.stop()
    await asyncio.gather(reload, return_exceptions=True)
    assert set(began) <= {"c"}


async def test_a_command_that_is_stuck_keeps_no_link_from_being_stopped(links, monkeypatch):
    one = await links.add(spec("up"))

    async def stuck(job):
        await asyncio.Event().wait()

    monkeypatch.setattr(links.host, "write", stuck)
    adding = asyncio.create_task(links.add(spec("other", "ws://127.0.0.1:10/")))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await links.stop()
    assert one._task.done()
    adding.cancel()


async def test_a_link_that_fails_to_stop_keeps_no_other_from_it(links, monkeypatch, caplog):
    one, other = await links.add(spec("a")), await links.add(spec("b", "ws://127.0.0.1:10/"))

    async def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(one, "_hang_up", broken)
    await links.stop()
    assert other._task.done()
    assert "a link did not stop in order" in caplog.text


async def test_a_command_is_answered_when_what_it_says_is_on_disk():
    host = SlowHost()
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    await links.add(spec("up"))
    await links.command("up", "pause")
    assert host.saved["up"].state == "paused"
    await links.command("up", "resume")
    assert host.saved["up"].state == "initial"
    await links.command("up", "reset")
    assert host.forgotten == ["up"]
    await links.stop()


async def test_a_command_to_a_link_that_is_stopped_meanwhile_ends():
    host = SlowHost()
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    await links.add(spec("up"))
    commanded = asyncio.create_task(links.command("up", "pause"))
    await asyncio.sleep(0)
    await links.stop()
    with pytest.raises(StoreError):
        await asyncio.wait_for(commanded, 1)


async def test_what_finds_no_room_on_the_disk_is_counted_and_logged_once(monkeypatch, caplog):
    caplog.set_level("INFO", "anabranch.replicate")
    monkeypatch.setattr(following, "WRITE_AGAIN_SECONDS", 0.01)
    host, measures = FullHost(), Measures(CollectorRegistry())
    links = Links(
        host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5, measures=measures, timing=LONG_PAUSES
    )
    one = await links.add(spec("up"))
    await asyncio.sleep(0.05)  # it cannot be dialled, and waits
    host.full = True
    caplog.clear()
    one.call(lambda link, now: [do.Noted("gap", "a gap"), do.Bury("ab" * 32, "no"), do.Told("live", "paused", "", "")])
    await asyncio.sleep(0.1)
    host.full = False
    await asyncio.sleep(0.1)
    assert host.saved["up"].last_error == "a gap"
    assert measures.repairs.labels("gap")._value.get() == 1
    messages = [record.message for record in caplog.records if record.name == following.__name__]
    assert messages == ["a link was interrupted", "an operation is refused for good", "a link is in another state"]
    await links.stop()


@pytest.fixture
async def counted():
    """A link whose peer is away, and the registry that it counts into."""
    registry = CollectorRegistry()
    links = Links(
        FullHost(),
        clock=time.monotonic,
        wall=lambda: 1_800_000_000,
        share=lambda: 0.5,
        measures=Measures(registry),
        timing=LONG_PAUSES,
    )
    one = await links.add(spec("up"))
    await asyncio.sleep(0.05)  # it cannot be dialled, and waits
    yield one, registry
    await links.stop()


DOUBTS = [
    cue
    for cue, after in TRANSITIONS[LinkState.LIVE].items()
    if after is LinkState.REPAIRING and cue is not Cue.REPAIR  # which is no news to whoever asks for it
]


@pytest.mark.parametrize("reason", DOUBTS)
async def test_a_repair_is_counted_by_what_led_to_it(counted, reason):
    one, registry = counted
    await one.command(lambda link, now: link._doubt(reason, "why", now))
    repairs = {cue: registry.get_sample_value("sync_gap_repairs_total", {"reason": cue}) for cue in DOUBTS}
    assert repairs == dict.fromkeys(DOUBTS) | {reason: 1}


async def test_what_only_interrupts_a_link_is_counted_as_no_repair(counted):
    one, registry = counted
    await one.command(lambda link, now: [do.Noted("stream_lost", "it broke off"), do.Noted("not_applied", "no room")])
    assert "sync_gap_repairs_total{" not in generate_latest(registry).decode()


async def test_arrivals_that_wait_for_another_are_counted_by_what_they_need_and_their_page_is_timed(
    counted, monkeypatch
):
    one, registry = counted
    needs = [Blocked(id * 64, kind, "f" * 64, "it is not here") for id, kind in (("a", "x"), ("b", "y"), ("c", "x"))]

    async def proven(self):
        pass

    async def stored(self, checkpoint):
        return do.Applied(self.number, blocked=tuple(needs))

    monkeypatch.setattr(following.Page, "prove", proven)
    monkeypatch.setattr(following.Page, "store", stored)
    await one.command(lambda link, now: [do.Apply(1, ())])
    await one.command(lambda link, now: [])  # the page is on disk, and is collected
    missing = {kind: registry.get_sample_value("sync_closure_missing_total", {"class": kind}) for kind in "xy"}
    assert missing == {"x": 2, "y": 1}
    assert registry.get_sample_value("sync_apply_latency_ms_count") == 1


@pytest.mark.parametrize("direction", Direction)
async def test_a_change_of_state_is_logged_with_all_the_fields_that_the_seed_names(caplog, direction):
    caplog.set_level("INFO", "anabranch.replicate")
    links = Links(FullHost(), clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    one = await links.add(LinkSpec("up", "ws://127.0.0.1:9/", EVERYTHING, direction))
    pulled, pushed = (ProgressToken("s", "e", Position(position)) for position in (7, 9))
    one.link.pull, one.link.push = Checkpoint.at(pulled), Checkpoint.at(pushed)
    await links.command("up", "pause")
    await asyncio.sleep(0.05)
    (said,) = [record for record in caplog.records if getattr(record, "stateTo", None) == "paused"]
    position = 9 if direction is Direction.PUSH else 7
    named = {
        "tenantDid": "own",
        "remoteEndpoint": "ws://127.0.0.1:9/",
        "scopeId": EVERYTHING.id,
        "direction": direction,
        "stateFrom": "initial",
        "stateTo": "paused",
        "token": position,
        "contiguousToken": position,
        "errorCode": "pause",
    }
    assert {field: getattr(said, field) for field in named} == named
    await links.stop()


async def test_a_link_whose_removal_found_no_room_is_still_there():
    host = FullHost()
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    await links.add(spec("up"))
    host.full = True
    with pytest.raises(StoreError):
        await links.remove("up")
    assert set(links.links) == set(host.saved) == {"up"}
    host.full = False
    await links.remove("up")
    assert links.links == host.saved == {}
    await links.stop()


def test_the_lag_counts_from_when_it_was_last_caught_up():
    link = SimpleNamespace(caught_up=False, verified_at=100.0)
    following = SimpleNamespace(link=link, caught_up_at=199.0, record=SimpleNamespace(last_success_at=10))
    assert lag_seconds(following, clock=200.0, wall=50) == 1.0
    following.caught_up_at = None  # not since the node started
    assert lag_seconds(following, clock=200.0, wall=50) == 40.0
    link.caught_up = True
    assert lag_seconds(following, clock=200.0, wall=50) == 0.0


async def test_a_link_that_is_paused_was_caught_up_until_then(links, monkeypatch):
    await links.add(spec("up"))
    following = links.find("up")
    monkeypatch.setattr(Link, "caught_up", property(lambda self: self.state != "paused"))
    await links.command("up", "pause")
    assert following.caught_up_at == links.clock() and not following.link.caught_up


async def test_a_command_that_finds_no_room_is_answered_with_what_to_look_at_and_tells_nothing_of_us():
    def full(name):
        raise StoreError("/var/lib/secret: no room")

    node = SimpleNamespace(links=SimpleNamespace(find=full))
    answer = await admin_links.answer(node, SimpleNamespace(method="POST"), "/up/pause", {})
    assert answer.status == 507 and b"could not be stored" in answer.body and b"secret" not in answer.body


async def test_a_paused_link_of_the_file_stays_paused_when_its_settings_change(links):
    await links.configure([spec("up", origin="config"), spec("other", "ws://127.0.0.1:10/", "config")])
    await links.command("up", "pause")
    changes = await links.configure([spec(name, "ws://127.0.0.1:11/" + name, "config") for name in ("up", "other")])
    assert changes["added"] == ["up", "other"]
    assert [links.links[name].link.state for name in ("up", "other")] == ["paused", "initial"]
    assert links.links["up"].record.state == "paused"


class Deaf:
    """A peer that says who it is, and then reads nothing."""

    unfinished = 0

    def __init__(self):
        self.gone = asyncio.Event()
        self.asked = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        raise following.Ended("it was let go of")

    async def send(self, messages):
        self.asked.set()
        await self.gone.wait()

    def abort(self):
        self.gone.set()


async def test_a_link_whose_peer_does_not_read_is_paused_at_once(monkeypatch):
    deaf = Deaf()

    async def dial(url):
        return {}, deaf

    async def items(filter):
        return Items.build([], b""), Log("own", "epoch", Position(1), Position(0))

    monkeypatch.setattr(following.dialling, "dial", dial)
    host = FullHost()
    monkeypatch.setattr(host, "items", items, raising=False)
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    await links.add(spec("up"))
    await asyncio.wait_for(deaf.asked.wait(), 2)
    await asyncio.wait_for(links.command("up", "pause"), 2)
    assert host.saved["up"].state == "paused"
    await links.stop()


async def test_a_command_that_meets_a_fault_of_ours_is_answered_all_the_same(monkeypatch):
    host = FullHost()
    links = Links(host, clock=time.monotonic, wall=lambda: 1_800_000_000, share=lambda: 0.5)
    one = await links.add(spec("up"))
    await asyncio.sleep(0.05)

    async def stumble():
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr(one, "_write_unwritten", stumble)
    with pytest.raises(StoreError, match="nobody thought of it"):
        await asyncio.wait_for(one.command(lambda link, now: []), 2)
    monkeypatch.undo()
    await links.stop()


def test_more_dead_letters_than_are_kept_are_not_counted_as_if_they_were_all():
    assert refused_count(7) == "7"
    assert refused_count(DEAD_LETTERS_MAX) == "10,000 or more"
