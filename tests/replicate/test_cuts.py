"""Connections that break, processes that die, logs that are restored: after healing the two are equal."""

import asyncio
import random
import shutil

import pytest
from nodes import caught_up, explained, fill_disk, free_disk, ids, link, shown, until
from processes import Node


async def publish(connect, node, author, count, said):
    client = await connect(node)
    events = [author.event(content=f"{said} {number}") for number in range(count)]
    await client.store(*events)
    return {event["id"] for event in events}


async def test_nothing_is_lost_across_cuts_at_any_moment(start_node, connect, author, between):
    source, follower = start_node(), start_node()
    proxy = between(source)
    link(follower, proxy.url, direction="both")
    known = set()
    chance = random.Random(5)
    for turn in range(6):
        known |= await publish(connect, source, author, 60, f"there {turn}")
        await asyncio.sleep(chance.random() * 0.2)
        proxy.cut()
        known |= await publish(connect, follower, author, 20, f"here {turn}")
        await asyncio.sleep(chance.random() * 0.2)
        follower.admin("POST", "links/up/resume")
    follower.admin("POST", "links/up/resume")
    until(lambda: ids(source) == ids(follower) == known, lambda: explained(follower), 60)
    caught_up(follower)


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize(
    ("whom", "end"),
    [("node", Node.stop), ("node", Node.kill9), ("peer", Node.stop), ("peer", Node.kill9)],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
async def test_a_restart_resumes_from_the_checkpoint(start_node, connect, author, between, whom, end, direction):
    peer, node = start_node(), start_node()
    proxy = between(peer)
    giver, way = (peer, "down") if direction == "pull" else (node, "up")
    known = await publish(connect, giver, author, 400, "before")
    link(node, proxy.url, direction=direction)
    stood, whole = caught_up(node)[direction]["contiguous"], getattr(proxy, way)
    victim = peer if whom == "peer" else node
    proxy.refuse()
    end(victim)
    if victim is not giver:
        known |= await publish(connect, giver, author, 10, "meanwhile")
    victim.start()
    assert shown(node)[direction]["contiguous"] == stood
    setattr(proxy, way, 0)
    proxy.refuse(False)
    known |= await publish(connect, giver, author, 10, "after")
    node.admin("POST", "links/up/resume")
    until(lambda: ids(peer) == ids(node) == known, lambda: explained(node))
    assert caught_up(node)["repairs"] == 0
    assert getattr(proxy, way) < whole / 8, f"{getattr(proxy, way)} of {whole} bytes"


@pytest.mark.parametrize("whom", ["source", "follower"])
async def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(start_node, connect, author, whom):
    source, follower = start_node(), start_node()
    link(follower, source.url)
    known = await publish(connect, source, author, 200, "before")
    victim = source if whom == "source" else follower
    victim.kill9()
    victim.start()
    known |= await publish(connect, source, author, 50, "after")
    follower.admin("POST", "links/up/resume")
    until(lambda: ids(follower) == known, lambda: explained(follower))
    caught_up(follower)
    assert ids(source) == known
    follower.verify()


async def test_a_peer_that_stands_still_is_left_and_found_again_by_itself(start_node, connect, author, between):
    source, follower = start_node(), start_node()
    proxy = between(source)
    link(follower, proxy.url)
    known = await publish(connect, source, author, 20, "before")
    caught_up(follower)
    source.freeze()
    proxy.cut()
    until(lambda: shown(follower)["phase"] != "following the stream", "the loss to be noticed")
    source.thaw()
    known |= await publish(connect, source, author, 20, "after")
    until(lambda: ids(follower) == known, lambda: explained(follower), 60)


@pytest.mark.parametrize("connection", ["lasts", "is cut"])
async def test_a_follower_that_stood_still_goes_on_by_itself_from_where_it_was(
    start_node, connect, author, between, connection
):
    source, follower = start_node(), start_node()
    proxy = between(source)
    known = await publish(connect, source, author, 200, "before" + "x" * 1_000)
    link(follower, proxy.url)
    caught_up(follower)
    whole, proxy.down = proxy.down, 0
    follower.freeze()
    known |= await publish(connect, source, author, 20, "meanwhile")
    if connection == "is cut":
        proxy.cut()
    follower.thaw()
    known |= await publish(connect, source, author, 20, "after")
    until(lambda: ids(follower) == known, lambda: explained(follower), 60)
    caught_up(follower)
    assert shown(follower)["repairs"] == 0
    assert proxy.down < whole / 4, f"{proxy.down} of {whole} bytes"


async def test_reconnects_that_fail_lead_to_polling_and_back_to_live(start_node, connect, author, between):
    source, follower = start_node(), start_node()
    proxy = between(source)
    link(follower, proxy.url)
    caught_up(follower)
    proxy.refuse()
    for _ in range(6):
        follower.admin("POST", "links/up/resume")
        await asyncio.sleep(0.15)
    until(lambda: shown(follower)["state"] == "degraded_poll", lambda: explained(follower))
    assert "compares with the peer every few seconds" in explained(follower)
    assert 0 < shown(follower)["next_try_seconds"] <= 15
    proxy.refuse(False)
    known = await publish(connect, source, author, 5, "after")
    assert caught_up(follower, seconds=40)["state"] == "live"
    assert ids(follower) == known


async def test_a_log_that_was_restored_is_repaired_and_never_jumped_over(start_node, connect, author, tmp_path):
    source, follower = start_node(), start_node()
    known = await publish(connect, source, author, 20, "saved")
    source.stop()
    shutil.copytree(source.data, tmp_path / "saved")
    source.start()
    link(follower, source.url, direction="both")
    known |= await publish(connect, source, author, 20, "lost there")
    until(lambda: ids(follower) == known, lambda: explained(follower))
    source.kill9()
    for name in ("anabranch.db", "anabranch.db-wal", "anabranch.db-shm"):
        (source.data / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "saved" / "anabranch.db", source.data)
    source.start()
    known |= await publish(connect, source, author, 20, "after the restore")
    follower.admin("POST", "links/up/resume")
    until(lambda: ids(follower) == ids(source) == known, lambda: explained(follower), 60)
    caught_up(follower)

    def steps() -> list[tuple[str, str]]:
        return [(step["cue"], step["after"]) for step in shown(follower)["transitions"]]

    # It is so before it is written down.
    until(lambda: steps()[-1] == ("caught_up", "live"), lambda: explained(follower))
    assert ("gap", "repairing") in steps()


async def test_a_floor_that_has_passed_the_checkpoint_is_repaired(start_node, connect, author):
    source = start_node(admin=True, env={"RETENTION_REPLAY_COUNT": "5"})
    follower = start_node()
    known = await publish(connect, source, author, 10, "before")
    link(follower, source.url)
    caught_up(follower)
    follower.admin("POST", "links/up/pause")
    known |= await publish(connect, source, author, 40, "meanwhile")
    source.compact()
    assert source.min_seq() > 20
    follower.admin("POST", "links/up/resume")
    until(lambda: ids(follower) == known, lambda: explained(follower))
    caught_up(follower)
    whys = [step["why"] for step in shown(follower)["transitions"] if step["cue"] == "gap"]
    assert whys == ["its log no longer reaches back to our checkpoint"]


async def test_a_full_disk_holds_the_checkpoint_and_loses_nothing(start_node, connect, author):
    source, follower = start_node(), start_node()
    link(follower, source.url)
    caught_up(follower)
    fill_disk(follower)
    known = await publish(connect, source, author, 200, "x" * 2_000)
    until(lambda: "our own store" in (shown(follower)["last_error"] or ""), lambda: explained(follower))
    assert not shown(follower)["caught_up"]
    free_disk(follower)
    follower.admin("POST", "links/up/resume")
    until(lambda: ids(follower) == known, lambda: explained(follower))
    caught_up(follower)
    follower.verify()


@pytest.mark.slow  # a half-open connection shows only by the silence after a ping
@pytest.mark.parametrize("ways", [("up",), ("down",), ("up", "down")], ids=" and ".join)
@pytest.mark.parametrize("direction", ["pull", "push"])
async def test_a_half_open_connection_is_left_and_nothing_is_lost(
    start_node, connect, author, between, direction, ways
):
    peer, node = start_node(), start_node()
    proxy = between(peer)
    link(node, proxy.url, direction=direction)
    giver = peer if direction == "pull" else node
    known = await publish(connect, giver, author, 20, "before")
    caught_up(node)
    until(lambda: ids(peer) == ids(node) == known, "what was there")
    connections = proxy.connections
    proxy.strand(*ways)
    known |= await publish(connect, giver, author, 20, "into nowhere")
    until(lambda: not shown(node)["caught_up"] and shown(node)["failures"], lambda: explained(node), 90)
    proxy.strand()
    node.admin("POST", "links/up/resume")
    caught_up(node, seconds=60)
    until(lambda: ids(peer) == ids(node) == known, "both have all")
    assert proxy.connections > connections


@pytest.mark.parametrize("direction", ["pull", "push", "both"])
async def test_connections_whose_first_words_arrive_twice_do_no_harm(start_node, connect, author, between, direction):
    peer, node = start_node(), start_node()
    proxy = between(peer)
    proxy.repeat()
    giver = peer if direction == "pull" else node
    known = await publish(connect, giver, author, 20, "before")
    link(node, proxy.url, direction=direction)
    caught_up(node)
    for turn in range(3):
        proxy.cut()
        known |= await publish(connect, giver, author, 20, f"turn {turn}")
        node.admin("POST", "links/up/resume")
        caught_up(node)
    until(lambda: ids(peer) == ids(node) == known, "both have all")
    assert proxy.repeated >= 4
    assert peer.max_seq() == len(known)  # and nothing twice
