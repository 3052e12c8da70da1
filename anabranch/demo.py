"""A story on a real node, every claim of which is checked while it is told.

Two devices of one author write a note, part, edit it apart and come back. Nothing is lost, the conflict is seen and
settled, history is compacted, and a third device starts from nothing with exactly the settled note. What is shown
went over the wire just then; a claim that does not hold ends the story with `Untrue`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from websockets.sync.client import ClientConnection, connect

from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Keys, serialise
from anabranch.core.snapshots import NOTE
from anabranch.store.held import read_holder

PATIENCE = 15.0  # seconds for an answer
START_PATIENCE = 30.0
COLOURS = {"laptop": "cyan", "phone": "magenta", "tablet": "yellow"}


class Untrue(Exception):
    """The story claimed something that the node did not do."""


def tell_story(pace: float) -> None:
    """Tell it, with `pace` seconds between the steps."""
    with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as folder:
        with DemoNode(Path(folder)).running() as node:
            Story(node, Teller(pace)).tell()
        if node.exit_code != 0:
            raise Untrue(f"the node ended with {node.exit_code} on SIGTERM")


# --- the node --------------------------------------------------------------------------------------------------------


class DemoNode:
    """`anabranch serve` in a process of its own, on a free port, in a folder that goes away."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.token = secrets.token_urlsafe(24)
        self.url = ""
        self.exit_code: int | None = None
        self._log = folder / "node.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")},
            "ANABRANCH_ADMIN_TOKEN": self.token,
        }

    @contextmanager
    def running(self) -> Iterator[DemoNode]:
        command = [sys.executable, "-m", "anabranch", "serve", "--host", "127.0.0.1", "--port", "0"]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--data", str(self.data)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; the node gets a SIGTERM
            )
        try:
            self._await_ready(process)
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                self.exit_code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            self.url = read_holder(self.data).url
            try:
                if self.url and self.http("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise Untrue(f"the node did not start:\n{self._log.read_text(errors='replace')[-2000:]}")

    @property
    def websocket(self) -> str:
        return f"ws://{urlsplit(self.url).netloc}/"

    def http(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Bearer {self.token}", "Accept": accept},
            )
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def info(self) -> dict[str, Any]:
        """The NIP-11 document."""
        answer: dict[str, Any] = json.loads(self.http("GET", "/", accept="application/nostr+json")[1])
        return answer

    def verify(self) -> dict[str, Any]:
        """`anabranch verify --json` beside the running node."""
        command = [sys.executable, "-m", "anabranch", "verify", "--json", "--data", str(self.data)]
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=60, check=False)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


# --- how it is told --------------------------------------------------------------------------------------------------


class Teller:
    """Prints the story, colours where there is a terminal."""

    def __init__(self, pace: float) -> None:
        self._console = Console(highlight=False)
        self._pace = pace
        self._chapter = 0

    def title(self, text: str, below: str) -> None:
        self._console.print(Panel(f"[bold]{escape(text)}[/]\n{escape(below)}", border_style="blue", expand=False))

    def chapter(self, text: str) -> None:
        self._chapter += 1
        self.pause()
        self._console.print(f"\n[bold blue]{self._chapter}. {escape(text)}[/]")

    def say(self, text: str) -> None:
        self._console.print(f"   {text}", soft_wrap=True)

    def wire(self, who: str, arrow: str, text: str) -> None:
        self._console.print(f"   [{COLOURS[who]}]{who:>6} {arrow}[/] [dim]{escape(text)}[/]", soft_wrap=True)
        self.pause(0.4)

    def claim(self, holds: bool, text: str) -> None:
        """Say it if it is so, end the story if it is not."""
        if not holds:
            self._console.print(f"   [bold red]✗ {escape(text)}[/]")
            raise Untrue(text)
        self._console.print(f"   [bold green]✓[/] {escape(text)}", soft_wrap=True)
        self.pause(0.6)

    def pause(self, share: float = 1.0) -> None:
        if self._pace:
            time.sleep(self._pace * share)


def short(id: str) -> str:
    return id[:8] + "…"


def shown_clock(clock: Mapping[str, int]) -> str:
    return " ".join(f"{device}:{clock[device]}" for device in sorted(clock))


# --- who acts --------------------------------------------------------------------------------------------------------


@dataclass
class Author:
    """Whose note it is. Devices share the key; what a payload says only they can read."""

    keys: Keys = field(default_factory=lambda: Keys(secrets.token_bytes(32)))
    note: str = field(default_factory=lambda: str(uuid.uuid4()).upper())
    texts: dict[str, str] = field(default_factory=dict)  # payload → text: stands for the decryption
    written_at: int = field(default_factory=lambda: int(time.time()) - 3600)  # the story happened an hour ago

    def version(self, text: str, clock: Mapping[str, int]) -> Event:
        payload = base64.b64encode(secrets.token_bytes(48)).decode()  # as opaque as NIP-44 would make it
        self.texts[payload] = text
        self.written_at += 60
        tags = [["d", self.note], ["o", "put"], *clocks.tags(clock)]
        return self.keys.sign(NOTE, tags, payload, self.written_at)


class Device:
    """A local-first client in miniature: it knows versions, a checkpoint, and a connection when there is one."""

    def __init__(self, name: str, author: Author, node: DemoNode, teller: Teller) -> None:
        self.name = name
        self.known: dict[str, int] = {}  # the clock of all it has seen
        self.checkpoint = 0
        self._author = author
        self._node = node
        self._teller = teller
        self._socket: ClientConnection | None = None
        self._subscriptions = 0

    def connect(self) -> None:
        self._socket = connect(self._node.websocket, compression=None, proxy=None, open_timeout=PATIENCE)

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def edit(self, text: str) -> Event:
        """A new version on top of all that the device has seen. Needs no connection."""
        self.known = clocks.advance(self.known, self.name)
        return self._author.version(text, self.known)

    def publish(self, event: Event) -> str:
        """The relay's word on it."""
        clock = clocks.parse(event.tags) or {}
        self._send(["EVENT", json.loads(serialise(event))], f'["EVENT", {NOTE}  vc {shown_clock(clock)}]')
        answer = self._receive()
        if answer[:2] != ["OK", event.id]:
            raise Untrue(f"an event was answered with {answer[:2]}")
        self._hear(f'["OK", {short(event.id)}, {json.dumps(answer[2])}, "{answer[3][:24]}…"]')
        if not answer[2]:
            raise Untrue(f"a good event was refused: {answer[3]}")
        return str(answer[3])

    def bootstrap(self) -> list[dict[str, Any]]:
        """What is current, at one moment; the checkpoint moves there."""
        name = self._subscribe({"mode": "bootstrap", "kinds": [NOTE], "authors": [self._author.keys.pubkey]})
        status = self._receive()
        if status[:3] != ["CHANGES", name, "STATUS"]:
            raise Untrue(f"a bootstrap began with {status[:3]}")
        self._hear(f'["CHANGES", "STATUS", snapshot_seq {status[3]["snapshot_seq"]}]')
        found = []
        while (frame := self._receive())[2] == "SNAPSHOT":
            found.append(frame[3])
            self._hear(f'["CHANGES", "SNAPSHOT", {short(frame[3]["id"])}  vc {shown_clock(clock_of(frame[3]))}]')
        if frame[2:] != ["EOSE", status[3]["snapshot_seq"]]:
            raise Untrue(f"a bootstrap at {status[3]} ended with {frame[2:]}")
        self._hear(f'["CHANGES", "EOSE", {frame[3]}]')
        self.checkpoint = frame[3]
        self.known = clocks.merge([self.known, *map(clock_of, found)])
        return found

    def follow(self) -> list[dict[str, Any]]:
        """What came since the checkpoint; from then on the device hears what is new."""
        self._subscribe(
            {
                "mode": "tail",
                "since": self.checkpoint,
                "kinds": [NOTE],
                "authors": [self._author.keys.pubkey],
                "live": True,
            }
        )
        found = []
        while (frame := self._receive())[2] == "EVENT":
            found.append(self._take(frame))
        if frame[2] != "EOSE":
            raise Untrue(f"a replay ended with {frame[2:]}")
        self._hear(f'["CHANGES", "EOSE", {frame[3]}]')
        self.checkpoint = frame[3]
        return found

    def hear_live(self) -> dict[str, Any]:
        frame = self._receive()
        if frame[0] != "CHANGES" or frame[2] != "EVENT":
            raise Untrue(f"a live event was awaited, and {frame[:3]} came")
        return self._take(frame)

    def ask_for(self, ids: list[str]) -> list[list[Any]]:
        """Everything that a REQ for these ids gets, before EOSE."""
        self._subscriptions += 1
        name = f"{self.name}-{self._subscriptions}"
        self._send(["REQ", name, {"ids": ids}], f'["REQ", ids {" ".join(map(short, ids))}]')
        frames = []
        while (frame := self._receive())[0] != "EOSE":
            frames.append(frame)
            what = frame[2]["status"] if frame[0] == "EVENT-STATUS" else "with its payload"
            self._hear(f'["{frame[0]}", {short(frame[2]["id"])}, {what}]')
        self._hear('["EOSE"]')
        return frames

    def _take(self, frame: list[Any]) -> dict[str, Any]:
        event: dict[str, Any] = frame[4]
        self._hear(f'["CHANGES", "EVENT", {frame[3]}, {short(event["id"])}  vc {shown_clock(clock_of(event))}]')
        if frame[3] <= self.checkpoint:
            raise Untrue(f"seq {frame[3]} came after {self.checkpoint}")
        self.checkpoint = frame[3]
        self.known = clocks.merge([self.known, clock_of(event)])
        return event

    def _subscribe(self, filter: dict[str, Any]) -> str:
        self._subscriptions += 1
        name = f"{self.name}-{self._subscriptions}"
        since = f" since {filter['since']} live" if "since" in filter else ""
        self._send(["CHANGES", name, filter], f'["CHANGES", {filter["mode"]}{since}]')
        return name

    def _send(self, message: list[Any], shown: str) -> None:
        assert self._socket is not None, "offline"
        self._teller.wire(self.name, "→", shown)
        self._socket.send(json.dumps(message))

    def _receive(self) -> list[Any]:
        assert self._socket is not None, "offline"
        try:
            frame: list[Any] = json.loads(self._socket.recv(timeout=PATIENCE))
        except TimeoutError:
            raise Untrue(f"the node left the {self.name} without an answer") from None
        return frame

    def _hear(self, text: str) -> None:
        self._teller.wire(self.name, "←", text)


def clock_of(event: Mapping[str, Any]) -> dict[str, int]:
    return clocks.parse(event["tags"]) or {}


# --- what happens ----------------------------------------------------------------------------------------------------


class Story:
    def __init__(self, node: DemoNode, teller: Teller) -> None:
        self._node = node
        self._t = teller
        self._author = Author()
        self._laptop, self._phone, self._tablet = (
            Device(name, self._author, node, teller) for name in ("laptop", "phone", "tablet")
        )

    def tell(self) -> None:
        t = self._t
        t.title(
            "Anabranch: a branch of a river that leaves the main stream and joins it again",
            "One author, three devices, one note. The node is real, and so is every line below.",
        )
        try:
            first = self._write_and_follow()
            versions = self._part()
            self._come_back(versions)
            merged = self._settle(versions)
            self._compact(first)
            self._begin_anew(merged)
            self._look_back()
        finally:
            for device in (self._laptop, self._phone, self._tablet):
                device.disconnect()

    def _text(self, event: Mapping[str, Any]) -> str:
        return self._author.texts[event["content"]]

    def _write_and_follow(self) -> Event:
        t, laptop, phone = self._t, self._laptop, self._phone
        t.chapter("The laptop writes a note")
        t.say(f"A node listens on {self._node.websocket}. It sees clocks and signatures; the text it cannot read.")
        laptop.connect()
        first = laptop.edit("Buy bread")
        laptop.publish(first)
        for text in ("Buy bread and milk", "Buy bread, milk and tea"):
            laptop.publish(laptop.edit(text))
        t.chapter("The phone joins: what is current now, then what comes next")
        phone.connect()
        (current,) = phone.bootstrap()
        t.claim(self._text(current) == "Buy bread, milk and tea", "it gets the newest version, and only that")
        phone.follow()
        laptop.publish(laptop.edit("Buy bread, milk, tea and honey"))
        heard = phone.hear_live()
        t.claim(self._text(heard) == "Buy bread, milk, tea and honey", "an edit on the laptop arrives live")
        return first

    def _part(self) -> tuple[Event, Event]:
        t = self._t
        t.chapter("Both go offline and edit the same note")
        t.say("The laptop notes where it stands, as the phone has done:")
        self._laptop.bootstrap()
        seen = self._laptop.checkpoint
        t.claim(seen == self._phone.checkpoint, f"both have seen everything up to position {seen}")
        self._laptop.disconnect()
        self._phone.disconnect()
        on_laptop = self._laptop.edit("Buy bread, milk, tea, honey, and lemons")
        on_phone = self._phone.edit("Buy bread, milk, tea (green!) and honey")
        for name, event in (("laptop", on_laptop), ("phone", on_phone)):
            t.say(f"[{COLOURS[name]}]{name:>6}[/] “{self._author.texts[event.content]}”")
        a, b = clocks.parse(on_laptop.tags) or {}, clocks.parse(on_phone.tags) or {}
        t.say(f"       clocks: \\[{shown_clock(a)}] and \\[{shown_clock(b)}]")
        t.claim(clocks.compare(a, b) is clocks.Order.CONCURRENT, "neither has seen the other: they are concurrent")
        return on_laptop, on_phone

    def _come_back(self, versions: tuple[Event, Event]) -> None:
        t, (on_laptop, on_phone) = self._t, versions
        t.chapter("Both come back: nothing is refused, nothing is overwritten")
        self._laptop.connect()
        self._laptop.publish(on_laptop)
        self._phone.connect()
        self._phone.publish(on_phone)
        current = self._phone.bootstrap()
        t.claim(
            {event["id"] for event in current} == {on_laptop.id, on_phone.id},
            "the note has two heads: the conflict is seen, and both versions are there",
        )

    def _settle(self, versions: tuple[Event, Event]) -> Event:
        t, phone = self._t, self._phone
        t.chapter("A person settles it on the phone")
        merged = phone.edit("Buy bread, milk, tea (green!), honey, and lemons")
        clock = clocks.parse(merged.tags) or {}
        t.say(f"The new clock \\[{shown_clock(clock)}] has seen both: pointwise maximum, then its own entry plus one.")
        t.claim(all(clocks.dominates(clock, clocks.parse(event.tags) or {}) for event in versions), "it dominates both")
        phone.publish(merged)
        t.claim([event["id"] for event in phone.bootstrap()] == [merged.id], "one head again")
        t.say("The laptop goes on from its checkpoint and hears what it missed, in order:")
        missed = [event["id"] for event in self._laptop.follow()]
        t.claim(missed == [*(event.id for event in versions), merged.id], "nothing lost, nothing twice")
        return merged

    def _compact(self, first: Event) -> None:
        t = self._t
        t.chapter("History is compacted: payloads go, facts stay")
        self._laptop.disconnect()
        t.say('PATCH /admin/retention  {"payload_retention_days": 0}')
        status, body = self._node.http("PATCH", "/admin/retention", {"payload_retention_days": 0})
        t.claim(status == 200, "the operator's word is taken at once")
        count = json.loads(body)["compacted_snapshots"]
        t.claim(count == 3, f"{count} of 7 payloads are gone: the head and the three newest before it stay")
        unknown = secrets.token_hex(32)
        frames = self._phone.ask_for([first.id, unknown])
        t.claim(
            [(frame[0], frame[2]) for frame in frames]
            == [("EVENT-STATUS", {"id": first.id, "status": "payload_compacted"})],
            "«compacted» and «never heard of» are different answers",
        )

    def _begin_anew(self, merged: Event) -> None:
        t, tablet = self._t, self._tablet
        t.chapter("A tablet starts from nothing")
        tablet.connect()
        current = tablet.bootstrap()
        t.claim([event["id"] for event in current] == [merged.id], "it gets exactly the settled note")
        t.say(f"[{COLOURS['tablet']}]tablet[/] “{self._text(current[0])}”")

    def _look_back(self) -> None:
        t = self._t
        t.chapter("And the store is what it says")
        feed = self._node.info()["changes_feed"]
        t.say(f"NIP-11: min_seq {feed['min_seq']}, max_seq {feed['max_seq']}, epoch {short(feed['epoch'])}")
        answer = self._node.verify()
        t.claim(
            answer.get("sound") is True and answer["checked"] == 7,
            "anabranch verify, beside the running node: 7 operations checked again, and all is sound",
        )
        t.say("Next: [bold]make run[/], then point a client at ws://127.0.0.1:7447/.")
