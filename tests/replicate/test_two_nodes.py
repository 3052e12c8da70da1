"""Two real nodes and a link: what one takes, the other has, and the two know it."""

import json

from nodes import caught_up, explained, ids, link, shown, until


async def publish(connect, node, events):
    client = await connect(node)
    await client.store(*events)
    return {event["id"] for event in events}


async def test_a_pulled_link_brings_what_was_there_and_what_comes(start_node, connect, author):
    source, follower = start_node(), start_node()
    first = await publish(connect, source, [author.event(content=str(number)) for number in range(50)])
    link(follower, source.url)
    caught_up(follower)
    assert ids(follower) == first
    second = await publish(connect, source, [author.event(content=f"more {number}") for number in range(20)])
    until(lambda: ids(follower) == first | second, "what came later")
    assert shown(follower)["state"] == "live"


async def test_a_link_both_ways_makes_two_nodes_equal_and_sends_no_echo(start_node, connect, author):
    one, other = start_node(), start_node()
    here = await publish(connect, one, [author.event(content=f"one {number}") for number in range(30)])
    there = await publish(connect, other, [author.event(content=f"other {number}") for number in range(30)])
    link(one, other.url, direction="both")
    caught_up(one)
    assert ids(one) == ids(other) == here | there
    more = await publish(connect, other, [author.event(content=f"later {number}") for number in range(30)])
    until(lambda: ids(one) == here | there | more, "what came later")
    again = await publish(connect, one, [author.event(content="last")])
    until(lambda: ids(other) == here | there | more | again, "what went later")
    caught_up(one)


async def test_a_node_with_more_than_a_session_may_compare_has_links_all_the_same(start_node, connect, author):
    few = "[limits]\nreconcile_items = 20\n"
    one, other = start_node(config=few), start_node(config=few)
    here = await publish(connect, one, [author.event(content=f"one {number}") for number in range(60)])
    there = await publish(connect, other, [author.event(content=f"other {number}") for number in range(60)])
    link(one, other.url, direction="both")
    caught_up(one)
    assert ids(one) == ids(other) == here | there


async def test_what_a_scope_may_hold_is_bounded_and_the_link_says_so(start_node, connect, author):
    one, other = start_node(config="[limits]\nlink_items = 20\n"), start_node()
    await publish(connect, one, [author.event(content=f"one {number}") for number in range(21)])
    link(one, other.url, direction="both")
    until(lambda: "raise limits.link_items" in explained(one), lambda: explained(one))


async def test_a_deletion_travels_and_what_only_the_peer_removed_stays_here(start_node, connect, author):
    source, follower = start_node(admin=True), start_node()
    deleted, removed, kept = (author.event(content=said) for said in ("deleted", "removed", "kept"))
    await publish(connect, source, [deleted, removed, kept])
    link(follower, source.url)
    caught_up(follower)
    deletion = author.event(5, tags=[["e", deleted["id"]]])
    await publish(connect, source, [deletion])
    stays = {removed["id"], kept["id"], deletion["id"]}
    until(lambda: ids(follower) == stays, "the deletion")
    assert source.admin("DELETE", f"events/{removed['id']}").status == 200  # the last of its positions
    assert [follower.admin("POST", f"links/up/{verb}").status for verb in ("pause", "resume")] == [200, 200]
    caught_up(follower)
    assert shown(follower)["pull"]["contiguous"]["position"] == str(source.max_seq())
    assert (ids(follower), ids(source)) == (stays, stays - {removed["id"]})


async def test_a_deletion_travels_in_a_scope_that_names_other_kinds(start_node, connect, author):
    source, follower, fed = start_node(), start_node(), start_node()
    scope = {"kinds": [1]}
    deleted, kept, other = author.event(content="deleted"), author.event(content="kept"), author.event(7, content="+")
    await publish(connect, source, [deleted, kept, other])
    link(follower, source.url, scope=scope)
    link(source, fed.url, "down", scope=scope, direction="push")
    until(lambda: ids(follower) == ids(fed) == {deleted["id"], kept["id"]}, "the notes")
    deletion = author.event(5, tags=[["e", deleted["id"]], ["k", "1"]])
    await publish(connect, source, [deletion])
    stays = {kept["id"], deletion["id"]}
    until(lambda: ids(follower) == ids(fed) == stays, "the deletion")
    assert (caught_up(follower)["repairs"], caught_up(source, "down")["repairs"]) == (0, 0)
    late = start_node()
    link(late, source.url, scope=scope)
    caught_up(late)
    assert ids(late) == stays
    client = await connect(late)
    assert not (await client.publish(deleted)).accepted
    assert ids(late) == stays


async def test_a_request_to_vanish_travels_in_a_scope_that_names_other_kinds(start_node, connect, author):
    source, follower = start_node(), start_node()
    await publish(connect, source, [author.event(content="mine")])
    link(follower, source.url, scope={"kinds": [1]})
    caught_up(follower)
    request = author.event(62, tags=[["relay", "ALL_RELAYS"]])
    await publish(connect, source, [request])
    until(lambda: ids(follower) == ids(source) == {request["id"]}, "the request")
    caught_up(follower)


async def test_a_node_on_postgresql_follows_and_feeds_and_knows_how_far_after_a_kill(
    start_node, connect, author, postgres
):
    one, other = start_node(env={"STORE": postgres.empty_url()}), start_node()
    here = await publish(connect, one, [author.event(content=f"one {number}") for number in range(20)])
    there = await publish(connect, other, [author.event(content=f"other {number}") for number in range(20)])
    link(one, other.url, direction="both")
    caught_up(one)
    assert ids(other) == here | there
    before = shown(one)
    one.kill9()
    more = await publish(connect, other, [author.event(content="while it was gone")])
    one.start()
    assert caught_up(one)["repairs"] == before["repairs"]
    client = await connect(one)
    assert set((await client.req({"authors": [author.pubkey]})).ids) == here | there | more


async def test_the_checkpoint_of_a_live_link_moves_with_a_peer_that_only_removes(start_node, connect, author):
    source, follower = start_node(admin=True), start_node()
    events = [author.event(content=str(number)) for number in range(5)]
    await publish(connect, source, events)
    link(follower, source.url)
    link(follower, source.url, "narrow", scope={"kinds": [7]})
    assert caught_up(follower)["pull"]["contiguous"]["position"] == "5"
    caught_up(follower, "narrow")
    for event in events[:3]:
        assert source.admin("DELETE", f"events/{event['id']}").status == 200
    for name in ("up", "narrow"):
        until(lambda name=name: shown(follower, name)["pull"]["contiguous"]["position"] == "8", "the removals passed")
        assert (shown(follower, name)["lag_positions"]["pull"], shown(follower, name)["repairs"]) == (0, 0)
    follower.kill9()
    follower.start()
    assert caught_up(follower)["repairs"] == 0
    assert ids(follower) == {event["id"] for event in events}


async def followed_and_fed_across_an_import(start_node, connect, author, tmp_path, *options):
    """A source of twenty into which thirty are imported: it and its follower, before and after."""
    source, follower, fed = start_node(), start_node(), start_node()
    before = await publish(connect, source, [author.event(content=f"before {number}") for number in range(20)])
    link(follower, source.url)
    link(source, fed.url, direction="push")
    stood = caught_up(follower)["pull"]["contiguous"]
    caught_up(source)
    source.stop()
    dump = [author.event(content=f"imported {number}", created_at=1_600_000_000 + number) for number in range(30)]
    (tmp_path / "dump.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in dump))
    assert source.cli("import", str(tmp_path / "dump.jsonl"), *options).returncode == 0
    source.start()
    for node in (follower, source):
        node.admin("POST", "links/up/resume")
    everything = before | {event["id"] for event in dump}
    until(lambda: ids(follower) == ids(fed) == everything, "what was imported")
    return source, stood, caught_up(follower)


async def test_an_import_over_a_log_that_has_something_opens_a_new_epoch_and_who_follows_compares(
    start_node, connect, author, tmp_path
):
    source, stood, after = await followed_and_fed_across_an_import(start_node, connect, author, tmp_path)
    epoch = source.info()["changes_feed"]["epoch"]
    assert epoch != stood["epoch"] and after["pull"]["contiguous"]["epoch"] == epoch
    assert after["repairs"] >= 1


async def test_an_import_that_keeps_the_epoch_keeps_every_token_true(start_node, connect, author, tmp_path):
    source, stood, after = await followed_and_fed_across_an_import(
        start_node, connect, author, tmp_path, "--keep-epoch"
    )
    assert (after["repairs"], source.info()["changes_feed"]["epoch"]) == (0, stood["epoch"])
    assert after["pull"]["contiguous"]["epoch"] == stood["epoch"]
    assert (stood["position"], after["pull"]["contiguous"]["position"]) == ("20", "50")
    assert caught_up(source)["repairs"] == 0
