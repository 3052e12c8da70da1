"""`anabranch link` and links in the settings file, on real nodes."""

import json
import os
import signal
import subprocess
from pathlib import Path

from nodes import caught_up, ids, link, shown, until
from processes import ANABRANCH

from anabranch.cli.link import _value
from anabranch.core import nip19
from anabranch.core.token import Log, Position, ProgressToken, gap
from anabranch.node.main import NAMES_AT_ONCE


def run(node, *arguments, code=0):
    answer = node.cli("link", *arguments, "--json")
    assert answer.returncode == code, answer.stdout + answer.stderr
    return json.loads(answer.stdout)


async def test_a_link_is_added_shown_paused_resumed_repaired_reset_and_removed(start_node, connect, author):
    source, follower = start_node(), start_node()
    client = await connect(source)
    events = [author.event(content=str(number)) for number in range(5)]
    await client.store(*events)
    added = run(follower, "add", source.url, "--name", "up", "--author", author.pubkey, "--wait")
    assert (added["state"], added["caught_up"]) == ("live", True)
    assert added["scope"] == {"authors": [author.pubkey]}
    assert ids(follower) == {event["id"] for event in events}
    assert [one["name"] for one in run(follower, "list")["links"]] == ["up"]
    one = run(follower, "show", "up")
    assert one["pull"]["contiguous"]["position"] == "5"
    assert one["transitions"][-1]["after"] == "live"
    explained = run(follower, "explain", "up")
    assert "caught up" in explained["explanation"][0] and "but for" not in explained["explanation"][0]
    assert explained["explanation"][1].startswith("It has been live since 20")
    follower.restart()
    assert run(follower, "explain", "up")["explanation"][1].startswith("It has been ")
    assert run(follower, "pause", "up")["state"] == "paused"
    assert "is paused" in run(follower, "repair", "up", code=1)["error"]
    assert run(follower, "resume", "up", "--wait")["caught_up"]
    assert run(follower, "repair", "up", "--wait")["caught_up"]
    assert run(follower, "reset", "up", "--wait")["caught_up"]
    assert run(follower, "remove", "up")["removed"]
    assert run(follower, "list")["links"] == []
    assert ids(follower) == {event["id"] for event in events}


def test_what_cannot_be_done_is_said_with_what_to_do(start_node, tmp_path):
    node = start_node()
    assert "peer must be the address of a relay" in run(node, "add", "http://x", code=2)["error"]
    assert "npub1… or 64 hexadecimal digits" in run(node, "add", "ws://x", "--author", "me", code=2)["error"]
    assert "`anabranch link list` shows those there are" in run(node, "show", "nobody", code=1)["error"]
    assert "a link has a name" in run(node, "show", "", code=2)["error"]
    run(node, "add", "ws://127.0.0.1:9/", "--name", "x")
    assert "there is a link 'x' already" in run(node, "add", "ws://other", "--name", "x", code=1)["error"]
    assert "same peer, scope and direction" in run(node, "add", "ws://127.0.0.1:9", code=1)["error"]
    late = run(node, "resume", "x", "--wait", "--timeout", "0.3", code=1)["error"]
    assert "has not caught up within 0.3 s" in late
    assert "nothing answers at this address" in late
    node.stop()
    assert "no node runs on" in run(node, "list", code=1)["error"]


def test_names_that_nobody_answers_for_leave_threads_to_look_up_others(start_node):
    node = start_node()
    link(node, "ws://localhost:9/")
    tasks = Path(f"/proc/{node.process.pid}/task")
    until(lambda: len(list(tasks.iterdir())) >= NAMES_AT_ONCE, node.log_tail)


def test_a_node_does_not_follow_itself(start_node):
    node = start_node()
    link(node, node.url)
    until(lambda: "this very node" in (shown(node)["last_error"] or ""), lambda: shown(node))


async def test_links_of_the_settings_file_are_read_again_without_cutting_the_others(start_node, connect, author):
    first, second = start_node(), start_node()
    kept = f'[[links]]\nname = "kept"\npeer = "{first.url}"\n'
    gone = f'[[links]]\nname = "gone"\npeer = "{second.url}"\nscope = {{ kinds = [7] }}\n'
    new = f'[[links]]\nname = "new"\npeer = "{second.url}"\ndirection = "both"\n'
    follower = start_node(config=kept + gone)
    caught_up(follower, "kept")
    connections = first.http("GET", "/metrics").text.split("anabranch_connections_opened_total ")[1].split()[0]
    refused = follower.admin("DELETE", "links/kept")
    assert refused.status == 400 and "stands in the settings file" in refused.text
    follower.config_file.write_text(kept + new)
    follower.process.send_signal(signal.SIGHUP)
    until(lambda: follower.admin("GET", "links/new").status == 200, follower.log_tail)
    caught_up(follower, "new")
    assert follower.admin("GET", "links/gone").status == 404
    again = first.http("GET", "/metrics").text.split("anabranch_connections_opened_total ")[1].split()[0]
    assert connections == again
    follower.config_file.write_text(kept + "[[links]]\nname = 5\n")
    follower.process.send_signal(signal.SIGHUP)
    until(lambda: "the settings were not read again" in follower.log.read_text(), follower.log_tail)
    assert shown(follower, "new")["caught_up"]
    follower.config_file.write_text(kept + new)
    follower.restart()
    caught_up(follower, "kept")


def test_a_node_that_is_to_read_its_links_again_while_it_starts_starts_and_does(start_node):
    node = start_node(config="")
    node.stop()
    command = [ANABRANCH, "serve", "--host", "127.0.0.1", "--port", str(node.port), "--data", str(node.data)]
    with node.log.open("ab") as log:
        node.process = process = subprocess.Popen(
            [*command, "--config", str(node.config_file)],
            env=node.env,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
    status = Path(f"/proc/{process.pid}/status")
    until(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & 1, node.log_tail)  # it is caught
    process.send_signal(signal.SIGHUP)
    node._await_ready()
    until(lambda: "the links of the settings were read again" in node.log.read_text(), node.log_tail)
    assert node.stop() == 0


def test_without_a_settings_file_a_closed_terminal_ends_the_node_cleanly(start_node):
    node = start_node()
    node.stop()
    ours, its = os.openpty()
    command = [ANABRANCH, "serve", "--host", "127.0.0.1", "--port", str(node.port), "--data", str(node.data)]
    process = subprocess.Popen(
        command,
        env=node.env,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
    )
    node.process = process
    node._await_ready()
    os.close(its)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 0
    node.start()  # the store was let go of


def test_under_nohup_a_node_outlives_its_terminal(start_node, tmp_path):
    node = start_node()
    node.stop()
    command = ["nohup", ANABRANCH, "serve", "--host", "127.0.0.1", "--port", str(node.port), "--data", str(node.data)]
    with (tmp_path / "nohup.log").open("wb") as log:
        node.process = subprocess.Popen(command, env=node.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    node._await_ready()
    node.process.send_signal(signal.SIGHUP)
    assert node.http("GET", "/readyz").status == 200
    assert node.stop() == 0


async def test_three_nodes_in_a_ring_end_equal(start_node, connect, author):
    nodes = [start_node() for _ in range(3)]
    for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        link(one, other.url, direction="both")
    known = set()
    for number, node in enumerate(nodes):
        client = await connect(node)
        events = [author.event(content=f"{number} {at}") for at in range(40)]
        await client.store(*events)
        known |= {event["id"] for event in events}
    until(lambda: all(ids(node) == known for node in nodes), "three equal nodes")
    for node in nodes:
        caught_up(node)


def test_a_gap_is_shown_in_words():
    log = Log("s", "e", Position(5), Position(9))
    missed = gap(log, Position(2))
    assert missed is not None
    told = missed.to_wire(log, ProgressToken("s", "e", Position(2)))
    assert _value(told) == "asked for 2, there was 5 to 9: token_too_old"
    assert "2 of another epoch" in _value(missed.to_wire(log, ProgressToken("s", "before", Position(2))))


def test_people_are_named_as_they_are_passed_on(start_node, author):
    node = start_node()
    npub = nip19.encode("npub", bytes.fromhex(author.pubkey))
    added = run(node, "add", "ws://127.0.0.1:9/", "--author", npub)
    assert added["scope"] == {"authors": [author.pubkey]}
