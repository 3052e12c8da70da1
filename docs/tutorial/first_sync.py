"""A first sync by hand: two devices edit one note apart, and their histories join again."""

import json
import secrets
import sys
import time

from websockets.sync.client import connect

from anabranch.core import clock
from anabranch.core.nostr import Keys, serialise

author = Keys(secrets.token_bytes(32))  # one person; all their devices share this key


def receive():
    """The next message from the relay."""
    return json.loads(relay.recv(timeout=10))


def publish(vector, text):
    """Sign a whole version of the note and wait for the relay's OK."""
    tags = [["d", "shopping"], ["o", "put"], *clock.tags(vector)]
    event = author.sign(42061, tags, text, int(time.time()))
    relay.send('["EVENT",' + serialise(event).decode() + "]")
    print("OK      ", *receive()[2:])


def changes(name, **wanted):
    """Ask the changes feed, and return what it says up to EOSE."""
    relay.send(json.dumps(["CHANGES", name, {"authors": [author.pubkey], "kinds": [42061], **wanted}]))
    answer = [receive()[2:]]
    while answer[-1][0] != "EOSE":
        answer.append(receive()[2:])
    for word, value in answer:
        print(f"{word:8}", value["content"] if word == "SNAPSHOT" else value)
    return answer


with connect(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:7447/") as relay:
    print("1. Laptop and phone write the same note, neither having seen the other.")
    publish({"laptop": 1}, "milk, bread")
    publish({"phone": 1}, "milk, eggs")

    print("2. A tablet bootstraps: all that is current, and the position it is current at.")
    answer = changes("boot", mode="bootstrap")
    heads = [clock.parse(event["tags"]) for word, event in answer if word == "SNAPSHOT"]
    print(f"         {len(heads)} versions, {clock.compare(*heads).value}: a conflict")

    print("3. It follows the log from that position, live, and merges.")
    changes("follow", mode="tail", since=answer[-1][1], live=True)
    publish(clock.advance(clock.merge(heads), "tablet"), "milk, bread, eggs")
    _, _, word, position, event = receive()
    print(f"{word:8}", position, event["content"], clock.parse(event["tags"]))

    print("4. Whoever bootstraps now finds one version.")
    changes("again", mode="bootstrap")
