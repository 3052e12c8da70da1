"""Two real nodes and a link: what one takes, the other has, and the two know it."""

from nodes import caught_up, ids, link, shown, until


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
