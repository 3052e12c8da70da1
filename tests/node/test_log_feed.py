"""CHANGES in log mode: every operation of every family that a filter matches, in order, replayed and live."""

import pytest
from authors import Author, snapshot


async def test_the_log_is_replayed_in_order_and_goes_on_live_with_every_family(start_node, connect, author):
    node = start_node()
    client = await connect(node)
    first = [author.event(content="plain"), snapshot(author, "d", {"a": 1}), author.event(7, content="+")]
    await client.store(*first)
    feed = await client.changes({"mode": "log", "since": 0, "live": True}, sub="l")
    assert feed.ids == [event["id"] for event in first]
    assert feed.seqs == [1, 2, 3]
    later = snapshot(author, "d", {"a": 2})
    await client.store(later)
    assert await client.next_change("l") == (4, later)


async def test_what_is_not_in_the_log_is_not_in_its_feed(start_node, connect, author):
    """An ephemeral event has no position: whoever follows the log would go back to its beginning."""
    client = await connect(start_node())
    await client.changes({"mode": "log", "since": 0, "live": True}, sub="l")
    await client.req({"kinds": [20_001]}, sub="seen", live=True)
    passing, kept = author.event(20_001, "passing"), author.event(content="kept")
    await client.store(passing)
    assert (await client.next_of("seen"))[2] == passing
    await client.store(kept)
    assert await client.next_change("l") == (1, kept)


async def test_a_token_of_this_log_resumes_and_one_of_another_gets_the_gap_in_tokens(start_node, connect, author):
    node = start_node()
    client = await connect(node)
    await client.store(*(author.event(content=str(number)) for number in range(3)))
    told = node.info()["changes_feed"]
    assert told["tokens"] is True
    token = {"streamId": told["stream_id"], "epoch": told["epoch"], "position": "1", "messageCid": ""}
    assert (await client.changes({"mode": "log", "token": token})).seqs == [2, 3]
    for changed, reason in (
        ({"epoch": "another"}, "epoch_mismatch"),
        ({"streamId": "another"}, "stream_mismatch"),
        ({"position": "9"}, "token_too_new"),
    ):
        asked = {**token, **changed}
        feed = await client.changes({"mode": "log", "token": asked, "live": True})
        assert feed.error is not None and not feed.ids
        available = {"streamId": told["stream_id"], "epoch": told["epoch"], "messageCid": ""}
        assert feed.frames[-1][4] == {
            "requested": asked,
            "oldestAvailable": {**available, "position": "1"},
            "latestAvailable": {**available, "position": "3"},
            "reason": reason,
        }
    bare = await client.changes({"mode": "log", "since": 9})
    assert bare.frames[-1][3:] == ["checkpoint too new: max_seq is 3"]


async def test_a_token_that_names_what_the_log_does_not_have_there_gets_a_gap(start_node, connect, author):
    node = start_node()
    client = await connect(node)
    events = [author.event(content=str(number)) for number in range(4)]
    await client.store(*events)
    deletion = author.event(5, tags=[["e", events[1]["id"]]])
    await client.store(deletion)
    told = node.info()["changes_feed"]
    token = {"streamId": told["stream_id"], "epoch": told["epoch"], "position": "3"}
    for message in (events[2]["id"], events[0]["id"], events[1]["id"], ""):
        assert (await client.changes({"mode": "log", "token": {**token, "messageCid": message}})).seqs[0] == 4
    for message in (events[3]["id"], "ff" * 32, "no id"):
        feed = await client.changes({"mode": "log", "token": {**token, "messageCid": message}, "live": True})
        assert feed.error == "checkpoint of another history: its operation is not known at or before 3"
        assert feed.frames[-1][4]["reason"] == "message_mismatch"
        assert feed.frames[-1][4]["requested"] == {**token, "messageCid": message}
        assert not feed.ids
    another = {**token, "epoch": "another", "messageCid": "ff" * 32}
    assert (await client.changes({"mode": "log", "token": another})).frames[-1][4]["reason"] == "epoch_mismatch"


async def test_only_what_the_filter_matches_is_carried_and_the_end_is_the_tip(start_node, connect, author):
    node = start_node()
    client = await connect(node)
    other = Author.random()
    tagged = author.event(content="tagged", tags=[["t", "x"]])
    await client.store(author.event(content="1"), tagged, other.event(content="2"), author.event(7, content="+"))
    for conditions, wanted in (
        ({"authors": [other.pubkey]}, [3]),
        ({"kinds": [7]}, [4]),
        ({"#t": ["x"], "authors": [author.pubkey]}, [2]),
        ({"ids": [tagged["id"]]}, [2]),
        ({"kinds": []}, []),
    ):
        feed = await client.changes({"mode": "log", "since": 0, **conditions})
        assert feed.seqs == wanted, conditions
        assert feed.eose == 4


async def test_a_removal_is_passed_over_and_the_feed_goes_on_beyond_its_position(start_node, connect, author):
    client = await connect(start_node())
    note, kept = author.event(content="note"), snapshot(author, "d", {"a": 1})
    await client.store(note, kept)
    await client.changes({"mode": "log", "since": 2, "live": True}, sub="l")
    deletion = author.event(5, tags=[["e", note["id"]]])
    await client.store(deletion)  # at 3, and the removal at 4
    assert await client.next_change("l") == (3, deletion)
    feed = await client.changes({"mode": "log", "since": 0})
    assert (feed.ids, feed.seqs, feed.eose) == ([kept["id"], deletion["id"]], [2, 3], 4)
    later = author.event(content="later")
    await client.store(later)
    assert await client.next_change("l") == (5, later)
    assert (await client.changes({"mode": "log", "since": 4})).seqs == [5]


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"until": 5}, "a log feed ends at until_seq; it knows no until"),
        ({"colour": ["red"]}, "unknown filter field 'colour'"),
        ({"authors": ["me"]}, "authors must be lower-case hex of 64 characters"),
        ({"since": 99}, "checkpoint too new: max_seq is 0"),
    ],
)
async def test_what_is_no_log_feed_is_refused_in_words(start_node, connect, filter, said):
    client = await connect(start_node())
    feed = await client.changes({"mode": "log", **filter})
    assert feed.error == said


async def test_a_token_tells_nobody_where_others_stand_in_a_private_log(start_node, connect, author):
    node = start_node(env={"PRIVATE": "true"})
    other = Author.random()
    mine, theirs = await connect(node), await connect(node)
    for who, client in ((author, mine), (other, theirs)):
        assert (await client.authenticate(who, await client.challenge(), node.url)).accepted
    first, second = author.event(content="mine"), other.event(content="theirs")
    await mine.store(first)
    await theirs.store(second)
    told = node.info()["changes_feed"]
    token = {"streamId": told["stream_id"], "epoch": told["epoch"], "position": "2"}
    answers = []
    for message in (second["id"], "ff" * 32):
        for mode in ({"mode": "log", "authors": [author.pubkey]}, {"mode": "tail", "authors": [author.pubkey]}):
            feed = await mine.changes({**mode, "token": {**token, "messageCid": message}})
            answers.append((feed.error, feed.frames[-1][4]["reason"]))
    assert len(set(answers)) == 1 and answers[0][1] == "message_mismatch"
    own = await mine.changes({"mode": "log", "authors": [author.pubkey], "token": {**token, "messageCid": first["id"]}})
    assert own.error is None


async def test_a_private_node_shows_the_log_only_to_those_it_belongs_to(start_node, connect, author):
    node = start_node(env={"PRIVATE": "true"})
    client = await connect(node)
    challenge = await client.challenge()
    for filter in ({}, {"authors": [author.pubkey]}):
        assert (await client.changes({"mode": "log", **filter})).error.startswith("auth-required:")
    assert (await client.authenticate(author, challenge, node.url)).accepted
    mine = snapshot(author, "d", {"a": 1})
    await client.store(mine)
    assert (await client.changes({"mode": "log", "authors": [author.pubkey]})).ids == [mine["id"]]
    stranger = Author.random().pubkey
    assert (await client.changes({"mode": "log", "authors": [stranger]})).error.startswith("restricted:")
    assert (await client.changes({"mode": "log"})).error.startswith("restricted:")


async def test_a_live_feed_says_how_far_it_is_complete_where_nothing_was_for_it(start_node, connect, author):
    node = start_node(admin=True)
    client, other = await connect(node), Author.random()
    note = author.event(content="note")
    await client.store(note)
    await client.changes({"mode": "log", "since": 0, "live": True}, sub="all")
    await client.changes({"mode": "log", "since": 0, "live": True, "authors": [other.pubkey]}, sub="other")
    assert node.admin("DELETE", f"events/{note['id']}").status == 200
    assert await client.next_of("all") == ["CHANGES", "all", "PASSED", 2]
    assert await client.next_of("other") == ["CHANGES", "other", "PASSED", 2]
    later = author.event(content="later")
    await client.store(later)
    assert await client.next_change("all") == (3, later)
    assert await client.next_of("other") == ["CHANGES", "other", "PASSED", 3]
    wanted = other.event(content="wanted")
    await client.store(wanted)
    assert await client.next_change("other") == (4, wanted)
    assert await client.next_change("all") == (4, wanted)  # and nothing was said of what it had
